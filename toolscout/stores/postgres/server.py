"""The PostgreSQL store's connections to its server: pooled, thread-safe, with errors as StoreErrors."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import psycopg
from psycopg.pq import TransactionStatus
from psycopg_pool import ConnectionPool

from toolscout.errors import StoreError
from toolscout.stores.postgres import schema
from toolscout.stores.postgres.address import Address, conninfo
from toolscout.stores.postgres.commits import Commits
from toolscout.stores.postgres.connection import Connection
from toolscout.stores.postgres.errors import closed, store_errors

# What is written under a lock of its own. Numbers that readers go on from are drawn under it too, so that they commit
# in order: a reader would never see a lower one that commits later.
TOOLS, VECTORS, FEEDBACK, ACCESS = "tools", "vectors", "feedback", "access"
APPROVALS, LINES, CLAIMS = "approvals", "lines", "claims"
_KINDS = (TOOLS, VECTORS, FEEDBACK, ACCESS, APPROVALS, LINES, CLAIMS)
_PATIENCE_WHILE_DOWN = 0.5  # seconds that a call waits for a connection while the server is known to be away
_MAX_IDLE = 120.0
_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_COUNT = """
    WITH moved AS (UPDATE commits SET number = number + 1 RETURNING number)
    SELECT number, pg_notify(%s, number::text) FROM moved
"""

logging.getLogger("psycopg.pool").addHandler(logging.NullHandler())  # every failure is an error of a call here


@dataclass(slots=True)
class Transaction:
    """A transaction that writes. Set `wrote` to False where nothing was changed: other processes hear nothing then."""

    db: Connection
    wrote: bool = True


class Server:
    """All connections to one schema: a pool, and one that follows commits."""

    def __init__(self, address: Address, synchronous_commit: bool) -> None:
        """Connect, and create or migrate the schema."""
        self.address = address
        self._locks = {kind: threading.Lock() for kind in _KINDS}
        self._mine = threading.local()
        self._closed = False
        connect = partial(Connection.to, address, synchronous_commit)
        with store_errors(address), connect() as db:
            schema.migrate(db, address)
            query = "SELECT identity, (SELECT number FROM commits) FROM catalogue"
            identity, number = db.execute(query).fetchone() or ("", 0)
        self.identity = str(identity)
        self._channel = f"toolscout_{self.identity}"
        self._commits = Commits(connect, self._channel, number)
        self._pool = ConnectionPool(
            conninfo(address),
            connection_class=Connection,
            kwargs={"autocommit": True},
            configure=lambda db: db.prepare(address, synchronous_commit),
            min_size=0,
            max_size=address.pool_size,
            max_idle=_MAX_IDLE,
            timeout=float(address.parameters["connect_timeout"]) + 1,
            reconnect_timeout=_PATIENCE_WHILE_DOWN,
            num_workers=2,
            name="toolscout",
            open=True,
        )
        self._finish = weakref.finalize(self, _close, self._commits, self._pool)

    def stamp(self) -> int:
        """Return the number of the newest commit that is known here; it never waits for the server."""
        if self._closed:
            raise closed(self.address)
        return self._commits.number

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Yield a connection that sees one committed state during the whole block."""
        with store_errors(self.address), self._transaction(_READ) as db:
            yield db
            db.execute("COMMIT")

    @contextmanager
    def writing(self, kind: str, *, lock: bool = True) -> Iterator[Transaction]:
        """Yield a transaction: committed at the end of the block, rolled back when it raises.

        One process at a time writes things of one kind. With `lock` False the block itself calls `lock` before it
        reads what it is going to change.
        """
        held: set[str] = self._mine.__dict__.setdefault("held", set())
        if kind in held:
            raise StoreError(f"{self.address} is being changed by this very thread; finish that first")
        held.add(kind)
        try:
            with store_errors(self.address), self._locks[kind], self._transaction("BEGIN") as db:
                if lock:
                    self.lock(db, kind)
                made = Transaction(db)
                yield made
                number = None
                if made.wrote:
                    number, _ = db.execute(_COUNT, [self._channel]).fetchone() or (0, None)
                db.execute("COMMIT")
                if number is not None:
                    self._commits.saw(number)
        finally:
            held.discard(kind)

    def lock(self, db: Connection, kind: str) -> None:
        """Keep other processes from writing things of a kind until the transaction ends."""
        if kind == TOOLS:
            db.execute("SELECT 1 FROM catalogue FOR UPDATE")
        else:
            db.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"toolscout {self.identity} {kind}"])
        db.execute("SET LOCAL idle_in_transaction_session_timeout = '60s'")  # a client that hangs gives the lock back

    def close(self) -> None:
        """Close the idle connections now, and those in use when they are given back."""
        self._closed = True
        self._finish()

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[Connection]:
        db = self._begun(begin)
        try:
            yield db
        except BaseException:
            if not db.closed and db.info.transaction_status != TransactionStatus.IDLE:
                try:
                    db.execute("ROLLBACK")
                except psycopg.Error:
                    db.close()
            raise
        finally:
            self._pool.putconn(db)

    def _begun(self, begin: str) -> Connection:
        """Return a connection in a transaction. Those that died while they were idle are passed over."""
        if self._closed:
            raise closed(self.address)
        while True:
            db = self._pool.getconn(None if self._commits.connected else _PATIENCE_WHILE_DOWN)
            try:
                db.execute(begin)
                return db
            except psycopg.OperationalError:
                dead = db.closed
                self._pool.putconn(db)
                if not dead:
                    raise
            except BaseException:
                self._pool.putconn(db)
                raise


def _close(commits: Commits, pool: ConnectionPool[Connection]) -> None:
    commits.stop()
    pool.close()
