"""How an encoder is trained: kept apart from the training itself, so that reading an option needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from toolscout.errors import BadModel


@dataclass(frozen=True)  # no slots: it is mixed into the options of methods, and two layouts do not mix
class LearningOptions:
    """How an encoder is trained.

    `loss`: "sigmoid" judges each tool on its own, "softmax" lets all tools compete. `scale` multiplies cosines,
    `bias` is the cosine at which the sigmoid is undecided. `mix`: the share of requests that are joined with another
    one, so that combinations of tools are met that no single request has. `own`: how many of a tool's own lines stand
    in as requests for it, relative to the batch. `average`: the share of the trained weights in the result, the rest
    being the weights it began with; 0 tries several on dev. `unused`: whether tools that no training request needs
    count as wrong answers (they then become invisible). `candidates`: documents that compete in one step at most;
    beyond that they are mined and sampled anew. `chunk`: texts that are in memory with all that their gradients need;
    0 picks it by device.
    """

    loss: Literal["sigmoid", "softmax"] = "sigmoid"
    scale: float = 20.0
    bias: float = 0.5
    epochs: int = 6
    rate: float = 1e-4
    batch: int = 128
    mix: float = 0.3
    own: float = 0.0
    average: float = 0.0
    unused: bool = False
    candidates: int = 2000
    chunk: int = 0
    patience: int = 3
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        """Refuse what cannot be trained with."""
        if self.loss not in ("sigmoid", "softmax") or min(self.epochs, self.batch, self.candidates) < 1:
            raise BadModel(f"loss must be sigmoid or softmax; epochs, batch and candidates at least 1, got {self}")
        if not (self.rate > 0 and self.scale > 0 and 0 <= self.mix <= 1 and 0 <= self.average <= 1):
            raise BadModel(f"rate and scale must be above 0, mix and average from 0 to 1, got {self}")
        if not (self.own >= 0 and min(self.chunk, self.patience, self.seed) >= 0):
            raise BadModel(f"own, chunk, patience and seed must be 0 or more, got {self}")
