"""What the trained networks find on dev splits, while they are on the GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from recipes.default_encoder.cross_encoder import PAIR_TOKENS, CrossEncoder, score_pairs
from recipes.default_encoder.network import DEVICE, TokenisedSet, embed_all

Found = dict[str, tuple[float, float, float]]
"""By set: recall@1, recall@5 and comp@5."""


@torch.no_grad()
def measure(network: Any, sets: Sequence[TokenisedSet], documents: Any = None) -> Found:
    """What a network finds; `documents`: the network that encodes documents, where it is another one."""
    vectors: dict[int, Tensor] = {}
    found: Found = {}
    for data in sets:
        key = id(data.documents)
        if key not in vectors:
            vectors[key] = embed_all(documents or network, data.documents)
        similar = embed_all(network, data.requests) @ vectors[key].T
        found[data.name] = _recalls(data, similar.topk(min(5, similar.shape[1]), 1).indices)
    return found


@torch.no_grad()
def measure_reranked(
    network: Any,
    model: CrossEncoder,
    sets: Sequence[TokenisedSet],
    weights: Sequence[float],
    first: int = 20,
    limit: int = PAIR_TOKENS,
) -> dict[float, Found]:
    """What is found where the cross-encoder's scores are added to the cosines, for each weight."""
    vectors: dict[int, Tensor] = {}
    found: dict[float, Found] = {weight: {} for weight in weights}
    for data in sets:
        key = id(data.documents)
        if key not in vectors:
            vectors[key] = embed_all(network, data.documents)
        similar = embed_all(network, data.requests) @ vectors[key].T
        cosines, nearest = similar.topk(min(first, similar.shape[1]), 1)
        scores = score_pairs(model, data, torch.arange(len(data.requests), device=DEVICE), nearest, limit)
        for weight in weights:
            order = (_standard(cosines) + weight * _standard(scores)).argsort(1, descending=True)[:, :5]
            found[weight][data.name] = _recalls(data, nearest.gather(1, order))
    return found


def _standard(scores: Tensor) -> Tensor:
    return (scores - scores.mean(1, keepdim=True)) / scores.std(1, keepdim=True).clamp(min=1e-6)


def _recalls(data: TokenisedSet, best: Tensor) -> tuple[float, float, float]:
    hits = (best[:, :, None] == data.gold[:, None, :]).any(2)
    asked = data.counts > 0
    counts = data.counts.clamp(min=1)
    one, five = hits[:, 0] / counts, hits.sum(1) / counts
    whole = (hits.sum(1) >= data.counts).float()
    return tuple(round(float(value[asked].mean()), 4) for value in (one, five, whole))  # type: ignore[return-value]


def table_line(title: str, found: Mapping[str, tuple[float, float, float]], chosen_on: Sequence[str]) -> str:
    """A line of a table: means over the sets that choose, then recall@1 and recall@5 of each set."""
    means = [sum(found[name][place] for name in chosen_on) / len(chosen_on) for place in range(3)]
    each = " ".join(f"{name} {one:.3f}/{five:.3f}" for name, (one, five, _) in found.items())
    return f"{title:30} R@1 {means[0]:.4f} R@5 {means[1]:.4f} COMP@5 {means[2]:.4f} | {each}"
