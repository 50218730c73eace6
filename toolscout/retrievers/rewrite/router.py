"""Predicts how much rewriting a request gains, from the request and from its ranking without rewriting."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from toolscout.core.arrays import Doubles
from toolscout.errors import BadModel
from toolscout.index.exact_names import EXACT_BONUS
from toolscout.retrievers.base import Pairs
from toolscout.retrievers.rewrite.query_text import split, words_of

FEATURES = ("words", "clauses", "question", "top", "gap", "gap_5", "entropy", "unknown")
_LOOKED_AT = 10
_RIDGE = 1.0
_QUANTILES = 101
_QUESTIONS = frozenset("what which who where when why how can could is are do does".split())


def features(request: str, ranking: Pairs, texts: Sequence[str]) -> list[float]:
    """The numbers named in FEATURES. `ranking`: of the request alone; `texts`: descriptions of its first tools."""
    words = words_of(request)
    scores = [max(score % EXACT_BONUS, 0.0) for _, score in ranking[:_LOOKED_AT]]
    top, total = (scores[0], sum(scores)) if scores else (0.0, 0.0)

    def gap(place: int) -> float:
        return (top - scores[place]) / top if top > 0 and len(scores) > place else 1.0

    shares = [score / total for score in scores if score > 0] if total > 0 else []
    known = {word for text in texts for word in words_of(text)}
    question = request.rstrip().endswith("?") or bool(words and words[0] in _QUESTIONS)
    return [
        math.log1p(len(words)),
        float(max(1, len(split(request, 8)))),
        float(question),
        top,
        gap(1),
        gap(4),
        -sum(share * math.log(share) for share in shares),
        sum(word not in known for word in words) / max(1, len(words)),
    ]


@dataclass(frozen=True, slots=True)
class Router:
    """A linear model of the gain by rewriting, and the quantiles of its predictions on dev (`levels`)."""

    mean: tuple[float, ...]
    scale: tuple[float, ...]
    weights: tuple[float, ...]
    bias: float
    levels: tuple[float, ...]

    @classmethod
    def fitted(cls, rows: Sequence[Sequence[float]], gains: Sequence[float]) -> Self:
        """Fit a ridge regression of the gains of dev requests on their features."""
        table, target = np.array(rows, dtype=np.float64), np.array(gains, dtype=np.float64)
        mean, scale = table.mean(0), table.std(0)
        scale[scale < 1e-9] = 1.0
        scaled, bias = (table - mean) / scale, float(target.mean())
        curve = scaled.T @ scaled + _RIDGE * np.eye(table.shape[1])
        weights = np.linalg.solve(curve, scaled.T @ (target - bias))
        levels = np.quantile(scaled @ weights + bias, np.linspace(0, 1, _QUANTILES))
        return cls(_rounded(mean), _rounded(scale), _rounded(weights), round(bias, 6), _rounded(levels))

    def forecast(self, rows: Sequence[Sequence[float]]) -> Doubles:
        """The predicted gain of each request, given its features."""
        scaled = (np.array(rows, dtype=np.float64) - np.array(self.mean)) / np.array(self.scale)
        return np.asarray(scaled @ np.array(self.weights) + self.bias)

    def worth(self, rows: Sequence[Sequence[float]], share: float) -> list[bool]:
        """Whether each request is predicted to be among the `share` of requests that gain most on dev."""
        threshold = float(np.interp(1 - share, np.linspace(0, 1, _QUANTILES), self.levels))
        return [bool(one >= threshold) for one in np.round(self.forecast(rows), 6)] if len(rows) else []

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Self:
        """Read what `asdict` made of a router. Raises BadModel where it does not fit."""
        try:
            names = ("mean", "scale", "weights", "levels")
            mean, scale, weights, levels = (tuple(map(float, record[name])) for name in names)
            if {len(mean), len(scale), len(weights)} != {len(FEATURES)} or len(levels) != _QUANTILES:
                raise ValueError("it has other features")
            return cls(mean, scale, weights, float(record["bias"]), levels)
        except (KeyError, TypeError, ValueError) as error:
            raise BadModel(f"the router of this model cannot be read ({error}); train the model again") from None


def _rounded(values: Doubles) -> tuple[float, ...]:
    return tuple(np.round(values, 6).tolist())
