"""Trains the encoder: requests near the documents of their tools, translated goals near the English ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from recipes.default_encoder.network import (
    DEVICE,
    Texts,
    TokenisedSet,
    draw_order,
    embed,
    near_misses,
    optimiser,
    set_rate,
)


@dataclass(frozen=True)
class EncoderTraining:
    """Settings of a training; dev splits chose them.

    documents: how many documents compete in a step, the gold ones of all its requests among them.
    misses: near misses of each request, of which one competes in a step; 0 for none.
    distilled: the weight of the cross-encoder's opinion. translated: that of translated goals.
    """

    steps: int = 1500
    rate: float = 4e-5
    batch: int = 256
    documents: int = 512
    misses: int = 30
    distilled: float = 1.0
    lists: int = 64
    translated: float = 2.0
    translations: int = 256
    seed: int = 0


@dataclass(frozen=True)
class ScoredLists:
    """What the cross-encoder says of some requests' documents."""

    requests: Tensor  # [n]
    documents: Tensor  # [n, list]
    scores: Tensor  # [n, list]


@dataclass(frozen=True)
class Translations:
    """Translated goals, and for each the vector that the English one has."""

    texts: Texts
    vectors: Tensor


def train_encoder(
    network: Any,
    sets: Sequence[TokenisedSet],
    settings: EncoderTraining,
    scored: Mapping[str, ScoredLists] | None = None,
    translations: Translations | None = None,
) -> float:
    """Train a network in place; returns the last loss.

    A step takes requests of one catalogue, whose documents compete: every pair of a request and a document is judged
    alone (sigmoid), so a document that serves two requests of a batch is wrong for neither.
    """
    torch.manual_seed(settings.seed)
    misses = {one.name: near_misses(network, one, settings.misses) for one in sets} if settings.misses else {}
    scale, bias = (nn.Parameter(torch.tensor(value, device=DEVICE)) for value in (20.0, -8.0))
    learning = optimiser([*network.parameters(), scale, bias], settings.rate)
    network.train()
    loss = torch.zeros((), device=DEVICE)
    for step, number in enumerate(draw_order([len(one.requests) for one in sets], settings.steps, settings.seed)):
        set_rate(learning, settings.rate, step, settings.steps)
        data = sets[number]
        rows = torch.randint(len(data.requests), (min(settings.batch, len(data.requests)),), device=DEVICE)
        competing = _competing(data, rows, misses.get(data.name), settings.documents)
        wanted = (data.gold[rows][:, None, :] == competing[None, :, None]).any(2).float()
        similar = embed(network, data.requests, rows) @ embed(network, data.documents, competing).T
        judged = functional.binary_cross_entropy_with_logits(similar * scale + bias, wanted, reduction="sum")
        loss = judged / len(rows)
        if scored and data.name in scored and settings.distilled:
            loss = loss + settings.distilled * _disagreement(network, data, scored[data.name], scale, settings.lists)
        if translations and settings.translated:
            drawn = torch.randint(len(translations.texts), (settings.translations,), device=DEVICE)
            away = 1 - (embed(network, translations.texts, drawn) * translations.vectors[drawn]).sum(1)
            loss = loss + settings.translated * away.mean()
        learning.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        learning.step()
    return float(loss.detach())


def _competing(data: TokenisedSet, rows: Tensor, misses: Tensor | None, most: int) -> Tensor:
    """The documents of a step: gold, a near miss of each request, and others up to `most`."""
    gold = data.gold[rows]
    found = [gold[gold >= 0]]
    if misses is not None:
        near = misses[rows]
        near = near.gather(1, torch.randint(near.shape[1], (len(rows), 1), device=DEVICE))
        found.append(near[near >= 0])
    kept = torch.unique(torch.cat(found))
    if len(kept) < most:
        kept = torch.unique(torch.cat([kept, data.others((most - len(kept),))]))
    return kept


def _disagreement(network: Any, data: TokenisedSet, scored: ScoredLists, scale: Tensor, count: int) -> Tensor:
    """How far the encoder's order of some lists is from the cross-encoder's (Kullback-Leibler)."""
    drawn = torch.randint(len(scored.requests), (count,), device=DEVICE)
    asked = embed(network, data.requests, scored.requests[drawn])
    documents = embed(network, data.documents, scored.documents[drawn].reshape(-1))
    similar = (asked[:, None] * documents.view(count, -1, asked.shape[1])).sum(-1)
    ours = functional.log_softmax(similar * scale.detach(), 1)
    theirs = functional.log_softmax(scored.scores[drawn], 1)
    return functional.kl_div(ours, theirs, log_target=True, reduction="batchmean")
