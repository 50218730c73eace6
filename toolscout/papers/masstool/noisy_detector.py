"""A detection tower with added errors, to measure how the gate copes with wrong predictions without retraining."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from toolscout.core.arrays import Floats
from toolscout.errors import BadRequest
from toolscout.models.tower import Tower
from toolscout.retrievers.masstool import Masstool

_HALF = 0.5


@dataclass(frozen=True, slots=True)
class NoisyDetectorTower(Tower):
    """A tower that replaces the hidden state of a share of the requests by that of a prompt that needs no tool.

    The hash of a request's vector decides whether it is replaced.
    """

    others: Floats
    share: float

    def states(self, vectors: Floats) -> Floats | None:
        """Return the tower's hidden states, some replaced by those of prompts."""
        found = Tower.states(self, vectors)  # super() fails: a dataclass with slots is a new class
        if found is None:
            return None
        places = [self.prompt(vector) for vector in vectors]
        return np.stack([own if at is None else self.others[at] for own, at in zip(found, places, strict=True)])

    def prompt(self, vector: Floats) -> int | None:
        """Return the number of the prompt that replaces a request, or None; a larger share replaces more requests."""
        digest = _hash(vector)
        return int.from_bytes(digest[8:], "big") % len(self.others) if _uniform(digest) < self.share else None


def _hash(vector: Floats) -> bytes:
    return hashlib.blake2b(np.asarray(vector, dtype=np.float16).tobytes(), digest_size=16).digest()


def _uniform(digest: bytes) -> float:
    """Return a number from 0 to 1, uniform over digests."""
    return int.from_bytes(digest[:8], "big") / 2**64


@dataclass(frozen=True, slots=True)
class NoisyDetector:
    """A tower with added errors, and its accuracy: the share of requests still detected as needing a tool."""

    tower: NoisyDetectorTower
    accuracy: float


def add_errors(
    tower: Tower, model: Masstool, requests: Sequence[str], prompts: Sequence[str], accuracy: float
) -> NoisyDetector:
    """Return a tower whose accuracy on these requests, which all need a tool, is lowered to `accuracy`; never raised.

    Only prompts that the tower judges right are used, so that every replaced request is judged wrong. Raises BadRequest
    where the model has no detection tower, or where it judges every prompt wrong.
    """
    needs, others = model.need(requests), model.need(prompts) if prompts else None
    if needs is None or others is None:
        raise BadRequest("the model has no detection tower; train it with prompts that need no tool")
    right_prompts = [text for text, need in zip(prompts, others, strict=True) if need < _HALF]
    if not right_prompts:
        raise BadRequest("the detection tower takes every prompt for one that needs a tool; train it for longer")
    encoder = model.encoder
    states = tower.states(encoder.encode(right_prompts))
    assert states is not None  # a tower that predicts need has hidden states
    right = np.array(needs) >= _HALF
    draws = np.array([_uniform(_hash(vector)) for vector in encoder.encode(list(requests))])
    lost = max(0, int(right.sum()) - round(accuracy * len(right)))
    # Requests with the lowest draws are replaced: the share is the draw of the first that is not.
    share = float(np.append(np.sort(draws[right]), 1.0)[lost]) if lost else 0.0
    still_right = right & (draws >= share)
    return NoisyDetector(NoisyDetectorTower(tower.numbers, tower.transfer, states, share), float(still_right.mean()))
