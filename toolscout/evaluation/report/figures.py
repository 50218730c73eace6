"""The content of the plots as plain data, which can be compared with drawn plots where matplotlib is missing."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Literal

from toolscout.evaluation.report.by_gold_count import Groups, row_key
from toolscout.evaluation.report.rows import ResultLine, by_dataset
from toolscout.evaluation.row import RowDict

# Part of every digest: a change in how figures are drawn makes earlier drawings stale.
_DRAWING_VERSION = 1
# A number of gold tools that fewer requests have is left out.
_MIN_REQUESTS = 10
# A paper's experiments are run side by side, so their times are no times of a request.
_SIDE_BY_SIDE = "toolscout reproduce "
_POSTGRESQL = "postgresql"
_SPLIT_LABELS = {"test": "test", "unseen_scene.test": "unseen scenes", "unseen_tool.test": "unseen tools"}
# By panel and curve: "bench" and "requests" of the rows, the name of the value, and the store that the rows are of.
_BENCH = {
    "a request, ms (p50)": {
        "ToolBench requests": ("query", "toolbench", "p50_ms", ""),
        "ToolLens requests": ("query", "toollens", "p50_ms", ""),
        "searches and fusion": ("query", "toollens", "searches_ms", ""),
        "exact name": ("lookup", "", "name_p50_ms", ""),
        "allowed 5 %": ("caller", "", "namespaces_p50_ms", ""),
        "answered by PostgreSQL": ("cold", "", "p50_ms", _POSTGRESQL),
    },
    "one tool more or less, ms (p50)": {
        "added": ("change", "", "add_p50_ms", ""),
        "removed": ("change", "", "remove_p50_ms", ""),
        "added, PostgreSQL": ("change", "", "add_p50_ms", _POSTGRESQL),
        "removed, PostgreSQL": ("change", "", "remove_p50_ms", _POSTGRESQL),
    },
    "indexing and opening, s": {
        "all embedded": ("index", "", "index_s", ""),
        "first answer from words": ("index", "", "first_answer_s", ""),
        "added again": ("index", "", "again_s", ""),
        "opened": ("open", "", "open_s", ""),
        "opened, PostgreSQL": ("open", "", "open_s", _POSTGRESQL),
        "first cold answer, PostgreSQL": ("cold", "", "first_answer_s", _POSTGRESQL),
    },
    "memory and disk, MB": {
        "resident memory, serving": ("memory", "", "peak_mb", ""),
        "index beside it": ("memory", "", "index_mb", ""),
        "store": ("memory", "", "store_mb", ""),
        "store, PostgreSQL": ("memory", "", "store_mb", _POSTGRESQL),
    },
}


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one label; `error` has the length of their error bars. Bars of a dashed series are hatched."""

    label: str
    x: tuple[float | str, ...]
    y: tuple[float, ...]
    error: tuple[float, ...] = ()
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes with its series."""

    title: str
    series: tuple[Series, ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """A plot: its file, heading and caption, and its panels.

    The y axis of "bars", and of "curves" without a logarithmic axis, shows 0 to 100 %; that of the others the range of
    the data. "named" are points with their labels beside them instead of a legend, for more series than there are
    colours; those of a dashed series are hollow. "differences" are bars that go up or down from a line at 0.
    """

    file: str
    heading: str
    caption: str
    kind: Literal["points", "named", "curves", "lines", "bars", "differences"]
    x_label: str
    y_label: str
    panels: tuple[Panel, ...]
    log: tuple[Literal["x", "y"], ...] = ()
    shared_legend: bool = True

    def digest(self) -> str:
        """Return a digest of everything that is drawn."""
        drawn = json.dumps([_DRAWING_VERSION, asdict(self) | {"caption": ""}], sort_keys=True)
        return hashlib.sha256(drawn.encode()).hexdigest()[:32]


def figures(lines: Sequence[ResultLine], bench: Sequence[RowDict], by_gold: Mapping[str, Groups]) -> list[Figure]:
    """Return the plots of result lines, benchmark rows and groups by number of gold tools; none that is empty."""
    made = [_latency(lines), _unseen(lines), _golds(lines, by_gold), _cost(bench)]
    return [figure for figure in made if figure.panels]


def lines_of_tests(lines: Sequence[ResultLine]) -> list[list[ResultLine]]:
    """Return the lines of each dataset's test split: "test", else splits that begin with it, else all splits."""
    found = []
    for splits in by_dataset(lines).values():
        names = {split for _, split, _ in splits}
        likely = {"test"} & names or {name for name in names if name.startswith("test")} or names
        found += [chosen for (_, split, _), chosen in splits.items() if split in likely]
    return found


