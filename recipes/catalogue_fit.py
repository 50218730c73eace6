"""Fits the curve in toolscout/search/catalogue_fit.py across catalogues, and shows how well it says that nothing fits.

Each set of tools is cut down again and again: groups of like tools are left out, or all but a few tools. Requests whose
tools are all left out find nothing that fits; those whose tools are all there do; the others are not asked. The curve
is fitted on all sets of which the default encoder has seen no request, each weighing the same, and measured on each set
with a curve that was fitted on the others. What is like what says the published encoder, so that every encoder is asked
the same of the same catalogues. No test split is read but the bundled one, shown at the end, which chooses nothing.

    python recipes/catalogue_fit.py            fit, and print the tables; minutes on a CPU, needs $TOOLSCOUT_DATA and
                                  toolscout encoder export
    python recipes/catalogue_fit.py --ship     put the vectors of the background requests beside the default encoder
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from toolscout.core.answer import Hit
from toolscout.core.arrays import Bools, Doubles
from toolscout.core.tool import Tool
from toolscout.data import metrics
from toolscout.data.dataset import Dataset
from toolscout.data.locate import find_dataset
from toolscout.evaluation.vector_cache import cache_path, tool_vectors
from toolscout.models.encoders.onnx_encoder import RAW, Encoder, default_folder
from toolscout.retrievers.base import Retriever
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.dense import Dense
from toolscout.retrievers.hybrid.retriever import Hybrid
from toolscout.retrievers.hybrid.shared_encoder import SharedEncoder
from toolscout.search import similarity_baseline
from toolscout.search.catalogue_fit import FitOptions, catalogue_fit_of, signals
from toolscout.stores.sqlite.store import SqliteStore

SETS = "bundled:dev simpletoolquestions:dev toollens:dev toolbench-g3:dev toolbench:dev".split()
# The same requests over two catalogues: neither is left out while the other is there.
KIN = frozenset(("toolbench-g3:dev", "toolbench:dev"))
# The default encoder was trained on these requests: they are nearer to their tools than a user's will be.
SEEN = "ultratool:train sealtools:dev".split()
# Shares of the groups of like tools that are kept, and how often; then catalogues of the tools of so few requests.
KEPT, DRAWS = (0.1, 0.5, 0.9), 4
FEW, FEW_DRAWS = 5, 4
REQUESTS = 75
# The threshold answers so many of the requests that a tool serves: to turn one of them away costs more than to offer
# a tool that does not fit.
ANSWERED = 0.9
# Keeps the curve finite where the two kinds can be told apart perfectly.
PENALTY = 0.0001
AT = (0.1, 0.19, 0.3, 0.5)


class SearchedRequests(NamedTuple):
    """Requests put to one catalogue: what was found, whether a tool of it serves them, and the level there."""

    hits: list[tuple[Hit, ...]]
    truth: Bools
    level: float
    tools: int


class LabelledCatalogue(NamedTuple):
    """Tools, their vectors, the published encoder's, and requests with the tools they need (none: nothing fits)."""

    tools: list[Tool]
    vectors: dict[str, NDArray[np.float32]]
    meanings: NDArray[np.float32]
    requests: list[tuple[str, frozenset[str]]]


