"""Measures as pure functions: of a ranking (recall, ndcg, comp, …), of a returned set of tools (exact_set, …), and of
a binary forecast (auroc, brier, ece, …).

A failed request (no ranking) scores 0 and is never skipped. A tool ranked twice counts once, at its first rank.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from toolscout.errors import BadDataset, BadRequest

Ranking = Sequence[str] | None
# ToolGen returned five tools for every system that it compared, and its ideal counts no gold beyond them.
TOOLGEN_RETURNED = 5


def recall(ranking: Ranking, gold: Collection[str], k: int) -> float:
    """The share of the gold tools that stand among the first k."""
    return len(_ranks(ranking, gold, k)) / len(gold)


def precision(ranking: Ranking, gold: Collection[str], k: int) -> float:
    """The share of the first k places that hold gold tools; empty places count."""
    return len(_ranks(ranking, gold, k)) / k


def hit(ranking: Ranking, gold: Collection[str], k: int) -> float:
    """1 if any gold tool stands among the first k."""
    return float(bool(_ranks(ranking, gold, k)))


def comp(ranking: Ranking, gold: Collection[str], k: int) -> float:
    """1 if all gold tools stand among the first k (COLT's COMP, others' completeness or sufficiency)."""
    return float(len(_ranks(ranking, gold, k)) == len(gold))


def mrr(ranking: Ranking, gold: Collection[str], k: int | None = None) -> float:
    """One over the rank of the first gold tool; 0 if none stands among the first k."""
    return 1 / min(_ranks(ranking, gold, k), default=math.inf)


def ndcg(ranking: Ranking, gold: Collection[str], k: int) -> float:
    """NDCG; the ideal ranking has every gold tool, whether it was found or not."""
    return _gain(_ranks(ranking, gold, k)) / _gain(range(1, min(k, len(gold)) + 1))


def toolgen_ndcg(ranking: Ranking, gold: Collection[str], k: int) -> float:
    """ToolGen's NDCG: the ideal has only gold tools that were returned, so missing one costs nothing.

    For comparison with the tables of ToolGen and ToolWeaver alone.
    """
    returned = len(_ranks(ranking, gold, max(k, TOOLGEN_RETURNED)))
    return _gain(_ranks(ranking, gold, k)) / _gain(range(1, min(k, returned) + 1)) if returned else 0.0


def new_recall(ranking: Ranking, gold: Collection[str], k: int, new_tools: Collection[str]) -> float:
    """Recall over the gold tools that are new; NaN for a request that needs none of them."""
    wanted = [tool for tool in gold if tool in new_tools]
    return recall(ranking, wanted, k) if wanted else math.nan


def known_recall(ranking: Ranking, gold: Collection[str], k: int, new_tools: Collection[str]) -> float:
    """Recall over the gold tools that are not new; NaN for a request that needs none of them."""
    wanted = [tool for tool in gold if tool not in new_tools]
    return recall(ranking, wanted, k) if wanted else math.nan


def exact_set(tools: Ranking, gold: Collection[str]) -> float:
    """1 if the tools returned are the gold tools: all of them and no other."""
    return float(frozenset(tools or ()) == frozenset(gold))


def set_recall(tools: Ranking, gold: Collection[str]) -> float:
    """The share of the gold tools that were returned."""
    return len(frozenset(tools or ()).intersection(gold)) / len(gold)


def set_precision(tools: Ranking, gold: Collection[str]) -> float:
    """The share of the tools returned that are gold; 0 where none was returned."""
    distinct = frozenset(tools or ())
    return len(distinct.intersection(gold)) / len(distinct) if distinct else 0.0


def returned(tools: Ranking, gold: Collection[str]) -> float:
    """How many tools were returned, whatever the gold ones are."""
    return float(len(frozenset(tools or ())))


# Measures of the set of tools that a method returned, where it chose their number. All but "returned" are fractions.
OF_SETS: dict[str, Callable[[Ranking, Collection[str]], float]] = {
    "exact_set": exact_set,
    "set_recall": set_recall,
    "set_precision": set_precision,
    "returned": returned,
}
_PLAIN: dict[str, Callable[[Ranking, Collection[str], int], float]] = {
    "recall": recall,
    "ndcg": ndcg,
    "comp": comp,
    "mrr": mrr,
    "hit": hit,
    "precision": precision,
    "toolgen_ndcg": toolgen_ndcg,
}
_BY_NOVELTY = {"new_recall": new_recall, "known_recall": known_recall}
_NAME = re.compile(r"(?P<kind>[a-z_]+)(?:@(?P<k>[1-9][0-9]{0,8}))?")


@dataclass(frozen=True, slots=True)
class Measure:
    """A measure with its cutoff, as a value: `measure("ndcg@5")(ranking, gold)`."""

    kind: str
    k: int | None = None

    def __str__(self) -> str:
        """The name that `measure` reads."""
        return self.kind if self.k is None else f"{self.kind}@{self.k}"

    def __call__(self, ranking: Ranking, gold: Collection[str], new_tools: Collection[str] | None = None) -> float:
        """Return the score of one request; NaN where the measure does not apply to it."""
        if not gold:
            raise BadDataset(f"{self} of a request without gold tools means nothing; leave such requests out")
        gold = frozenset(gold)
        if self.k is None:
            return mrr(ranking, gold)
        if self.kind in _PLAIN:
            return _PLAIN[self.kind](ranking, gold, self.k)
        if new_tools is None:
            raise BadRequest(f"{self} needs the ids of the new tools (new_tools=)")
        return _BY_NOVELTY[self.kind](ranking, gold, self.k, new_tools)


def measure(name: str) -> Measure:
    """Read a measure's name: "recall@5", "ndcg@1", "comp@3", "mrr", "mrr@10", "new_recall@5" …"""
    match = _NAME.fullmatch(name)
    kind, k = (match["kind"], match["k"]) if match else ("", None)
    if kind not in _PLAIN.keys() | _BY_NOVELTY.keys() or (k is None and kind != "mrr"):
        known = ", ".join(f"{kind}@k" for kind in (*_PLAIN, *_BY_NOVELTY))
        raise BadRequest(f"unknown measure {name!r}; use mrr, or with a cutoff k of 1 or more: {known}")
    return Measure(kind, int(k) if k else None)