def _latency(lines: Sequence[ResultLine]) -> Figure:
    panels = []
    for chosen in lines_of_tests(lines):
        series = []
        for line in chosen:
            quality, p50 = line.values("recall@5"), line.mean("query_p50_ms", "timing")
            if quality and p50 and not line.newest.get("command", "").startswith(_SIDE_BY_SIDE):
                spread = (deviation(quality),) if len(quality) > 1 else ()
                series.append(Series(line.method, (_rounded(p50),), (mean_percent(quality),), spread))
        panels += panels_of(_title(chosen[0]), series)
    caption = (
        "Recall@5 on test against the time of a request; up and left is better. Bars: standard deviation of seeds."
    )
    heading, about = "Quality against latency", ("a request, ms (p50)", "R@5, %")
    return Figure("quality_latency.svg", heading, caption, "points", *about, tuple(panels), log=("x",))


def _unseen(lines: Sequence[ResultLine]) -> Figure:
    panels = []
    for dataset, splits in by_dataset(lines).items():
        found = {(split, _method(line)): line for (_, split, _), chosen in splits.items() for line in chosen}
        # What has no row of unseen tools or scenes has nothing to be compared with.
        methods = {method for split, method in found if split in _SPLIT_LABELS.keys() - {"test"}}
        if not methods:
            continue
        bars = [(split, "recall@5", name) for split, name in _SPLIT_LABELS.items()]
        bars.append(("unseen_tool.test", "new_recall@5", "unseen tools, those alone"))
        series = []
        for split, measure, label in bars:
            own = {method: line for (name, method), line in found.items() if name == split and method in methods}
            values = {method: line.values(measure) for method, line in own.items()}
            shown = {method: numbers for method, numbers in values.items() if numbers}
            if shown:
                heights, errors = zip(*((mean_percent(one), deviation(one)) for one in shown.values()), strict=True)
                series.append(Series(label, tuple(shown), heights, errors))
        panels += panels_of(dataset, series)
    caption = (
        "Recall@5 on test, on tool combinations that training never had, on requests for tools that training never had,"
        " and there counting only those tools. Thin bars: standard deviation of seeds."
    )
    return Figure("seen_unseen.svg", "Seen against unseen", caption, "bars", "", "R@5, %", tuple(panels))


def _method(line: ResultLine) -> str:
    """Return the method without the name of its split, which the folder of a model for unseen tools may have."""
    family, dot, _ = line.split[1].partition(".")
    if not dot:
        return line.method
    own = re.escape(family).replace("_", "[-_]")
    return re.sub(rf"[-_.]?{own}(?![A-Za-z0-9])", "", line.method).replace("(-", "(").replace(" ()", "")


def _golds(lines: Sequence[ResultLine], by_gold: Mapping[str, Groups]) -> Figure:
    panels = []
    for chosen in lines_of_tests(lines):
        series: list[Series] = []
        for line in chosen:
            known = [by_gold[row_key(row)] for row in line.rows if row_key(row) in by_gold]
            golds = _common_counts(known)
            for place, dashed in ((1, False), (2, True)) if len(golds) > 1 else ():
                heights = tuple(mean_percent([groups[gold][place] for groups in known]) for gold in golds)
                series.append(Series(line.method, tuple(golds), heights, dashed=dashed))
        panels += panels_of(_title(chosen[0]), series)
    caption = (
        "Recall@5 (solid) and COMP@5 (dashed: all of them found) on test by how many tools a request needs. A number"
        f" that fewer than {_MIN_REQUESTS} requests need is left out."
    )
    heading, about = "Quality by number of gold tools", ("gold tools", "%")
    return Figure("by_gold.svg", heading, caption, "curves", *about, tuple(panels))


def _common_counts(seeds: Sequence[Groups]) -> list[int]:
    """Return the numbers of gold tools that enough requests have in every seed."""
    enough = [{gold for gold, (requests, _, _) in groups.items() if requests >= _MIN_REQUESTS} for groups in seeds]
    return sorted(set.intersection(*enough)) if enough else []


def _cost(rows: Sequence[RowDict]) -> Figure:
    panels = []
    for title, curves in _BENCH.items():
        series = []
        for label, (bench, requests, name, store) in curves.items():
            ours = [row for row in rows if not row.get("encoder") and row.get("store", "") == store]
            chosen = [row for row in ours if (row["bench"], row["requests"]) == (bench, requests)]
            points = sorted((row["tools"], row["values"][name]) for row in chosen if row["values"].get(name))
            if points:
                sizes, values = zip(*points, strict=True)
                series.append(Series(label, sizes, values, dashed=bool(store)))
        panels += panels_of(title, series)
    axes = ("tools", "")
    return Figure(
        "bench.svg", "Cost against size", "", "curves", *axes, tuple(panels), log=("x", "y"), shared_legend=False
    )


def panels_of(title: str, series: Iterable[Series]) -> list[Panel]:
    """Return a list of one panel; an empty list where there are no series."""
    found = tuple(series)
    return [Panel(title, found)] if found else []


def _title(line: ResultLine) -> str:
    dataset, split, _ = line.split
    return f"{dataset} {split}"


def mean_percent(values: Sequence[float]) -> float:
    """Return the mean of fractions in percent, rounded to two digits."""
    return round(100 * fmean(values), 2)


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of fractions in percent, rounded to two digits; 0 for a single one."""
    return round(100 * stdev(values), 2) if len(values) > 1 else 0.0


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
