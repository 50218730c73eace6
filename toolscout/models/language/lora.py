"""The trained parameters of a language model: LoRA adapters, or whole matrices, stored without the base model.

numpy alone, so that inference needs no torch. The matrices of all layers are stacked in one array per kind; matrices
with the same input are concatenated, as in models/language/torch_network.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from toolscout.core.arrays import Floats
from toolscout.core.model_files import UNREADABLE, read_arrays
from toolscout.errors import BadModel
from toolscout.models.language.architecture import Architecture

ADAPTER_FILE = "adapter.npz"
SOURCES: dict[str, tuple[str, ...]] = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
# The factor of an adapter's product.
SCALE = 2.0
_MISFIT = "the adapter does not fit its base model; name the language model it was trained with, or train it again"


def stack_matrices(
    architecture: Architecture, weights: Mapping[str, Floats], kind: str, part: str = "weight"
) -> Floats:
    """The matrices [layers, out, in] of one kind, or with part "bias" their biases."""
    return np.stack(
        [
            np.concatenate([weights[f"model.layers.{layer}.{source}.{part}"] for source in SOURCES[kind]])
            for layer in range(architecture.layers)
        ]
    )


class Adapter:
    """Trained arrays by name: "KIND_a" [layers, rank, in] and "KIND_b" [layers, out, rank], or whole matrices "KIND"
    [layers, out, in]."""

    def __init__(self, learned: Mapping[str, Floats]) -> None:
        """Take the arrays; without any, the adapter changes nothing."""
        self.learned = dict(learned)

    def merge_into(self, architecture: Architecture, weights: Mapping[str, Floats]) -> dict[str, Floats]:
        """The base model's weights with the adapter merged in; weights that it does not change are not copied.

        Raises BadModel where the adapter does not fit.
        """
        self.check(architecture)
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
                    found[name] = self._merge_matrix(kind, layer, slice(first, last), weights[name])
                    first = last
        return found

    def check(self, architecture: Architecture) -> None:
        """Raise BadModel where the arrays do not fit this architecture or are not finite."""
        shapes, left = architecture.shapes(), set(self.learned)
        for kind, sources in SOURCES.items():
            sizes = [shapes[f"model.layers.0.{source}.weight"] for source in sources]
            layers, out, into = architecture.layers, sum(size[0] for size in sizes), sizes[0][1]
            rank = self.learned[f"{kind}_a"].shape[1:2] if f"{kind}_a" in left else ()
            if not {kind, f"{kind}_a", f"{kind}_b"} & left:
                continue
            wanted = {f"{kind}_a": (layers, *rank, into), f"{kind}_b": (layers, out, *rank)} if rank else {}
            wanted = wanted or {kind: (layers, out, into)}
            if any(name not in left or self.learned[name].shape != shape for name, shape in wanted.items()):
                raise BadModel(_MISFIT)
            left -= set(wanted)
        if left or not all(np.isfinite(array).all() for array in self.learned.values()):
            raise BadModel(_MISFIT)

    def _merge_matrix(self, kind: str, layer: int, rows: slice, base: Floats) -> Floats:
        if kind in self.learned:
            return self.learned[kind][layer, rows].astype(np.float32)
        into, out = (self.learned[f"{kind}_{end}"][layer].astype(np.float32) for end in "ab")
        return np.asarray(base + np.float32(SCALE) * (out[rows] @ into))

    def save(self, folder: Path) -> None:
        """Write adapter.npz, in half precision."""
        halves: dict[str, Any] = {name: array.astype(np.float16) for name, array in self.learned.items()}
        np.savez(folder / ADAPTER_FILE, **halves)

    @classmethod
    def load(cls, folder: Path) -> Adapter:
        """Read what `save` wrote; raises BadModel where it cannot be read."""
        path = folder / ADAPTER_FILE
        try:
            return cls(read_arrays(path))
        except UNREADABLE as error:
            raise BadModel(f"{path} cannot be read ({error}); train the model again") from None
