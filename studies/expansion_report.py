"""The section about expansions (studies/expansion.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from studies.expansion import BUILT, MEASURE, METHODS, NAME, NONE
from studies.study_rows import StudyRows, about
from toolscout.evaluation.report.rows import ResultLine, group_by, percent
from toolscout.evaluation.report.tables import table

_HEAD = """
## Expansions

What a tool is for and when to use it, in words that users say, stored beside the tool and searched: by words in a field
of their own, by meaning as a small share of the tool's vector (*built*). *Written* says by whom: nobody, the rules, or
a language model, and for how many tools. Other ways beside it: behind the document in one text (*append*), as a second
vector of which the nearer one counts (*max*), with what the tool cannot do (*not*). *Gain*: the paired
difference in R@5 to the same method without expansions, in points, and its 95 % interval.
"""
_COLUMNS = (
    "set",
    "tools",
    "requests",
    "method",
    "written",
    "way",
    "expanded",
    "R@5",
    "NDCG@5",
    "gain",
    "95 %",
    "commit",
)


def section(rows: StudyRows, _pictures: Mapping[str, str]) -> Iterator[str]:
    """One table, sets in the order of their rows, by method; nothing where there are no rows."""
    lines = rows.study(NAME)
    if not lines:
        return
    yield _HEAD
    sets = group_by(lines, lambda line: line.split[:2]).values()
    yield table(_COLUMNS, [_cells(line) for own in sets for line in sorted(own, key=_place)])


def _place(line: ResultLine) -> tuple[int, bool, str, bool, str]:
    method, written, way = (str(about(line, key)) for key in ("method", "written", "way"))
    return METHODS.index(method), written != NONE, written, way != BUILT, way


def _cells(line: ResultLine) -> dict[str, str]:
    written = about(line, "written")
    cells = {
        "set": " ".join(line.split[:2]),
        "tools": f"{about(line, 'tools'):,}",
        "requests": f"{line.newest['requests']:,}",
        "method": about(line, "method"),
        "written": written,
        "R@5": percent(line.values(MEASURE)),
        "NDCG@5": percent(line.values("ndcg@5")),
        "commit": line.commits,
    }
    if written != NONE:
        cells |= {"way": about(line, "way"), "expanded": f"{about(line, 'expanded'):,}"}
        cells["gain"] = f"{100 * about(line, 'difference'):+.2f}"
        cells["95 %"] = " to ".join(f"{100 * about(line, end):+.2f}" for end in ("low", "high"))
    return cells