def scores(
    rankings: Sequence[Ranking],
    golds: Sequence[Collection[str]],
    names: Sequence[str],
    new_tools: Collection[str] | None = None,
) -> dict[str, list[float]]:
    """Return the scores of all requests by measure, in order; NaN where a measure does not apply to a request."""
    if len(rankings) != len(golds):
        raise BadDataset(f"{len(rankings)} rankings for {len(golds)} requests; a failed request's ranking is None")
    golds = [frozenset(gold) for gold in golds]
    new_tools = None if new_tools is None else frozenset(new_tools)
    return {
        str(one): [one(ranking, gold, new_tools) for ranking, gold in zip(rankings, golds, strict=True)]
        for one in map(measure, names)
    }


def evaluate(
    rankings: Sequence[Ranking],
    golds: Sequence[Collection[str]],
    names: Sequence[str],
    new_tools: Collection[str] | None = None,
) -> dict[str, float]:
    """Return mean scores over the requests; a measure that applies to none of them is absent."""
    if not golds:
        raise BadDataset("no requests to evaluate; name a split that has some")
    means: dict[str, float] = {}
    for name, values in scores(rankings, golds, names, new_tools).items():
        counted = [value for value in values if not math.isnan(value)]
        if counted:
            means[name] = math.fsum(counted) / len(counted)
    return means


def auroc(labels: npt.ArrayLike, values: npt.ArrayLike) -> float:
    """The chance that a random positive is valued above a random negative, a tie counting half."""
    truth, value = _pair(labels, values)
    positives, negatives = int(truth.sum()), int((~truth).sum())
    if not positives or not negatives:
        raise BadDataset("AUROC needs requests of both kinds, those that need a tool and those that do not")
    _, inverse, counts = np.unique(value, return_inverse=True, return_counts=True)
    mean_ranks = np.cumsum(counts) - (counts - 1) / 2
    wins = mean_ranks[inverse][truth].sum() - positives * (positives + 1) / 2
    return float(wins / (positives * negatives))


def brier(labels: npt.ArrayLike, probabilities: npt.ArrayLike) -> float:
    """The mean squared error of forecast probabilities."""
    truth, probability = _pair(labels, probabilities, probabilities=True)
    return float(np.mean((probability - truth) ** 2))


def ece(labels: npt.ArrayLike, probabilities: npt.ArrayLike, bins: int = 10) -> float:
    """Expected calibration error: forecast against frequency in bins of equal width, weighted by their requests."""
    truth, probability = _pair(labels, probabilities, probabilities=True)
    at = np.minimum((probability * bins).astype(np.int64), bins - 1)
    gaps = np.bincount(at, weights=truth - probability, minlength=bins)
    return float(np.abs(gaps).sum() / len(truth))


def accuracy(labels: npt.ArrayLike, values: npt.ArrayLike, threshold: float = 0.5) -> float:
    """The share of requests on the right side; a value of exactly the threshold says yes."""
    truth, value = _pair(labels, values)
    return float(np.mean((value >= threshold) == truth))


def f1(labels: npt.ArrayLike, values: npt.ArrayLike, threshold: float = 0.5) -> float:
    """The harmonic mean of precision and recall of "yes"; 0 where nothing is labelled or predicted yes."""
    truth, value = _pair(labels, values)
    said = value >= threshold
    both, either = int((said & truth).sum()), int(said.sum() + truth.sum())
    return 2 * both / either if either else 0.0


def _ranks(ranking: Ranking, gold: Collection[str], k: int | None) -> list[int]:
    """The ranks, from 1, of the gold tools among the first k."""
    found: dict[str, int] = {}
    for rank, tool in enumerate((ranking or ())[:k], 1):
        if tool in gold:
            found.setdefault(tool, rank)
    return list(found.values())


def _gain(ranks: Sequence[int]) -> float:
    return math.fsum(1 / math.log2(rank + 1) for rank in ranks)


def _pair(
    labels: npt.ArrayLike, values: npt.ArrayLike, *, probabilities: bool = False
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float64]]:
    truth, value = np.asarray(labels).astype(bool), np.asarray(values, dtype=np.float64)
    if truth.ndim != 1 or truth.shape != value.shape or not len(truth):
        raise BadDataset(f"needs as many values as labels and at least one, got {value.shape} and {truth.shape}")
    if np.isnan(value).any() or (probabilities and (value.min() < 0 or value.max() > 1)):
        raise BadDataset("a forecast must be a number" + (" from 0 to 1" if probabilities else ""))
    return truth, value
