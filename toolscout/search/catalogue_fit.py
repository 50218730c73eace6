"""Catalogue fit: does anything in the catalogue serve the request? From 0 to 1, by how well the best tools match it.

The curve was fitted to labelled requests, but it is no probability: how often a request with a fit of 0.2 is served
differs from catalogue to catalogue (docs/verdicts.md). The verdict model (verdict.py) takes it as one of its features;
it is compared with a threshold of its own only where thresholds decide.
It says nothing of whether a tool is needed at all: that is asked of the request alone (tool_need.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from toolscout.core.answer import ExactName, Hit, MatchedWords, PastRequest, Similarity
from toolscout.core.scope import Scope
from toolscout.errors import BadModel, BadRequest
from toolscout.retrievers.base import Ranking, Retriever, check_k

Count = int | Literal["auto"]
"""How many tools: at most so many, or as many as the model says that a request needs."""
_LOOKED_AT = 5


@dataclass(frozen=True, slots=True)
class FitOptions:
    """Three curves, the best of which counts, and the threshold below which nothing fits.

    `bias` and `similarity`: a logistic curve over how far the best cosine is above the catalogue's similarity baseline
    (similarity_baseline.py), fitted across catalogues of five sets by recipes/catalogue_fit.py. `usual`: the baseline
    where it is not known.
    `share`: where most of the words of a request stand in one tool, it fits whatever its cosine; half way here.
    `past`: how near a past request must be that used one of the tools; half way here. Of the ToolLens dev requests
    whose nearest past request is at 0.6, two in three need a tool that it used; at 0.8 nearly all do.
    `words_alone`: as `share` where no vectors were searched. Words say little there, so only a request that shares no
    word with any tool is turned away.
    `threshold`: the highest at which each of the five sets keeps nine in ten of the requests that a tool serves. On the
    bundled test requests it answers 91 % of those, and turns away .63 of those that nothing fits (recall); of the
    requests turned away, were both kinds equally many, .87 are rightly so (precision). At 0.3: 67 %, .75 and .69.
    """

    bias: float = -2.5
    similarity: float = 12.0
    usual: float = 0.14
    share: float = 0.6
    past: float = 0.6
    words_alone: float = 0.0
    steepness: float = 20.0
    threshold: float = 0.19


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result for a request: its ranking, hits, and how many of them were requested (`count`).

    `hits` has at least five where there are so many, since catalogue fit must not depend on how many are shown.
    """

    ranking: Ranking
    hits: list[Hit]
    count: int


def find(retriever: Retriever, requests: Sequence[str], k: Count, scope: Scope) -> list[SearchResult]:
    """Search for each request. Raises BadRequest for a bad k, BadModel if k is "auto" and the model cannot tell."""
    if not isinstance(k, str):
        check_k(k)
        most = max(k, _LOOKED_AT)
        return [SearchResult(one, retriever.hits(one, most), k) for one in retriever.rank(requests, most, scope)]
    if k != "auto":
        raise BadRequest(f'k must be a number or "auto", got {k!r:.80}')
    rankings = retriever.rank(requests, _LOOKED_AT, scope)
    sets = retriever.as_many(rankings)
    if sets is None:
        raise BadModel(
            f"{retriever.name} cannot say how many tools a request needs; give k as a number, or use a model "
            "that can: toolscout train DATA --retriever toolgen --option sets=true --out FOLDER (or toolweaver)"
        )
    found = []
    for ranking, pairs in zip(rankings, sets, strict=True):
        own, chosen = retriever.explained(ranking, pairs), {tool_id for tool_id, _ in pairs}
        more = retriever.hits(ranking, _LOOKED_AT) if 0 < len(own) < _LOOKED_AT else []
        found.append(SearchResult(ranking, [*own, *(hit for hit in more if hit.tool_id not in chosen)], len(own)))
    return found


def signals(hits: Sequence[Hit]) -> tuple[float | None, float]:
    """The best cosine among the first hits (None where no vectors were searched) and the best share of words."""
    reasons = [reason for hit in hits[:_LOOKED_AT] for reason in hit.reasons]
    cosines = [reason.cosine for reason in reasons if isinstance(reason, Similarity)]
    shares = [reason.share for reason in reasons if isinstance(reason, MatchedWords)]
    return max(cosines, default=None), max(shares, default=0.0)


def catalogue_fit_of(hits: Sequence[Hit], options: FitOptions, baseline: float | None = None) -> float:
    """The catalogue fit of a request that these tools were found for, from 0 to 1; 1 where it names the first one.

    `baseline` is the cosine that a request about something else reaches among them (see similarity_baseline.py);
    None takes `options.usual`.
    """
    if not hits:
        return 0.0
    if any(isinstance(reason, ExactName) for reason in hits[0].reasons):
        return 1.0
    cosine, share = signals(hits)
    half_way = options.words_alone if cosine is None else options.share
    curves = [_logistic(options.steepness * (share - half_way))]
    if cosine is not None:
        above = cosine - (options.usual if baseline is None else baseline)
        curves.append(_logistic(options.bias + options.similarity * above))
    past = [reason.cosine for hit in hits[:_LOOKED_AT] for reason in hit.reasons if isinstance(reason, PastRequest)]
    curves += [_logistic(options.steepness * (max(past) - options.past))] if past else []
    return max(curves)


def _logistic(value: float) -> float:
    return 1 / (1 + math.exp(-value))
