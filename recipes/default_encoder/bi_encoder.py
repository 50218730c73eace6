"""Trains the encoder: requests near the documents of their tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from recipes.default_encoder.network import (
    DEVICE,
    TokenisedSet,
    draw_order,
    embed,
    optimiser,
    set_rate,
)

_COUNTS = 64


@dataclass(frozen=True)
class EncoderTraining:
    """Settings of a training; dev splits chose them.

    documents: how many documents compete in a step, the gold ones of all its requests among them.
    distilled: the weight of the cross-encoder's opinion.
    power: a set is drawn as often as this power of its size.
    """

    steps: int
    rate: float = 4e-5
    batch: int = 256
    documents: int = 512
    distilled: float = 1.0
    lists: int = 32
    power: float = 0.5
    seed: int = 0


@dataclass(frozen=True)
class ScoredLists:
    """What the cross-encoder says of some requests' documents."""

    requests: Tensor  # [n]
    documents: Tensor  # [n, list]
    scores: Tensor  # [n, list]


def train_encoder(
    network: Any,
    sets: Sequence[TokenisedSet],
    settings: EncoderTraining,
    misses: Mapping[str, Tensor] | None = None,
    scored: Mapping[str, ScoredLists] | None = None,
) -> float:
    """Train a network in place; returns the last loss.

    A step takes requests of one catalogue, whose documents compete: every pair of a request and a document is judged
    alone (sigmoid), so a document that serves two requests of a batch is wrong for neither.
    misses: near misses of the requests of each set, of which one competes for each request in a step.
    scored: what a cross-encoder says of lists of documents, which is imitated.
    """
    torch.manual_seed(settings.seed)
    scale, bias = (nn.Parameter(torch.tensor(value, device=DEVICE)) for value in (20.0, -8.0))
    learning = optimiser([*network.parameters(), scale, bias], settings.rate)
    network.train()
    loss = torch.zeros((), device=DEVICE)
    sizes = [len(one.requests) for one in sets]
    for step, number in enumerate(draw_order(sizes, settings.steps, settings.seed, settings.power)):
        set_rate(learning, settings.rate, step, settings.steps)
        data = sets[number]
        rows = torch.randint(len(data.requests), (min(settings.batch, len(data.requests)),), device=DEVICE)
        competing = _competing(data, rows, misses[data.name] if misses else None, settings.documents)
        texts = [(data.requests, rows), (data.documents, competing)]
        lists = scored.get(data.name) if scored else None
        if lists:
            drawn = torch.randint(len(lists.requests), (settings.lists,), device=DEVICE)
            texts.append((data.requests, lists.requests[drawn]))
            texts.append((data.documents, lists.documents[drawn].reshape(-1)))
        asked, told, *listed = embed(network, *texts)
        wanted = (data.gold[rows][:, None, :] == competing[None, :, None]).any(2).float()
        loss = _misjudged(asked @ told.T * scale + bias, wanted, competing)
        if lists:
            loss = loss + settings.distilled * _disagreement(*listed, lists.scores[drawn], scale.detach())
        learning.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        learning.step()
    return float(loss.detach())


def _competing(data: TokenisedSet, rows: Tensor, misses: Tensor | None, most: int) -> Tensor:
    """The documents of a step: gold, a near miss of each request, and others up to one of few counts."""
    count = min(most, -(-len(data.needed) // _COUNTS) * _COUNTS)
    gold = data.gold[rows]
    found = [gold[gold >= 0]]
    if misses is not None:
        near = misses[rows]
        near = near.gather(1, torch.randint(near.shape[1], (len(rows), 1), device=DEVICE))
        found.append(near[near >= 0])
    kept = torch.unique(torch.cat(found))
    return torch.cat([kept, data.others((-len(kept) % count,))])


def _misjudged(judged: Tensor, wanted: Tensor, documents: Tensor) -> Tensor:
    """Sigmoid loss of every pair of a request and a document, each document as if it came once."""
    share = 1 / (documents[:, None] == documents).sum(1)
    loss = functional.binary_cross_entropy_with_logits(judged, wanted, weight=share, reduction="sum")
    return loss / len(judged)


def _disagreement(asked: Tensor, told: Tensor, scores: Tensor, scale: Tensor) -> Tensor:
    """How far the encoder's order of some lists is from the cross-encoder's (Kullback-Leibler)."""
    similar = (asked[:, None] * told.view(len(asked), -1, asked.shape[1])).sum(-1)
    ours, theirs = functional.log_softmax(similar * scale, 1), functional.log_softmax(scores, 1)
    return functional.kl_div(ours, theirs, log_target=True, reduction="batchmean")
