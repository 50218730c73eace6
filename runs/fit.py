"""Fits the weights in toolscout/fit.py on the bundled dev requests, and shows what they do on dev and test.

Two curves: over similarity and words (hybrid), and over words alone (where no encoder is). Logistic regression with a
small penalty on the weights, which keeps them finite where dev can be told apart perfectly. The threshold printed is
the one with the best balanced accuracy on dev; test is only shown.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from toolscout import metrics
from toolscout.answer import ExactName
from toolscout.dataset import KINDS, Dataset
from toolscout.evaluation._vectors import cached_vectors, encoder_of
from toolscout.evaluation.run import find_dataset, open_retriever
from toolscout.fit import signals
from toolscout.scout import Scout
from toolscout.stores.sqlite import SqliteStore

PENALTY = 0.1
Floats = NDArray[np.float64]


class Requests(NamedTuple):
    """Requests of one split: signals, whether a tool serves them, their kinds, and whether they name a tool."""

    features: Floats
    labels: NDArray[np.bool_]
    kinds: list[str]
    named: NDArray[np.bool_]


def collect(dataset: Dataset, splits: tuple[str, ...], retriever: str) -> dict[str, Requests]:
    """Ask every request and keep the signals that the verdict is made of."""
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
            rows, named = [], []
            for _, text in asked:
                hits = scout.search(text).considered
                cosine, share = signals(hits)
                rows.append([share] if cosine is None else [cosine, share])
                named.append(any(isinstance(reason, ExactName) for hit in hits[:1] for reason in hit.reasons))
            kinds: list[str] = [dataset.kind(request_id) for request_id, _ in asked]
            labels = np.array([kind == "use" for kind in kinds])
            found[split] = Requests(np.array(rows), labels, kinds, np.array(named))
    return found


def logistic(features: Floats, labels: NDArray[np.bool_]) -> Floats:
    """Bias and weights by Newton's method."""
    design = np.column_stack([np.ones(len(features)), features])
    penalty = PENALTY * np.diag([0.0, *np.ones(features.shape[1])])
    weights: Floats = np.zeros(design.shape[1])
    for _ in range(100):
        chance = 1 / (1 + np.exp(-design @ weights))
        slope = design.T @ (chance - labels) + penalty @ weights
        bend = design.T @ (design * (chance * (1 - chance))[:, None]) + penalty
        step = np.linalg.solve(bend, slope)
        weights = weights - step
        if np.abs(step).max() < 1e-9:
            break
    return weights


def probabilities(requests: Requests, weights: Floats) -> Floats:
    """What fit would say: certain for a tool that is named."""
    chance = 1 / (1 + np.exp(-(weights[0] + requests.features @ weights[1:])))
    return np.where(requests.named, 1.0, chance)


def best_threshold(requests: Requests, chance: Floats) -> float:
    """Where the mean of both classes' shares of right verdicts is highest."""

    def balanced(threshold: float) -> float:
        said = chance >= threshold
        return float(np.mean([np.mean(said[requests.labels]), np.mean(~said[~requests.labels])]))

    middles = np.unique(np.round((np.sort(chance)[1:] + np.sort(chance)[:-1]) / 2, 3))
    return max(map(float, middles), key=balanced)


def show(console: Console, split: str, requests: Requests, chance: Floats, threshold: float) -> None:
    """Verdicts by kind of request, at a half and at the threshold."""
    table = Table(
        title=f"{split}: AUROC {metrics.auroc(requests.labels, chance):.3f}, "
        f"ECE {metrics.ece(requests.labels, chance):.3f}"
    )
    for header in ("kind", "requests", "use at 0.5", f"use at {threshold:.3f}"):
        table.add_column(header, justify="left" if header == "kind" else "right")
    for kind in KINDS:
        chosen = chance[[one == kind for one in requests.kinds]]
        shares = [f"{np.mean(chosen >= limit):.1%}" for limit in (0.5, threshold)]
        table.add_row(kind, str(len(chosen)), *shares)
    console.print(table)


def main() -> None:
    """Fit both curves and print them."""
    console = Console()
    dataset = Dataset.load(find_dataset("bundled"))
    for retriever, names in (("hybrid", ("bias", "similarity", "share")), ("bm25", ("words_bias", "words_share"))):
        found = collect(dataset, ("dev", "test"), retriever)
        dev = found["dev"]
        weights = logistic(dev.features[~dev.named], dev.labels[~dev.named])
        threshold = best_threshold(dev, probabilities(dev, weights))
        shown = ", ".join(f"{name}={weight:.2f}" for name, weight in zip(names, weights, strict=True))
        console.print(f"{retriever}: {shown}, threshold={threshold:.3f}")
        for name, signal in zip(names[1:], dev.features.T, strict=True):
            console.print(f"{name} alone on dev: AUROC {metrics.auroc(dev.labels, signal):.3f}")
        for split, requests in found.items():
            show(console, split, requests, probabilities(requests, weights), threshold)


if __name__ == "__main__":
    main()
