"""The losses equal what one works out by hand, and what torch computes by another way."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from toolscout.training import losses

pytestmark = pytest.mark.slow

SCORES = torch.randn((7, 11), generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 5
GOLD = torch.eye(7, 11, dtype=torch.float64) + torch.eye(7, 11, dtype=torch.float64).roll(3, dims=1)


def test_softmax_by_hand() -> None:
    scores = torch.tensor([[0.0, math.log(3)], [math.log(2), math.log(2)]])
    gold = torch.tensor([[0.0, 1.0], [1.0, 1.0]])
    expected = (math.log(4 / 3) + math.log(2)) / 2
    assert float(losses.multi_gold_softmax(scores, gold)) == pytest.approx(expected)


def test_softmax_is_the_cross_entropy_to_equal_shares() -> None:
    expected = functional.cross_entropy(SCORES, GOLD / GOLD.sum(1, keepdim=True))
    assert float(losses.multi_gold_softmax(SCORES, GOLD)) == pytest.approx(float(expected))


def test_sigmoid_by_hand() -> None:
    scores = torch.tensor([[0.0, 0.0, math.log(3)]])
    gold = torch.tensor([[1.0, 0.0, 1.0]])
    assert float(losses.sigmoid(scores, gold)) == pytest.approx(2 * math.log(2) + math.log(4 / 3))


def test_sigmoid_judges_each_tool_on_its_own() -> None:
    right = torch.sigmoid(torch.where(GOLD > 0, SCORES, -SCORES))
    assert float(losses.sigmoid(SCORES, GOLD)) == pytest.approx(float(-right.log().sum(1).mean()))


def test_extreme_scores_stay_finite() -> None:
    for loss in (losses.multi_gold_softmax, losses.sigmoid):
        assert math.isfinite(float(loss(SCORES * 1e4, GOLD)))
