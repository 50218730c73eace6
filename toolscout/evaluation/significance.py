"""Confidence intervals of means, and a paired test of their difference.

Requests of one scene are not independent, so whole scenes are resampled: a cluster bootstrap for intervals, and a
sign-flip permutation test. Everything is seeded: the same scores give the same numbers.
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
_AT_ONCE = 4_000_000  # numbers in memory at a time
_SAME = 1e-12


@dataclass(frozen=True, slots=True)
class Paired:
    """Two means over the same requests: B less A, its interval, and how often chance alone differs as much."""

    mean_a: float
    mean_b: float
    difference: float
    low: float
    high: float
    p: float
    requests: int
    scenes: int


def intervals(values: Doubles, scenes: Sequence[str], resamples: int = RESAMPLES) -> Doubles:
    """For each column of values (a row for each request) the low and high end of its mean's interval.

    A value that is not a number leaves its request out of that column. A column without any number has no interval.
    """
    sums, counts = _by_scene(values, scenes)
    return _percentiles(_resampled(sums, counts, resamples), _ENDS)


def paired(a: Doubles, b: Doubles, scenes: Sequence[str], flips: int = FLIPS) -> list[Paired | None]:
    """Compare two systems on the same requests, column by column; None for a column that leaves out every request.

    `a` and `b` have a row for each request and a column for each measure; a value that is not a number leaves its
    request out of that column. Raises BadDataset where their shapes differ.
    """
    if a.shape != b.shape:
        raise BadDataset(f"scores of {a.shape} and {b.shape} cannot be paired; evaluate both on the same requests")
    counted = ~(np.isnan(a) | np.isnan(b))
    differences = np.where(counted, b - a, np.nan)
    sums, counts = _by_scene(differences, scenes)
    ends = _percentiles(_resampled(sums, counts, RESAMPLES), _ENDS)
    chances = _flipped(sums, flips)
    found: list[Paired | None] = []
    for column in range(a.shape[1]):
        chosen = counted[:, column]
        if not chosen.any():
            found.append(None)
            continue
        mean_a, mean_b = float(a[chosen, column].mean()), float(b[chosen, column].mean())
        low, high = ends[column].tolist()
        scene_count = int((counts[:, column] > 0).sum())
        how_many = (int(chosen.sum()), scene_count)
        found.append(Paired(mean_a, mean_b, mean_b - mean_a, low, high, float(chances[column]), *how_many))
    return found


def _by_scene(values: Doubles, scenes: Sequence[str]) -> tuple[Doubles, Doubles]:
    """Sums and counts of each column by scene, scenes in the order they first come."""
    if values.ndim != 2 or len(values) != len(scenes) or not len(scenes):
        raise BadDataset(f"needs a scene for each row of scores and at least one, got {values.shape}, {len(scenes)}")
    numbers = {scene: number for number, scene in enumerate(dict.fromkeys(scenes))}
    at = np.array([numbers[scene] for scene in scenes])
    there = ~np.isnan(values)
    sums, counts = np.zeros((len(numbers), values.shape[1])), np.zeros((len(numbers), values.shape[1]))
    np.add.at(sums, at, np.where(there, values, 0.0))
    np.add.at(counts, at, there.astype(np.float64))
    return sums, counts


def _resampled(sums: Doubles, counts: Doubles, resamples: int) -> Doubles:
    """The mean of each column in each resample of scenes; not a number where a resample has no request of it."""
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
    """Percentiles of each column over the samples that are numbers; a row for each column."""
    ends = np.full((samples.shape[1], len(shares)), np.nan)
    for column in range(samples.shape[1]):
        numbers = samples[:, column][~np.isnan(samples[:, column])]
        if len(numbers):
            ends[column] = np.quantile(numbers, shares)
    return ends


def _flipped(sums: Doubles, flips: int) -> Doubles:
    """For each column: how often the total is as far from nothing when each scene's sign is left to chance."""
    moving = sums[(np.abs(sums) > _SAME).any(axis=1)]
    far, scenes = np.abs(sums.sum(axis=0)), len(moving)
    if not scenes:
        return np.ones(sums.shape[1])
    exact = scenes <= _EXACT
    random, as_far, tried = np.random.default_rng(_SEED), np.zeros(sums.shape[1]), 0
    for rows in [2**scenes] if exact else _chunks(flips, scenes):
        bits = (
            (np.arange(rows)[:, None] >> np.arange(scenes)) & 1
            if exact
            else random.integers(0, 2, size=(rows, scenes), dtype=np.int8)
        )
        as_far += (np.abs((1.0 - 2.0 * bits) @ moving) >= far * (1 - 1e-9) - _SAME).sum(axis=0)
        tried += rows
    # A sample of flips counts the observed difference as one more: an estimated p is never 0.
    return as_far / tried if exact else (as_far + 1) / (tried + 1)


def _chunks(count: int, width: int) -> Iterator[int]:
    """Sizes that add up to count, each small enough to be held in memory that wide."""
    step = max(1, _AT_ONCE // width)
    for start in range(0, count, step):
        yield min(step, count - start)
