"""One connection to PostgreSQL, which gives up on a server that says nothing any more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self, TypeVar

import psycopg
from psycopg import errors, sql
from psycopg.abc import PQGen
from psycopg.conninfo import make_conninfo

from toolscout.stores.postgres.address import Address

_T = TypeVar("_T")
_PATIENCE = 10.0  # seconds beyond the server's own limit of a statement


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection whose every step ends in time: a network that stalls must not stall the caller for ever."""

    patience: float = 60.0

    @classmethod
    def to(cls, address: Address, synchronous_commit: bool = True) -> Self:
        """Connect to a store. Its schema need not be there yet."""
        db = cls.connect(make_conninfo("", **address.parameters), autocommit=True)
        db.prepare(address, synchronous_commit)
        return db

    def prepare(self, address: Address, synchronous_commit: bool) -> None:
        """Set the limits, which the server itself keeps, and where tables are looked for."""
        self.patience = address.statement_timeout + _PATIENCE
        settings = {
            "statement_timeout": f"{round(address.statement_timeout * 1000)}ms",
            "lock_timeout": f"{round(address.lock_timeout * 1000)}ms",
            "synchronous_commit": "on" if synchronous_commit else "off",
            # What a client that was cut off has locked is given back soon.
            "tcp_keepalives_idle": "10",
            "tcp_keepalives_interval": "5",
            "tcp_keepalives_count": "3",
        }
        query = "SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS settings (name, value)"
        self.execute(query, [list(settings), list(settings.values())])
        with suppress(errors.InvalidParameterValue):  # not on every system
            self.execute("SET client_connection_check_interval = '5s'")  # the same for one that was killed
        self.use_schema(address.schema)

    def use_schema(self, schema: str) -> None:
        """Look for tables in this schema, and for the types of pgvector where they are."""
        query = (
            "SELECT nspname FROM pg_namespace JOIN pg_extension ON extnamespace = pg_namespace.oid WHERE extname = %s"
        )
        found = self.execute(query, ["vector"]).fetchone()
        places = [schema, *(found or ())]
        self.execute(sql.SQL("SET search_path TO {}").format(sql.SQL(", ").join(map(sql.Identifier, places))))

    @contextmanager
    def given_time(self, seconds: float) -> Iterator[None]:
        """Let the statements of this transaction take so much longer: those over many tools do."""
        usual = self.patience
        self.patience = usual + seconds
        limit = f"{round((self.patience - _PATIENCE) * 1000)}ms"
        try:
            self.execute("SELECT set_config('statement_timeout', %s, true)", [limit])
            yield
        finally:
            self.patience = usual

    def wait(self, gen: PQGen[_T], interval: float = 0.1, timeout: float | None = None) -> _T:
        """Run a step of the protocol; where the server says nothing for too long, close and raise."""
        if timeout is not None:
            return super().wait(gen, interval, timeout)
        try:
            return super().wait(gen, interval, self.patience)
        except errors._WaitTimeout:
            self.close()
            raise psycopg.OperationalError(f"no answer for {self.patience:.0f} seconds") from None
