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


def test_softmax_over_pairs_is_the_multiple_negatives_ranking_loss() -> None:
    """As sentence-transformers has it: cosines times 20, and row i has to find column i."""
    vectors = torch.randn((2, 5, 6), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mine, theirs = vectors.clone().requires_grad_(), vectors.clone().requires_grad_()
    units = functional.normalize(mine, dim=2)
    found = losses.multi_gold_softmax(20 * units[0] @ units[1].T, torch.eye(5))
    cosines = functional.cosine_similarity(theirs[0][:, None], theirs[1][None], dim=2)
    expected = functional.cross_entropy(20.0 * cosines, torch.arange(5))
    assert found.item() == pytest.approx(expected.item())
    found.backward()  # type: ignore[no-untyped-call]
    expected.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(mine.grad, theirs.grad)


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
