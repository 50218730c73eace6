"""LightGCN on a graph of two sides, such as requests and the tools they used: sparse, without weights of its own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class BipartiteEdges:
    """Edge i joins node left[i] of one side with node right[i] of the other."""

    left: Tensor
    right: Tensor
    lefts: int
    rights: int

    def where(self, kept: Tensor) -> BipartiteEdges:
        """The edges for which this mask says yes."""
        return BipartiteEdges(self.left[kept], self.right[kept], self.lefts, self.rights)


def propagate(edges: BipartiteEdges, left: Tensor, right: Tensor, layers: int) -> tuple[Tensor, Tensor]:
    """What both sides' nodes gather: the sum over the layers of their neighbours' vectors, each layer of length 1.

    An edge weighs one over the root of both its nodes' degrees. A node without edges gathers zero: with its own vector
    added, as the caller does, it is what it was.
    """
    left_sum, right_sum = torch.zeros_like(left), torch.zeros_like(right)
    if not layers or not len(edges.left):
        return left_sum, right_sum
    degree = (torch.bincount(edges.left, minlength=edges.lefts), torch.bincount(edges.right, minlength=edges.rights))
    weights = (degree[0][edges.left] * degree[1][edges.right]).to(left.dtype).rsqrt()
    shape = (edges.lefts, edges.rights)
    places = torch.stack([edges.left, edges.right])
    across = torch.sparse_coo_tensor(places, weights, shape, check_invariants=False).coalesce()
    back = across.transpose(0, 1).coalesce()
    for _ in range(layers):
        left, right = torch.sparse.mm(across, right), torch.sparse.mm(back, left)
        left_sum, right_sum = (
            left_sum + functional.normalize(left, dim=1),
            right_sum + functional.normalize(right, dim=1),
        )
    return left_sum, right_sum
