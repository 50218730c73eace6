"""The agent's section of the page: there where rows are, one table for each language model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from studies import report
from tests.evaluation.report_samples import scored, write_rows
from toolscout.evaluation.report import page as methods

WAY = {"steps": 6, "thoughts": True, "constrain": False}


def replayed(front: str, value: float, llm: str = "Small-1", variant: str = "", **more: Any) -> dict[str, Any]:
    told = {"name": "agent", "llm": llm, "k": 5, "recorded": 558, "of": 765, "agent": WAY, "picks": "shortlist"}
    names = ("all_called", "gold_recall", "valid_arguments", "refused", "finished")
    return scored(
        dataset="recorded",
        retriever=front,
        variant="_".join(filter(None, [llm, variant])),
        metrics=dict.fromkeys(names, value) | {"steps": 2.5} | more.pop("metrics", {}),
        intervals={"all_called": [value - 0.1, value + 0.1]},
        requests=558,
        study=told | more.pop("study", {}),
        **more,
    )


def section(folder: Path) -> str:
    return report.make(folder).texts[report.PAGE].partition("## Agent")[2]


def test_there_is_none_without_rows(tmp_path: Path) -> None:
    assert section(write_rows(tmp_path, scored())) == ""


def test_a_line_for_each_front_and_a_table_for_each_language_model(tmp_path: Path) -> None:
    judge = {"metrics": {"pass_rate": 0.5, "win_rate": 0.25}, "study": {"against": "bm25"}}
    write_rows(
        tmp_path,
        replayed("bm25", 0.25),
        replayed("toolgen", 0.5, variant="g3-s0", seed=0, study={"picks": "itself"}),
        replayed("toolgen", 0.6, variant="g3-s1", seed=1, study={"picks": "itself"}),
        replayed("gold", 0.75, llm="Big", **judge),
    )
    text = section(tmp_path)
    small, big = text.split("\n**recorded test**")[1:]
    assert "language model Small-1, k 5, at most 6 steps, with thoughts, arguments written freely" in small
    assert "558 of 765 requests have all recordings" in small
    lines = [line for line in small.splitlines() if line.startswith("| ")]
    assert lines[2].startswith(
        "| bm25 | shortlist | 25.00 | 25.00 | 25.00 | 25.00 | 25.00 | 15.00–35.00 | 2.50 | 558 | 1"
    )
    assert lines[3].startswith("| toolgen (g3) | itself | 55.00 ± 7.07 |")
    assert "pass rate" not in small
    assert "| gold | shortlist | 75.00 |" in big
    assert "| 50.00 | 25.00 (against bm25) |" in big


def test_its_rows_stand_in_no_other_table(tmp_path: Path) -> None:
    write_rows(tmp_path, scored(), replayed("gold", 0.5))
    assert "**recorded" not in report.make(tmp_path).texts[report.PAGE].partition("## Agent")[0]
    assert "**recorded" not in methods.make(tmp_path).texts[methods.PAGE]
