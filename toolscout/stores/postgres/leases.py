"""Leases as advisory locks of one session, which PostgreSQL itself ends when the holder falls silent."""

from __future__ import annotations

import logging
import selectors
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain

import psycopg
from psycopg import errors

from toolscout.errors import StoreError, StoreUnavailable
from toolscout.stores.base import Lease, Leases
from toolscout.stores.postgres.connection import Connection
from toolscout.stores.postgres.errors import closed, store_errors
from toolscout.stores.postgres.text import read, write

SESSION_SECONDS = 2.5
"""PostgreSQL ends the session, and with it the locks, after so long without a heartbeat: a machine that vanished, a
network that stalls and a process that was stopped are all noticed by this."""
HEARTBEAT_SECONDS = 0.5
_MARGIN = 0.1  # what the clocks of two machines may differ by in a session's time, and more
_RETRY_SECONDS = 1.0  # before a server that could not be reached is tried again
_KEY = "hashtextextended(%s, 0)"
# Beside idle_session_timeout, so that a connection which a gateway's machine left behind does not stay either.
_SETTINGS = {
    "idle_session_timeout": f"{round(1000 * SESSION_SECONDS)}ms",
    "statement_timeout": "1s",
    "lock_timeout": "1s",
    "tcp_keepalives_idle": "1",
    "tcp_keepalives_interval": "1",
    "tcp_keepalives_count": "2",
    "tcp_user_timeout": f"{round(1000 * SESSION_SECONDS)}",
}
# A bigint key is shown in pg_locks as two halves, with objsubid 1.
_HOLDER = f"""
    SELECT holder FROM leases, {_KEY} AS key WHERE name = %s AND EXISTS (
        SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND classid::bigint = (key >> 32) & 4294967295 AND objid::bigint = key & 4294967295
    )
"""
_TELL = "INSERT INTO leases VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET holder = excluded.holder RETURNING 1"
_LOG = logging.getLogger(__name__)


class PostgresLeases(Leases):
    """The leases of one schema. All that this object holds hang on one session: when it ends, all are lost."""

    def __init__(self, place: object, identity: str, connect: Callable[[], Connection]) -> None:
        """Take what the store is called, its id, and what opens a connection; the first `take` connects."""
        self._place, self._identity, self._connect = place, identity, connect
        self._lock = threading.Lock()
        self._session: _Session | None = None
        self._failed_at = -_RETRY_SECONDS
        self._closed = False

    def take(self, name: str, holder: str) -> Lease | None:
        """Take a lease without waiting; None where another process, or this one, holds it."""
        key = self._key(name)
        with self._lock, store_errors(self._place):
            session = self._connected()
            if name in session.held or not session.value(f"SELECT pg_try_advisory_lock({_KEY})", key):
                return None
            try:
                # The row of a holder that released its lease is gone: one that is there says that it did not.
                row = session.value("SELECT 1 FROM leases WHERE name = %s", write(name))
                session.value(_TELL, write(name), write(holder))
            except psycopg.Error:
                session.value(f"SELECT pg_advisory_unlock({_KEY})", key)
                raise
            session.held.add(name)
            return _PostgresLease(self, session, name, inherited=row is not None)

    def holder(self, name: str) -> str | None:
        """Return what the present holder told when it took the lease; None where nobody holds it."""
        with self._lock, store_errors(self._place):
            found = self._connected().value(_HOLDER, self._key(name), write(name))
        return None if found is None else read(str(found))

    def release(self, session: _Session, name: str) -> None:
        """Give back a lease that was taken in a session."""
        with self._lock:
            if session.ended or name not in session.held:
                return
            session.held.discard(name)
            try:
                session.value("DELETE FROM leases WHERE name = %s RETURNING 1", write(name))
                session.value(f"SELECT pg_advisory_unlock({_KEY})", self._key(name))
            except psycopg.Error as error:  # the locks go with the session
                _LOG.debug("a lease could not be released: %s", error)
                session.end()

    def close(self) -> None:
        """End the session, and with it all leases."""
        self._closed = True
        with self._lock:
            if self._session is not None:
                self._session.end()

    def _key(self, name: str) -> str:
        return write(f"toolscout lease {self._identity} {name}")

    def _connected(self) -> _Session:
        if self._closed:
            raise closed(self._place)
        if self._session is None or self._session.ended:
            if time.monotonic() - self._failed_at < _RETRY_SECONDS:
                raise StoreUnavailable(f"{self._place} cannot be reached; try again")
            try:
                self._session = _Session(self._connect())
            except (psycopg.Error, StoreError):
                self._failed_at = time.monotonic()
                raise
        return self._session


