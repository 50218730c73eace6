"""Pausing Python's garbage collector, whose time grows with all objects of the process."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause garbage collection inside the block, for code that makes many objects and no reference cycles.

    Each collection stops all threads. Blocks may overlap in several threads: the collector runs again when the first
    of them ends.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
