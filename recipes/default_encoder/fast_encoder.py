"""Trains encoders of fewer layers whose vectors lie in the space of the whole one, on texts alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from recipes.default_encoder.network import DEVICE, Texts, draw_order, embed, embed_all, optimiser, set_rate


@dataclass(frozen=True)
class FastTraining:
    """Settings of a training. layers: those of the whole encoder that the fast one begins with."""

    layers: tuple[int, ...] = (0, 2, 5)
    steps: int = 4000
    rate: float = 2e-4
    batch: int = 1024
    seed: int = 0


def train_fast(network: Any, teacher: Any, texts: Sequence[Texts], settings: FastTraining) -> float:
    """Train a network in place to give the teacher's vectors; returns the last mean of one minus the cosine."""
    torch.manual_seed(settings.seed)
    wanted = [embed_all(teacher, one) for one in texts]
    learning = optimiser(list(network.parameters()), settings.rate)
    network.train()
    away = torch.zeros((), device=DEVICE)
    for step, number in enumerate(draw_order([len(one) for one in texts], settings.steps, settings.seed)):
        set_rate(learning, settings.rate, step, settings.steps)
        rows = torch.randint(len(texts[number]), (min(settings.batch, len(texts[number])),), device=DEVICE)
        vectors, right = embed(network, texts[number], rows), wanted[number][rows]
        away = (1 - (vectors * right).sum(1)).mean()
        # Not only near its own vector: as far from the others of the batch as that is.
        apart = (vectors @ vectors.T - right @ right.T).square().mean()
        learning.zero_grad(set_to_none=True)
        (away + apart).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        learning.step()
    return float(away.detach())
