"""Stores: where the catalogue rests. One folder here is one kind of store, and its name is the kind's name."""

from __future__ import annotations

import pkgutil
from pathlib import Path

from toolscout.stores.base import AddReport, Change, Store, VectorBatch
from toolscout.stores.sqlite.connections import check_path
from toolscout.stores.sqlite.store import SqliteStore

__all__ = ["AddReport", "Change", "Store", "VectorBatch", "check_path", "kinds", "open_store"]


def kinds() -> list[str]:
    """The kinds of store there are, sorted."""
    names = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name for name in names if name != "base" and not name.startswith("_"))


def open_store(path: str | Path, *, durable: bool | None = None) -> Store:
    """Open the store at a path; a file that is not there yet is made. `durable`: as SqliteStore takes it."""
    return SqliteStore(path, durable=durable)
