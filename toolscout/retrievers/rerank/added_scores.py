"""Adds a reranker's scores to those of a retriever, as pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from toolscout.index.exact_names import EXACT_BONUS
from toolscout.retrievers.base import Pairs


class Reordered(NamedTuple):
    """Ranked tools in a new order, and the scores that put them there, by tool id."""

    order: list[str]
    scores: dict[str, float]


def reordered(pairs: Pairs, scores: Sequence[float | None], weight: float) -> Reordered:
    """Add a reranker's scores to those of ranked tools, and reorder the tools that have one.

    `pairs`: tools with the retriever's scores, best first. `scores`: the reranker's. Both have scales of their own, so
    the reranker's are scaled to have the mean and the standard deviation of the retriever's over these tools. Times
    `weight` they are added, and the sum is divided by 1 + weight: it is on the retriever's scale, and with a weight of
    1 both count alike. A tool without a score keeps its place; tools that the request names stay before all others.
    """
    named = np.array([score >= EXACT_BONUS for _, score in pairs], dtype=bool)
    own = np.array([score for _, score in pairs], dtype=np.float64) - EXACT_BONUS * named
    own = np.maximum(own, 0.0)  # below 0 a score says the place alone
    scored = [place for place, score in enumerate(scores) if score is not None]
    if not scored:
        return Reordered([tool_id for tool_id, _ in pairs], {})
    given = np.array([scores[place] for place in scored], dtype=np.float64)
    scaled = own.mean() + (own.std() or 1.0) * (given - given.mean()) / (given.std() or 1.0)
    totals = own.copy()
    totals[scored] = (own[scored] + weight * scaled) / (1 + weight)
    # The tools below these keep their scores, so the lowest total is lifted to the lowest of the retriever's scores.
    totals += max(0.0, float(own.min() - totals.min())) + EXACT_BONUS * named
    best = iter(sorted(scored, key=lambda place: (-totals[place], place)))
    places = [place if scores[place] is None else next(best) for place in range(len(pairs))]
    ids = [tool_id for tool_id, _ in pairs]
    return Reordered([ids[place] for place in places], dict(zip(ids, totals.tolist(), strict=True)))
