"""The section about requests and tools in other languages than English (studies/languages.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from studies.languages import ENGLISH_TOOLS, NOW, OWN_TOOLS, code_of
from studies.study_rows import StudyRows, about
from toolscout.evaluation.report.rows import ResultLine, percent
from toolscout.evaluation.report.tables import table

_HEAD = """
## Other languages

All of these requests need a tool. *Before*: code that knew words between spaces alone. Percentages of requests; R is
R@5.
"""
_ENGLISH = """
**Tools in English**, requests in twelve languages (tldr-languages), and in English (tldr, dev), which the encoder has
seen. Words find what a request names in Latin letters; the encoder learned some of other languages. *No tool needed*
and *nothing fits* are verdicts of `hybrid`.
"""
_OWN = """
**Tools and requests in the same language** (tldr-parallel: half of a program's goals describe it, the others ask for
it), by words alone.
"""


def section(rows: StudyRows, _pictures: Mapping[str, str]) -> Iterator[str]:
    """Two tables; nothing where there are no rows."""
    lines = rows.study("languages")
    if not lines:
        return
    yield _HEAD
    for head, kind, cells in ((_ENGLISH, ENGLISH_TOOLS, _english), (_OWN, OWN_TOOLS, _own)):
        chosen = [line for line in lines if about(line, "of") == kind]
        languages = list(dict.fromkeys(about(line, "language") for line in chosen))
        made = [cells(one, [line for line in chosen if about(line, "language") == one]) for one in languages]
        if made:
            yield head
            yield table(list(dict.fromkeys(key for row in made for key in row)), made)


def _of(lines: Sequence[ResultLine], retriever: str, now: bool) -> ResultLine | None:
    for line in lines:
        if line.newest["retriever"] == retriever and (code_of(line.newest) == NOW) == now:
            return line
    return None


def _recall(lines: Sequence[ResultLine], retriever: str, now: bool) -> str:
    line = _of(lines, retriever, now)
    return percent(line.values("recall@5")) if line else ""


def _share(lines: Sequence[ResultLine], key: str) -> str:
    line = _of(lines, "hybrid", now=True)
    return percent([about(line, key)]) if line else ""


def _english(language: str, lines: Sequence[ResultLine]) -> dict[str, str]:
    return {
        "requests in": language,
        "requests": f"{lines[0].newest['requests']:,}",
        "bm25 R": _recall(lines, "bm25", now=True),
        "hybrid R": _recall(lines, "hybrid", now=True),
        "no tool needed": _share(lines, "no_tool_needed"),
        "nothing fits": _share(lines, "nothing_fits"),
    }


def _own(language: str, lines: Sequence[ResultLine]) -> dict[str, str]:
    return {
        "language": language,
        "tools": f"{about(lines[0], 'tools'):,}",
        "requests": f"{lines[0].newest['requests']:,}",
        "bm25 R, before": _recall(lines, "bm25", now=False),
        "bm25 R": _recall(lines, "bm25", now=True),
    }
