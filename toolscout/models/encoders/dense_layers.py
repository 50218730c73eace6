"""The linear layers that sentence-transformers puts behind the pooling (its module Dense), in numpy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from toolscout.core.arrays import Floats
from toolscout.errors import BadModel
from toolscout.models.encoders.sentence_config import CONFIG_FILE, read_json_object
from toolscout.models.safetensors import read_safetensors

DENSE_FILE = "model.safetensors"
_ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {
    "Identity": lambda vector: vector,
    "Tanh": np.tanh,
    "ReLU": lambda vector: np.maximum(vector, 0),
}


class DenseLayer(NamedTuple):
    """activation(weight @ vector + bias)."""

    weight: Floats
    bias: Floats
    activation: str

    def apply(self, vector: Floats) -> Floats:
        """The vector behind the layer."""
        return _ACTIVATIONS[self.activation](self.weight @ vector + self.bias)


def read_dense(folder: Path) -> DenseLayer:
    """Read one layer from its folder; raises BadModel where it is missing, malformed or of another kind."""
    config = read_json_object(folder / CONFIG_FILE)
    # Without the key, sentence-transformers takes Tanh.
    activation = str(config.get("activation_function", "Tanh")).rpartition(".")[2]
    if activation not in _ACTIVATIONS:
        raise BadModel(f"{folder}: the activation {activation} is not supported, only: {', '.join(_ACTIVATIONS)}")
    if config.get("module_input_name", "sentence_embedding") != "sentence_embedding" or config.get("use_residual"):
        raise BadModel(f"{folder}: a Dense module of token vectors or with a residual is not supported")
    if not (folder / DENSE_FILE).is_file():
        raise BadModel(f"{folder} has no {DENSE_FILE}; get the layer in that format, not as pytorch_model.bin")
    _, stored = read_safetensors(folder / DENSE_FILE)
    if "linear.weight" not in stored or ("linear.bias" in stored) != config.get("bias", True):
        raise BadModel(f"{folder / DENSE_FILE} lacks linear.weight or linear.bias; get the folder again")
    weight = stored["linear.weight"].values()
    bias = stored["linear.bias"].values() if "linear.bias" in stored else np.zeros(len(weight), np.float32)
    if (
        weight.ndim != 2
        or bias.shape != weight.shape[:1]
        or not (np.isfinite(weight).all() and np.isfinite(bias).all())
    ):
        raise BadModel(f"{folder / DENSE_FILE} holds a layer that cannot be computed; get the folder again")
    return DenseLayer(weight, bias, activation)
