"""Several processes that train one model: each computes its share of a batch, and all keep the same weights.

They are the process group of torch.distributed; where there is none, a process trains alone. The first process leads:
it alone validates and writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, distributed

Value = TypeVar("Value")
Item = TypeVar("Item")


class FollowerDone(Exception):
    """Ends the work of a process that followed: what is left of the training is for the leader alone."""


class ProcessGroup:
    """The processes that train together, as one of them sees them."""

    def __init__(self) -> None:
        """Take the process group of torch.distributed, or this process alone."""
        together = distributed.is_available() and distributed.is_initialized()
        self.rank, self.size = (distributed.get_rank(), distributed.get_world_size()) if together else (0, 1)

    @property
    def leads(self) -> bool:
        """Whether this is the process that validates and writes."""
        return self.rank == 0

    def share(self, items: Sequence[Item]) -> Sequence[Item]:
        """Return this process's share of items: every one of them, from its own place on."""
        return items[self.rank :: self.size]

    def from_leader(self, value: Value) -> Value:
        """Return the leader's value."""
        if self.size == 1:
            return value
        values = [value]
        distributed.broadcast_object_list(values)
        return values[0]

    def add(self, tensor: Tensor) -> None:
        """Put the sum over all processes into a tensor."""
        if self.size > 1:
            distributed.all_reduce(tensor)

    def add_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Give every process the sum of all gradients."""
        if self.size == 1:
            return
        every = list(parameters)
        gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in every]
        summed = torch.cat([one.flatten() for one in gradients])  # in one message
        distributed.all_reduce(summed)
        parts = torch.split(summed, [one.numel() for one in every])
        for parameter, part in zip(every, parts, strict=True):
            parameter.grad = part.view_as(parameter)
