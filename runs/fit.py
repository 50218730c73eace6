"""Fits the curve over similarity in toolscout/fit.py on the bundled dev requests, and shows the verdicts it gives.

Logistic regression of "a tool serves this" on the best cosine: the dev requests for tools against those that nothing
fits, both kinds weighing the same. Requests that need no tool are left out: they may well speak of what a tool does.
The threshold printed is the highest that still answers nine in ten of the dev requests for tools; test is only shown.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from toolscout import metrics
from toolscout.answer import Hit
from toolscout.dataset import KINDS, Dataset
from toolscout.evaluation._vectors import cached_vectors, encoder_of
from toolscout.evaluation.run import find_dataset, open_retriever
from toolscout.fit import FitOptions, fit, signals
from toolscout.scout import Scout
from toolscout.stores.sqlite import SqliteStore

# Keeps the curve finite where the two kinds can be told apart perfectly.
PENALTY = 0.001
KEPT = 0.9
Floats = NDArray[np.float64]
Truth = NDArray[np.bool_]


class Asked(NamedTuple):
    """The requests of one split: their kinds, and the hits that the verdict is made of."""

    kinds: list[str]
    hits: list[tuple[Hit, ...]]


def collect(dataset: Dataset, splits: Sequence[str], retriever: str) -> dict[str, Asked]:
    """Ask every request of the splits."""
    opened, _ = open_retriever(retriever)
    encoder = encoder_of(opened)
    found = {}
    with tempfile.TemporaryDirectory() as folder, Scout(SqliteStore(Path(folder) / "store.db"), opened) as scout:
        digests = [tool.digest() for tool in dataset.tools] if encoder else []
        with cached_vectors(scout.store, encoder.fingerprint if encoder else "", digests):
            scout.store.add(dataset.tools)
            scout.refresh()
            scout.embed()
        for split in splits:
            asked = dataset.split(split).requests + dataset.goldless(split)
            kinds: list[str] = [dataset.kind(request_id) for request_id, _ in asked]
            found[split] = Asked(kinds, [scout.search(text).considered for _, text in asked])
    return found


def logistic(signal: Floats, truth: Truth) -> tuple[float, float]:
    """Bias and weight by Newton's method, both classes weighing the same."""
    design = np.column_stack([np.ones(len(signal)), signal])
    share = np.where(truth, 0.5 / truth.mean(), 0.5 / (1 - truth.mean()))
    penalty = PENALTY * np.diag([0.0, 1.0])
    weights: Floats = np.zeros(2)
    for _ in range(100):
        chance = 1 / (1 + np.exp(-design @ weights))
        slope = design.T @ (share * (chance - truth)) + penalty @ weights
        bend = design.T @ (design * (share * chance * (1 - chance))[:, None]) + penalty
        step = np.linalg.solve(bend, slope)
        weights = weights - step
        if np.abs(step).max() < 1e-9:
            break
    return float(weights[0]), float(weights[1])


def lenient_threshold(chance: Floats, truth: Truth) -> float:
    """The highest threshold that still answers nine in ten of the requests that a tool serves.

    Turning away a request that could be served costs more than offering a tool that does not fit.
    """
    return float(np.floor(1000 * np.quantile(chance[truth], 1 - KEPT, method="lower")) / 1000)


def judged(asked: Asked, options: FitOptions, without: str = "") -> tuple[Floats, Truth]:
    """What fit says of each request, and whether a tool serves it; one kind may be left out."""
    pairs = [(fit(hits, options), kind == "use") for kind, hits in zip(*asked, strict=True) if kind != without]
    return np.array([chance for chance, _ in pairs]), np.array([truth for _, truth in pairs])


def table(name: str, found: dict[str, Asked], options: FitOptions) -> Table:
    """Verdicts by kind of request."""
    made = Table(title=f"{name}, threshold {options.threshold:.3f}")
    for header in ("split", "kind", "requests", "answered with tools", "AUROC against use"):
        made.add_column(header, justify="left" if header in ("split", "kind") else "right")
    for split, asked in found.items():
        chance, truth = judged(asked, options)
        for kind in KINDS:
            chosen = np.array([one == kind for one in asked.kinds])
            both = chosen | truth
            area = "" if kind == "use" else f"{metrics.auroc(truth[both], chance[both]):.3f}"
            said = float(np.mean(chance[chosen] >= options.threshold))
            made.add_row(split, kind, str(int(chosen.sum())), f"{said:.1%}", area)
    return made


def main() -> None:
    """Fit the curve, print it, and show what it does beside what is served now."""
    console = Console()
    dataset = Dataset.load(find_dataset("bundled"))
    found = collect(dataset, ("dev", "test"), "hybrid")
    kept = [(kind, hits) for kind, hits in zip(*found["dev"], strict=True) if kind != "no_tool"]
    cosines = np.array([signals(hits)[0] or 0.0 for _, hits in kept])
    bias, weight = logistic(cosines, np.array([kind == "use" for kind, _ in kept]))
    curve = FitOptions(bias=round(bias, 2), similarity=round(weight, 2))
    threshold = lenient_threshold(*judged(found["dev"], curve, without="no_tool"))
    console.print(f"bias={curve.bias}, similarity={curve.similarity}, threshold={threshold:.3f}")
    fitted = FitOptions(bias=curve.bias, similarity=curve.similarity, threshold=threshold)
    console.print(table("hybrid, as fitted here", found, fitted))
    console.print(table("hybrid, as served", found, FitOptions()))
    console.print(table("words alone, as served", collect(dataset, ("dev", "test"), "bm25"), FitOptions()))


if __name__ == "__main__":
    main()
