"""Opens a language model for inference: on ONNX Runtime, or in torch on the device that $TOOLSCOUT_DEVICE names."""

from __future__ import annotations

import os
from collections.abc import Mapping

from toolscout.core.arrays import Floats
from toolscout.errors import MissingExtra
from toolscout.models.decoding.constrained import LanguageEngine
from toolscout.models.language.architecture import Architecture
from toolscout.models.language.base import DEVICE_VARIABLE, TokenTable


def device_name() -> str:
    """The device on which torch runs language models; "" stands for ONNX Runtime."""
    return os.environ.get(DEVICE_VARIABLE, "").strip()


def open_engine(architecture: Architecture, weights: Mapping[str, Floats], table: TokenTable) -> LanguageEngine:
    """A model with these weights and this table of tokens; tokens may be added to the table later.

    Raises MissingExtra where a device is named and torch is not installed.
    """
    device = device_name()
    if not device:
        from toolscout.models.language.onnx_engine import OnnxEngine

        return OnnxEngine(architecture, weights, table)
    try:
        from toolscout.models.language.torch_engine import TorchEngine
        from toolscout.models.language.torch_network import TransformerNetwork
        from toolscout.training.loop import pick_device
    except ImportError as error:
        raise MissingExtra(f"{DEVICE_VARIABLE}={device}", "train") from error
    return TorchEngine.of(TransformerNetwork(architecture, weights, 1, pick_device(device)), table)
