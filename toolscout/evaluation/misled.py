"""A detection tower that errs more often than it would: what the gate makes of bad forecasts, without training anew."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from toolscout.errors import BadRequest
from toolscout.nn.tower import Floats, Tower
from toolscout.retrievers.masstool import Masstool

_HALF = 0.5


@dataclass(frozen=True, slots=True)
class MisledTower(Tower):
    """For a share of the requests, told by their vectors, the hidden state is that of a prompt that needs no tool."""

    others: Floats
    share: float

    def states(self, vectors: Floats) -> Floats | None:
        """As the tower's own, or those of prompts."""
        found = Tower.states(self, vectors)  # no super(): the class was made anew for its slots
        if found is None:
            return None
        places = [self.prompt(vector) for vector in vectors]
        return np.stack([own if at is None else self.others[at] for own, at in zip(found, places, strict=True)])

    def prompt(self, vector: Floats) -> int | None:
        """The number of the prompt that stands in for a request; a larger share takes those of a smaller one too."""
        drawn = hashlib.blake2b(np.asarray(vector, dtype=np.float16).tobytes(), digest_size=16).digest()
        chance = int.from_bytes(drawn[:8], "big") / 2**64
        return int.from_bytes(drawn[8:], "big") % len(self.others) if chance < self.share else None


@dataclass(frozen=True, slots=True)
class Misled:
    """The tower, and the share of the requests that it still takes for such that need a tool."""

    tower: MisledTower
    accuracy: float


def tower(honest: Tower, model: Masstool, requests: Sequence[str], prompts: Sequence[str], accuracy: float) -> Misled:
    """A tower whose accuracy on these requests, all of which need a tool, is brought down to about this."""
    needs, others = model.need(requests), model.need(prompts) if prompts else None
    if needs is None or others is None:
        raise BadRequest("the model has no detection tower that could err; train it with prompts that need no tool")
    encoder = model.open_encoder()
    states = honest.states(encoder.encode(list(prompts)))
    assert states is not None  # it forecasts, so it has them
    right, wrong = np.array(needs) >= _HALF, np.array(others) >= _HALF
    reach = float(right.mean()) - float(wrong.mean())
    share = min(1.0, max(0.0, (float(right.mean()) - accuracy) / reach)) if reach > 0 else 0.0
    made = MisledTower(honest.numbers, honest.transfer, states, share)
    stand_ins = [made.prompt(vector) for vector in encoder.encode(list(requests))]
    judged = [own if at is None else wrong[at] for own, at in zip(right, stand_ins, strict=True)]
    return Misled(made, float(np.mean(judged)))
