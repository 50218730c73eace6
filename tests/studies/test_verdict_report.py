"""The section about the verdict: a line for each level of each set."""

from __future__ import annotations

from pathlib import Path

from studies import report
from tests.evaluation.report_samples import scored, write_rows
from toolscout.search.verdict import LEVELS


def test_each_level_has_a_line(tmp_path: Path) -> None:
    shares = {f"{level}_{name}": 0.5 for level in LEVELS for name in ("recall", "precision", "no_tool_told")}
    asked = (("left out", "clinc150"), ("left out", "all together"), ("left out, reranked", "clinc150"))
    for part, dataset in asked:
        found = {"use_auroc": 0.9, "use_ece": 0.02} | (shares if dataset == "clinc150" else {})
        about = {"dataset": dataset, "digest": "d" * 32, "split": "dev", "variant": part, "metrics": found}
        write_rows(tmp_path, scored(0.5, **about) | {"study": {"name": "verdict", "part": part}, "metrics": found})
    section = report.make(tmp_path, with_plots=False).texts[report.PAGE].partition("## The verdict")[2]
    assert "### Left-out sets" in section
    assert "### Left-out sets, with the reranker" in section
    assert section.count("| strict | 50.0 | 50.0 |") == 2
    assert "| all together | dev |" in section
