"""The section about how many tokens of a document are read (studies/document_length.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from studies.document_length import NAME, SHIPPED, limit_of
from studies.study_rows import StudyRows, about
from toolscout.evaluation.report.rows import ResultLine, group_by, percent
from toolscout.evaluation.report.tables import table

_HEAD = """
## Length of documents

The default encoder by vectors alone (`dense`), reading documents up to so many tokens (`?document_tokens=`); 96 is what
is shipped, and what the encoder was trained and selected with. It was selected on dev requests, so others are asked:
train requests, where it was not trained on them (at most 2,000, evenly drawn, without those that dev has too), else
test requests. *To 96*: the paired difference in R@5, in points, and its 95 % interval. *Cut*: the share of documents
that have more tokens. *CPU s per 1,000*: seconds of all cores together to embed 1,000 documents of the set, the least
of three rounds. Others used the machine meanwhile, and a second run gave up to a third less, unevenly: only the
large differences say something.
"""
_COLUMNS = ("set", "tools", "requests", "tokens", "R@5", "to 96", "to 96, 95 %", "cut %", "CPU s per 1,000", "commit")


def section(rows: StudyRows, _pictures: Mapping[str, str]) -> Iterator[str]:
    """One table, sets in the order of their rows, by limit; nothing where there are no rows."""
    lines = rows.study(NAME)
    if not lines:
        return
    yield _HEAD
    sets = group_by(lines, lambda line: line.split[:2]).values()
    yield table(_COLUMNS, [_cells(line) for own in sets for line in sorted(own, key=lambda one: limit_of(one.newest))])


def _cells(line: ResultLine) -> dict[str, str]:
    limit = limit_of(line.newest)
    cells = {
        "set": " ".join(line.split[:2]),
        "tools": f"{about(line, 'tools'):,}",
        "requests": f"{line.newest['requests']:,}",
        "tokens": f"{limit}",
        "R@5": percent(line.values("recall@5")),
        "cut %": f"{100 * about(line, 'cut'):.1f}",
        "CPU s per 1,000": f"{about(line, 'documents_cpu_s'):.1f}",
        "commit": line.commits,
    }
    if limit != SHIPPED:
        cells["to 96"] = f"{100 * about(line, 'difference'):+.2f}"
        cells["to 96, 95 %"] = " to ".join(f"{100 * about(line, end):+.2f}" for end in ("low", "high"))
    return cells
