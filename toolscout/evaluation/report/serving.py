"""Markdown section and plot of the load tests, made of the rows of `toolscout bench serve`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from toolscout.evaluation.bench.speed import target_of
from toolscout.evaluation.report.figures import Figure, Panel, Series
from toolscout.evaluation.report.rows import commits
from toolscout.evaluation.report.tables import table, verdict
from toolscout.evaluation.row import RowDict

SERVING = "serving"
_KINDS = ("serve", "saturation", "storm")
_HEAD = """
## A server under load

`toolscout bench serve`: requests arrive at a fixed rate over HTTP, none of them twice; client and server share two
cores. Times count from when a request was due. In the rows with *writes*, tools are added and removed meanwhile:
*missing* counts tools that a search did not find right after they were added, *stale* answers with a removed tool.
An overloaded server refuses requests (429 or 503); *refusal* is the time of that. *Grown* is the growth of memory after
the first quarter.
"""
_COLUMNS: Mapping[str, str] = {
    "p50, ms": "p50_ms",
    "p95, ms": "p95_ms",
    "p99, ms": "p99_ms",
    "answered": "answered",
    "refused": "refused",
    "refusal, p95, ms": "refused_p95_ms",
    "errors": "errors",
    "missing": "missing",
    "stale": "stale",
    "add, p95, ms": "write_p95_ms",
    "memory, MB": "memory_mb",
    "… grown": "memory_grown_mb",
    "cores": "cores",
}
_CURVE = "saturation"


def is_serving(row: RowDict) -> bool:
    """Return whether a row comes from a load test."""
    return str(row["bench"]).split(" ")[0] in _KINDS and row.get("how") == "over HTTP"


def section(rows: Sequence[RowDict], pictures: Mapping[str, str]) -> Iterator[str]:
    """Yield the Markdown of the newest row of each kind; nothing without rows. `pictures`: Markdown of the plots."""
    if not rows:
        return
    yield _HEAD
    yield from filter(None, [pictures.get(SERVING)])
    used = ("bench", "requests", "tools", "retriever", "encoder")
    newest = {tuple(row.get(key, "") for key in used): row for row in rows}
    columns = ["what", "encoder", "requests", "tools", "a second", "writes", "for, s", *_COLUMNS, "commit"]
    yield table(columns, map(_cells, newest.values()))


def _cells(row: RowDict) -> dict[str, str]:
    values, aims = row["values"], target_of(row)
    cells = {
        "what": str(row["bench"]).split(" ")[0],
        "encoder": str(row.get("encoder") or "default"),
        "requests": str(row["requests"]),
        "tools": f"{row['tools']:,}",
        "a second": f"{values['rate']:g}",
        "writes": f"{values['writes']:g}",
        "for, s": f"{values['seconds']:g}",
    }
    for head, name in _COLUMNS.items():
        if values.get(name) is not None:
            aim = aims.get(name)
            met = "" if aim is None else verdict(aim, aim.met(values[name]))
            cells[head] = f"{values[name]:,.4g}{met}" if values[name] < 1000 else f"{values[name]:,.0f}{met}"
    return cells | {"commit": commits([row])}


def serving_figures(rows: Sequence[RowDict]) -> dict[str, Figure]:
    """Return the plot of latency against request rate, one panel for each set of requests; {} without such rows."""
    panels = []
    curves = [row for row in rows if str(row["bench"]).startswith(_CURVE)]
    for data in dict.fromkeys(str(row["requests"]) for row in curves):
        asked = [row for row in curves if row["requests"] == data]
        series = []
        for encoder in dict.fromkeys(str(row.get("encoder", "")) for row in asked):
            points = {row["values"]["rate"]: row["values"] for row in asked if row.get("encoder", "") == encoder}
            rates = tuple(sorted(points))
            series += [
                Series(
                    f"{name}, {encoder}" if encoder else name,
                    rates,
                    tuple(points[rate][key] for rate in rates),
                    dashed=dashed,
                )
                for name, key, dashed in (("p50", "p50_ms", True), ("p95", "p95_ms", False))
            ]
        panels.append(Panel(f"{data} requests", tuple(series)))
    if not panels:
        return {}
    about = ("requests a second", "ms")
    return {SERVING: Figure("serving.svg", "A server under load", "", "curves", *about, tuple(panels))}
