"""Makes docs/peers.md, and its picture results/peers.svg, out of the rows of results/peers.jsonl.

python -m peers.report [--check] [--no-plots]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from peers.measure import STUDY_NAME
from peers.table import BOTH, PACKAGE, VECTORS, WORDS
from studies.running import RESULTS, update
from toolscout.evaluation.report.figures import Figure, Panel, Series
from toolscout.evaluation.report.page import Report, page_text
from toolscout.evaluation.report.tables import machine, table
from toolscout.evaluation.row import STUDY, RowDict, read_rows

ROWS = RESULTS / "peers.jsonl"
DOCS = RESULTS.parent / "docs"
PAGE, PICTURE = "peers.md", "peers.svg"
_MAKER = "python -m peers.report"
_HEAD = f"""<!-- made by {_MAKER} -->
# Beside other libraries

What an engineer would otherwise use, measured on the same requests. Made by `{_MAKER}` from [the
rows](../results/peers.jsonl); `make peers` measures all of them again, `python -m peers NAME` one.
"""
_HOW = """
## How it was measured

- Every peer gets the same tools (a unique name, a description, a JSON schema of parameters; what a set knows of the
  service behind a tool ends its description) and the same requests, and is asked for five tools. Each runs in an
  environment of its own with pinned versions (`peers/requirements/`), through an adapter of at most 40 lines
  (`peers/adapters/`), one process at a time. A peer with fields of its own fills them; others get one text: the name,
  as written and in words, the description, the names and descriptions of parameters.
- Each has its own default search. Where that needs a download from a model hub or an API, or where an embedder is
  the user's choice, it gets the published all-MiniLM-L6-v2: `minilm` is that model by sentence-transformers and one
  product of matrices. toolscout has [the encoder that comes with it](../toolscout/default_model/README.md), which is
  that model trained further: on UltraTool's train split among others, and on requests written for ToolBench's documents
  (ToolLens has the same APIs), never on requests of these tests. Its lead over MiniLM on those three sets is not that
  of a stranger. Of bundled and SimpleToolQuestions it knows nothing, but their dev splits chose its recipe too.
- FastMCP's regex, Haystack's keywords and LiveKit's keywords are meant to be written by a model. Here they get the
  request, as all others do; the regex is any of its words of four letters or more.
- Processor time counts all threads and children. OpenMP has one thread, as two of them spin while they wait. p50 and
  p95 are by the wall, on a machine with two cores that had other work at the time: the load is in the row. What takes
  under three seconds to index is indexed and reopened three times, in processes of their own; numbers are medians.
- *Cold start* is a new process until its first answer: imports, opening what is saved or else indexing again, and one
  search.
- *Live* is tried: a tool is added, found, removed, and not found. *Permissions* is what the documentation offers to
  narrow a search to what a caller may use; it was not tried.
- toolscout ranks always and says apart whether anything fits; its recall is that of the ranking, *offered* R@5 that
  of the tools that are handed to the agent. For others the two are the same.
