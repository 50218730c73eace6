"""The layers that sentence-transformers puts behind the pooling (its modules Dense and LayerNorm), in numpy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from toolscout.core.arrays import Floats
from toolscout.errors import BadModel
from toolscout.models.encoders.sentence_config import CONFIG_FILE, read_json_object
from toolscout.models.safetensors import StoredTensor, read_safetensors

DENSE_FILE = "model.safetensors"
# What torch adds to the variance.
NORM_EPSILON = 1e-5
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

    @property
    def inputs(self) -> int:
        """The length of the vectors that the layer takes."""
        return int(self.weight.shape[1])

    @property
    def outputs(self) -> int:
        """The length of the vectors that the layer gives."""
        return int(self.weight.shape[0])

    def apply(self, vector: Floats) -> Floats:
        """The vector behind the layer."""
        return _ACTIVATIONS[self.activation](self.weight @ vector + self.bias)


class NormLayer(NamedTuple):
    """The vector with mean 0 and deviation 1, times weight, plus bias."""

    weight: Floats
    bias: Floats
    activation: str = "LayerNorm"

    @property
    def inputs(self) -> int:
        """The length of the vectors that the layer takes."""
        return len(self.weight)

    @property
    def outputs(self) -> int:
        """The length of the vectors that the layer gives."""
        return len(self.weight)

    def apply(self, vector: Floats) -> Floats:
        """The vector behind the layer."""
        normal: Floats = (vector - vector.mean()) / np.sqrt(vector.var() + NORM_EPSILON)
        return normal * self.weight + self.bias


Layer = DenseLayer | NormLayer


def read_dense(folder: Path) -> Layer:
    """Read one layer from its folder; raises BadModel where it is missing, malformed or of another kind."""
    config = read_json_object(folder / CONFIG_FILE)
    if "dimension" in config:  # Dense has in_features and out_features
        return _read_norm(folder)
    # Without the key, sentence-transformers takes Tanh.
    activation = str(config.get("activation_function", "Tanh")).rpartition(".")[2]
    if activation not in _ACTIVATIONS:
        raise BadModel(f"{folder}: the activation {activation} is not supported, only: {', '.join(_ACTIVATIONS)}")
    if config.get("module_input_name", "sentence_embedding") != "sentence_embedding" or config.get("use_residual"):
        raise BadModel(f"{folder}: a Dense module of token vectors or with a residual is not supported")
    stored = _read_tensors(folder)
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


def _read_norm(folder: Path) -> NormLayer:
    stored = _read_tensors(folder)
    if "norm.weight" not in stored or "norm.bias" not in stored:
        raise BadModel(f"{folder / DENSE_FILE} lacks norm.weight or norm.bias; get the folder again")
    weight, bias = stored["norm.weight"].values(), stored["norm.bias"].values()
    if weight.ndim != 1 or bias.shape != weight.shape or not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        raise BadModel(f"{folder / DENSE_FILE} holds a layer that cannot be computed; get the folder again")
    return NormLayer(weight, bias)


def _read_tensors(folder: Path) -> dict[str, StoredTensor]:
    if not (folder / DENSE_FILE).is_file():
        raise BadModel(f"{folder} has no {DENSE_FILE}; get the layer in that format, not as pytorch_model.bin")
    return read_safetensors(folder / DENSE_FILE)[1]
