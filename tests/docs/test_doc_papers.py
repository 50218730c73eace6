"""The pages about papers: each has plots that are made of rows, in words too, and numbers that rows or papers have."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from studies import report as studies
from toolscout.evaluation.report import page as methods
from toolscout.papers import published_numbers, reproduction
from toolscout.papers.registry import PAPERS

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
NOT_RUN = "\nNot run, of the tables of `toolscout reproduce "
PAGES = ("masstool", "colt", "query-generation", "toolgen", "toolweaver")
HEADING = "## The paper and what we found\n"


def _text(page: str) -> str:
    return (ROOT / "docs" / "methods" / f"{page}.md").read_text(encoding="utf-8")


@cache
def _drawn() -> set[str]:
    """The plots that a command makes of rows; tests/studies/test_published_scripts.py finds those that are stale."""
    return {one.file for made in (methods.make(RESULTS), studies.make(RESULTS)) for one in made.figures}


@pytest.mark.parametrize("page", [*PAGES, "rewriting"])
def test_plots_are_made_of_rows_and_said_in_words(page: str) -> None:
    text = _text(page)
    plots = list(re.finditer(r"^!\[([^\]]*)\]\(\.\./\.\./results/(\S+)\)\n\n", text, flags=re.MULTILINE))
    assert len(plots) == text.count("![")
    assert plots
    for plot in plots:
        words, file = plot.groups()
        assert file in _drawn()
        assert words.endswith(".")
        assert len(words.split()) > 20, "the text alternative says what there is to see"
        paragraph = text[plot.end() :].partition("\n\n")[0]
        assert paragraph.startswith("The plot ")
        named = re.findall(r"`results/(\S+)`", paragraph)
        assert named, "the paragraph under a plot names the rows that made it"
        assert all((RESULTS / name).is_file() for name in named)


@pytest.mark.parametrize("page", PAGES)
def test_the_side_by_side_has_numbers_of_rows_and_papers_alone(page: str) -> None:
    section = _text(page).partition(HEADING)[2].partition("\n## ")[0]
    made = "".join((RESULTS / name).read_text(encoding="utf-8") for name in (methods.PAGE, studies.PAGE))
    theirs = [value for one in published_numbers.load().values() for _, _, values in one.lines for value in values]
    known = {*re.findall(r"\b\d+\.\d\d\b", made), *(f"{value:.2f}" for value in theirs if value is not None)}
    found = re.findall(r"(?<![\d.])\d+\.\d\d\b", section)
    assert found
    assert set(found) <= known


@pytest.mark.parametrize("page", PAGES)
def test_what_was_not_run_names_every_table_that_lacks_a_number(page: str) -> None:
    where = reproduction.Setup(None, RESULTS, Path("models"))
    lacking = {
        table.id
        for table in PAPERS[page].tables
        for line in table.lines
        for ours in (line.published, line.served)
        if (state := reproduction.summary(ours, table.splits(), where)) is not None and not state.seeds
    }
    said = _text(page).partition(f"{NOT_RUN}{page}`")[2].partition("\n#")[0]
    assert said, "the page says what was not run"
    assert lacking <= set(re.findall(r"`([^`]+)`", said))
