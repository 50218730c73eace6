"""Intervals and paired tests resample scenes, and agree with scipy where each request is a scene of its own."""

from __future__ import annotations

import time

import numpy as np
import pytest
from scipy import stats

from toolscout.errors import BadDataset
from toolscout.evaluation.significance import intervals, paired_test

pytestmark = pytest.mark.slow


def alone(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def column(values: object) -> np.ndarray:
    return np.asarray(values, dtype=np.float64).reshape(-1, 1)


def test_with_a_scene_for_each_request_it_is_the_bootstrap_of_scipy() -> None:
    values = np.random.default_rng(3).beta(0.6, 0.4, 300)
    low, high = intervals(column(values), alone(300), resamples=20_000)[0]
    expected = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=20_000, rng=5).confidence_interval
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=0.002)


def test_requests_of_a_scene_count_together() -> None:
    scores = np.random.default_rng(1).uniform(size=40)
    repeated, scenes = np.repeat(scores, 25), [str(number) for number in range(40) for _ in range(25)]
    together = intervals(column(repeated), scenes)
    assert together == pytest.approx(intervals(column(scores), alone(40)))
    apart = intervals(column(repeated), alone(1000))
    assert np.diff(apart)[0, 0] < np.diff(together)[0, 0] / 4


def test_the_width_is_that_of_the_cluster_robust_standard_error() -> None:
    random = np.random.default_rng(8)
    sizes = random.integers(1, 12, 400)
    at = np.repeat(np.arange(400), sizes)
    values = random.normal(size=400)[at] + random.normal(size=len(at))
    residuals = np.bincount(at, weights=values - values.mean())
    error = np.sqrt((residuals**2).sum()) / len(values)
    low, high = intervals(column(values), [str(scene) for scene in at], resamples=10_000)[0]
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.04)


def test_values_that_are_no_numbers_leave_their_request_out_of_that_column_only() -> None:
    random = np.random.default_rng(2)
    values = random.uniform(size=(60, 3))
    values[::2, 1] = np.nan
    values[:, 2] = np.nan
    found = intervals(values, alone(60), resamples=5_000)
    assert found[0] == pytest.approx(intervals(values[:, :1], alone(60), resamples=5_000)[0])
    expected = stats.bootstrap((values[1::2, 1],), np.mean, method="percentile", n_resamples=5_000, rng=0)
    assert found[1] == pytest.approx(expected.confidence_interval, abs=0.03)
    assert np.isnan(found[2]).all()


@pytest.mark.timing
def test_the_same_scores_give_the_same_numbers_quickly() -> None:
    values = np.random.default_rng(4).uniform(size=(2_000, 30))
    started = time.perf_counter()
    first = intervals(values, alone(2_000), resamples=1_000)
    assert time.perf_counter() - started < 2  # an idle core takes a tenth of a second
    assert np.array_equal(first, intervals(values, alone(2_000), resamples=1_000))


def test_few_scenes_are_tested_exactly_as_scipy_does() -> None:
    random = np.random.default_rng(6)
    a, b = random.uniform(size=(9, 1)), random.uniform(size=(9, 1)) + 0.3
    result = paired_test(a, b, alone(9))[0]
    expected = stats.permutation_test((b[:, 0] - a[:, 0],), np.sum, permutation_type="samples", n_resamples=np.inf)
    assert result is not None
    assert result.p == pytest.approx(expected.pvalue)
    assert result.difference == pytest.approx((b - a).mean())


def test_three_scenes_that_all_gain_are_worth_a_quarter() -> None:
    a, b = column([0, 0, 0, 0]), column([1, 1, 1, 1])
    result = paired_test(a, b, ["x", "x", "y", "z"])[0]
    assert result is not None
    assert result.p == 2 / 8  # all signs plus, or all minus, of eight
    assert (result.mean_a, result.mean_b, result.low, result.high) == (0, 1, 1, 1)
    assert (result.requests, result.scenes) == (4, 3)


def test_many_scenes_are_tested_as_closely_as_scipy_samples_them() -> None:
    random = np.random.default_rng(7)
    at = np.repeat(np.arange(120), 3)
    a = random.uniform(size=(360, 1))
    b = a + 0.07 * random.normal(size=120)[at][:, None] + 0.012
    result = paired_test(a, b, [str(scene) for scene in at])[0]
    totals = np.bincount(at, weights=(b - a)[:, 0])
    expected = stats.permutation_test((totals,), np.sum, permutation_type="samples", n_resamples=50_000, rng=1)
    assert result is not None
    assert result.p == pytest.approx(expected.pvalue, abs=0.015)
    assert result.low < result.difference < result.high


def test_chance_alone_is_seldom_called_a_difference() -> None:
    random = np.random.default_rng(11)
    a, b = random.normal(size=(200, 60)), random.normal(size=(200, 60))
    found = paired_test(a, b, alone(200), flips=1_000)
    assert sum(result is not None and result.p < 0.05 for result in found) <= 8  # 3 are to be expected


def test_equal_runs_do_not_differ_and_missing_values_are_missing_in_both() -> None:
    values = np.array([[0.5, np.nan, 1.0], [0.25, np.nan, np.nan], [1.0, np.nan, 0.0]])
    other = values.copy()
    other[2, 2] = np.nan
    same, empty, one = paired_test(values, other, alone(3))
    assert same is not None
    assert one is not None
    assert (same.difference, same.p, same.low, same.high) == (0, 1, 0, 0)
    assert empty is None
    assert (one.requests, one.mean_a) == (1, 1.0)


def test_what_cannot_be_paired_is_refused() -> None:
    with pytest.raises(BadDataset, match="same requests"):
        paired_test(np.zeros((2, 1)), np.zeros((3, 1)), alone(2))
    with pytest.raises(BadDataset, match="a scene for each row"):
        intervals(np.zeros((2, 1)), alone(3))
