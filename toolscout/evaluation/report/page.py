"""Makes the page of a folder of results: FOLDER/README.md out of FOLDER/*.jsonl, with plots beside it.

Works in any folder that `toolscout evaluate --json` or `toolscout bench --json` wrote rows to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from toolscout.errors import ToolscoutError
from toolscout.evaluation.leakage import base
from toolscout.evaluation.report import (
    agent_tables,
    by_gold_count,
    generative_tables,
    plots,
    rewriting_tables,
    serving,
    synthetic_tables,
    tables,
)
from toolscout.evaluation.report.figures import Figure, figures, lines_of_tests
from toolscout.evaluation.report.generative_figures import generative_figures
from toolscout.evaluation.report.need_tables import is_need, section
from toolscout.evaluation.report.rewriting_figures import rewriting_figures
from toolscout.evaluation.report.rows import Line, Row, read_folder
from toolscout.evaluation.report.study_figures import study_figures
from toolscout.evaluation.report.study_tables import COST, is_study, sections

PAGE = "README.md"
# How a page is known that may be written over.
_MARK = "<!-- made by toolscout results -->"
_HEAD = f"""{_MARK}
# Results

Made by `toolscout results` from the rows beside it. A row says what was measured, by which command, with which options,
on which machine and at which commit (a plus: with changes on top of it). Scores are percentages. R is recall, N is true
NDCG (the ideal counts every gold tool), C is COMP (all gold tools among the first k); new R is recall over the gold
tools that no real request in training asked for, known R over the others. A request that failed scores 0. Of rows that
differ in the seed only, the mean stands here, never the best, with the standard deviation behind ±; otherwise the
newest counts. Where an interval of R@5 stands, it comes from resampling scenes, as requests of one scene are not
independent; of several seeds it is the mean of theirs. Scores of single requests lie in `*.scores/` beside the rows.
"""


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a folder's rows make: texts by file name, and figures."""

    texts: dict[str, str]
    figures: tuple[Figure, ...]


def make(folder: Path, with_plots: bool = True) -> Report:
    """Read the rows and make it all, without writing anything."""
    lines, timed = read_folder(folder)
    need, lines = [line for line in lines if is_need(line)], [line for line in lines if not is_need(line)]
    studies, lines = [line for line in lines if is_study(line)], [line for line in lines if not is_study(line)]
    own = (COST, generative_tables.SPEED, rewriting_tables.REWRITING, rewriting_tables.SYNTHETIC)
    cost, speed, rewritten, written = ([row for row in timed if row["bench"] == name] for name in own)
    served = [row for row in timed if serving.is_serving(row)]
    bench = [row for row in timed if row["bench"] not in own and row not in served]
    plain = [line for line in lines if line.split[1] == base(line.split[1])]
    by_gold = by_gold_count.groups_by_row(folder, [line for chosen in lines_of_tests(plain) for line in chosen])
    found = tuple(figures(plain, bench, by_gold)) if with_plots else ()
    shown = {}
    if with_plots:
        shown = study_figures(studies, cost) | generative_figures(studies) | rewriting_figures(studies)
        shown |= serving.serving_figures(served)
    pictures = {name: _picture(one) for name, one in shown.items()}
    parts = [*_page(lines, need, bench, found), *sections(studies, lines, cost, pictures, tables.table)]
    parts += serving.section(served, pictures, tables.table)
    parts += generative_tables.sections(studies, speed, pictures, tables.table)
    parts += agent_tables.section(studies, tables.table)
    parts += rewriting_tables.sections(studies, rewritten, pictures, tables.table)
    parts += synthetic_tables.sections(studies, written, pictures, tables.table)
    texts = {PAGE: "\n".join(parts).rstrip() + "\n"}
    if by_gold:
        texts[by_gold_count.NAME] = by_gold_count.text(by_gold)
    return Report(texts, (*found, *shown.values()))


def stale(folder: Path, with_plots: bool = True) -> list[Path]:
    """The files that are missing or that the rows have left behind."""
    return _stale(folder, make(folder, with_plots))


def _stale(folder: Path, report: Report) -> list[Path]:
    old = [folder / name for name, text in report.texts.items() if _read(folder / name) != text]
    return old + [folder / one.file for one in report.figures if plots.drawn(folder / one.file) != one.digest()]


def write(folder: Path, with_plots: bool = True) -> list[Path]:
    """Write what is stale; plots that show the current data stay as they are."""
    report = make(folder, with_plots)
    page = _read(folder / PAGE)
    if page is not None and not page.startswith(_MARK):
        raise ToolscoutError(f"{folder / PAGE} was not made by toolscout results; rename it, and run again")
    old = _stale(folder, report)
    drawings = [one for one in report.figures if folder / one.file in old]
    if drawings:
        plots.check_library()  # before anything is written
    try:
        for one in drawings:
            plots.draw(one, folder / one.file)
        for name, text in report.texts.items():
            (folder / name).write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise ToolscoutError(f"{error.filename or folder} cannot be written ({error.strerror})") from None
    return old


def _page(lines: list[Line], need: list[Line], bench: list[Row], found: tuple[Figure, ...]) -> Iterator[str]:
    yield _HEAD
    cost = ""
    for one in found:
        if not one.caption:
            cost = _picture(one)
            continue
        yield f"\n## {one.heading}\n\n{one.caption}\n\n{_picture(one)}"
    yield from section(need, tables.table)
    yield from tables.quality(lines)
    if bench:
        yield from tables.bench(bench, cost)


def _picture(figure: Figure) -> str:
    return f"![{figure.heading}]({figure.file})\n"


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ToolscoutError(f"{path} cannot be read ({error}); remove it, and run again") from None
