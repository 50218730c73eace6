"""The retrieval tower at inference: from the vectors of a request and of similar past requests, one query vector.

numpy alone. training/tower.py computes the same in torch, and a test compares the two. In shapes, d is the length of a
vector and k the number of neighbours. A neighbour is a past request; it has two vectors (views), one from the tools it
used and one from its scene (the set of tools it used).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, get_args

import numpy as np

from toolscout.core.arrays import Floats
from toolscout.core.model_files import UNREADABLE, read_arrays
from toolscout.errors import BadModel

Transfer = Literal["gating", "attention", "concatenation", "addition", "cross_attention", "residual", "none"]
TRANSFERS: tuple[str, ...] = get_args(Transfer)
VIEWS = 2
TOWER_FILE = "tower.npz"
_VERSION = 1
# The arrays of a tower that attends to neighbours, and those that knowledge transfer needs as well.
_ATTENTION_ARRAYS = ("attend", "own", "search", "votes")
_TRANSFER_ARRAYS = ("joint", "transfer", "transfer_bias", "hidden", "hidden_bias")


@dataclass(frozen=True, slots=True)
class AttendedRequest:
    """The query vector of a request, and the attention weight of each neighbour."""

    vector: Floats
    attention: Floats


@dataclass(frozen=True, slots=True)
class Tower:
    """The trained arrays by name, as in training/tower.py, and how knowledge of the detection tower is transferred."""

    numbers: Mapping[str, Floats]
    transfer: Transfer

    def request(self, vector: Floats) -> Floats:
        """The encoder's vector of a request, mapped by the learned map where there is one."""
        return self._apply_map(vector, "request_map")

    def tool(self, vector: Floats) -> Floats:
        """The encoder's vector of a tool's document, mapped by the learned map where there is one."""
        return self._apply_map(vector, "tool_map")

    def states(self, vectors: Floats) -> Floats | None:
        """The detection tower's hidden states for the encoder's vectors of requests; None without that tower."""
        if "hidden" not in self.numbers:
            return None
        found: Floats = np.maximum(vectors @ self.numbers["hidden"].T + self.numbers["hidden_bias"], 0.0)
        return found

    def _apply_map(self, vector: Floats, name: str) -> Floats:
        return unit(vector + vector @ self.numbers[name]) if name in self.numbers else vector

    def attend(
        self, request: Floats, state: Floats | None, neighbours: Floats, neighbour_weight: float
    ) -> AttendedRequest:
        """Compute the query vector of a request by attention over its neighbours.

        Takes the vector of the request [d], the hidden state of the detection tower, the vectors of its neighbours
        [views, k, d], and the weight of what these contribute. The request attends to itself too. Without neighbours,
        the query vector is the request's own.
        """
        total, attention = request.copy(), np.zeros(neighbours.shape[1], dtype=np.float32)
        if not neighbours.shape[1]:
            return AttendedRequest(total, attention)
        for view in range(VIEWS):
            keys = np.concatenate([request[None], neighbours[view]])
            logits = keys @ (request @ self.numbers["attend"][view])
            logits[0] += self.numbers["own"][view]
            weights = _softmax(logits)
            found = weights @ keys
            total += neighbour_weight * self.numbers["search"][view] * unit(found)
            if self.transfer != "none" and state is not None:
                transferred = self._transfer(view, found, state, keys)
                total += neighbour_weight * self.numbers["joint"][view] * unit(transferred)
            if view == 0:
                attention = weights[1:]
        return AttendedRequest(total, attention)

    def _transfer(self, view: int, found: Floats, state: Floats, keys: Floats) -> Floats:
        """MassTool's adaptive knowledge transfer: the attended vector, changed by the detection tower's state."""
        weight, bias = self.numbers["transfer"][view], self.numbers["transfer_bias"][view]
        if self.transfer == "concatenation":
            joined: Floats = np.concatenate([found, state]) @ weight.T + bias
            return joined
        knowledge: Floats = state @ weight.T + bias
        if self.transfer == "addition":
            return found + knowledge
        if self.transfer == "attention":
            both = np.stack([found, knowledge])
            return _softmax(both @ found) @ both
        if self.transfer == "cross_attention":
            return _softmax(keys @ knowledge) @ keys
        gate: Floats = 0.5 + 0.5 * np.tanh(0.5 * knowledge)  # the sigmoid, in a form that cannot overflow
        return gate * found if self.transfer == "gating" else found + gate * found

    def save(self, folder: Path) -> None:
        """Write tower.npz."""
        folder.mkdir(parents=True, exist_ok=True)
        about = {"version": np.array(_VERSION), "transfer_kind": np.array(self.transfer)}
        np.savez(folder / TOWER_FILE, allow_pickle=False, **about, **dict(self.numbers))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what `save` wrote; raises BadModel where it cannot be read or is not complete."""
        path = folder / TOWER_FILE
        try:
            numbers = read_arrays(path)
            version, transfer = int(numbers.pop("version")), str(numbers.pop("transfer_kind"))
        except UNREADABLE as error:
            raise BadModel(f"the tower in {path} cannot be read ({error}); train the model again") from None
        if version != _VERSION or transfer not in TRANSFERS:
            raise BadModel(f"{path} was written by another version of toolscout; train the model again")
        transfer_arrays = _TRANSFER_ARRAYS if transfer != "none" else ()
        needed = (*_ATTENTION_ARRAYS, *transfer_arrays) if "attend" in numbers else ()
        missing = [name for name in needed if name not in numbers]
        if missing:
            raise BadModel(f"the tower in {path} lacks {', '.join(missing)}; train the model again")
        return cls(numbers, transfer)  # type: ignore[arg-type]


def unit(vector: Floats) -> Floats:
    """Vectors scaled to length 1; a vector of zeros stays zero."""
    scaled: Floats = vector / np.maximum(np.linalg.norm(vector, axis=-1, keepdims=True), 1e-12)
    return scaled.astype(np.float32)


def _softmax(logits: Floats) -> Floats:
    raised: Floats = np.exp(logits - logits.max())
    weights: Floats = raised / raised.sum()
    return weights
