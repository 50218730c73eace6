"""Confidence intervals of means by cluster bootstrap, and a paired sign-flip permutation test of their difference.

Requests of one scene are not independent, so whole scenes are resampled or flipped. The random seed is fixed: the same
scores give the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from toolscout.core.arrays import Doubles
from toolscout.errors import BadDataset

RESAMPLES = 2_000
FLIPS = 10_000
_LEVEL = 0.95
_ENDS = ((1 - _LEVEL) / 2, 1 - (1 - _LEVEL) / 2)
# With this many scenes or fewer that differ, every combination of signs is tried: the test is exact.
_EXACT = 13
_SEED = 20_261
_CHUNK_NUMBERS = 4_000_000  # in memory at a time
_SAME = 1e-12


@dataclass(frozen=True, slots=True)
class PairedResult:
    """The means of A and B over the same requests, their difference B minus A with its 95 % interval, and its p-value.

    `requests` and `scenes` count what the means are over.
    """

    mean_a: float
    mean_b: float
    difference: float
    low: float
    high: float
    p: float
    requests: int
    scenes: int


def intervals(values: Doubles, scenes: Sequence[str], resamples: int = RESAMPLES) -> Doubles:
    """Return the low and high end of the 95 % interval of each column's mean; `values` has a row for each request.

    NaN leaves a request out of that column; the interval of a column of NaN is NaN. Raises BadDataset where `scenes`
    does not name the scene of each row.
    """
    sums, counts = _by_scene(values, scenes)
    return _percentiles(_bootstrap_means(sums, counts, resamples), _ENDS)


def paired_test(a: Doubles, b: Doubles, scenes: Sequence[str], flips: int = FLIPS) -> list[PairedResult | None]:
    """Compare two systems on the same requests, column by column; None for a column that leaves out every request.

    `a` and `b` have a row for each request and a column for each measure; NaN leaves a request out of that column.
    Raises BadDataset where their shapes differ.
    """
    if a.shape != b.shape:
        raise BadDataset(f"scores of {a.shape} and {b.shape} cannot be paired; evaluate both on the same requests")
    counted = ~(np.isnan(a) | np.isnan(b))
    differences = np.where(counted, b - a, np.nan)
    sums, counts = _by_scene(differences, scenes)
    ends = _percentiles(_bootstrap_means(sums, counts, RESAMPLES), _ENDS)
    p_values = _sign_flip_test(sums, flips)
    found: list[PairedResult | None] = []
    for column in range(a.shape[1]):
        chosen = counted[:, column]
        if not chosen.any():
            found.append(None)
            continue
        mean_a, mean_b = float(a[chosen, column].mean()), float(b[chosen, column].mean())
        low, high = ends[column].tolist()
        sizes = (int(chosen.sum()), int((counts[:, column] > 0).sum()))
        found.append(PairedResult(mean_a, mean_b, mean_b - mean_a, low, high, float(p_values[column]), *sizes))
    return found


def _by_scene(values: Doubles, scenes: Sequence[str]) -> tuple[Doubles, Doubles]:
    """Return the sum and the count of each column's numbers by scene, in the order in which scenes first occur."""
    if values.ndim != 2 or len(values) != len(scenes) or not len(scenes):
        raise BadDataset(f"needs a scene for each row of scores and at least one, got {values.shape}, {len(scenes)}")
    numbers = {scene: number for number, scene in enumerate(dict.fromkeys(scenes))}
    rows = np.array([numbers[scene] for scene in scenes])
    is_number = ~np.isnan(values)
    sums, counts = np.zeros((len(numbers), values.shape[1])), np.zeros((len(numbers), values.shape[1]))
    np.add.at(sums, rows, np.where(is_number, values, 0.0))
    np.add.at(counts, rows, is_number.astype(np.float64))
    return sums, counts


def _bootstrap_means(sums: Doubles, counts: Doubles, resamples: int) -> Doubles:
    """Return the mean of each column in each resample of scenes; NaN where a resample has no number of it."""
    random, scenes = np.random.default_rng(_SEED), len(sums)
    both, means = np.concatenate([sums, counts], axis=1), []
    for rows in _chunks(resamples, scenes):
        drawn = random.integers(0, scenes, size=(rows, scenes)) + np.arange(rows)[:, None] * scenes
        weights = np.bincount(drawn.ravel(), minlength=rows * scenes).reshape(rows, scenes)
        totals = weights.astype(np.float64) @ both
        top, below = np.split(totals, 2, axis=1)
        means.append(np.divide(top, below, out=np.full_like(top, np.nan), where=below > 0))
    return np.concatenate(means)


def _percentiles(samples: Doubles, shares: Sequence[float]) -> Doubles:
    """Return the quantiles of each column without NaN; a row for each column, a column for each of `shares`."""
    ends = np.full((samples.shape[1], len(shares)), np.nan)
    for column in range(samples.shape[1]):
        numbers = samples[:, column][~np.isnan(samples[:, column])]
        if len(numbers):
            ends[column] = np.quantile(numbers, shares)
    return ends


def _sign_flip_test(sums: Doubles, flips: int) -> Doubles:
    """Return the p-value of each column: how often random signs of the scenes' sums give as large a total."""
    differing = sums[(np.abs(sums) > _SAME).any(axis=1)]
    observed, scenes = np.abs(sums.sum(axis=0)), len(differing)
    if not scenes:
        return np.ones(sums.shape[1])
    exact = scenes <= _EXACT
    random, as_large, tried = np.random.default_rng(_SEED), np.zeros(sums.shape[1]), 0
    for rows in [2**scenes] if exact else _chunks(flips, scenes):
        bits = (
            (np.arange(rows)[:, None] >> np.arange(scenes)) & 1
            if exact
            else random.integers(0, 2, size=(rows, scenes), dtype=np.int8)
        )
        as_large += (np.abs((1.0 - 2.0 * bits) @ differing) >= observed * (1 - 1e-9) - _SAME).sum(axis=0)
        tried += rows
    # A sample of flips counts the observed difference as one more: an estimated p is never 0.
    return as_large / tried if exact else (as_large + 1) / (tried + 1)


def _chunks(count: int, width: int) -> Iterator[int]:
    """Yield chunk sizes that sum to `count`; a chunk of rows of `width` numbers fits in memory."""
    step = max(1, _CHUNK_NUMBERS // width)
    for start in range(0, count, step):
        yield min(step, count - start)
