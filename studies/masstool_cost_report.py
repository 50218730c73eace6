"""The section and figure about what masstool costs (studies/masstool_cost.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from studies.study_rows import StudyRows
from toolscout.evaluation.report.figures import Figure, Series, panels_of
from toolscout.evaluation.report.tables import table, verdict
from toolscout.evaluation.row import RowDict

COST = "masstool"
_FIGURE = "cost"
_HEAD = """
## MassTool: cost

Made-up tools and requests, so that sizes can be chosen; a fit with the usual options on vectors of a frozen encoder.
Times of a request are those of the search alone, without the encoder, on two cores; the aim is to be within 3 ms of
dense on the same encoder.
"""
_AIM_MS = 3.0
_VALUES = {
    "fit, s": "fit_s",
    "peak memory of the fit, MB": "fit_peak_mb",
    "GPU memory, MB": "fit_gpu_mb",
    "on disk, MB": "model_mb",
    "memory to serve, MB": "serve_mb",
    "dense p50, ms": "dense_p50_ms",
    "masstool p50, ms": "masstool_p50_ms",
    "more, ms": "more_ms",
}


def section(rows: StudyRows, pictures: Mapping[str, str]) -> Iterator[str]:
    """One table over all sizes; nothing where there are no rows."""
    measured = rows.bench(COST)
    if not measured:
        return
    yield _HEAD
    yield from filter(None, [pictures.get(_FIGURE)])
    lines = []
    for row in sorted(measured, key=lambda row: (row["tools"], int(row["requests"]))):
        values = row["values"]
        cells = {head: f"{values[name]:,.4g}" for head, name in _VALUES.items() if values.get(name) is not None}
        if values.get("more_ms") is not None:
            cells["more, ms"] += verdict(f"≤ {_AIM_MS:g}", values["more_ms"] <= _AIM_MS)
        cells |= {"tools": f"{row['tools']:,}", "requests": f"{int(row['requests']):,}"}
        lines.append(cells | {"device": str(row.get("device", "")), "commit": str(row.get("commit", ""))})
    yield table(["tools", "requests", *_VALUES, "device", "commit"], lines)


def figures(rows: StudyRows) -> dict[str, Figure]:
    """Cost against the numbers of tools and requests; none where there is nothing to show."""
    panels = []
    titles = {"fit, s": ("fit_s",), "memory, MB": ("fit_peak_mb", "serve_mb"), "a request, ms": ("masstool_p50_ms",)}
    for title, names in titles.items():
        for along, fixed in (("requests", "tools"), ("tools", "requests")):
            series = []
            for name in names:
                for size, points in _along(rows.bench(COST), along, fixed, name).items():
                    x, y = zip(*points, strict=True)
                    series.append(Series(f"{name} at {size:,} {fixed}", x, y))
            panels += panels_of(f"{title}, against {along}", series)
    if not panels:
        return {}
    heading, found = "MassTool: cost", tuple(panels)
    return {_FIGURE: Figure("cost.svg", heading, "", "curves", "", "", found, log=("x", "y"), shared_legend=False)}


def _along(rows: Sequence[RowDict], along: str, fixed: str, name: str) -> dict[int, list[tuple[int, float]]]:
    found: dict[int, list[tuple[int, float]]] = {}
    for row in rows:
        if row["values"].get(name):
            found.setdefault(int(row[fixed]), []).append((int(row[along]), float(row["values"][name])))
    return {size: sorted(points) for size, points in sorted(found.items()) if len(points) > 1}
