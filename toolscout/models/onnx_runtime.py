"""ONNX Runtime with its telemetry turned off, and what all sessions share. Import `ort` from nowhere else."""

from __future__ import annotations

import os

# Some builds send telemetry over the network unless this is set before the import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime as ort

__all__ = ["available_cores", "ort", "session_options"]


def available_cores() -> int:
    """The number of cores this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def session_options(threads: int) -> ort.SessionOptions:
    """Options of a session that runs its operators one after another, each on this many threads."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Spinning threads would take cores from the searches that run in parallel.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options
