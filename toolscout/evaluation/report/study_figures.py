"""What the plots of studies show, as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean, stdev
from typing import Any

from toolscout.evaluation.report.figures import Figure, Panel, Series
from toolscout.evaluation.report.rows import Line, Row
from toolscout.evaluation.report.study_tables import of
from toolscout.evaluation.study import STUDY

_MEASURE = "ndcg@5"
_WHOLE = "MassTool"
# Panel, and the option whose value stands on x.
_OPTIONS = {"lambda": ("λ of detection", "detection"), "epsilon": ("ε of the filter", "epsilon")}


def study_figures(studies: Sequence[Line], cost: Sequence[Row]) -> dict[str, Figure]:
    """By the study that they belong to; only those that there is something for."""
    made = {
        "ablation": _ablation(of(studies, "ablation")),
        "continual": _continual(of(studies, "continual")),
        "cost": _cost(cost),
    }
    return {name: figure for name, figure in made.items() if figure.panels}


def _ablation(lines: Sequence[Line]) -> Figure:
    panels = []
    groups: dict[tuple[str, str, str], list[Line]] = {}
    for line in lines:
        groups.setdefault((*line.split[:2], line.newest[STUDY]["of"]), []).append(line)
    for (dataset, split, _), chosen in groups.items():
        title = f"{dataset} {split}"
        for part, (label, option) in _OPTIONS.items():
            panels += _panel(f"{title}: {label}", _curves(chosen, part, option))
        panels += _panel(f"{title}: edges kept, by layers", _layers(chosen))
        panels += _panel(f"{title}: pool, share of requests", _served(chosen, "pool"))
        panels += _panel(f"{title}: accuracy of the detector", _served(chosen, "detector"))
    return Figure("ablation.svg", "MassTool: what each part is worth", "", "lines", "", "N@5, %", tuple(panels))


def _curves(lines: Sequence[Line], part: str, option: str) -> list[Series]:
    """Over the values of one option, that of the full model among them; dashed: as learned."""
    chosen = [line for line in lines if line.newest[STUDY]["part"] in (part, "full")]
    if not any(line.newest[STUDY]["part"] == part for line in chosen):
        return []
    return _twins(_WHOLE, chosen, lambda line: float(line.newest["options"][option]))


def _layers(lines: Sequence[Line]) -> list[Series]:
    found: list[Series] = []
    chosen = [line for line in lines if line.newest[STUDY]["part"] in ("graph", "full")]
    if not any(line.newest[STUDY]["part"] == "graph" for line in chosen):
        return []
    for layers in sorted({int(line.newest["options"]["layers"]) for line in chosen}):
        own = [line for line in chosen if line.newest["options"]["layers"] == layers]
        found += _twins(f"{layers} layer{'s' if layers > 1 else ''}", own, lambda line: line.newest["options"]["edges"])
    return found


def _served(lines: Sequence[Line], part: str) -> list[Series]:
    """Over what a full model is left with when it serves; for the detector beside a model without the gate."""
    chosen = [line for line in lines if line.newest[STUDY]["part"] == part]
    if not chosen:
        return []
    full = [line for line in lines if line.newest[STUDY]["part"] == "full"]
    if part == "pool":
        return _twins(_WHOLE, full + chosen, lambda line: float(line.newest[STUDY].get("changes", {}).get("pool", 1.0)))
    found = _twins(_WHOLE, chosen, lambda line: line.mean("detector_accuracy") or 0.0)
    places = sorted({x for series in found for x in series.x if isinstance(x, float)})
    for line in lines:
        told = line.newest[STUDY]
        if told["variant"] in ("without-adakt", "full") and line.values(_MEASURE):
            label = "without AdaKT" if told["variant"] == "without-adakt" else "full, detector as it is"
            height = _percent(line.values(_MEASURE))
            ends = (places[0], places[-1])
            found.append(Series(label, ends, (height, height), dashed=told["weights"] == "learned"))
    return found


def _twins(label: str, lines: Sequence[Line], place: Any) -> list[Series]:
    found = []
    for weights in ("chosen", "learned"):
        points = sorted(
            (float(place(line)), _percent(line.values(_MEASURE)), _spread(line.values(_MEASURE)))
            for line in lines
            if line.newest[STUDY]["weights"] == weights and line.values(_MEASURE)
        )
        if points:
            x, y, errors = zip(*points, strict=True)
            error = errors if any(errors) else ()
            found.append(Series(label, x, y, error, dashed=weights == "learned"))
    return found


def _continual(lines: Sequence[Line]) -> Figure:
    panels = []
    groups: dict[tuple[Any, ...], list[Line]] = {}
    for line in lines:
        told = line.newest[STUDY]
        groups.setdefault((line.split[0], told["change"], told["encoder"], told["group"]), []).append(line)
    for (dataset, change, _, group), chosen in sorted(groups.items()):
        series = []
        for retriever, mode in sorted({(line.newest["retriever"], line.newest[STUDY]["mode"]) for line in chosen}):
            own = [
                line
                for line in chosen
                if (line.newest["retriever"], line.newest[STUDY]["mode"]) == (retriever, mode)
                and line.values("recall@5")
            ]
            points = sorted((float(one.newest[STUDY]["step"]), _percent(one.values("recall@5"))) for one in own)
            if points:
                x, y = zip(*points, strict=True)
                label = retriever if mode in ("kept", "retrained") else f"{retriever}, {mode}"
                series.append(Series(label, x, y, dashed=mode == "retrained"))
        panels += _panel(f"{dataset}: {change}, {group}", series)
    heading = "Tools that come, documents that change"
    return Figure("continual.svg", heading, "", "lines", "step", "R@5, %", tuple(panels))


def _cost(rows: Sequence[Row]) -> Figure:
    panels = []
    titles = {"fit, s": ("fit_s",), "memory, MB": ("fit_peak_mb", "serve_mb"), "a request, ms": ("masstool_p50_ms",)}
    for title, names in titles.items():
        for along, fixed in (("requests", "tools"), ("tools", "requests")):
            series = []
            for name in names:
                for size, points in _along(rows, along, fixed, name).items():
                    x, y = zip(*points, strict=True)
                    series.append(Series(f"{name} at {size:,} {fixed}", x, y))
            panels += _panel(f"{title}, against {along}", series)
    heading = "MassTool: cost"
    return Figure("cost.svg", heading, "", "curves", "", "", tuple(panels), log=("x", "y"), shared_legend=False)


def _along(rows: Sequence[Row], along: str, fixed: str, name: str) -> dict[int, list[tuple[int, float]]]:
    found: dict[int, list[tuple[int, float]]] = {}
    for row in rows:
        if row["values"].get(name):
            found.setdefault(int(row[fixed]), []).append((int(row[along]), float(row["values"][name])))
    return {size: sorted(points) for size, points in sorted(found.items()) if len(points) > 1}


def _panel(title: str, series: Iterable[Series]) -> list[Panel]:
    found = tuple(series)
    return [Panel(title, found)] if found else []


def _percent(values: Sequence[float]) -> float:
    return round(100 * fmean(values), 2)


def _spread(values: Sequence[float]) -> float:
    return round(100 * stdev(values), 2) if len(values) > 1 else 0.0
