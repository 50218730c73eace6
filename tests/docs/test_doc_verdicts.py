"""The figures of docs/verdicts.md are those of the rows in results/verdict.jsonl."""

from __future__ import annotations

import re

from studies import verdict_report
from toolscout.evaluation.row import read_rows
from toolscout.search.verdict import LEVELS


def test_the_table_of_levels_is_that_of_the_rows() -> None:
    page = verdict_report.PAGE.read_text(encoding="utf-8")
    table = verdict_report.levels_table(read_rows(verdict_report.ROWS))
    assert verdict_report.page_with(page, table) == page, "run: python -m studies.verdict_report"
    assert all(f"`{level}`" in table for level in LEVELS)


def test_the_figures_of_better_and_worse_are_those_of_the_rows() -> None:
    rows = {
        (row["study"]["part"], row["dataset"], row["split"]): row["metrics"] for row in read_rows(verdict_report.ROWS)
    }
    about, _, rest = (
        verdict_report.PAGE.read_text(encoding="utf-8").partition("### Better and worse")[2].partition("###")
    )
    assert rest
    told = iter(re.findall(r"\d+\.\d", about))

    def check(part: str, dataset: str, split: str, *names: str) -> None:
        for name in names:
            assert next(told) == f"{100 * rows[part, dataset, split][name]:.1f}", (part, dataset, name)

    nothing, talk, answered = "nothing_fits_not_used", "no_tool_not_used", "recall"
    both = [f"{rule}_{name}" for name in (nothing, talk, answered) for rule in ("balanced", "thresholds")]
    check("left out", "mean", "dev", *both)
    check("left out", "mean, 1 to 10 tools", "dev", *both)
    check("bundled", "bundled", "test", *both, *(f"strict_{name}" for name in (nothing, talk, answered)))
    whole = ("left out", "mean, all tools of the set", "dev")
    rules = ("balanced", "thresholds")
    check(*whole, *(f"{rule}_{name}" for name in (nothing, answered) for rule in rules))
    check("bundled, left out", "bundled", "dev", f"balanced_{answered}", f"thresholds_{answered}")
    check("left out", "all together", "dev", "use_ece")
    check("left out", "mean", "dev", "use_ece")
    check("bundled", "bundled", "test", "use_ece")
    assert next(told, None) is None
