"""Errors of PostgreSQL as StoreErrors: which of them pass by themselves, and what to do about the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import errors as pg
from psycopg_pool import PoolClosed, PoolTimeout

from toolscout.core.tool import clean_text
from toolscout.errors import CorruptStore, DiskFull, ReadOnlyStore, StoreError, StoreUnavailable
from toolscout.stores.records import CallerError

_GONE = (pg.UndefinedTable, pg.InvalidSchemaName, pg.UndefinedColumn)
_RETRY = (pg.SerializationFailure, pg.DeadlockDetected)


def as_store_error(error: psycopg.Error, place: object) -> StoreError:
    """Return the StoreError for an error of PostgreSQL. It names the place, and quotes no value of a row."""
    if isinstance(error, PoolTimeout):
        return StoreUnavailable(f"{place} gives no connection: it is down, or all are in use; try again")
    if isinstance(error, PoolClosed):
        return closed(place)
    if isinstance(error, pg.LockNotAvailable):
        return StoreUnavailable(f"another process is writing to {place}; try again when it has finished")
    if isinstance(error, pg.QueryCanceled):
        return StoreUnavailable(f"{place} took too long to answer; try again, or raise statement_timeout in its URL")
    if isinstance(error, _RETRY):
        return StoreUnavailable(f"another process changed {place} at the same time; try again")
    if isinstance(error, pg.DiskFull):
        return DiskFull(
            f"no room left to write {place}: the disk of the server is full. Nothing that was saved before is lost; "
            "make room and try again"
        )
    if isinstance(error, pg.ReadOnlySqlTransaction):
        return read_only(place, "may only be read")
    if isinstance(error, pg.InsufficientPrivilege):
        return ReadOnlyStore(f"{place} may only be read by this user ({_reason(error)})")
    if isinstance(error, pg.ProgramLimitExceeded):
        return StoreError(f"{place} cannot hold a name longer than about 2,600 bytes; shorten it")
    if isinstance(error, _GONE):
        return StoreError(f"{place} has lost its tables ({_reason(error)}); open it again to make it anew")
    state = error.sqlstate or ""
    if state.startswith("XX00"):
        return CorruptStore(f"{place} is damaged ({_reason(error)}); restore a backup of the database")
    if isinstance(error, psycopg.OperationalError) or state[:2] in ("08", "53", "57"):
        return StoreUnavailable(f"{place} cannot be reached: {_reason(error)}; try again")
    return StoreError(f"{place}: {_reason(error)}")


def read_only(place: object, why: str) -> ReadOnlyStore:
    """Return the error for a write to a standby, or to a database whose transactions are read-only."""
    return ReadOnlyStore(
        f"{place} {why}: it is a standby, or default_transaction_read_only is on; write to the primary, by a URL that "
        "names it, or that names several hosts with target_session_attrs=read-write",
        public="the catalogue of this server may only be read, since its database is a standby; write to the primary: "
        "send the change to a server that runs over it",
    )


def closed(place: object) -> StoreError:
    """Return the error for a store that was closed."""
    return StoreError(f"{place} was closed; open it again")


@contextmanager
def store_errors(place: object) -> Iterator[None]:
    """Turn the errors that PostgreSQL raises inside the block into StoreErrors."""
    try:
        yield
    except psycopg.Error as error:
        raise as_store_error(error, place) from error
    except CallerError as wrapped:
        raise wrapped.error from wrapped.error.__cause__


def _reason(error: psycopg.Error) -> str:
    """Return the message without the detail, which may quote what is stored."""
    return clean_text(error.diag.message_primary or str(error))[:300].rstrip(".;")
