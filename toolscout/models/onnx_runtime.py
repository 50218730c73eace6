"""ONNX Runtime with its telemetry turned off. Import `ort` from here and from nowhere else."""

from __future__ import annotations

import os

# Some builds send telemetry over the network unless this is set before the import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime as ort

__all__ = ["ort"]
