"""Digests of model files, and of all that the vectors of a model depend on."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

# Smaller files are read in a moment; the digests of larger ones are remembered.
_LARGE = 32 * 1024 * 1024
# A file as young as this may change again without another time stamp.
_YOUNG_S = 2.0
_FILE = "digests.json"


def fingerprint(kind: str, rules: int, parts: Mapping[str, Any]) -> str:
    """A digest of all that a vector depends on: the kind of encoder, the version of its rules, and `parts` as JSON."""
    return hashlib.sha256(json.dumps([kind, rules, parts], sort_keys=True).encode()).hexdigest()[:32]


def stat_of(path: Path) -> tuple[int, ...]:
    """Device, inode, size and times of a file, by which a changed file is recognised; raises OSError."""
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def file_digest(path: Path, cache: Path) -> str:
    """The sha256 of a file; raises OSError.

    That of a large file is remembered in the folder `cache` for as long as the file does not change; nothing is
    remembered where the folder cannot be written.
    """
    before = stat_of(path)
    if before[2] < _LARGE:
        return _read(path)
    place, known = os.path.realpath(path), _remembered(cache)
    if (entry := known.get(place)) and entry[:-1] == list(before):
        return str(entry[-1])
    digest = _read(path)
    if stat_of(path) == before and time.time() - max(before[3:]) / 1e9 > _YOUNG_S:
        _remember(cache, {**known, place: [*before, digest]})
    return digest


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remembered(cache: Path) -> dict[str, list[Any]]:
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads((cache / _FILE).read_bytes())
        if isinstance(found, dict) and all(isinstance(entry, list) and len(entry) == 6 for entry in found.values()):
            return found
    return {}


def _remember(cache: Path, entries: Mapping[str, list[Any]]) -> None:
    there = {place: entry for place, entry in entries.items() if os.path.exists(place)}
    with suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=cache, prefix=f".{_FILE}-", delete=False) as file:
            json.dump(there, file)
        os.replace(file.name, cache / _FILE)
