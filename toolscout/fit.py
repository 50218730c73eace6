"""Does anything in the catalogue fit the request? A probability from how well the best tools match it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from toolscout.answer import ExactName, Hit, MatchedWords, Similarity

_LOOKED_AT = 5


@dataclass(frozen=True, slots=True)
class FitOptions:
    """Weights of a logistic curve over the best similarity and the best share of matched words.

    Fitted on the dev requests of the bundled benchmark (runs/fit.py); `threshold` is where "nothing fits" begins.
    """

    bias: float = -4.0
    similarity: float = 8.0
    share: float = 3.0
    words_bias: float = -2.0
    words_share: float = 5.0
    threshold: float = 0.5


def signals(hits: Sequence[Hit]) -> tuple[float | None, float]:
    """The best cosine among the first hits (None where no vectors were searched) and the best share of words."""
    reasons = [reason for hit in hits[:_LOOKED_AT] for reason in hit.reasons]
    cosines = [reason.cosine for reason in reasons if isinstance(reason, Similarity)]
    shares = [reason.share for reason in reasons if isinstance(reason, MatchedWords)]
    return max(cosines, default=None), max(shares, default=0.0)


def fit(hits: Sequence[Hit], options: FitOptions) -> float:
    """How likely it is that one of these tools serves the request. A tool that is named always does."""
    if not hits:
        return 0.0
    if any(isinstance(reason, ExactName) for reason in hits[0].reasons):
        return 1.0
    cosine, share = signals(hits)
    if cosine is None:
        return _logistic(options.words_bias + options.words_share * share)
    return _logistic(options.bias + options.similarity * cosine + options.share * share)


def _logistic(value: float) -> float:
    return 1 / (1 + math.exp(-value))