class _Session:
    """One connection with a thread that keeps it alive. `until`: when PostgreSQL may end it at the earliest."""

    def __init__(self, db: Connection) -> None:
        self._db = db
        self._lock = threading.RLock()
        self.held: set[str] = set()
        self.until = 0.0
        self.ended = False
        try:
            db.patience = SESSION_SECONDS
            db.execute(
                "SELECT " + ", ".join(["set_config(%s, %s, false)"] * len(_SETTINGS)), [*chain(*_SETTINGS.items())]
            )
            self._beat()
        except BaseException:
            self.end()
            raise
        threading.Thread(target=self._keep, name="toolscout-leases", daemon=True).start()

    def value(self, query: str, *values: str) -> object:
        """Return the first value of the first row; None where there is no row."""
        with self._lock, self._noticing_the_end():
            self._db.patience = self._time_left()
            row = self._db.execute(query, values).fetchone()
        return row[0] if row else None

    def end(self) -> None:
        """Close the connection, which gives the locks back."""
        self.until, self.ended = 0.0, True
        with self._lock, suppress(psycopg.Error):  # libpq does not bear that another thread uses it meanwhile
            self.until = 0.0  # a heartbeat may just have been answered
            self._db.close()

    def _keep(self) -> None:
        """Send heartbeats until the session ends, and notice at once where PostgreSQL ends it."""
        with selectors.DefaultSelector() as selector:
            try:
                selector.register(self._db.fileno(), selectors.EVENT_READ)
                while not self.ended:
                    selector.select(HEARTBEAT_SECONDS)
                    with suppress(errors.QueryCanceled):  # a busy server; the time that is left runs on
                        self._beat()
            except (psycopg.Error, OSError, ValueError) as error:
                if not self.ended:
                    _LOG.warning("the session that holds the leases ended: %s", error)
            finally:
                self.end()

    def _beat(self) -> None:
        with self._lock, self._noticing_the_end():
            sent = time.monotonic()
            self._db.patience = self._time_left()
            self._db.execute("SELECT 1")
            if not self.ended:
                self.until = sent + SESSION_SECONDS - _MARGIN

    def _time_left(self) -> float:
        """Return how long an answer is worth waiting for: beyond that the leases are lost."""
        return max(0.05, self.until - time.monotonic()) if self.until else SESSION_SECONDS

    @contextmanager
    def _noticing_the_end(self) -> Iterator[None]:
        """End the session where an error has broken the connection; after any other error it goes on."""
        try:
            yield
        except psycopg.Error:
            if self._db.closed:
                self.end()
            raise


class _PostgresLease(Lease):
    def __init__(self, leases: PostgresLeases, session: _Session, name: str, *, inherited: bool) -> None:
        self._leases, self._session, self._name = leases, session, name
        self._inherited = inherited
        self._released = False

    @property
    def until(self) -> float:
        """Return the time before which nobody else can hold this lease."""
        return 0.0 if self._released else self._session.until

    @property
    def inherited(self) -> bool:
        """Return whether the last holder ended without releasing it."""
        return self._inherited

    def release(self) -> None:
        """Give the lease back."""
        self._released = True
        self._leases.release(self._session, self._name)
