"""The folder of this user for what can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return $TOOLSCOUT_CACHE, or toolscout/ in $XDG_CACHE_HOME or ~/.cache."""
    if cache := os.environ.get("TOOLSCOUT_CACHE"):
        return Path(cache)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "toolscout"
