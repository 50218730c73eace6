"""Propagation along sparse edges is that of the whole normalised matrix, written out in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toolscout.core.arrays import Doubles
from toolscout.models.light_gcn import BipartiteEdges, propagate

pytestmark = pytest.mark.slow

torch.set_num_threads(1)


def by_hand(pairs: set[tuple[int, int]], left: Doubles, right: Doubles, layers: int) -> tuple[Doubles, Doubles]:
    """One matrix over the nodes of both sides, as LightGCN's paper has it."""
    count = len(left) + len(right)
    links = np.zeros((count, count))
    for one, other in pairs:
        links[one, len(left) + other] = links[len(left) + other, one] = 1
    degrees = links.sum(1)
    scaled = np.divide(links, np.sqrt(np.outer(degrees, degrees)), where=links > 0, out=np.zeros_like(links))
    nodes, total = np.concatenate([left, right]), np.zeros((count, left.shape[1]))
    for _ in range(layers):
        nodes = scaled @ nodes
        lengths = np.linalg.norm(nodes, axis=1, keepdims=True)
        total += np.divide(nodes, lengths, where=lengths > 1e-9, out=np.zeros_like(nodes))
    return total[: len(left)], total[len(left) :]


def edges(pairs: set[tuple[int, int]], lefts: int, rights: int) -> BipartiteEdges:
    both = torch.tensor(sorted(pairs), dtype=torch.long).reshape(-1, 2)
    return BipartiteEdges(both[:, 0], both[:, 1], lefts, rights)


@settings(max_examples=60, deadline=None)
@given(
    pairs=st.sets(st.tuples(st.integers(0, 6), st.integers(0, 4)), max_size=20),
    layers=st.integers(0, 3),
    seed=st.integers(0, 99),
)
def test_nodes_gather_what_the_whole_matrix_gives_them(pairs: set[tuple[int, int]], layers: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    left, right = random.normal(size=(7, 5)), random.normal(size=(5, 5))
    found = propagate(edges(pairs, 7, 5), torch.from_numpy(left), torch.from_numpy(right), layers)
    for tensor, expected in zip(found, by_hand(pairs, left, right, layers), strict=True):
        np.testing.assert_allclose(tensor.numpy(), expected, atol=1e-6)


def test_a_node_without_edges_gathers_nothing() -> None:
    left, right = torch.ones(3, 4), torch.ones(2, 4)
    by_left, by_right = propagate(edges({(0, 1)}, 3, 2), left, right, 3)
    assert by_left[1:].eq(0).all()
    assert by_right[0].eq(0).all()
    assert by_left[0].norm() == pytest.approx(3)  # three layers of length 1


def test_edges_can_be_left_out() -> None:
    few = edges({(0, 0), (1, 1), (2, 1)}, 3, 2).where(torch.tensor([True, False, True]))
    assert (few.left.tolist(), few.right.tolist(), few.lefts, few.rights) == ([0, 2], [0, 1], 3, 2)
    none = few.where(torch.tensor([False, False]))
    assert all(side.eq(0).all() for side in propagate(none, torch.ones(3, 4), torch.ones(2, 4), 2))


def test_the_degrees_of_both_ends_count() -> None:
    """Tool 0 has two requests of one tool each and one of two: 1/√3 twice, 1/√6 once."""
    left = torch.eye(3)
    _, gathered = propagate(edges({(0, 0), (1, 0), (2, 0), (2, 1)}, 3, 2), left, torch.zeros(2, 3), 1)
    raw = torch.tensor([3**-0.5, 3**-0.5, 6**-0.5])
    torch.testing.assert_close(gathered[0], raw / raw.norm())
