"""Temporary folders for an engine's files: in memory (/dev/shm) if there is room, since commits to disk are slow."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import weakref
from contextlib import suppress
from functools import cache
from pathlib import Path

_MEMORY = Path("/dev/shm")
_ROOM = 1 << 30
_PREFIX = "toolscout-"
_YOUNG_S = 60.0


def scratch_folder(owner: object, kind: str, memory: bool = True) -> str:
    """Make a folder that is removed with its owner. `memory`: whether it may lie in memory."""
    home = _MEMORY if memory and _roomy() else None
    folder = tempfile.mkdtemp(prefix=f"{_PREFIX}{kind}-", dir=home)
    held = -1
    if home is not None:
        _sweep()
        held = _locked(Path(folder))
    weakref.finalize(owner, _remove, folder, held)
    return folder


def in_memory(folder: str) -> bool:
    """Whether a folder lies in memory."""
    return Path(folder).parent == _MEMORY


def _roomy() -> bool:
    try:
        found = os.statvfs(_MEMORY)
    except (OSError, AttributeError):  # not there, or not on this system
        return False
    return os.access(_MEMORY, os.W_OK) and found.f_bavail * found.f_frsize >= _ROOM


def _locked(folder: Path) -> int:
    """Lock the folder until this process ends; returns a file descriptor, or -1 if another process holds it."""
    import fcntl

    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        return -1
    return held


@cache
def _sweep() -> None:
    """Remove the folders in memory that killed processes left; once per process."""
    for folder in _MEMORY.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > _YOUNG_S and (held := _locked(folder)) >= 0:
                _remove(str(folder), held)


def _remove(folder: str, held: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if held >= 0:
        os.close(held)
