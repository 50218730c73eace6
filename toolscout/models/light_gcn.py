"""LightGCN on a bipartite graph, such as requests and the tools they used; it has no weights of its own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class BipartiteEdges:
    """The edges of a bipartite graph of `lefts` and `rights` nodes: edge i joins left[i] and right[i]."""

    left: Tensor
    right: Tensor
    lefts: int
    rights: int

    def where(self, mask: Tensor) -> BipartiteEdges:
        """The edges at which a boolean mask is true."""
        return BipartiteEdges(self.left[mask], self.right[mask], self.lefts, self.rights)


def propagate(edges: BipartiteEdges, left: Tensor, right: Tensor, layers: int) -> tuple[Tensor, Tensor]:
    """Propagate vectors along the edges; gives back, for each side, the sum of the outputs of all layers.

    A layer's output is the sum of the neighbours' vectors, each weighted by one over the root of the product of both
    degrees, scaled to length 1. A node's own vector is not included; a node without edges gets zeros.
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
