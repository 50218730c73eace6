"""Stores keep the catalogue. Each folder is one kind of store."""

from __future__ import annotations

import re
from pathlib import Path

from toolscout.errors import MissingExtra, StoreError
from toolscout.stores.base import AddReport, Change, Store, VectorBatch
from toolscout.stores.sqlite.connections import check_path
from toolscout.stores.sqlite.store import SqliteStore

__all__ = ["AddReport", "Change", "Store", "VectorBatch", "check_place", "is_url", "may_exist", "open_store", "shown"]

_URL = re.compile(r"postgres(ql)?://")
_SERVER = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:/\[\]]*)(:\d+)?(/[^:]*)?")
_COLLAPSED = re.compile(r"postgres(ql)?:/(?!/)")


def is_url(place: str | Path) -> bool:
    """Return whether a place is the URL of a PostgreSQL database; others are paths of SQLite files."""
    return _URL.match(str(place)) is not None


def check_place(place: str | Path) -> None:
    """Raise StoreError for a place that is neither a path nor the URL of a kind of store."""
    if isinstance(place, Path) and _COLLAPSED.match(str(place)):
        raise StoreError("a URL is no path: give the URL of the store as text, not as a Path")
    if not is_url(place):
        check_path(place)


def may_exist(place: str | Path) -> bool:
    """Return whether there may be a store at a place: always for a URL; for a path, whether the file is there."""
    return is_url(place) or Path(place).exists()


def shown(place: str | Path) -> str:
    """Return a place as it may be printed: of a URL, what stands behind the user and the password."""
    if not is_url(place):
        return str(place)
    base, _, query = str(place).partition("?")
    _, at, rest = base.partition("://")[2].rpartition("@")
    if (not at and "@" in query) or not _SERVER.fullmatch(rest):  # a password that was not escaped, perhaps
        rest = "…"
    return f"postgresql://{rest}"


def open_store(place: str | Path, *, durable: bool | None = None) -> Store:
    """Open the store at a path or a postgresql:// URL, or create it. `durable`: see SqliteStore and PostgresStore."""
    check_place(place)
    if not is_url(place):
        return SqliteStore(place, durable=durable)
    try:
        import pgvector.psycopg  # noqa: F401
        import psycopg_pool  # noqa: F401
    except ImportError as error:
        raise MissingExtra("a store in PostgreSQL", "postgres") from error
    from toolscout.stores.postgres.store import PostgresStore

    return PostgresStore(str(place), durable=durable)
