"""Makes the page of all studies: results/studies.md out of results/*.jsonl, with figures beside it.

python -m studies.report [FOLDER] [--check] [--no-plots]

`toolscout results` makes the page of the methods themselves, results/README.md, out of the same folder.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from studies import (
    agent_report,
    continual_report,
    default_encoder_report,
    document_length_report,
    domain_transfer_report,
    expansion_report,
    generative_report,
    languages_report,
    masstool_cost_report,
    need_report,
    papers_report,
    poisoning_report,
    rewriting_report,
    synthetic_report,
    tool_codes_report,
    verdict_report,
)
from studies.running import RESULTS, update
from studies.study_rows import StudyRows
from toolscout.evaluation.report.page import Report, page_text, picture

PAGE = "studies.md"
_MAKER = "python -m studies.report"
_HEAD = f"""<!-- made by {_MAKER} -->
# Studies

Made by `{_MAKER}` from the rows beside it: our own investigations, each made by a script of the folder `studies/`.
[The page of results](README.md) has the methods themselves, and says how rows and measures are to be read.
"""
_SECTIONS = (
    papers_report.section,
    need_report.section,
    verdict_report.section,
    default_encoder_report.section,
    languages_report.section,
    document_length_report.section,
    expansion_report.section,
    domain_transfer_report.section,
    continual_report.section,
    masstool_cost_report.section,
    generative_report.section,
    tool_codes_report.section,
    agent_report.section,
    rewriting_report.section,
    synthetic_report.section,
    poisoning_report.section,
)
_FIGURES = (
    papers_report.figures,
    continual_report.figures,
    masstool_cost_report.figures,
    generative_report.figures,
    rewriting_report.figures,
    synthetic_report.figures,
    tool_codes_report.figures,
)


def make(folder: Path, with_plots: bool = True) -> Report:
    """Read the rows of a folder and make the page and figures of its studies, without writing anything.

    Raises BadDataset where there are no rows, or one that cannot be read.
    """
    rows = StudyRows.read(folder)
    figures = {name: one for made in _FIGURES for name, one in made(rows).items()} if with_plots else {}
    pictures = {name: picture(one) for name, one in figures.items()}
    parts = [_HEAD, *(part for section in _SECTIONS for part in section(rows, pictures))]
    return Report(_MAKER, {PAGE: page_text(parts)}, tuple(figures.values()))


def main(arguments: Sequence[str]) -> None:
    """Write what is stale, or with --check only say what is, and end with code 1 where something is."""
    parser = argparse.ArgumentParser(prog="report", description="Make the page of studies out of the rows of a folder.")
    parser.add_argument("folder", nargs="?", type=Path, default=RESULTS)
    parser.add_argument("--check", action="store_true", help="write nothing; code 1 where a file is stale")
    parser.add_argument("--no-plots", action="store_true", help="leave the figures out, which need matplotlib")
    given = parser.parse_args(arguments)
    update(lambda: {given.folder: make(given.folder, not given.no_plots)}, given.check)


if __name__ == "__main__":
    main(sys.argv[1:])
