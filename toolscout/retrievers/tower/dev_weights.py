"""Chooses on dev the weights in a tower's score: of the graph, of neighbours, of their votes, and the new-tool bonus.

They cannot be learned in training if the encoder was trained on the same requests: it fits those too well, so that
there the plain cosine looks better, and everything else less useful, than on new requests.

The bonus of tools that come after training is chosen with some of the used tools held out, as if they had come later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from toolscout.core.arrays import Bools, Doubles, Floats, Ints
from toolscout.models.tower import Tower, unit
from toolscout.retrievers.tower.retriever import TowerRetriever

_GRAPH = (0.0, 0.1, 0.3, 1.0)
_NEIGHBOUR_WEIGHTS = (0.0, 0.25, 0.5, 1.0, 2.0)
_VOTES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
# If dev is as good without votes, the highest of these weights that costs nothing is used.
_FREE_VOTES = (0.1, 0.05, 0.02)
_BONUSES = tuple(round(0.01 * step, 2) for step in range(31))
# Added tools compete with tools that have votes, so they may need more.
_ADDED_BONUSES = tuple(round(0.01 * step, 2) for step in range(61))
# How much recall of known tools the bonus of new tools may cost; as in dense.
_BONUS_MAY_COST = 0.03
# Differences in NDCG below this are ignored.
_WORTH = 1e-4
_SURE = 2.0
_K = 5


@dataclass(frozen=True, slots=True)
class TowerWeights:
    """The weights in a tower's score, named as the options."""

    graph: float = 0.0
    neighbour_weight: float = 0.0
    votes: float = 0.0
    new_bonus: float = 0.0
    added_bonus: float = 0.0


@dataclass(frozen=True, slots=True)
class ChosenWeights:
    """The chosen weights and their dev scores."""

    weights: TowerWeights
    dev: dict[str, float]


@dataclass(frozen=True, slots=True)
class DevScores:
    """The parts of the scores of dev requests for all tools, before they are weighted.

    `new`: the tools that no training request used. `added`: those that are treated as if they had come after training;
    `cosines`, the encoder's, score them.
    """

    requests: Floats
    around: Floats
    votes: Floats
    cosines: Floats
    tools: Floats
    terms: Floats
    gold: Bools
    new: Bools
    added: Bools
    scenes: Ints

    @classmethod
    def of(
        cls,
        retriever: TowerRetriever,
        vectors: Floats,
        gold: Sequence[Ints],
        rows: Mapping[str, int],
        documents: Floats,
        tools: Floats,
        terms: Floats,
        new: Bools,
        added: Bools,
        scenes: Ints,
    ) -> DevScores:
        """Compute them for dev requests with these vectors, as in a search.

        `rows`: the row of each tool. `documents`: the encoder's vectors of tools, `tools`: the tower's.
        """
        requests = retriever._request_vector(vectors)
        around, votes = np.zeros_like(requests), np.zeros((len(requests), len(tools)), dtype=np.float32)
        for number, (request, vector) in enumerate(zip(requests, vectors, strict=True)):
            neighbours = retriever._neighbours(vector, "", lambda entry: True)
            attended = retriever._attend(vector, neighbours, neighbour_weight=1.0)
            around[number] = attended.vector - request
            for (entry, _), weight in zip(neighbours, attended.attention.tolist(), strict=True):
                votes[number, list({rows[tool_id] for tool_id in entry.tools})] += weight
        marked = np.zeros(votes.shape, dtype=bool)
        for number, few in enumerate(gold):
            marked[number, few] = True
        return cls(requests, around, votes, vectors @ documents.T, tools, terms, marked, new, added, scenes)

    def scores(self, weights: TowerWeights) -> Floats:
        """The scores with these weights."""
        tools = unit(self.tools + weights.graph * self.terms)
        found = (self.requests + weights.neighbour_weight * self.around) @ tools.T
        found = np.where(self.added, self.cosines + weights.added_bonus, found + weights.new_bonus * self.new)
        scores: Floats = found + weights.votes * self.votes
        return scores


def as_learned(tower: Tower, *, layers: bool, around: bool) -> TowerWeights:
    """The weights that training learned; a negative bonus counts as 0."""
    return TowerWeights(
        graph=float(tower.numbers["graph"]) if layers else 0.0,
        neighbour_weight=1.0 if around else 0.0,
        votes=float(tower.numbers["votes"]) if around else 0.0,
        new_bonus=max(0.0, float(tower.numbers.get("new_bonus", np.zeros(())))),
    )


def choose(dev: DevScores, tower: Tower, *, layers: bool, around: bool) -> ChosenWeights:
    """The simplest weights whose NDCG@5 on dev is within two standard errors of the best; then the new-tool bonus.

    The bonus of added tools is left at 0, see `held_out_bonus`.

    A dev split may have only some twenty scenes (distinct sets of gold tools), so the best of two hundred choices is
    best by chance. A part therefore gets a weight only if leaving it out costs more than two standard errors over
    scenes. Without dev requests, the weights of training are returned.
    """
    learned = replace(as_learned(tower, layers=layers, around=around), new_bonus=0.0)
    if not len(dev.requests):
        return ChosenWeights(learned, {})
    plain = TowerWeights(new_bonus=_bonus(dev, TowerWeights()))
    graphs = sorted({*_GRAPH, round(learned.graph, 4)}) if layers else (0.0,)
    tried: list[tuple[TowerWeights, Doubles]] = []
    for graph in graphs:
        tools = unit(dev.tools + graph * dev.terms).T
        own, others = dev.requests @ tools + plain.new_bonus * dev.new, dev.around @ tools
        for neighbour_weight in _NEIGHBOUR_WEIGHTS if around else (0.0,):
            for votes in _VOTES if around else (0.0,):
                weights = replace(plain, graph=graph, neighbour_weight=neighbour_weight, votes=votes)
                tried.append((weights, _ndcgs(own + neighbour_weight * others + votes * dev.votes, dev.gold)))
    best = _simplest(tried, dev.scenes)
    if around and not best.votes:
        # Dev may not need neighbours, but feedback after training only counts through their votes.
        reached = _ndcg(dev.scores(best), dev.gold)
        candidates = [replace(best, votes=votes) for votes in (*_FREE_VOTES, 0.0)]
        best = next(one for one in candidates if _ndcg(dev.scores(one), dev.gold) >= reached - _WORTH)
    return chosen(dev, replace(best, new_bonus=_bonus(dev, best)))


