"""Draws results/bench.svg, cost against catalogue size, from results/bench.jsonl."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt

from toolscout.evaluation.row import read_rows

RESULTS = Path(__file__).resolve().parent.parent / "results"
# Panel, then for each curve its label and where its values stand.
PANELS = {
    "a request, ms (p50)": {
        "ToolBench requests": ("query", "toolbench", "p50_ms"),
        "ToolLens requests": ("query", "toollens", "p50_ms"),
        "searches and fusion": ("query", "toollens", "searches_ms"),
        "exact name": ("lookup", "", "name_p50_ms"),
        "allowed 5 %": ("caller", "", "namespaces_p50_ms"),
    },
    "indexing, s": {
        "all embedded": ("index", "", "index_s"),
        "first answer from words": ("index", "", "first_answer_s"),
        "added again": ("index", "", "again_s"),
    },
    "memory and disk, MB": {
        "resident memory, serving": ("memory", "", "peak_mb"),
        "store": ("memory", "", "store_mb"),
        "index beside it": ("memory", "", "index_mb"),
    },
}


def points(rows: list[dict[str, Any]], bench: str, requests: str, key: str) -> list[tuple[int, float]]:
    """Size and value; the newest row of a size counts."""
    newest = {
        row["tools"]: row["values"][key]
        for row in rows
        if row["bench"] == bench and row["requests"] == requests and row["values"].get(key)
    }
    return sorted(newest.items())


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Three panels, both axes logarithmic."""
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "toolscout", "font.size": 8})
    figure, axes = plt.subplots(1, len(PANELS), figsize=(10, 3.2), layout="constrained")
    for axis, (title, curves) in zip(axes, PANELS.items(), strict=True):
        for label, where in curves.items():
            found = points(rows, *where)
            if found:
                axis.plot(*zip(*found, strict=True), marker="o", markersize=3, linewidth=1, label=label)
        axis.set(title=title, xlabel="tools", xscale="log", yscale="log")
        axis.grid(visible=True, alpha=0.3)
        if axis.lines:
            axis.legend(fontsize=7, frameon=False)
    figure.savefig(path, format="svg", metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    draw(read_rows(RESULTS / "bench.jsonl"), RESULTS / "bench.svg")
