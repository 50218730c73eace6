"""Fits the verdict model to labelled rows and measures it. Needs numpy alone.

A weighted logistic regression with bounds on its coefficients, thresholds of the levels, AUROC, calibration error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from recipes.verdict_data import NO_TOOL, NOTHING_FITS, USE, Rows
from toolscout.core.answer import Level
from toolscout.core.arrays import Bools, Doubles, Ints
from toolscout.search.catalogue_fit import FitOptions
from toolscout.search.tool_need import NeedOptions
from toolscout.search.verdict import (
    ANY_SIGN,
    FEATURES,
    LEVELS,
    TARGET_RECALL,
    LevelThresholds,
    Weights,
    features,
    logit,
)

# The weight of each kind of request: nothing is known of how often users ask for what no tool does.
SHARES = {USE: 0.5, NOTHING_FITS: 0.25, NO_TOOL: 0.25}
# The weight of a set, 1 where it is not named: people wrote the bundled requests, for the tools of real servers.
SETS = {"bundled": 5.0}
THRESHOLDS = "thresholds"
_FIT = [FEATURES.index(name) for name in ("fit_small", "fit_large")]
PENALTY, STEPS = 0.002, 100
_RERANKED = frozenset(("reranked", "has_reranked"))
# A low fit predicts that no tool is needed, since most talk is less similar to the tools than requests are. A high fit
# predicts nothing of need: talk about what the tools do is as similar to them as a request for them.
OF_NEED = frozenset(("intercept", "size", "need", "need_high", "fit_low_small", "fit_low_large"))
OF_FIT = frozenset(FEATURES) - {"need", "need_high", "fit_low_small", "fit_low_large"}


@dataclass(frozen=True, slots=True)
class Table:
    """Labelled rows as arrays: features, whether need is known, the right kind, weight, catalogue size and origin."""

    features: Doubles
    known: Bools
    kind: Ints
    weights: Doubles
    size: Ints
    sets: Sequence[str]
    sources: Sequence[str]

    @property
    def reranked(self) -> Bools:
        """Which rows have a reranker's score."""
        found: Bools = self.features[:, FEATURES.index("has_reranked")] > 0
        return found

    def where(self, mask: Bools) -> Table:
        """Return some of the rows, with weights computed anew."""
        places = np.flatnonzero(mask).tolist()
        named = ([several[at] for at in places] for several in (self.sets, self.sources))
        return table_of(self.features[mask], self.known[mask], self.kind[mask], self.size[mask], *named)


def table_of(
    found: Doubles, known: Bools, kind: Ints, size: Ints, sets: Sequence[str], sources: Sequence[str]
) -> Table:
    """Return a table with weights: sets by SETS, sizes within a set equally, kinds within a size by SHARES."""
    weights = np.zeros(len(kind))
    groups = {(name, one) for name, one in zip(sets, size.tolist(), strict=True)}
    names = np.array(sets)
    for name, one in groups:
        sizes = sum(other == name for other, _ in groups)
        for which, share in SHARES.items():
            mask = (names == name) & (size == one) & (kind == which)
            weights[mask] = SETS.get(name, 1.0) * share / sizes / max(int(mask.sum()), 1)
    return Table(found, known, kind, weights / max(weights.sum(), 1e-12), size, sets, sources)


def joined(rows: Mapping[str, Rows]) -> Table:
    """Return the rows of several sets, by name, as one table."""
    found = [features(one) for several in rows.values() for one in several.evidence]
    known = np.array([one.need is not None for several in rows.values() for one in several.evidence])
    kind = np.array([one for several in rows.values() for one in several.kind])
    size = np.array([one for several in rows.values() for one in several.size])
    sets = [name for name, several in rows.items() for _ in several.kind]
    sources = [one for several in rows.values() for one in several.source]
    return table_of(np.array(found), known, kind, size, sets, sources)


