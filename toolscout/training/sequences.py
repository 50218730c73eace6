"""The base class of training tasks over token sequences: batches by length, and parts that fit into memory."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from toolscout.models.language.torch_network import TransformerNetwork
from toolscout.training.loop import TrainingTask

_BUCKETS = 20  # the number of batches that are sorted by length together
_CHUNK = {"cuda": 16_384, "cpu": 4_096}  # tokens in memory at once, with their activations

One = TypeVar("One")


class SequenceTask(TrainingTask, Generic[One]):
    """Trains a network on sequences; `of_epoch` gives those of an epoch."""

    def __init__(
        self,
        network: TransformerNetwork,
        of_epoch: Callable[[int], Sequence[One]],
        *,
        batch: int,
        seed: int,
        chunk: int = 0,
    ) -> None:
        """`chunk`: tokens in memory at once; 0 picks it by device."""
        self._network, self._of_epoch, self._batch, self._seed = network, of_epoch, batch, seed
        self._chunk = chunk or _CHUNK.get(network.device.type, _CHUNK["cpu"])
        self._count = len(of_epoch(0))
        self._batches: list[list[One]] = []
        self.tokens, self.dev_seconds = 0, 0.0

    def _length(self, one: One) -> int:
        """The number of tokens of a sequence."""
        raise NotImplementedError

    def _loss(self, part: Sequence[One]) -> Tensor:
        """The loss of some sequences."""
        raise NotImplementedError

    def _weight(self, part: Sequence[One]) -> float:
        """The weight of the loss of some sequences in that of their batch."""
        return len(part)

    def _scores(self) -> Mapping[str, float]:
        """Dev scores; none without a dev split."""
        return {}

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """The adapters, or all matrices."""
        return dict(self._network.named_parameters())

    def steps(self) -> int:
        """The number of steps in an epoch."""
        return math.ceil(self._count / self._batch)

    def begin(self, epoch: int, saved: Mapping[str, Tensor] | None = None) -> None:
        """Shuffle, and put sequences of similar length into a batch."""
        every, size = self._of_epoch(epoch), self._batch
        rng = np.random.default_rng([self._seed, epoch])
        order, batches = rng.permutation(len(every)).tolist(), []
        for start in range(0, len(order), size * _BUCKETS):
            few = sorted(order[start : start + size * _BUCKETS], key=lambda i: self._length(every[i]))
            batches += [few[place : place + size] for place in range(0, len(few), size)]
        mixed = [batches[place] for place in rng.permutation(len(batches))]
        # An epoch may have more sequences than another: the number of steps stays that of epoch 0.
        steps = itertools.islice(itertools.cycle(mixed), self.steps())
        self._batches = [[every[i] for i in few] for few in steps]

    def epoch_state(self) -> dict[str, Tensor]:
        """{}: `begin` depends on the epoch alone."""
        return {}

    def step(self, epoch: int, step: int) -> Tensor:
        """Train on one batch, in parts where it does not fit into memory; gives back its loss."""
        batch = self._batches[step]
        total, whole = torch.zeros((), device=self._network.device), self._weight(batch)
        for part in self._parts(batch):
            loss = self._loss(part) * (self._weight(part) / whole)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        self.tokens += sum(map(self._length, batch))
        return total

    def _parts(self, every: Sequence[One]) -> list[list[One]]:
        parts: list[list[One]] = [[]]
        for one in sorted(every, key=self._length):
            if parts[-1] and (len(parts[-1]) + 1) * self._length(one) > self._chunk:
                parts.append([])
            parts[-1].append(one)
        return parts

    def validate(self) -> tuple[dict[str, float], dict[str, Tensor]]:
        """Dev scores, and a copy of the weights."""
        weights = {name: parameter.detach().clone() for name, parameter in self.parameters().items()}
        started = time.perf_counter()
        scores = dict(self._scores())
        self.dev_seconds += time.perf_counter() - started
        return scores, weights

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Set the parameters to these weights."""
        with torch.no_grad():
            for name, parameter in self.parameters().items():
                parameter.copy_(weights[name])
