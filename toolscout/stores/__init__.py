"""Stores keep the catalogue on disk. Each folder is one kind of store."""

from __future__ import annotations

from pathlib import Path

from toolscout.stores.base import AddReport, Change, Store, VectorBatch
from toolscout.stores.sqlite.connections import check_path
from toolscout.stores.sqlite.store import SqliteStore

__all__ = ["AddReport", "Change", "Store", "VectorBatch", "check_path", "open_store"]


def open_store(path: str | Path, *, durable: bool | None = None) -> Store:
    """Open the store at a path, or create it. `durable`: see SqliteStore."""
    return SqliteStore(path, durable=durable)
