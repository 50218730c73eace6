"""The study of toolweaver's codes, in miniature: its rows, and the section that is made of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from studies import tool_codes_report
from studies.study_rows import StudyRows
from tests.evaluation.report_samples import write_rows

pytestmark = pytest.mark.slow

pytest.importorskip("torch", reason="codes are learned with the extra 'train'")


def test_a_row_says_what_was_changed_and_how_the_codes_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from studies import tool_codes

    monkeypatch.setattr(tool_codes, "SWEEPS", {"few": {"codes": 8, "code_steps": 4, "latent": 4}})
    vectors = np.random.default_rng(0).normal(size=(30, 6)).astype(np.float32)
    made = [tool_codes.measure("mine", vectors, [[0, 1], [1, 2]], "few", seed) for seed in (0, 1)]
    assert made[0]["changed"] == {"codes": 8, "code_steps": 4, "latent": 4}
    assert made[0]["values"]["codes"] == 8
    assert made[0]["values"]["collisions"] == 0
    assert made[0]["requests"] != made[1]["requests"]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    text = "".join(tool_codes_report.section(StudyRows.read(tmp_path), {}))
    assert "**mine**, 30 tools" in text
    assert "| few | 2 | 2 × 8 |" in text


def test_the_figure_shows_the_main_variants_in_their_order(tmp_path: Path) -> None:
    made = [("published loss", 0, 0.25), ("as served", 0, 0.5), ("as served", 1, 0.7), ("64 codes", 0, 0.9)]
    for variant, seed, together in made:
        about = {"bench": "tool_codes", "tools": 30, "requests": f"mine: {variant}, seed {seed}"}
        values = {"together": together, "by_chance": 0.125}
        write_rows(tmp_path, about | {"dataset": "mine", "variant": variant, "values": values})
    (figure,) = tool_codes_report.figures(StudyRows.read(tmp_path)).values()
    (panel,) = figure.panels
    assert [(one.label, one.x, one.y) for one in panel.series] == [
        ("used together", ("as served", "published loss"), (60.0, 25.0)),
        ("any two tools", ("as served", "published loss"), (12.5, 12.5)),
    ]


def test_a_folder_without_such_rows_has_no_section(tmp_path: Path) -> None:
    row = {"bench": "other", "tools": 1, "requests": "x", "values": {}}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    assert list(tool_codes_report.section(StudyRows.read(tmp_path), {})) == []
