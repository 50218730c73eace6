"""What the plots of the studies of generative models show, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from toolscout.evaluation.report.figures import Figure, Panel, Series
from toolscout.evaluation.report.generative_tables import costs, of
from toolscout.evaluation.report.rows import Line
from toolscout.evaluation.study import STUDY

_QUALITY = {
    "all test requests there": ("ndcg@5", "recall@5"),
    "the same requests": ("same_ndcg@5", "same_recall@5"),
}
_COST = {
    "added vocabulary": "vocabulary",
    "added rows in memory, MB": "rows_mb",
    "GPU peak, MB": "gpu_peak_mb",
    "adding a tool, s": "add_s",
}


def generative_figures(studies: Sequence[Line]) -> dict[str, Figure]:
    """By the study that they belong to; only those that there is something for."""
    lines = of(studies, "growth")
    made = {"growth": _quality(lines), "growth_cost": _cost(lines)}
    return {name: figure for name, figure in made.items() if figure.panels}


def _quality(lines: Sequence[Line]) -> Figure:
    """N@5, and dashed R@5, against the number of tools."""
    panels = []
    for title, names in _QUALITY.items():
        series = [one for place, name in enumerate(names) for one in _curves(lines, _percent(name), dashed=bool(place))]
        if series:
            panels.append(Panel(title, tuple(series)))
    heading, about = "Catalogues that grow: N@5, and R@5 (dashed)", ("tools", "%")
    return Figure("growth.svg", heading, "", "lines", *about, tuple(panels), log=("x",))


def _cost(lines: Sequence[Line]) -> Figure:
    panels = []
    for title, name in _COST.items():
        series = _curves(lines, lambda line, name=name: costs(line, name))  # type: ignore[misc]
        if series:
            panels.append(Panel(title, tuple(series)))
    heading = "Catalogues that grow: cost"
    return Figure("growth_cost.svg", heading, "", "curves", "tools", "", tuple(panels), log=("x", "y"))


def _percent(name: str) -> Callable[[Line], float | None]:
    def found(line: Line) -> float | None:
        values = line.values(name)
        return round(100 * fmean(values), 2) if values else None

    return found


def _curves(lines: Sequence[Line], height: Callable[[Line], float | None], dashed: bool = False) -> list[Series]:
    """A curve for each method over the numbers of tools."""
    found = []
    for method in sorted({str(line.newest["retriever"]) for line in lines}):
        own = [line for line in lines if line.newest["retriever"] == method]
        heights = sorted((int(line.newest[STUDY]["tools"]), height(line)) for line in own if height(line) is not None)
        points = [(float(tools), float(value)) for tools, value in heights if value is not None]
        if points:
            x, y = zip(*points, strict=True)
            found.append(Series(method, x, y, dashed=dashed))
    return found
