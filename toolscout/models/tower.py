"""The retrieval tower as it is served: vectors of a request and its neighbours in, one vector to search with out.

numpy alone. training/tower.py has the same in torch; a test holds them together. Letters: d is the length of a vector,
k the number of neighbours; there are two views of a past request, by its tools and by its scene.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np

from toolscout.core.arrays import Floats
from toolscout.errors import BadModel

Transfer = Literal["gating", "attention", "concatenation", "addition", "cross_attention", "residual", "none"]
TRANSFERS: tuple[str, ...] = get_args(Transfer)
VIEWS = 2
TOWER_FILE = "tower.npz"
_VERSION = 1
# What a tower that listens to neighbours has, and one that listens to the detection tower besides.
_LISTENING = ("attend", "own", "search", "votes")
_TRANSFERRING = ("joint", "transfer", "transfer_bias", "hidden", "hidden_bias")


@dataclass(frozen=True, slots=True)
class AttendedRequest:
    """What to search with, and how much each neighbour was listened to."""

    vector: Floats
    attention: Floats


@dataclass(frozen=True, slots=True)
class Tower:
    """The learned numbers by name, as training/tower.py calls them, and how the detection tower is listened to."""

    numbers: Mapping[str, Floats]
    transfer: Transfer

    def request(self, vector: Floats) -> Floats:
        """A request's vector as this tower reads it: the encoder's, moved by what was learned."""
        return self._moved(vector, "request_map")

    def tool(self, vector: Floats) -> Floats:
        """Likewise the vector of a tool's document."""
        return self._moved(vector, "tool_map")

    def states(self, vectors: Floats) -> Floats | None:
        """The hidden states of the detection tower for the encoder's vectors of requests; None where it has none."""
        if "hidden" not in self.numbers:
            return None
        found: Floats = np.maximum(vectors @ self.numbers["hidden"].T + self.numbers["hidden_bias"], 0.0)
        return found

    def _moved(self, vector: Floats, name: str) -> Floats:
        return unit(vector + vector @ self.numbers[name]) if name in self.numbers else vector

    def ask(
        self, request: Floats, state: Floats | None, neighbours: Floats, neighbour_weight: float
    ) -> AttendedRequest:
        """`request` [d], the hidden `state` of the detection tower, `neighbours` [views, k, d], all near enough.

        The request itself is always among those that are listened to: without neighbours it is alone, and the search
        vector is its own.
        """
        total, heard = request.copy(), np.zeros(neighbours.shape[1], dtype=np.float32)
        if not neighbours.shape[1]:
            return AttendedRequest(total, heard)
        for view in range(VIEWS):
            keys = np.concatenate([request[None], neighbours[view]])
            logits = keys @ (request @ self.numbers["attend"][view])
            logits[0] += self.numbers["own"][view]
            weights = _softmax(logits)
            found = weights @ keys
            total += neighbour_weight * self.numbers["search"][view] * unit(found)
            if self.transfer != "none" and state is not None:
                told = self._told(view, found, state, keys)
                total += neighbour_weight * self.numbers["joint"][view] * unit(told)
            if view == 0:
                heard = weights[1:]
        return AttendedRequest(total, heard)

    def _told(self, view: int, found: Floats, state: Floats, keys: Floats) -> Floats:
        """AdaKT: what was found among the neighbours, as the detection tower's state transforms it."""
        weight, bias = self.numbers["transfer"][view], self.numbers["transfer_bias"][view]
        if self.transfer == "concatenation":
            joined: Floats = np.concatenate([found, state]) @ weight.T + bias
            return joined
        heard: Floats = state @ weight.T + bias
        if self.transfer == "addition":
            return found + heard
        if self.transfer == "attention":
            both = np.stack([found, heard])
            return _softmax(both @ found) @ both
        if self.transfer == "cross_attention":
            return _softmax(keys @ heard) @ keys
        gate: Floats = 0.5 + 0.5 * np.tanh(0.5 * heard)  # the logistic curve; this form cannot overflow
        return gate * found if self.transfer == "gating" else found + gate * found

    def save(self, folder: Path) -> None:
        """Write tower.npz."""
        folder.mkdir(parents=True, exist_ok=True)
        about = {"version": np.array(_VERSION), "transfer_kind": np.array(self.transfer)}
        np.savez(folder / TOWER_FILE, allow_pickle=False, **about, **dict(self.numbers))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Open what save wrote."""
        path = folder / TOWER_FILE
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
                numbers: dict[str, Any] = {name: found[name] for name in found.files}
            version, transfer = int(numbers.pop("version")), str(numbers.pop("transfer_kind"))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
            raise BadModel(f"the tower in {path} cannot be read ({error}); train the model again") from None
        if version != _VERSION or transfer not in TRANSFERS:
            raise BadModel(f"{path} was written by another version of toolscout; train the model again")
        needed = (*_LISTENING, *(_TRANSFERRING if transfer != "none" else ())) if "attend" in numbers else ()
        missing = [name for name in needed if name not in numbers]
        if missing:
            raise BadModel(f"the tower in {path} lacks {', '.join(missing)}; train the model again")
        return cls(numbers, transfer)  # type: ignore[arg-type]


def unit(vector: Floats) -> Floats:
    """Of length 1; a vector of zeros stays one."""
    scaled: Floats = vector / np.maximum(np.linalg.norm(vector, axis=-1, keepdims=True), 1e-12)
    return scaled.astype(np.float32)


def _softmax(logits: Floats) -> Floats:
    raised: Floats = np.exp(logits - logits.max())
    weights: Floats = raised / raised.sum()
    return weights