"""


class _Measure(NamedTuple):
    """A number of the rows: what the tables call it, where it is, how it is written, and whether less is better."""

    head: str
    part: str
    name: str
    text: Callable[[float], str]
    less: bool = True

    def of(self, row: RowDict) -> float | None:
        """Return the number of a row; None where it has none."""
        value = row[self.part].get(self.name)
        return None if value is None else float(value)


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _three(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


_QUALITY = [
    _Measure(head, "metrics", name, _percent, less=False)
    for head, name in (("R@1", "recall@1"), ("R@5", "recall@5"), ("N@5", "ndcg@5"), ("C@5", "comp@5"))
]
_COST = [
    _Measure("CPU ms a request", "timing", "cpu_ms", _three),
    _Measure("p50 ms", "timing", "p50_ms", _three),
    _Measure("p95 ms", "timing", "p95_ms", _three),
    _Measure("index, CPU s", "timing", "index_cpu_s", _three),
    _Measure("reopen, CPU s", "timing", "reopen_cpu_s", _three),
    _Measure("cold start, CPU s", "timing", "cold_start_cpu_s", _three),
    _Measure("peak MB", "timing", "reopen_peak_mb", _three),
    _Measure("disk MB", "timing", "index_mb", _three),
]
_INSTALLED = _Measure("installation MB", STUDY, "install_mb", _three)
_R5 = _QUALITY[1]
# What is compared with what: a search by words with others by words, one that has vectors with others that have.
_RIVALS = {f"{PACKAGE} bm25": (WORDS,), f"{PACKAGE} hybrid": (VECTORS, BOTH)}
_COMPARED = (
    _R5,
    *(one for one in _COST if one.name in ("cpu_ms", "index_cpu_s", "cold_start_cpu_s", "reopen_peak_mb")),
    _INSTALLED,
)
_EMPTY = {
    "talk": "fit_nothing.no_tool",
    "hopeless": "fit_nothing.nothing_fits",
    "served": "fit_use",
    "R@5": "recall@5",
    "offered R@5": "offered_recall@5",
    "right@5": "right@5",
}


def newest(rows: Sequence[RowDict]) -> list[RowDict]:
    """Return the newest row of each peer on each set, in the order in which they first occur."""
    own = [row for row in rows if row.get(STUDY, {}).get("name") == STUDY_NAME]
    return list({(row["dataset"], row["digest"], row["retriever"]): row for row in own}.values())


def sets_of(rows: Sequence[RowDict]) -> dict[str, list[RowDict]]:
    """Return the rows that measured something, by set, the best recall first."""
    found: dict[str, list[RowDict]] = {}
    for row in rows:
        if row["metrics"]:
            found.setdefault(row["dataset"], []).append(row)
    return {name: sorted(own, key=lambda row: -row["metrics"]["recall@5"]) for name, own in found.items()}


def page(rows: Sequence[RowDict], picture: bool = True) -> str:
    """Return the page of these rows."""
    rows = newest(rows)
    sets = sets_of(rows)
    return page_text(
        [
            _HEAD,
            *_losses(sets),
            *_behind_dense(sets),
            *([f"\n## Quality against processor time\n\n![{_alt(sets)}](../results/{PICTURE})\n"] if picture else []),
            *_by_set(sets),
            *_empty(sets),
            *_features(rows),
            *_not_measured(rows),
            _HOW,
            *_machines(rows),
        ]
    )


def _losses(sets: Mapping[str, Sequence[RowDict]]) -> Iterator[str]:
    yield "\n## Where toolscout loses\n"
    yield (
        "A cell has toolscout's number, and the best of the peers that are better; an empty one: none is. `bm25` is "
        "compared with peers that search by words, `hybrid`, the default, with those that have vectors.\n"
    )
    yield table(["", "toolscout", *sets], [line for line in _lost(sets) if len(line) > 2])


def _lost(sets: Mapping[str, Sequence[RowDict]]) -> Iterator[dict[str, str]]:
    for ours, kinds in _RIVALS.items():
        for measure in _COMPARED:
            line = {"": measure.head, "toolscout": ours.removeprefix(f"{PACKAGE} ")}
            for name, rows in sets.items():
                value = next((measure.of(row) for row in rows if row["retriever"] == ours), None)
                better = _better(measure, value, rows, kinds)
                if better is not None and value is not None:
                    line[name] = f"{measure.text(value)}; {better['retriever']} {measure.text(measure.of(better) or 0)}"
            yield line


def _better(measure: _Measure, value: float | None, rows: Sequence[RowDict], kinds: Sequence[str]) -> RowDict | None:
    """Return the best peer of these kinds where it is better than a value; None where none is."""
    rivals = [row for row in rows if row[STUDY]["kind"] in kinds and not row["retriever"].startswith(PACKAGE)]
    known = [row for row in rivals if measure.of(row) is not None]
    if value is None or not known:
        return None
    sign = 1 if measure.less else -1
    best = min(known, key=lambda row: sign * (measure.of(row) or 0))
    return best if sign * (measure.of(best) or 0) < sign * value else None


def _behind_dense(sets: Mapping[str, Sequence[RowDict]]) -> Iterator[str]:
    """Say where `hybrid`, which joins words and vectors, finds less than the vectors alone."""
    found = {
        name: {row["retriever"].removeprefix(f"{PACKAGE} "): row["metrics"]["recall@5"] for row in rows}
        for name, rows in sets.items()
    }
    behind = {name: one for name, one in found.items() if one.get("hybrid", 1.0) < one.get("dense", 0.0)}
    if behind:
        told = ", ".join(
            f"{name} ({_percent(o['hybrid'])} against {_percent(o['dense'])})" for name, o in behind.items()
        )
        yield f"\n`hybrid` finds less than `dense` alone, in R@5, on {told}.\n"


def _by_set(sets: Mapping[str, Sequence[RowDict]]) -> Iterator[str]:
    for name, rows in sets.items():
        yield f"\n## {name}\n\n{rows[0]['requests']:,} requests, {rows[0][STUDY]['tools']:,} tools.\n"
        columns = [*_QUALITY, *_COST]
        lines = [
            {"peer": row["retriever"], "by": row[STUDY]["kind"]}
            | {one.head: one.text(value) for one in columns if (value := one.of(row)) is not None}
            | {"load": f"{row[STUDY]['load'][0]:.1f}"}
            for row in rows
        ]
        yield table(["peer", "by", *(one.head for one in columns), "load"], lines)


def _empty(sets: Mapping[str, Sequence[RowDict]]) -> Iterator[str]:
    rows = [row for own in sets.values() for row in own if "fit_nothing" in row["metrics"]]
    if not rows:
        return
    yield (
        "\n## Who says that nothing fits\n\nThe share of requests that get an empty list: of *talk*, which needs no "
        "tool, and of *hopeless* requests, which no tool serves. *Served* is the share of the others that get tools at "
        "all; *right@5* the share of all requests that get all tools that they need, or none where none is due.\n"
    )
    lines = [
        {"peer": row["retriever"], "set": row["dataset"]}
        | {head: _percent(row["metrics"][name]) for head, name in _EMPTY.items() if name in row["metrics"]}
        for row in sorted(rows, key=lambda row: -row["metrics"]["right@5"])
    ]
    yield table(["peer", "set", *_EMPTY], lines)


def _features(rows: Sequence[RowDict]) -> Iterator[str]:
    measured = {row["retriever"]: row for row in rows if row["metrics"]}
    yield (
        "\n## What they can do\n\n*Keeps* is whether a new process opens what an earlier one saved, *embeds again* "
        "whether it embeds its tools once more; *lines* are those of the adapter, without comments.\n"
    )
    lines = []
    for name, row in measured.items():
        about = row[STUDY]
        again = about.get("reopen_embedded")
        lines.append(
            {
                "peer": name,
                "by": about["kind"],
                "version": next(iter(about.get("versions", {}).values()), ""),
                "live add and remove": about["live"],
                "keeps": "yes" if row["timing"]["index_mb"] else "no",
                "embeds again": "" if again is None else "yes" if again else "no",
                "permissions": about["permissions"] or "no",
                "lines": str(about["adapter_lines"]),
            }
            | ({_INSTALLED.head: _three(size)} if (size := _INSTALLED.of(row)) is not None else {})
        )
    heads = ["live add and remove", "keeps", "embeds again", "permissions", "lines", _INSTALLED.head]
    yield table(["peer", "by", "version", *heads], lines)


def _not_measured(rows: Sequence[RowDict]) -> Iterator[str]:
    lines = [
        {"peer": row["retriever"], "set": row["dataset"], "why": row[STUDY]["problem"]}
        for row in rows
        if row[STUDY]["problem"]
    ]
    if lines:
        yield "\n## What could not be measured\n"
        yield table(["peer", "set", "why"], lines)


def _machines(rows: Sequence[RowDict]) -> Iterator[str]:
    names = dict.fromkeys(machine(row) for row in rows)
    yield "Measured on:\n\n" + "\n".join(f"- {name}" for name in names) + "\n"


def _alt(sets: Mapping[str, Sequence[RowDict]]) -> str:
    best = ", ".join(f"{rows[0]['retriever']} on {name}" for name, rows in sets.items())
    return f"A point for each peer on each set, its recall over the processor time of a request. Highest: {best}."


def figure(rows: Sequence[RowDict]) -> Figure:
    """Return the picture of these rows: a point for each peer on each set, those of toolscout filled."""
    panels = []
    for name, own in sets_of(newest(rows)).items():
        series = [
            Series(
                row["retriever"],
                (float(f"{row['timing']['cpu_ms']:.3g}"),),
                (round(100 * row["metrics"]["recall@5"], 2),),
                dashed=not row["retriever"].startswith(PACKAGE),
            )
            for row in own
        ]
        panels.append(Panel(f"{name}, {own[0][STUDY]['tools']:,} tools", tuple(series)))
    about = ("CPU ms a request", "R@5, %")
    return Figure(
        PICTURE, "Quality against processor time", "", "named", *about, tuple(panels), ("x",), shared_legend=False
    )


def reports(rows: Sequence[RowDict], with_plots: bool = True) -> dict[Path, Report]:
    """Return the page and the picture of these rows, by the folder that they belong to."""
    return {
        DOCS: Report(_MAKER, {PAGE: page(rows)}, ()),
        RESULTS: Report(_MAKER, {}, (figure(rows),) if with_plots else ()),
    }


def main(arguments: Sequence[str]) -> None:
    """Write what is stale, or with --check only say what is, and end with code 1 where something is."""
    parser = argparse.ArgumentParser(prog="python -m peers.report", description="Make the page of peers.")
    parser.add_argument("--check", action="store_true", help="write nothing; code 1 where a file is stale")
    parser.add_argument("--no-plots", action="store_true", help="leave the picture out, which needs matplotlib")
    given = parser.parse_args(arguments)
    update(lambda: reports(read_rows(ROWS), not given.no_plots), given.check)


if __name__ == "__main__":
    main(sys.argv[1:])
