"""The sections of the page that studies have: their tables and plots, apart from those of methods."""

from __future__ import annotations

from pathlib import Path

import pytest

from studies import report
from tests.evaluation.report_samples import scored, write_rows
from toolscout.evaluation.report import page as methods


def page(folder: Path) -> str:
    return report.make(folder).texts[report.PAGE]


def test_other_domains_stand_beside_their_own_model(tmp_path: Path) -> None:
    about = {"dataset": "ultratool", "digest": "d" * 32}
    write_rows(
        tmp_path,
        scored(
            0.5,
            **about,
            retriever="masstool",
            variant="masstool-toollens-s0",
            study={"name": "transfer", "from": "toollens"},
        ),
        scored(0.75, **about, retriever="dense", variant="ultratool-s0", seed=0),
        scored(0.25, **about),
        scored(0.1, **about, retriever="dense", variant="encoder-raw"),
    )
    section = page(tmp_path).partition("## Across domains")[2]
    found = [line for line in section.splitlines() if line.startswith("| ") and "---" not in line]
    assert [line.split(" | ")[0] for line in found[1:]] == [
        "| masstool, trained on toollens",
        "| dense, trained on this set",
        "| bm25, as it comes",
    ]


def test_steps_are_columns_and_curves(tmp_path: Path) -> None:
    for mode in ("kept", "retrained"):
        for step in range(2):
            told = {
                "name": "continual",
                "change": "tools",
                "mode": mode,
                "step": step,
                "group": "old",
                "encoder": "default",
            }
            write_rows(
                tmp_path,
                scored(
                    0.5 + 0.1 * step,
                    retriever="colt",
                    variant=f"tools-{mode}-old-{step}-s0",
                    digest=f"{step}" * 32,
                    study=told,
                ),
            )
    text = page(tmp_path)
    assert "### Tools in five steps: " in text
    assert "| colt | kept | old | R@5 | 50.00 | 60.00 |" in text
    figure = next(one for one in report.make(tmp_path).figures if one.file == "continual.svg")
    assert [(one.label, one.y, one.dashed) for one in figure.panels[0].series] == [
        ("colt", (50.0, 60.0), False),
        ("colt", (50.0, 60.0), True),
    ]


def test_cost_has_its_own_table_and_aim(tmp_path: Path) -> None:
    for requests, more in (("1000", 1.0), ("10000", 4.0)):
        values = {"fit_s": 10.0, "masstool_p50_ms": more + 1, "dense_p50_ms": 1.0, "more_ms": more}
        write_rows(
            tmp_path, {"bench": "masstool", "tools": 464, "requests": requests, "values": values, "device": "cpu"}
        )
    text = page(tmp_path)
    assert "## Cost against catalogue size" not in methods.make(tmp_path).texts[methods.PAGE]
    assert "1 (≤ 3: met)" in text
    assert "4 (≤ 3: **missed**)" in text


def test_the_command_writes_what_is_stale_and_checks_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(tmp_path, scored(study={"name": "transfer", "from": "toollens"}))
    with pytest.raises(SystemExit) as stale:
        report.main([str(tmp_path), "--check"])
    assert stale.value.code == 1
    assert capsys.readouterr().err == f"stale: {tmp_path / report.PAGE}\n"
    report.main([str(tmp_path), "--no-plots"])
    report.main([str(tmp_path), "--check"])
    assert "## Across domains" in (tmp_path / report.PAGE).read_text(encoding="utf-8")
    (tmp_path / report.PAGE).write_text("# My notes\n", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"was not made by python -m studies\.report; rename it"):
        report.main([str(tmp_path)])


def test_languages_stand_before_and_now(tmp_path: Path) -> None:
    for variant, recall, turned_away in (("before", 0.25, 0.625), ("now", 0.5, 0.0)):
        for retriever in ("bm25", "hybrid"):
            told = {"name": "languages", "language": "ko", "of": "english tools", "tools": 9, "need_told": 0.0}
            told |= {"no_tool_needed": turned_away, "nothing_fits": 0.125}
            about = {"dataset": "tldr-languages", "split": "ko", "retriever": retriever, "variant": variant}
            write_rows(tmp_path, scored(recall, **about, study=told))
        told = {"name": "languages", "language": "ja", "of": "own tools", "tools": 1234}
        about = {"dataset": "tldr-parallel-ja", "split": "test", "retriever": "bm25", "variant": variant}
        write_rows(tmp_path, scored(recall, **about, study=told))
    section = page(tmp_path).partition("## Other languages")[2]
    found = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("| ")]
    assert found[0][0] == "requests in"
    assert [cell for cell in found[2] if cell][2:] == ["50.00", "50.00", "0.00", "12.50"]
    assert found[5][:2] == ["ja", "1,234"]
    assert found[5][3:] == ["25.00", "50.00"]
