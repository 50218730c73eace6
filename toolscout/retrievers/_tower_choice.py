"""Chooses on dev what the parts of a tower's score count: the graph, the neighbours, their votes, and new tools' bonus.

Learning these with the rest does not work where the encoder was trained on the same requests: it knows them too well,
so that on training requests its own cosine looks better than it is on new ones, and all else superfluous.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolscout.nn.tower import Tower, unit
from toolscout.training.options import NeighbourOptions

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
_GRAPH = (0.0, 0.1, 0.3, 1.0)
_KIN = (0.0, 0.25, 0.5, 1.0, 2.0)
_VOTES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
_BONUSES = tuple(round(0.01 * step, 2) for step in range(31))
# What known tools may lose of the recall they would have if there were no new ones; as for dense.
_BONUS_MAY_COST = 0.03
# Less than this is no reason to prefer a more complicated choice.
_WORTH = 1e-4
_K = 5


@dataclass(frozen=True, slots=True)
class Weights:
    """What the parts of a score count; the names are those of the options."""

    graph: float = 0.0
    kin: float = 0.0
    votes: float = 0.0
    new_bonus: float = 0.0


@dataclass(frozen=True, slots=True)
class Choice:
    """The weights, and what they reach on dev."""

    weights: Weights
    dev: dict[str, float]


@dataclass(frozen=True, slots=True)
class DevScores:
    """What the scores of dev requests over all tools are made of, whatever the parts count."""

    requests: Floats
    around: Floats
    votes: Floats
    tools: Floats
    terms: Floats
    gold: NDArray[np.bool_]
    new: NDArray[np.bool_]

    @classmethod
    def of(
        cls,
        tower: Tower,
        options: NeighbourOptions,
        vectors: Any,
        tools: Floats,
        terms: Floats,
        views: Floats,
        gold: Sequence[Ints],
        dev_gold: Sequence[Ints],
        new: NDArray[np.bool_],
    ) -> DevScores:
        """Ask for every dev request as it would be asked when served."""
        requests, states = tower.request(vectors.dev), tower.states(vectors.dev)
        around, votes = np.zeros_like(requests), np.zeros((len(requests), len(tools)), dtype=np.float32)
        for row, request in enumerate(requests if options.neighbours else ()):
            cosines = vectors.requests @ vectors.dev[row]
            best = np.argsort(-cosines, kind="stable")[: options.neighbours]
            best = best[cosines[best] >= options.epsilon]
            state = None if states is None else states[row]
            asked = tower.ask(request, state, views[best].swapaxes(0, 1), kin=1.0)
            around[row] = asked.vector - request
            for past, weight in zip(best.tolist(), asked.attention.tolist(), strict=True):
                votes[row, gold[past]] += weight
        marked = np.zeros(votes.shape, dtype=bool)
        for row, few in enumerate(dev_gold):
            marked[row, few] = True
        return cls(requests, around, votes, tools, terms, marked, new)

    def scores(self, weights: Weights) -> Floats:
        """The scores with these weights."""
        tools = unit(self.tools + weights.graph * self.terms)
        found: Floats = (self.requests + weights.kin * self.around) @ tools.T + weights.votes * self.votes
        return found + weights.new_bonus * self.new


def choose(dev: DevScores, tower: Tower, *, layers: bool, around: bool) -> Choice:
    """The weights with the best NDCG@5 on dev, the simplest of equals; then the bonus of new tools."""
    learned = Weights(
        graph=float(tower.numbers["graph"]) if layers else 0.0,
        kin=1.0 if around else 0.0,
        votes=float(tower.numbers["votes"]) if around else 0.0,
        new_bonus=0.0,
    )
    if not len(dev.requests):
        return Choice(learned, {})
    best = Weights(new_bonus=_bonus(dev, Weights()))
    reached = _ndcg(dev.scores(best), dev.gold)
    for graph in sorted({*_GRAPH, round(learned.graph, 4)}) if layers else (0.0,):
        tools = unit(dev.tools + graph * dev.terms).T
        own, others = dev.requests @ tools + best.new_bonus * dev.new, dev.around @ tools
        for kin in _KIN if around else (0.0,):
            for votes in _VOTES if around else (0.0,):
                found = _ndcg(own + kin * others + votes * dev.votes, dev.gold)
                if found > reached + _WORTH:
                    reached, best = found, replace(best, graph=graph, kin=kin, votes=votes)
    best = replace(best, new_bonus=_bonus(dev, best))
    scores = dev.scores(best)
    return Choice(best, {f"ndcg@{_K}": _ndcg(scores, dev.gold), f"recall@{_K}": _recall(scores, dev.gold)})


def _bonus(dev: DevScores, weights: Weights) -> float:
    """The bonus with the highest recall among those that cost the known tools little; 0 where dev has no new ones."""
    known = dev.gold & ~dev.new
    asked = known.any(1)
    if not (dev.gold & dev.new).any() or not asked.any():
        return 0.0
    base = dev.scores(replace(weights, new_bonus=0.0))
    alone = _recall((base - 9.0 * dev.new)[asked], known[asked])
    best, reached = 0.0, -1.0
    for bonus in _BONUSES:
        scores = base + bonus * dev.new
        recall = _recall(scores, dev.gold)
        if recall > reached and _recall(scores[asked], known[asked]) >= alone - _BONUS_MAY_COST:
            best, reached = bonus, recall
    return best


def _top(scores: Floats) -> Ints:
    k = min(_K, scores.shape[1])
    some = np.argpartition(-scores, k - 1, axis=1)[:, :k]
    order = np.argsort(-np.take_along_axis(scores, some, axis=1), axis=1, kind="stable")
    return np.take_along_axis(some, order, axis=1)


def _ndcg(scores: Floats, gold: NDArray[np.bool_]) -> float:
    hits = np.take_along_axis(gold, _top(scores), axis=1)
    discount = 1 / np.log2(np.arange(2, hits.shape[1] + 2))
    ideal = np.arange(hits.shape[1])[None] < gold.sum(1, keepdims=True)
    return float(np.mean((hits @ discount) / (ideal @ discount)))


def _recall(scores: Floats, gold: NDArray[np.bool_]) -> float:
    hits = np.take_along_axis(gold, _top(scores), axis=1)
    return float(np.mean(hits.sum(1) / gold.sum(1)))