def logistic_regression(
    found: Doubles, truth: Bools, weights: Doubles, rising: Bools, falling: Bools, used: Bools
) -> Doubles:
    """Return coefficients by Newton's method with bounds: 0 or more where `rising`, 0 or less where `falling`.

    Features that are not `used` have 0. The penalty is on standardised features, so that their units do not matter.
    """
    spread = np.maximum(
        np.sqrt(np.average((found - np.average(found, axis=0, weights=weights)) ** 2, 0, weights)), 1e-9
    )
    spread[~used | (np.ptp(found, axis=0) == 0)] = 1.0
    design, share = found / spread, weights / weights.sum()
    penalty = np.full(found.shape[1], PENALTY)
    penalty[0] = 1e-9
    value: Doubles = np.zeros(found.shape[1])
    for _ in range(STEPS):
        chance = _sigmoid(design @ value)
        slope = design.T @ (share * (chance - truth)) + penalty * value
        held = (rising & (value <= 0) & (slope > 0)) | (falling & (value >= 0) & (slope < 0)) | ~used
        free = np.flatnonzero(~held)
        bend = (design[:, free] * (share * chance * (1 - chance))[:, None]).T @ design[:, free]
        step = np.zeros_like(value)
        step[free] = np.linalg.solve(bend + np.diag(penalty[free]), slope[free])
        value, moved = _stepped(design, truth, share, penalty, value, step, rising, falling)
        if moved < 1e-7:
            break
    return value / spread


def _stepped(
    design: Doubles,
    truth: Bools,
    share: Doubles,
    penalty: Doubles,
    value: Doubles,
    step: Doubles,
    rising: Bools,
    falling: Bools,
) -> tuple[Doubles, float]:
    """Return the coefficients after a step within the bounds, halved until the loss falls, and their largest change."""

    def loss(one: Doubles) -> float:
        margin = np.where(truth, 1, -1) * (design @ one)
        return float(share @ np.logaddexp(0, -margin) + 0.5 * (penalty * one * one).sum())

    before = loss(value)
    for _ in range(30):
        tried = value - step
        tried = np.where(rising, np.maximum(tried, 0), np.where(falling, np.minimum(tried, 0), tried))
        if loss(tried) <= before:
            return tried, float(np.abs(tried - value).max())
        step = step / 2
    return value, 0.0


def _sigmoid(value: Doubles) -> Doubles:
    found: Doubles = 0.5 + 0.5 * np.tanh(0.5 * value)
    return found


def _named(names: frozenset[str]) -> Bools:
    return np.array([name in names for name in FEATURES])


def fitted(table: Table) -> tuple[Weights, Weights]:
    """Return the two regressions: whether a tool is needed, and whether one fits, which is fitted without talk."""
    rising, nothing = ~_named(ANY_SIGN), np.zeros(len(FEATURES), dtype=bool)
    talk = table.kind == NO_TOOL
    known = table.known
    need = logistic_regression(
        table.features[known], ~talk[known], table.weights[known], rising, nothing, _named(OF_NEED)
    )
    used = _named(OF_FIT if table.reranked.any() else OF_FIT - _RERANKED)
    some, right = table.features[~talk], table.kind[~talk] == USE
    fit = logistic_regression(some, right, table.weights[~talk], rising, nothing, used)
    return Weights(tuple(need.tolist())), Weights(tuple(fit.tolist()))


def thresholds_of(chance: Doubles, table: Table) -> dict[Level, float]:
    """Return for each level the threshold at which it reaches its recall of the requests that a tool serves."""
    served = table.kind == USE
    order = np.argsort(chance[served])
    below = np.cumsum(table.weights[served][order]) / table.weights[served].sum()
    values = chance[served][order]
    return {
        level: float(values[min(int(np.searchsorted(below, 1 - share)), len(values) - 1)])
        for level, share in TARGET_RECALL.items()
    }


