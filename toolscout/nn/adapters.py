"""What training changed of a language model: low-rank adapters, or whole matrices, kept beside a reference to the base.

numpy alone: a trained model is served without torch. The matrices of all layers lie in one array per kind, those that
read the same input joined, as nn/causal.py learns them.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolscout.errors import BadModel
from toolscout.nn._architecture import Architecture

Floats = NDArray[np.float32]

ADAPTER_FILE = "adapter.npz"
SOURCES: dict[str, tuple[str, ...]] = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
# What an adapter's product counts.
SCALE = 2.0


def stacked(architecture: Architecture, weights: Mapping[str, Floats], kind: str, part: str = "weight") -> Floats:
    """The matrices of one kind of all layers [layers, out, in], or their biases."""
    return np.stack(
        [
            np.concatenate([weights[f"model.layers.{layer}.{source}.{part}"] for source in SOURCES[kind]])
            for layer in range(architecture.layers)
        ]
    )


class Adapter:
    """What was learned: "KIND_a" [layers, rank, in] and "KIND_b" [layers, out, rank], or "KIND" [layers, out, in]."""

    def __init__(self, learned: Mapping[str, Floats]) -> None:
        """Hold what was learned; nothing leaves the base as it is."""
        self.learned = dict(learned)

    def applied(self, architecture: Architecture, weights: Mapping[str, Floats]) -> dict[str, Floats]:
        """The base's weights with what was learned; those that nothing changes are the same arrays."""
        found = dict(weights)
        shapes = architecture.shapes()
        for kind, sources in SOURCES.items():
            if kind not in self.learned and f"{kind}_a" not in self.learned:
                continue
            for layer in range(architecture.layers):
                first = 0
                for source in sources:
                    name = f"model.layers.{layer}.{source}.weight"
                    last = first + shapes[name][0]
                    found[name] = self._changed(kind, layer, slice(first, last), weights[name])
                    first = last
        return found

    def _changed(self, kind: str, layer: int, rows: slice, base: Floats) -> Floats:
        if kind in self.learned:
            return self.learned[kind][layer, rows].astype(np.float32)
        into, out = (self.learned[f"{kind}_{end}"][layer].astype(np.float32) for end in "ab")
        if out[rows].shape[0] != base.shape[0] or into.shape[1] != base.shape[1]:
            raise BadModel("the adapter does not fit its base model; name the language model it was trained with")
        return np.asarray(base + np.float32(SCALE) * (out[rows] @ into))

    def save(self, folder: Path) -> None:
        """Write it in half precision."""
        halves: dict[str, Any] = {name: array.astype(np.float16) for name, array in self.learned.items()}
        np.savez(folder / ADAPTER_FILE, **halves)

    @classmethod
    def load(cls, folder: Path) -> Adapter:
        """What save wrote."""
        path = folder / ADAPTER_FILE
        try:
            with np.load(path, allow_pickle=False) as file:
                return cls({name: file[name] for name in file.files})
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise BadModel(f"{path} cannot be read ({error}); train the model again") from None
