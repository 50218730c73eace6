"""A server under load has a section and a plot of its own, and stands in no other table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.evaluation.report_samples import scored, write_rows
from toolscout.evaluation.report import page


def loaded(kind: str, rate: float, p95: float, **values: float) -> dict[str, Any]:
    return {
        "bench": kind,
        "tools": 46_587,
        "requests": "toollens",
        "retriever": "hybrid",
        "how": "over HTTP",
        "repeats": 1,
        "commit": "abc",
        "values": {"rate": rate, "seconds": 600.0, "writes": 10.0, "p50_ms": p95 / 2, "p95_ms": p95, **values},
        "hardware": {"machine": "m", "cpu": "c", "cores": 2, "memory_gb": 4.0, "python": "3.11"},
    }


def test_the_newest_row_of_each_kind_stands_beside_its_aim(tmp_path: Path) -> None:
    rows = [loaded("serve", 80, 50.0, errors=0), loaded("serve", 80, 70.0, errors=0, answered=48_000)]
    made = page.make(write_rows(tmp_path, scored(), *rows, loaded("storm", 1000, 400.0, refused_p95_ms=9.5)))
    text = made.texts[page.PAGE].partition("## A server under load")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(lines) == 4
    assert lines[2].startswith("| serve | default | toollens | 46,587 | 80 | 10 | 600 | 35 | 70 (≤ 60: **missed**) |")
    assert "| 48,000 |" in lines[2]
    assert lines[3].startswith("| storm | default | toollens | 46,587 | 1000 |")
    assert "Cost against catalogue size" not in made.texts[page.PAGE]
    assert "serving.svg" not in text


def test_encoders_stand_apart(tmp_path: Path) -> None:
    rows = [loaded("saturation 20/s", 20, p95) | {"encoder": name} for name, p95 in (("", 30.0), ("fast", 20.0))]
    made = page.make(write_rows(tmp_path, scored(), *rows))
    text = made.texts[page.PAGE]
    assert "| saturation | default | toollens |" in text
    assert "| saturation | fast | toollens |" in text
    (figure,) = [one for one in made.figures if one.file == "serving.svg"]
    (panel,) = figure.panels
    assert [one.label for one in panel.series] == ["p50", "p95", "p50, fast", "p95, fast"]


def test_paces_make_a_plot(tmp_path: Path) -> None:
    rows = [loaded(f"saturation {rate}/s", rate, p95) for rate, p95 in ((40, 60.0), (20, 30.0))]
    made = page.make(write_rows(tmp_path, scored(), *rows))
    (figure,) = [one for one in made.figures if one.file == "serving.svg"]
    (panel,) = figure.panels
    assert [(one.label, one.x, one.y, one.dashed) for one in panel.series] == [
        ("p50", (20, 40), (15.0, 30.0), True),
        ("p95", (20, 40), (30.0, 60.0), False),
    ]
