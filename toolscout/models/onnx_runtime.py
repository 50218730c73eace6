"""ONNX Runtime, loaded so that it reports nothing to anybody. Import `ort` from here and from nowhere else."""

from __future__ import annotations

import os

# Its builds report their use to their maker over the network, unless this is set before they are loaded.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime as ort

__all__ = ["ort"]
