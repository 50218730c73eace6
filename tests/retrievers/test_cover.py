"""Tools ranked as a set: against a slow oracle, and the contract of every ranking holds for it too."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.toys import HashedWords, catalogue
from toolscout.answer import Allowed
from toolscout.nn.tower import unit
from toolscout.retrievers._cover import DEPTH, covered
from toolscout.retrievers.masstool import Masstool, MasstoolOptions


@settings(max_examples=40, deadline=None)
@given(count=st.integers(1, 12), weight=st.floats(0, 1), seed=st.integers(0, 10_000))
def test_it_takes_the_best_of_what_is_left(count: int, weight: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores = np.sort(rng.uniform(-0.5, 1.5, count))[::-1].astype(np.float32)
    vectors = unit(rng.normal(size=(count, 4)).astype(np.float32))
    order, reached = covered(scores, vectors, weight)
    assert sorted(order.tolist()) == list(range(count))
    left = {i: float(scores[i]) for i in range(count)}
    for taken, score in zip(order.tolist(), reached.tolist(), strict=True):
        assert score == pytest.approx(max(left.values()), abs=1e-5)
        value = left.pop(taken)
        for other in left:
            left[other] -= weight * max(value, 0) * max(float(vectors[taken] @ vectors[other]), 0)
    assert all(a >= b - 1e-6 for a, b in zip(reached, reached[1:], strict=False))


def test_without_weight_nothing_changes() -> None:
    scores = np.array([0.9, 0.5, 0.5, -0.1], dtype=np.float32)
    order, reached = covered(scores, np.eye(4, dtype=np.float32), 0.0)
    assert order.tolist() == [0, 1, 2, 3]
    assert reached.tolist() == scores.tolist()


def test_what_is_left_undone_comes_up() -> None:
    """Two tools for the same thing, one for the other thing that was asked for."""
    vectors = unit(np.array([[1, 0.2, 0], [1, 0.1, 0], [0, 0.3, 1]], dtype=np.float32))
    scores = np.array([0.8, 0.79, 0.6], dtype=np.float32)
    assert covered(scores, vectors, 0.0)[0].tolist() == [0, 1, 2]
    assert covered(scores, vectors, 0.4)[0].tolist() == [0, 2, 1]


@pytest.fixture(scope="module")
def retriever() -> Masstool:
    made = Masstool(MasstoolOptions(cover=0.3), HashedWords())
    made.add(catalogue(3 * DEPTH))
    return made


REQUEST = "search the issue and send mail about the weather event"


def test_fewer_tools_are_the_first_of_more(retriever: Masstool) -> None:
    whole = [tool_id for tool_id, _ in retriever.rank([REQUEST], 3 * DEPTH)[0]]
    assert len(whole) == len(set(whole)) == 3 * DEPTH
    for k in (1, 5, DEPTH - 1, DEPTH, DEPTH + 1, 2 * DEPTH):
        assert [tool_id for tool_id, _ in retriever.rank([REQUEST], k)[0]] == whole[:k]


def test_scores_never_rise(retriever: Masstool) -> None:
    scores = [score for _, score in retriever.rank([REQUEST], 3 * DEPTH)[0]]
    assert all(a >= b for a, b in zip(scores, scores[1:], strict=False))


def test_a_restricted_caller_gets_the_full_ranking_without_the_rest(retriever: Masstool) -> None:
    whole = [tool_id for tool_id, _ in retriever.rank([REQUEST], 3 * DEPTH)[0]]
    for kept in (whole[::2], whole[::7], whole[DEPTH:], whole[-3:]):
        found = retriever.rank([REQUEST], 5, Allowed.of(ids=kept))[0]
        assert [tool_id for tool_id, _ in found] == kept[:5]


def test_a_tool_that_is_named_comes_first(retriever: Masstool) -> None:
    name = catalogue(3 * DEPTH)[77].id
    assert retriever.search([f"please use {name} for the mail"], 5)[0][0].tool_id == name