def chosen(dev: DevScores, weights: TowerWeights) -> ChosenWeights:
    """These weights and their dev scores."""
    scores = dev.scores(weights)
    return ChosenWeights(weights, {f"ndcg@{_K}": _ndcg(scores, dev.gold), f"recall@{_K}": _recall(scores, dev.gold)})


def _simplest(tried: Sequence[tuple[TowerWeights, Doubles]], scenes: Ints) -> TowerWeights:
    """Among weights within two standard errors of the best, those with the fewest parts; of these, the best."""
    means = [float(values.mean()) for _, values in tried]
    best = tried[int(np.argmax(means))][1]

    def order(index: int) -> tuple[int, int, float]:
        # Votes are preferred to the others: they also use feedback that comes after training.
        graph, neighbour_weight, votes = (
            bool(part) for part in (tried[index][0].graph, tried[index][0].neighbour_weight, tried[index][0].votes)
        )
        return graph + neighbour_weight + votes, graph + neighbour_weight, -means[index]

    for index in sorted(range(len(tried)), key=order):
        behind = best - tried[index][1]
        if behind.mean() <= _SURE * standard_error(behind, scenes):
            return tried[index][0]
    raise AssertionError("the best is within an error of itself")


def standard_error(values: Doubles, scenes: Ints) -> float:
    """The standard error of a mean over requests, clustered by scene."""
    sums = np.bincount(scenes, weights=values - values.mean())
    return float(np.sqrt((sums**2).sum()) / len(values))


def _bonus(dev: DevScores, weights: TowerWeights) -> float:
    """The new-tool bonus with the highest recall@5 that costs known tools little; 0 where dev needs no new tools."""
    known = dev.gold & ~dev.new
    with_known = known.any(1)
    if not (dev.gold & dev.new).any() or not with_known.any():
        return 0.0
    base = dev.scores(replace(weights, new_bonus=0.0))
    alone = _recall((base - 9.0 * dev.new)[with_known], known[with_known])
    best, reached = 0.0, -1.0
    for bonus in _BONUSES:
        scores = base + bonus * dev.new
        recall = _recall(scores, dev.gold)
        if recall > reached and _recall(scores[with_known], known[with_known]) >= alone - _BONUS_MAY_COST:
            best, reached = bonus, recall
    return best


def held_out_bonus(held_out: Iterable[DevScores], weights: TowerWeights) -> float:
    """The bonus of added tools with which held-out tools are found as often as the encoder alone finds them.

    `held_out`: the dev scores with some of the used tools treated as added, several times. Of the bonuses with which
    recall@5 of these is not below the encoder's, the one with the highest recall@5 of all tools; if none is, the one
    that comes nearest.
    """
    ahead, recall = np.zeros(len(_ADDED_BONUSES)), np.zeros(len(_ADDED_BONUSES))
    for dev in held_out:
        gold = dev.gold & dev.added
        needed = gold.any(1)
        aim = _recalls(dev.cosines[needed], gold[needed]).sum()
        base = dev.scores(replace(weights, added_bonus=0.0))
        for number, bonus in enumerate(_ADDED_BONUSES):
            scores = base + bonus * dev.added.astype(np.float32)
            ahead[number] += _recalls(scores[needed], gold[needed]).sum() - aim
            recall[number] += _recalls(scores, dev.gold).sum()
    # Sums over the same requests: they compare as means do. Of equal bonuses, the lowest.
    return max(
        zip(np.minimum(ahead, 0.0), recall, _ADDED_BONUSES, strict=True), key=lambda one: (one[0], one[1], -one[2])
    )[2]


def _top(scores: Floats) -> Ints:
    k = min(_K, scores.shape[1])
    some = np.argpartition(-scores, k - 1, axis=1)[:, :k]
    order = np.argsort(-np.take_along_axis(scores, some, axis=1), axis=1, kind="stable")
    return np.take_along_axis(some, order, axis=1)


def _ndcg(scores: Floats, gold: Bools) -> float:
    return float(_ndcgs(scores, gold).mean())


def _ndcgs(scores: Floats, gold: Bools) -> Doubles:
    hits = np.take_along_axis(gold, _top(scores), axis=1)
    discount = 1 / np.log2(np.arange(2, hits.shape[1] + 2))
    ideal = np.arange(hits.shape[1])[None] < gold.sum(1, keepdims=True)
    found: Doubles = (hits @ discount) / (ideal @ discount)
    return found


def _recall(scores: Floats, gold: Bools) -> float:
    return float(_recalls(scores, gold).mean())


def _recalls(scores: Floats, gold: Bools) -> Doubles:
    hits = np.take_along_axis(gold, _top(scores), axis=1)
    found: Doubles = hits.sum(1) / gold.sum(1)
    return found