def read(text: str, encoder: SharedEncoder) -> LabelledCatalogue:
    """The tools of a set, and some hundred requests of a split."""
    name, split = text.split(":")
    data = Dataset.load(find_dataset(name), [split])
    pairs = zip(data.split(split).requests, data.split(split).gold, strict=True)
    served = [(request, frozenset(gold)) for (_, request), gold in pairs]
    unserved = [(request, frozenset[str]()) for i, request in data.goldless(split) if data.kind(i) == "nothing_fits"]
    own, published = (tool_vectors(data.tools, one, cache_path()) for one in (encoder, Encoder.load(Path(RAW))))
    known = {tool.digest(): row for tool, row in zip(data.tools, own, strict=True)}
    step = max(1, len(served) // (8 * REQUESTS))
    return LabelledCatalogue(data.tools, known, published, served[::step] + unserved)


def catalogues(source: LabelledCatalogue, random: np.random.Generator) -> Iterator[set[str]]:
    """The ids of the tools that are kept, one set after another; all of them where some requests are never served."""
    ids = np.array([tool.id for tool in source.tools])
    if not all(gold for _, gold in source.requests):
        yield set(ids.tolist())
    for share in KEPT:
        for _ in range(DRAWS):
            group = groups(source.meanings, min(40, max(4, len(ids) // 20)), random)
            count = int(group.max()) + 1
            chosen = random.permutation(count)[: max(1, min(count - 1, round(share * count)))]
            yield set(ids[np.isin(group, chosen)].tolist())
    served = [gold for _, gold in source.requests if gold]
    for _ in range(FEW_DRAWS):
        yield set[str]().union(*(served[i] for i in random.choice(len(served), FEW, replace=False)))


def groups(rows: NDArray[np.float32], count: int, random: np.random.Generator) -> NDArray[np.int64]:
    """The group of each vector, by k-means on the sphere."""
    centres = rows[random.choice(len(rows), count, replace=False)]
    for _ in range(8):
        nearest = (rows @ centres.T).argmax(axis=1)
        sums = np.stack([rows[nearest == one].sum(axis=0) for one in range(count)])
        centres = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-9)
    return np.asarray((rows @ centres.T).argmax(axis=1), dtype=np.int64)


def ask(
    source: LabelledCatalogue, kept: set[str], retriever: Retriever, store: SqliteStore, random: np.random.Generator
) -> SearchedRequests:
    """Put some requests of either kind to what is kept of a set."""
    retriever.add([tool for tool in source.tools if tool.id in kept], source.vectors)
    served = [request for request, gold in source.requests if gold and gold <= kept]
    unserved = [request for request, gold in source.requests if not gold & kept]
    some = [[group[i] for i in random.permutation(len(group))[:REQUESTS]] for group in (served, unserved)]
    texts = some[0] + some[1]
    hits = [tuple(one) for one in retriever.search(texts, 5)]
    level = similarity_baseline.SimilarityBaseline(store, retriever).baseline(None, len(kept)) or 0.0
    return SearchedRequests(hits, np.arange(len(texts)) < len(some[0]), level, len(kept))


def asked_of(text: str, encoder: SharedEncoder, new: Callable[[], Retriever]) -> list[SearchedRequests]:
    """Requests of one set put to each of its catalogues; those that leave only one kind of request are passed over."""
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder, SqliteStore(Path(folder) / "store.db") as store:
        source = read(text, encoder)
        asked = [ask(source, kept, new(), store, random) for kept in catalogues(source, random)]
    return [one for one in asked if one.truth.any() and not one.truth.all()]


def asked_whole(text: str, encoder: SharedEncoder, retriever: Retriever) -> SearchedRequests:
    """All requests of a set put to all of its tools."""
    with tempfile.TemporaryDirectory() as folder, SqliteStore(Path(folder) / "store.db") as store:
        source = read(text, encoder)
        retriever.add(source.tools, source.vectors)
        hits = [tuple(one) for one in retriever.search([request for request, _ in source.requests], 5)]
        level = similarity_baseline.SimilarityBaseline(store, retriever).baseline(None, len(source.tools)) or 0.0
    return SearchedRequests(hits, np.array([bool(gold) for _, gold in source.requests]), level, len(source.tools))


def logistic(signal: Doubles, truth: Bools, weights: Doubles | None = None) -> tuple[float, float]:
    """Bias and weight by Newton's method; unless told otherwise, both kinds weigh the same."""
    share = balanced(truth) if weights is None else weights
    design, share = np.column_stack([np.ones(len(signal)), signal]), share / share.mean()
    penalty = PENALTY * len(signal) * np.diag([0.0, 1.0])
    found: Doubles = np.zeros(2)
    for _ in range(100):
        chance = chances(signal, (float(found[0]), float(found[1])))
        slope = design.T @ (share * (chance - truth)) + penalty @ found
        bend = design.T @ (design * (share * chance * (1 - chance))[:, None]) + penalty
        step = np.linalg.solve(bend, slope)
        found = found - step
        if np.abs(step).max() < 1e-9:
            break
    return float(found[0]), float(found[1])


def balanced(truth: Bools) -> Doubles:
    """Weights that sum to one, half for each kind."""
    return np.where(truth, 0.5 / max(int(truth.sum()), 1), 0.5 / max(int((~truth).sum()), 1))


def chances(signal: Doubles, curve: tuple[float, float]) -> Doubles:
    """What a curve says."""
    said: Doubles = 1 / (1 + np.exp(-(curve[0] + curve[1] * signal)))
    return said


def lenient_threshold(chance: Doubles, truth: Bools) -> float:
    """The highest threshold that still answers nine in ten of the requests that a tool serves."""
    return float(np.floor(1000 * np.quantile(chance[truth], 1 - ANSWERED, method="lower")) / 1000)


class Signals(NamedTuple):
    """What the curve is drawn over, for all catalogues of a set; a catalogue weighs as much as any other."""

    signal: Doubles
    truth: Bools
    weights: Doubles
    sizes: NDArray[np.int64]


def answering(said: Doubles, found: Signals) -> float:
    """The threshold that answers nine in ten over all sets."""
    order = np.argsort(said[found.truth])
    share = np.cumsum(found.weights[found.truth][order]) / found.weights[found.truth].sum()
    return float(said[found.truth][order][np.searchsorted(share, 1 - ANSWERED)])


def signals_of(asked: Sequence[SearchedRequests], above: bool) -> Signals:
    """The best cosines, plain or above the level of their catalogue."""
    rows = [np.array([signals(hits)[0] or 0.0 for hits in one.hits]) - above * one.level for one in asked]
    truth = np.concatenate([one.truth for one in asked])
    weights = np.concatenate([balanced(one.truth) for one in asked])
    sizes = np.concatenate([np.full(len(one.truth), one.tools) for one in asked])
    return Signals(np.concatenate(rows), truth, weights / weights.sum(), sizes)


def joined(several: Sequence[Signals]) -> Signals:
    """All of several sets, each weighing the same."""
    return Signals(*(np.concatenate(parts) for parts in zip(*several, strict=True)))


class CurveQuality(NamedTuple):
    """How right a curve is; both kinds weigh the same."""

    auroc: float
    brier: float
    ece: float
    answered: float
    turned_away: float

    @property
    def precision(self) -> float:
        """Of the requests turned away, if half of all find nothing, how many do."""
        return self.turned_away / max(self.turned_away + 1 - self.answered, 1e-9)


def measured(said: Doubles, found: Signals, threshold: float) -> CurveQuality:
    """Brier and ECE as in toolscout.data.metrics, but weighted; AUROC within catalogues of one size, averaged."""
    weights, truth = found.weights / found.weights.sum(), found.truth
    sizes = [found.sizes == size for size in np.unique(found.sizes)]
    areas = [metrics.auroc(truth[one], said[one]) for one in sizes if truth[one].any() and not truth[one].all()]
    gaps = np.bincount(np.minimum((said * 10).astype(int), 9), weights=weights * (truth - said), minlength=10)
    return CurveQuality(
        float(np.mean(areas)),
        float(np.sum(weights * (said - truth) ** 2)),
        float(np.abs(gaps).sum()),
        float(np.average(said[truth] >= threshold, weights=weights[truth])),
        float(np.average(said[~truth] < threshold, weights=weights[~truth])),
    )


def table(title: str, rows: Sequence[tuple[str, CurveQuality]]) -> Table:
    """One row for each name."""
    made = Table(title=title)
    for header in ("", "AUROC", "Brier", "ECE", "answered", "turned away", "precision"):
        made.add_column(header, justify="right" if header else "left")
    for name, one in rows:
        numbers = (f"{one.auroc:.3f}", f"{one.brier:.3f}", f"{one.ece:.3f}")
        made.add_row(name, *numbers, *(f"{part:.1%}" for part in (one.answered, one.turned_away, one.precision)))
    return made


def left_out(sets: dict[str, Signals]) -> dict[str, Doubles]:
    """What is said of each set by a curve that was fitted on the others."""
    said = {}
    for name, own in sets.items():
        out = KIN if name in KIN else {name}
        rest = joined([one for other, one in sets.items() if other not in out])
        said[name] = chances(own.signal, logistic(rest.signal, rest.truth, rest.weights))
    return said


def show_left_out(console: Console, title: str, sets: dict[str, Signals]) -> None:
    """By set, and by the size of the catalogue."""
    said = left_out(sets)
    both, every = joined(list(sets.values())), np.concatenate(list(said.values()))
    threshold = answering(every, both)
    rows = [(name, measured(said[name], one, threshold)) for name, one in sets.items()]
    rows.append(("mean", CurveQuality(*np.mean([one for _, one in rows], axis=0).tolist())))
    for least, most in ((1, 20), (21, 500), (501, 5_000), (5_001, 50_000)):
        among = (both.sizes >= least) & (both.sizes <= most)
        part = Signals(both.signal[among], both.truth[among], both.weights[among], both.sizes[among])
        rows.append((f"{least:,} to {most:,} tools", measured(every[among], part, threshold)))
    console.print(table(f"{title}, each set left out of the fit, threshold {threshold:.3f}", rows))


def served(asked: SearchedRequests, options: FitOptions, threshold: float) -> CurveQuality:
    """What fit says of requests put to one catalogue."""
    said = np.array([catalogue_fit_of(hits, options, asked.level) for hits in asked.hits])
    found = Signals(said, asked.truth, balanced(asked.truth), np.full(len(said), asked.tools))
    return measured(said, found, threshold)


def main() -> None:
    """Fit the curve, and print it and what it is worth."""
    console, encoder = Console(), SharedEncoder(Encoder.load())
    if "--ship" in sys.argv:
        similarity_baseline.ship(encoder, default_folder())
        return

    def hybrid() -> Retriever:
        return Hybrid(parts=[Bm25(), Dense(encoder=encoder)])

    asked = {text: asked_of(text, encoder, hybrid) for text in SETS}
    for title, above in (("The cosine alone", False), ("The cosine above the level", True)):
        show_left_out(console, title, {name: signals_of(several, above) for name, several in asked.items()})
    sets = {name: signals_of(several, True) for name, several in asked.items()}
    every = joined(list(sets.values()))
    curve = logistic(every.signal, every.truth, every.weights)
    threshold = min(lenient_threshold(chances(one.signal, curve), one.truth) for one in sets.values())
    usual = float(np.median([one.level for several in asked.values() for one in several if one.tools > 100]))
    console.print(f"bias={curve[0]:.2f}, similarity={curve[1]:.2f}, usual={usual:.2f}, threshold={threshold:.3f}")
    seen = {name: signals_of(asked_of(name, encoder, hybrid), True) for name in SEEN}
    rows = [(name, measured(chances(one.signal, curve), one, threshold)) for name, one in {**sets, **seen}.items()]
    console.print(table("This curve at this threshold, by set; the last two are known to the encoder", rows))
    whole = {split: asked_whole(f"bundled:{split}", encoder, hybrid()) for split in ("dev", "test")}
    words = {split: asked_whole(f"bundled:{split}", encoder, Bm25()) for split in ("dev", "test")}
    options = FitOptions()
    rows = [(f"{split}, threshold {at:.2f}", served(one, options, at)) for split, one in whole.items() for at in AT]
    rows += [(f"{split}, words alone", served(one, options, options.threshold)) for split, one in words.items()]
    console.print(table("The bundled benchmark as served", rows))


if __name__ == "__main__":
    main()
