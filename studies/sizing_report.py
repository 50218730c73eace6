"""What ten million tools and 2,000 requests a second take, on paper: the numbers in docs/guides/scaling.md.

They follow from the rows of `toolscout bench` and `toolscout bench serve` by the slope between the two largest sizes.
python -m studies.sizing_report brings the page of results, its plots and docs/guides/scaling.md up to date with the
rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from studies.running import RESULTS
from toolscout.evaluation.report import page as results_page
from toolscout.evaluation.report.rows import read_folder
from toolscout.evaluation.report.tables import table
from toolscout.evaluation.row import RowDict

PAGE = RESULTS.parent / "docs" / "guides" / "scaling.md"
BEGIN, END = "<!-- sizing: python -m studies.sizing_report -->", "<!-- end of sizing -->"
TOOLS, RATE = 10_000_000, 2_000
_CORES = (8, 32)  # of the servers that are counted
_SERVED = 46_587  # the size at which a server was put under load
_REQUESTS = ("toollens", "toolbench")
_POSTGRESQL = "postgresql"
_Value = Callable[[Mapping[str, float]], float]


@dataclass(frozen=True, slots=True)
class Line:
    """Something that grows with the catalogue: by the size it was measured at, and at TOOLS on paper.

    `power`: the exponent of the number of tools that it grows with; 1 where it is taken to grow in proportion.
    """

    name: str
    measured: dict[int, float]
    power: float
    on_paper: float

    @classmethod
    def straight(cls, name: str, measured: dict[int, float]) -> Line:
        """Return what is added for each tool, on a straight line through the two largest sizes."""
        (few, low), (many, high) = sorted(measured.items())[-2:]
        return cls(name, measured, 1.0, high + (TOOLS - many) * (high - low) / (many - few))

    @classmethod
    def curved(cls, name: str, measured: dict[int, float]) -> Line:
        """Return what grows by a power of the number of tools, through the two largest sizes."""
        (few, low), (many, high) = sorted(measured.items())[-2:]
        power = math.log(high / low) / math.log(many / few)
        return cls(name, measured, power, high * (TOOLS / many) ** power)

    @classmethod
    def proportional(cls, name: str, measured: dict[int, float]) -> Line:
        """Return what takes the same for each tool, by the largest size."""
        many, high = max(measured.items())
        return cls(name, measured, 1.0, high * TOOLS / many)


def lines(rows: Sequence[RowDict]) -> list[Line]:
    """Return all that grows with the catalogue, in the order of the table."""
    searches = {
        name: _measured(rows, "query", lambda one: one["words_ms"] + one["vectors_ms"], name) for name in _REQUESTS
    }
    found = [
        Line.straight("memory of a server, GB", _measured(rows, "memory", lambda one: one["peak_mb"] / 1000)),
        Line.straight("index on its disk, GB", _measured(rows, "memory", lambda one: one["index_mb"] / 1000)),
        Line.straight("SQLite file, GB", _measured(rows, "memory", lambda one: one["store_mb"] / 1000)),
    ]
    database = _measured(rows, "memory", lambda one: one["store_mb"] / 1000, store=_POSTGRESQL)
    if database:
        grown = Line.straight if len(database) > 1 else Line.proportional
        found.append(grown("database with its indexes, GB", database))
    found += [Line.curved(f"words and vectors of a {_SHOWN[name]} request, ms", searches[name]) for name in _REQUESTS]
    found += [_whole_request(rows, name, searches[name]) for name in _REQUESTS]
    embedding = {
        row["tools"]: row["values"]["index_s"] * row["hardware"]["cores"] / 3600
        for row in _chosen(rows, "index")
        if "index_s" in row["values"]
    }
    found.append(Line.proportional("embedding all tools, core-hours", embedding))
    indexing = _measured(rows, "index", _indexing_minutes)
    found.append(Line.proportional("building the index on one machine, minutes", indexing))
    return found


_SHOWN = {"toollens": "ToolLens", "toolbench": "ToolBench"}


def _indexing_minutes(values: Mapping[str, float]) -> float:
    """Return the minutes from stored tools to a linked index; raises KeyError where they were embedded besides."""
    return (values["first_answer_s"] - values["store_s"] + values["link_s"]) / 60


def _whole_request(rows: Sequence[RowDict], name: str, searches: dict[int, float]) -> Line:
    """Return the core time of a request: that of a server under load, and what searches take more than there."""
    grown = Line.curved("", searches)
    served = [
        (row["values"]["rate"], row["values"])
        for row in rows
        if row["bench"].startswith("saturation") and (row["tools"], row["requests"]) == (_SERVED, name)
        if not row.get("encoder") and not row["values"]["refused"]
    ]
    _, values = max(served, key=lambda pair: pair[0])
    beside = 1000 * values["cores"] * values["seconds"] / values["answered"] - searches[_SERVED]
    measured = {tools: beside + more for tools, more in searches.items() if tools >= _SERVED}
    return Line(f"a {_SHOWN[name]} request altogether, ms of a core", measured, grown.power, beside + grown.on_paper)


def _measured(
    rows: Sequence[RowDict], bench: str, value: _Value, requests: str = "", store: str = ""
) -> dict[int, float]:
    """Return a value by the number of tools; sizes whose rows lack it are left out."""
    found = {}
    for row in _chosen(rows, bench, requests, store):
        try:
            found[row["tools"]] = value(row["values"])
        except KeyError:
            continue
    return found


def _chosen(rows: Sequence[RowDict], bench: str, requests: str = "", store: str = "") -> Iterator[RowDict]:
    for row in rows:
        known = row["bench"], row["requests"], row.get("store", ""), row.get("encoder", "")
        if known == (bench, requests, store, ""):
            yield row


def sizing(rows: Sequence[RowDict]) -> str:
    """Return the table of what grows, and what it comes to in cores, memory and servers."""
    found = lines(rows)
    sizes = sorted({tools for one in found for tools in one.measured if tools >= _SERVED})
    heads = ["", *(f"{tools:,} tools" for tools in sizes), "grows by", f"{TOOLS:,}, on paper"]
    made = [
        {"": one.name}
        | {f"{tools:,} tools": _shown(one.measured[tools]) for tools in sizes if tools in one.measured}
        | {"grows by": "tools" if one.power == 1 else f"tools^{one.power:.2f}", heads[-1]: _shown(one.on_paper)}
        for one in found
    ]
    by_name = {one.name: one.on_paper for one in found}
    memory = by_name["memory of a server, GB"]
    whole = [value for name, value in by_name.items() if name.endswith("ms of a core")]
    cores = RATE * max(whole) / 1000
    servers = [(each, math.ceil(cores / each)) for each in _CORES]
    counted = " or ".join(
        f"{count} servers of {each} cores ({_shown(count * memory)} GB of memory in all)" for each, count in servers
    )
    text = (
        f"So {TOOLS:,} tools and {RATE:,} requests a second take {_shown(cores)} cores, counted by the dearer kind of "
        f"request: {counted}, with {_shown(memory)} GB of memory each. Add what you want for peaks, and for a server "
        "that is down."
    )
    return f"{table(heads, made).strip()}\n\n{_wrapped(text)}"


def _shown(value: float) -> str:
    return f"{float(f'{value:.2g}'):,g}"


def _wrapped(text: str) -> str:
    import textwrap

    return textwrap.fill(text, 130, break_long_words=False, break_on_hyphens=False)


def page_with(text: str, numbers: str) -> str:
    """Return the page with these numbers between its marks."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{numbers}\n\n{END}{rest.partition(END)[2]}"


def main(results: Path = RESULTS, page: Path = PAGE) -> None:
    """Write the page of results with its plots, and the numbers into the page about scaling."""
    results_page.write(results)
    page.write_text(page_with(page.read_text(encoding="utf-8"), sizing(read_folder(results)[1])), encoding="utf-8")


if __name__ == "__main__":
    main()
