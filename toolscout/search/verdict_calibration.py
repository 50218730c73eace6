"""Calibrates the package's verdict model to another encoder, by Platt scaling on the bundled dev requests.

The requests are put to catalogues of 1 tool, of a few, and of all bundled tools. Each of the two regressions of the
model keeps its coefficients up to one factor and one shift, which are fitted to this encoder's need head and curve of
catalogue fit; then the thresholds of the levels are chosen. Needs numpy alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from toolscout.core.answer import Level, MatchedWords
from toolscout.core.arrays import Bools, Doubles, Floats
from toolscout.core.tool import Tool
from toolscout.retrievers.bm25 import Bm25
from toolscout.search import similarity_baseline
from toolscout.search.catalogue_fit import FitOptions
from toolscout.search.verdict import TARGET_RECALL, Evidence, LevelThresholds, VerdictModel, Weights, features

# How many tools the small catalogues have, and how many catalogues of each size are drawn.
_SIZES, _DRAWS = (1, 3, 5, 10, 30, 100), 2
_LOOKED_AT, _RIDGE, _STEPS = 5, 1e-4, 50
_WORDS_DEPTH = 50


class DevRequests(NamedTuple):
    """Requests with their vectors, their tool need, and their gold: None for talk, an empty set where nothing fits."""

    texts: list[str]
    vectors: Floats
    needs: list[float]
    gold: list[frozenset[str] | None]


class _LabelledRow(NamedTuple):
    """One request put to one catalogue. use: a tool of the catalogue serves it. talk: it needs no tool."""

    features: list[float]
    use: bool
    talk: bool


def calibrated(
    model: VerdictModel,
    requests: DevRequests,
    tools: Sequence[Tool],
    documents: Floats,
    background: Floats,
    options: FitOptions,
    encoder: str,
) -> VerdictModel:
    """Return the model, calibrated to the encoder of this fingerprint.

    `documents`: the vectors of the tools. `background`: those of the unrelated requests that the similarity baseline
    is computed from. `options`: the curve of catalogue fit of this encoder.
    """
    rows = list(_labelled_rows(requests, tools, documents, background, options))
    use, talk = np.array([one.use for one in rows]), np.array([one.talk for one in rows])
    weights = np.zeros(len(rows))
    for kind, share in ((use, 0.5), (~use & ~talk, 0.25), (talk, 0.25)):
        weights[kind] = share / max(int(kind.sum()), 1)
    found = [one.features for one in rows]
    need, needed = _recalibrated(model.need, found, ~talk, weights)
    fit, fits = _recalibrated(model.fit, found, use, np.where(talk, 0.0, weights))
    joint, alone = np.sort((needed * fits)[use]), np.sort(fits[use])
    levels: dict[Level, LevelThresholds] = {}
    for level, share in TARGET_RECALL.items():
        quantiles = (float(np.quantile(several, 1 - share, method="lower")) for several in (joint, alone))
        levels[level] = LevelThresholds(*(math.floor(10_000 * one) / 10_000 for one in quantiles))
    return VerdictModel(need, fit, levels, encoder, model.reranker)


def _recalibrated(
    weights: Weights, found: Sequence[Sequence[float]], truth: Bools, shares: Doubles
) -> tuple[Weights, Doubles]:
    """Return the coefficients, scaled and shifted to be calibrated on these rows, and the probability of each row."""
    logits = np.array([weights.logit(one) for one in found])
    scale, shift = _curve(logits, truth, shares)
    values = [scale * value for value in weights.values]
    values[0] += shift  # the intercept
    chances: Doubles = 0.5 + 0.5 * np.tanh(0.5 * (scale * logits + shift))
    return Weights(tuple(values)), chances


def _curve(logits: Doubles, truth: Bools, shares: Doubles) -> tuple[float, float]:
    """Return slope and shift of a logistic curve, by Newton's method; (1, 0) where the slope would not be positive."""
    design, share = np.column_stack([logits, np.ones(len(logits))]), shares / shares.sum()
    found = np.array([1.0, 0.0])
    for _ in range(_STEPS):
        chance = 0.5 + 0.5 * np.tanh(0.5 * design @ found)
        slope = design.T @ (share * (chance - truth)) + _RIDGE * (found - [1.0, 0.0])
        bend = (design * (share * chance * (1 - chance))[:, None]).T @ design + _RIDGE * np.eye(2)
        step = np.linalg.solve(bend, slope)
        found = found - step
        if np.abs(step).max() < 1e-8:
            break
    return (float(found[0]), float(found[1])) if found[0] > 0 else (1.0, 0.0)


def _labelled_rows(
    requests: DevRequests, tools: Sequence[Tool], documents: Floats, background: Floats, options: FitOptions
) -> Iterator[_LabelledRow]:
    """Put each request to each catalogue, except where the catalogue has some of its gold tools but not all."""
    ids, scores, words = [tool.id for tool in tools], requests.vectors @ documents.T, _words(requests.texts, tools)
    unrelated = background @ documents.T
    for kept in _catalogues(requests, ids):
        there = {ids[at] for at in kept}
        baseline = float(np.quantile(unrelated[:, kept].max(axis=1), similarity_baseline.QUANTILE))
        for number, gold in enumerate(requests.gold):
            if gold is not None and gold & there and not gold <= there:
                continue
            best = -np.sort(-scores[number, kept])[:_LOOKED_AT].astype(np.float64)
            gaps = (options.similarity * (best[0] - best)).tolist()
            fit = options.bias + options.similarity * (float(best[0]) - baseline)
            share = next((one for tool_id, one in words[number].items() if tool_id in there), 0.0)
            far = gaps[-1] if len(gaps) == _LOOKED_AT else 0.0
            known = (fit, gaps[1] if len(gaps) > 1 else 0.0, far, share, len(kept))
            served = gold is not None and bool(gold) and gold <= there
            yield _LabelledRow(features(Evidence(requests.needs[number], *known)), served, gold is None)


def _catalogues(requests: DevRequests, ids: Sequence[str]) -> Iterator[list[int]]:
    """Yield catalogues as positions of tools: half of a small one are the gold tools of some requests; then all."""
    random, places = np.random.default_rng(0), {tool_id: at for at, tool_id in enumerate(ids)}
    served = [[places[one] for one in gold] for gold in requests.gold if gold]
    for size in _SIZES:
        for _ in range(_DRAWS * (4 if size < 10 else 1)):
            kept: dict[int, None] = {}
            for at in random.permutation(len(served)).tolist():
                if len({*kept, *served[at]}) <= max(size // 2, 1):
                    kept |= dict.fromkeys(served[at])
            others = [at for at in random.permutation(len(ids)).tolist() if at not in kept]
            yield [*kept, *others[: max(0, size - len(kept))]]
    yield list(range(len(ids)))


def _words(texts: Sequence[str], tools: Sequence[Tool]) -> list[Mapping[str, float]]:
    """Return for each request the tools that match words of it, with the share of its words, highest share first."""
    index = Bm25()
    index.add(tools)
    found: list[Mapping[str, float]] = []
    for hits in index.search(list(texts), _WORDS_DEPTH):
        shares = {hit.tool_id: one.share for hit in hits for one in hit.reasons if isinstance(one, MatchedWords)}
        found.append(dict(sorted(shares.items(), key=lambda pair: -pair[1])))
    return found
