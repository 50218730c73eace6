"""Draws figures as SVG with matplotlib. The same data gives the same file, and the file has the digest of its data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolscout.errors import MissingExtra
from toolscout.evaluation.report.figures import Figure, Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",  # text stays text: small, searchable, in the reader's font
    "svg.hashsalt": "toolscout",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8,
    "legend.frameon": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "lines.linewidth": 1,
    "lines.markersize": 4,
}
_MARKERS = "osD^vPX<>*"
_COLUMNS = 4
_COLUMNS_OF = {"bars": 2, "differences": 2, "named": 2}
_LEGEND_COLUMNS = 3
# Width and height of a panel in inches.
_SIZES = {
    "points": (2.7, 2.3),
    "named": (5.0, 4.2),
    "curves": (2.7, 2.3),
    "lines": (2.7, 2.3),
    "bars": (5.0, 2.8),
    "differences": (5.0, 2.8),
}
_BARS = ("bars", "differences")
# The room of a name beside a point of "named", as a part of the panel.
_NAME_WIDTH, _NAME_HEIGHT = 0.28, 0.026
# Panels of bars with at most so many groups are narrow, so that two of them are as wide as a page of text.
_FEW_GROUPS, _NARROW, _NARROW_LEGEND = 10, 3.6, 2
_DIGEST = re.compile(r"toolscout-data:([0-9a-f]{32})")


def read_digest(path: Path) -> str:
    """Return the digest of the data that a plot shows; "" where the file is missing or has none."""
    try:
        found = _DIGEST.search(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ""
    return found.group(1) if found else ""


def check_library() -> None:
    """Raise MissingExtra where matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingExtra("drawing plots (--no-plots leaves them out)", "report") from None


def draw(figure: Figure, path: Path) -> None:
    """Draw one figure into a file; raises MissingExtra where matplotlib is not installed."""
    check_library()
    import matplotlib.style
    from matplotlib.figure import Figure as Canvas

    columns = min(len(figure.panels), _COLUMNS_OF.get(figure.kind, _COLUMNS))
    rows = -(-len(figure.panels) // columns)
    width, height = _SIZES[figure.kind]
    legend_columns = _LEGEND_COLUMNS
    if figure.kind in _BARS and max(len(_groups(panel)) for panel in figure.panels) <= _FEW_GROUPS:
        width, legend_columns = _NARROW, _NARROW_LEGEND
    labels = list(dict.fromkeys(one.label for panel in figure.panels for one in panel.series))
    handles: dict[str, Any] = {}
    with matplotlib.style.context(["default", _STYLE]):
        legend = 0.3 + 0.17 * -(-len(labels) // legend_columns) if figure.shared_legend else 0
        canvas = Canvas(figsize=(max(width * columns, 5), height * rows + legend), layout="constrained")
        grid = list(canvas.subplots(rows, columns, squeeze=False).flat)
        for axes, panel in zip(grid, figure.panels, strict=False):
            if not figure.shared_legend:
                labels = [one.label for one in panel.series]
            handles |= _DRAWN.get(figure.kind, _points)(axes, figure, panel, labels)
            axes.set(title=_escape(panel.title), xlabel=figure.x_label, ylabel=figure.y_label)
            if not figure.shared_legend and figure.kind != "named":
                axes.legend(fontsize=7)
        for axes in grid[len(figure.panels) :]:
            axes.set_axis_off()
        if figure.shared_legend:
            names = [_escape(label) for label in handles]
            canvas.legend(list(handles.values()), names, loc="outside lower center", ncols=legend_columns, fontsize=7)
        about = {"Date": None, "Creator": None, "Identifier": f"toolscout-data:{figure.digest()}"}
        canvas.savefig(path, format="svg", metadata=about)


def _points(axes: Axes, figure: Figure, panel: Panel, labels: Sequence[str]) -> dict[str, Any]:
    """Draw curves, or points with error bars; a label has one colour and marker in every panel."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

    axes.set(**{f"{name}scale": "log" for name in figure.log})
    if figure.kind == "points":
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.margins(0.15)
    elif figure.kind == "curves" and not figure.log:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylim(-3, 103)
    for name in figure.log:
        getattr(axes, f"{name}axis").set_minor_locator(NullLocator())
    handles: dict[str, Any] = {}
    for one in panel.series:
        number = labels.index(one.label)
        style: dict[str, Any] = {"color": f"C{number % 10}", "marker": _MARKERS[number % len(_MARKERS)]}
        line = "--" if one.dashed else "-" if figure.kind in ("curves", "lines") else "none"
        error = list(one.error) or None
        made = axes.errorbar(one.x, one.y, yerr=error, linestyle=line, label=_escape(one.label), **style)
        handles.setdefault(one.label, made)
    return handles


def _named(axes: Axes, figure: Figure, panel: Panel, labels: Sequence[str]) -> dict[str, Any]:
    """Draw points with their labels to the right of them, moved up where they would cover each other."""
    axes.set(**{f"{name}scale": "log" for name in figure.log})
    axes.margins(x=0.25, y=0.06)
    for one in panel.series:
        colour = "C0" if one.dashed else "C3"
        axes.plot(one.x, one.y, "o", color=colour, markerfacecolor="white" if one.dashed else colour)
    axes.autoscale_view()  # before this the axes do not know where their points are
    place = axes.transData + axes.transAxes.inverted()
    named: list[tuple[float, float]] = []
    for one in sorted(panel.series, key=lambda series: series.y[0]):
        x, y = place.transform((one.x[0], one.y[0]))
        while any(abs(x - left) < _NAME_WIDTH and abs(y - bottom) < _NAME_HEIGHT for left, bottom in named):
            y += _NAME_HEIGHT / 4
        named.append((x, y))
        name = axes.text(x + 0.015, y, _escape(one.label), transform=axes.transAxes, va="center", fontsize=6)
        name.set_in_layout(False)
    return {}


def _bars(axes: Axes, figure: Figure, panel: Panel, labels: Sequence[str]) -> dict[str, Any]:
    """Draw groups of bars: a group for each x value, with a bar for each series."""
    places = _groups(panel)
    width = 0.8 / len(panel.series)
    handles = {}
    for number, one in enumerate(panel.series):
        at = [places.index(place) + (number - (len(panel.series) - 1) / 2) * width for place in one.x]
        colour = f"C{labels.index(one.label) % 10}"
        fill: dict[str, Any] = {"color": colour}
        if one.dashed:
            fill = {"facecolor": "white", "edgecolor": colour, "hatch": "////"}
        error = {"elinewidth": 0.8}
        handles[one.label] = axes.bar(at, one.y, width, yerr=list(one.error) or None, error_kw=error, **fill)
    names = [_escape(str(place)) for place in places]
    axes.set_xticks(range(len(places)), names, rotation=30, ha="right", rotation_mode="anchor")
    axes.grid(visible=False, axis="x")
    if figure.kind == "bars":
        axes.set_ylim(0, 100)
    else:
        axes.axhline(0, color="black", linewidth=0.8)
    return handles


_DRAWN = {"bars": _bars, "differences": _bars, "named": _named}


def _groups(panel: Panel) -> list[float | str]:
    return list(dict.fromkeys(place for one in panel.series for place in one.x))


def _escape(text: str) -> str:
    """Escape dollar signs, with which matplotlib marks formulas."""
    return text.replace("$", r"\$")
