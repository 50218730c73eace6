"""Which requests are worth rewriting: a forecast that is learned on dev."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from toolscout.errors import BadModel
from toolscout.index.exact_names import EXACT_BONUS
from toolscout.retrievers.rewrite.router import FEATURES, Router, features

RANKING = [("a", 4.0), ("b", 3.0), ("c", 2.0), ("d", 1.0), ("e", 1.0)]


def _data(count: int = 400) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    rows = random.normal(size=(count, len(FEATURES))) * 3 + 1
    return rows, 0.2 * rows[:, 0] - 0.1 * rows[:, 3] + 0.05 * random.normal(size=count)


def test_features_of_a_request() -> None:
    found = dict(
        zip(FEATURES, features("What is the weather? Then send it to Bob", RANKING, ["the weather"]), strict=True)
    )
    assert found["question"] == 1
    assert found["clauses"] == 2
    assert found["top"] == 4
    assert (found["gap"], found["gap_5"]) == (0.25, 0.75)
    assert found["unknown"] == pytest.approx(7 / 9)
    shares = np.array([4, 3, 2, 1, 1]) / 11
    assert found["entropy"] == pytest.approx(-(shares * np.log(shares)).sum())
    assert features("x", [("a", EXACT_BONUS + 4), *RANKING[1:]], [])[3] == 4
    assert np.isfinite(features("", [], [])).all()


def test_the_forecast_is_a_ridge_regression() -> None:
    rows, gains = _data()
    router = Router.fitted(rows.tolist(), gains.tolist())
    scaled = (rows - rows.mean(0)) / rows.std(0)
    # The same by least squares over rows that pull each weight to 0.
    table = np.vstack([scaled, np.eye(len(FEATURES))])
    weights = np.linalg.lstsq(table, np.append(gains - gains.mean(), np.zeros(len(FEATURES))), rcond=None)[0]
    assert router.forecast(rows.tolist()) == pytest.approx(scaled @ weights + gains.mean(), abs=1e-4)
    assert np.corrcoef(router.forecast(rows.tolist()), gains)[0, 1] > 0.95


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.9])
def test_the_share_that_gains_most_is_chosen(share: float) -> None:
    rows, gains = _data()
    router = Router.fitted(rows.tolist(), gains.tolist())
    chosen = np.array(router.worth(rows.tolist(), share))
    assert chosen.mean() == pytest.approx(share, abs=0.02)
    forecast = router.forecast(rows.tolist())
    assert forecast[chosen].min() >= forecast[~chosen].max()
    assert router.worth([], share) == []


def test_a_router_is_read_again() -> None:
    rows, gains = _data()
    router = Router.fitted(rows.tolist(), gains.tolist())
    assert Router.read(asdict(router)) == router
    for damage in ({}, {**asdict(router), "weights": [1.0]}, {**asdict(router), "mean": "no"}):
        with pytest.raises(BadModel, match="train the model again"):
            Router.read(damage)
    constant = Router.fitted([[1.0] * len(FEATURES)] * 5, [0.1] * 5)
    assert constant.forecast([[1.0] * len(FEATURES)])[0] == pytest.approx(0.1)