@dataclass(frozen=True, slots=True)
class Predictions:
    """The probabilities of rows: that a tool is needed, and that one fits if it is.

    `need` is 1 where the tool need is not known: then the verdict comes from fit alone.
    """

    need: Doubles
    fit: Doubles

    @classmethod
    def by(cls, parts: tuple[Weights, Weights], table: Table) -> Predictions:
        """Return the probabilities by the two regressions of a model."""
        need, fit = (_sigmoid(table.features @ np.array(one.values)) for one in parts)
        return cls(np.where(table.known, need, 1.0), fit)

    @property
    def use(self) -> Doubles:
        """The probability that a tool should be used."""
        return self.need * self.fit

    def where(self, mask: Bools) -> Predictions:
        """Return those of some of the rows."""
        return Predictions(self.need[mask], self.fit[mask])


def measured(said: Predictions, table: Table, thresholds: Mapping[Level, LevelThresholds]) -> dict[str, float]:
    """Return the measures of one table: AUROC and ECE of "use", then `shares` of each level and of two thresholds.

    The two thresholds are the defaults of NeedOptions and FitOptions, on the cosine, without matched words. Precision
    and ECE hold for the weights of the table: half of the requests are served.
    """
    weights, served = table.weights / table.weights.sum(), table.kind == USE
    found = {"use_auroc": auroc(said.use, served, weights), "use_ece": ece(said.use, served, weights)}
    fits = table.kind != NO_TOOL
    found["fit_auroc"] = auroc(said.fit[fits], served[fits], weights[fits])
    likelier_talk = 1 - said.need > said.need - said.use
    for level in LEVELS:
        wanted = np.where(table.known, thresholds[level].use, thresholds[level].alone)
        found |= shares(level, said.use >= wanted, likelier_talk, table)
    needed, fitting = (table.features[:, FEATURES.index("need")], table.features[:, _FIT].sum(axis=1))
    talk = needed < logit(NeedOptions().threshold)
    found |= shares(THRESHOLDS, ~talk & (fitting >= logit(FitOptions().threshold)), talk, table)
    return {name: round(value, 4) for name, value in found.items() if not np.isnan(value)}


def shares(name: str, used: Bools, talk: Bools, table: Table) -> dict[str, float]:
    """Return recall and precision of "use", and the shares of the other two kinds that are turned away, and said so.

    `used`: the rows that get tools. `talk`: the rows that would otherwise get "no_tool_needed".
    """
    served, nothing, chat = (table.kind == kind for kind in (USE, NOTHING_FITS, NO_TOOL))

    def share(right: Bools, among: Bools) -> float:
        return float(np.average(right[among], weights=table.weights[among])) if among.any() else float("nan")

    return {
        f"{name}_recall": share(used, served),
        f"{name}_precision": share(served, used),
        f"{name}_nothing_fits_not_used": share(~used, nothing),
        f"{name}_no_tool_not_used": share(~used, chat),
        f"{name}_nothing_fits_told": share(~used & ~talk, nothing),
        f"{name}_no_tool_told": share(~used & talk, chat),
    }


def auroc(chance: Doubles, truth: Bools, weights: Doubles) -> float:
    """Return the weighted area under the ROC curve, ties counted half; NaN where there is one class alone."""
    if not truth.any() or truth.all():
        return float("nan")
    order = np.argsort(chance, kind="stable")
    values, right, weight = chance[order], truth[order], weights[order]
    below = np.concatenate([[0.0], np.cumsum(np.where(right, 0.0, weight))])
    first, last = np.searchsorted(values, values, "left"), np.searchsorted(values, values, "right")
    above = (below[first] + below[last]) / 2
    return float((weight * above)[right].sum() / weight[right].sum() / weight[~right].sum())


def ece(chance: Doubles, truth: Bools, weights: Doubles) -> float:
    """Return the weighted expected calibration error over ten equal bins."""
    gaps = np.bincount(np.minimum((chance * 10).astype(int), 9), weights=weights * (truth - chance), minlength=10)
    return float(np.abs(gaps).sum() / weights.sum())


def means(several: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each measure over the tables that have it."""
    names = dict.fromkeys(name for one in several for name in one)
    return {name: round(float(np.mean([one[name] for one in several if name in one])), 4) for name in names}
