"""Logs of lines in PostgreSQL, which all servers over a store share."""

from __future__ import annotations

from collections.abc import Sequence

from toolscout.stores.line_log import LineLog
from toolscout.stores.postgres.connection import Connection
from toolscout.stores.postgres.server import LINES, Server
from toolscout.stores.postgres.text import read, write


class LineTable(LineLog):
    """A log in a table."""

    def __init__(self, server: Server, name: str) -> None:
        """Nothing is read yet."""
        self._server, self._name, self._number = server, name, 0

    def exists(self) -> bool:
        """Return whether there is a line."""
        with self._server.reading() as db:
            return db.execute("SELECT 1 FROM lines WHERE log = %s LIMIT 1", [self._name]).fetchone() is not None

    def append(self, lines: Sequence[str]) -> None:
        """Append lines."""
        with self._server.writing(LINES) as transaction:
            _insert(transaction.db, self._name, lines)
            transaction.wrote = False  # read where they are needed; a search need not follow them

    def read_new(self) -> list[str]:
        """Return the lines since the last call."""
        query = "SELECT number, line FROM lines WHERE log = %s AND number > %s ORDER BY number"
        with self._server.reading() as db:
            rows = db.execute(query, [self._name, self._number]).fetchall()
        self._number = rows[-1][0] if rows else self._number
        return [read(line) for _, line in rows]

    def replace(self, lines: Sequence[str]) -> None:
        """Put these lines in place of those that were read; lines of others since then stay behind them."""
        with self._server.writing(LINES) as transaction:
            later = "SELECT line FROM lines WHERE log = %s AND number > %s ORDER BY number"
            kept = [row[0] for row in transaction.db.execute(later, [self._name, self._number]).fetchall()]
            transaction.db.execute("DELETE FROM lines WHERE log = %s", [self._name])
            _insert(transaction.db, self._name, [*lines, *map(read, kept)])
            transaction.wrote = False


def _insert(db: Connection, name: str, lines: Sequence[str]) -> None:
    statement = """
        INSERT INTO lines (log, line)
        SELECT %s, line FROM unnest(%s::text[]) WITH ORDINALITY AS given (line, place) ORDER BY place
    """
    db.execute(statement, [name, list(map(write, lines))])
