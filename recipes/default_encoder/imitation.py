"""Trains a network to give the vectors that another one gave: of the same texts, or of the same texts in English.

So an encoder learns other languages, and one of fewer layers gives vectors in the space of the whole one. Where the
other network is at hand, it also tells the vectors of texts that nobody wrote: parts of texts, and parts of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from recipes.default_encoder.network import (
    DEVICE,
    Texts,
    altered,
    draw_order,
    embed,
    embed_all,
    optimiser,
    set_dropout,
    set_rate,
)

_DOCUMENTS = 4096


@dataclass(frozen=True)
class ImitationTraining:
    """Settings of a training."""

    steps: int
    rate: float = 2e-4
    batch: int = 1024
    ranked: float = 0.5
    dropout: float = 0.1
    seed: int = 0


@dataclass(frozen=True)
class Wanted:
    """Texts, and the vectors that they should have; `documents`: vectors that they should rank in the same order."""

    texts: Texts
    vectors: Tensor
    documents: Tensor | None = None


def imitate(network: Any, examples: Sequence[Wanted], settings: ImitationTraining, teacher: Any = None) -> float:
    """Train a network in place; returns the last mean of one minus the cosine.

    A step takes texts of one of the examples, each as often as the root of its size: a small language is not lost.
    With a teacher, half of the texts of a step are altered, and it tells their vectors: the texts do not run out.
    """
    torch.manual_seed(settings.seed)
    set_dropout(network, settings.dropout)
    learning = optimiser([one for one in network.parameters() if one.requires_grad], settings.rate)
    network.train()
    away = torch.zeros((), device=DEVICE)
    for step, number in enumerate(draw_order([len(one.texts) for one in examples], settings.steps, settings.seed)):
        set_rate(learning, settings.rate, step, settings.steps)
        one = examples[number]
        rows = torch.randint(len(one.texts), (min(settings.batch, len(one.texts)),), device=DEVICE)
        texts, right = one.texts.select(rows), one.vectors[rows]
        if teacher is not None:
            half = len(rows) // 2
            others = altered(texts.select(torch.arange(half, device=DEVICE)))
            texts = Texts.join([others, texts.select(torch.arange(half, len(rows), device=DEVICE))])
            right = torch.cat([embed_all(teacher, others), right[half:]])
        (vectors,) = embed(network, (texts, torch.arange(len(texts), device=DEVICE)))
        away = (1 - (vectors * right).sum(1)).mean()
        # Not only near its own vector: as far from the others of the batch as that is.
        loss = away + (vectors @ vectors.T - right @ right.T).square().mean()
        if one.documents is not None:
            loss = loss + settings.ranked * _misordered(vectors, right, one.documents)
        learning.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        learning.step()
    return float(away.detach())


def _misordered(vectors: Tensor, right: Tensor, documents: Tensor, scale: float = 20.0) -> Tensor:
    """How far the order of some documents is from the wanted one (Kullback-Leibler)."""
    drawn = documents[torch.randint(len(documents), (min(_DOCUMENTS, len(documents)),), device=DEVICE)]
    ours = functional.log_softmax(vectors @ drawn.T * scale, 1)
    theirs = functional.log_softmax(right @ drawn.T * scale, 1)
    return functional.kl_div(ours, theirs, log_target=True, reduction="batchmean")
