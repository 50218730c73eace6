"""Learns on dev how much a reranker's scores count beside those of the retriever."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from toolscout.data import metrics
from toolscout.retrievers.base import Pairs
from toolscout.retrievers.rerank.added_scores import reordered

DEPTH = 5
_MEASURES = ("recall@5", "comp@5", "ndcg@5", "recall@3", "comp@3", "recall@1")
_WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0)


class JudgedRequest(NamedTuple):
    """A dev request: its first tools with the retriever's scores, those below, the reranker's scores, its gold."""

    pairs: Pairs
    below: list[str]
    scores: list[float | None]
    gold: tuple[str, ...]

    def ranking(self, weight: float) -> list[str]:
        """The tools, best first, with this weight."""
        return [*reordered(self.pairs, self.scores, weight).order, *self.below]


class LearnedWeight(NamedTuple):
    """The weight, and the measures on dev with it and without the reranker."""

    weight: float
    dev: dict[str, float]


def learned_weight(requests: Sequence[JudgedRequest]) -> LearnedWeight:
    """The weight with the highest recall@5 plus NDCG@5 on dev; the smallest of those that are equally good."""
    worth = {weight: _worth(requests, weight) for weight in _WEIGHTS}
    weight = max(worth, key=lambda one: (worth[one], -one))
    gold = [one.gold for one in requests]
    dev = metrics.evaluate([one.ranking(weight) for one in requests], gold, list(_MEASURES))
    alone = metrics.evaluate([one.ranking(0.0) for one in requests], gold, list(_MEASURES))
    return LearnedWeight(weight, dict(dev) | {f"{name}, not reranked": value for name, value in alone.items()})


def _worth(requests: Sequence[JudgedRequest], weight: float) -> float:
    rankings = [(one.ranking(weight), one.gold) for one in requests]
    found = [metrics.recall(ranking, gold, DEPTH) + metrics.ndcg(ranking, gold, DEPTH) for ranking, gold in rankings]
    return round(math.fsum(found) / len(found), 9)
