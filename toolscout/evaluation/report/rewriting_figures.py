"""What the plots of rewriting and of training on written requests show, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

from toolscout.evaluation.report.figures import Figure, Panel, Series
from toolscout.evaluation.report.rewriting_tables import (
    REWRITING,
    SYNTHETIC,
    groups,
    label,
    main_lines,
    of,
    shares,
    told,
)
from toolscout.evaluation.report.rows import Line
from toolscout.evaluation.report.synthetic_tables import DEFAULT


def rewriting_figures(studies: Sequence[Line]) -> dict[str, Figure]:
    """By the study that they belong to; only those that there is something for."""
    lines = of(studies, REWRITING)
    made = {
        REWRITING: _forms(main_lines(lines)),
        "rewriting_share": _shares(lines),
        SYNTHETIC: _written([line for line in of(studies, SYNTHETIC) if told(line, "family") != DEFAULT]),
    }
    return {name: figure for name, figure in made.items() if figure.panels}


def _forms(lines: Sequence[Line]) -> Figure:
    """R@5 of each form, a bar for each retriever."""
    panels = []
    for (dataset, split, _), chosen in groups(lines).items():
        series = []
        for over in dict.fromkeys(str(told(line, "over")) for line in chosen):
            own = {label(line): line.values("recall@5") for line in chosen if told(line, "over") == over}
            shown = {name: values for name, values in own.items() if values}
            if shown:
                heights, errors = tuple(map(_percent, shown.values())), tuple(map(_spread, shown.values()))
                series.append(Series(over, tuple(shown), heights, errors))
        if series:
            panels.append(Panel(f"{dataset} {split}", tuple(series)))
    return Figure("rewriting.svg", "Rewriting requests: R@5", "", "bars", "", "R@5, %", tuple(panels))


def _shares(lines: Sequence[Line]) -> Figure:
    """R@5 against the share of requests that are rewritten."""
    panels: dict[str, list[Series]] = {}
    for (dataset, split, source), own in sorted(shares(lines).items()):
        points = [(share, line.values("recall@5")) for share, line in sorted(own.items())]
        x, y = zip(*((float(share), _percent(values)) for share, values in points if values), strict=True)
        panels.setdefault(f"{dataset} {split}", []).append(Series(source, x, y))
    made = tuple(Panel(title, tuple(series)) for title, series in panels.items())
    about = ("requests rewritten, %", "R@5, %")
    return Figure("rewriting_share.svg", "Only where it is worth it", "", "lines", *about, made)


def _written(lines: Sequence[Line]) -> Figure:
    """New R@5, and dashed known R@5, against the written requests for each tool."""
    panels = []
    for (dataset, split, _), chosen in groups(lines).items():
        series = []
        for name, dashed in (("new_recall@5", False), ("known_recall@5", True)):
            for method in sorted({str(told(line, "method")) for line in chosen}):
                own = {int(told(one, "per_tool")): one.values(name) for one in chosen if told(one, "method") == method}
                points = sorted((count, values) for count, values in own.items() if values)
                if points:
                    x, y = tuple(float(count) for count, _ in points), tuple(_percent(values) for _, values in points)
                    series.append(Series(method, x, y, tuple(_spread(values) for _, values in points), dashed))
        if series:
            panels.append(Panel(f"{dataset} {split}", tuple(series)))
    heading, about = "Held-out tools: new R@5, and known R@5 (dashed)", ("written requests for each tool", "%")
    return Figure("synthetic.svg", heading, "", "lines", *about, tuple(panels))


def _percent(values: Sequence[float]) -> float:
    return round(100 * fmean(values), 2)


def _spread(values: Sequence[float]) -> float:
    return round(100 * stdev(values), 2) if len(values) > 1 else 0.0
