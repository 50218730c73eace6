"""The record of tool definitions that people approved, and of those that wait: in a file, or in a database."""

from __future__ import annotations

import secrets
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from toolscout.errors import StoreError

# Placeholders are written %s; SQLite's are question marks.
Execute = Callable[[str, Sequence[Any]], Any]


class ApprovalRows:
    """The rows of a record inside one transaction. A digest identifies a definition, a text shows it."""

    def __init__(self, execute: Execute) -> None:
        """Use the transaction that `execute` runs statements in."""
        self._execute = execute

    def state(self, tool_id: str) -> tuple[str | None, str | None] | None:
        """Return the digests that are approved and that wait; None for a tool that is not recorded."""
        row = self._execute("SELECT approved, waiting FROM approvals WHERE id = %s", [tool_id]).fetchone()
        return None if row is None else (row[0], row[1])

    def size(self, namespace: str) -> tuple[int, int]:
        """Return how many tools of a namespace are recorded, and how many characters."""
        query = "SELECT count(*), sum(length(said)), sum(length(says)) FROM approvals WHERE id >= %s AND id < %s"
        # "0" follows "/" in ASCII
        tools, *chars = self._execute(query, [f"{namespace}/", f"{namespace}0"]).fetchone()
        return int(tools), int(sum(filter(None, chars)))

    def accept(self, tool_id: str, digest: str, said: str | None) -> None:
        """Record a definition as approved; nothing waits any more."""
        statement = """
            INSERT INTO approvals (id, approved, said) VALUES (%s, %s, %s) ON CONFLICT (id) DO UPDATE SET
            approved = excluded.approved, said = excluded.said, waiting = NULL, says = NULL
        """
        self._execute(statement, [tool_id, digest, said])

    def hold(self, tool_id: str, digest: str, says: str | None) -> None:
        """Record a definition that waits for approval, beside the one that is approved, if any."""
        statement = """
            INSERT INTO approvals (id, said, waiting, says) VALUES (%s, '', %s, %s) ON CONFLICT (id) DO UPDATE SET
            waiting = excluded.waiting, says = excluded.says
        """
        self._execute(statement, [tool_id, digest, says])

    def forget_waiting(self, tool_id: str) -> None:
        """Let nothing wait: the definition is the approved one again."""
        self._execute("UPDATE approvals SET waiting = NULL, says = NULL WHERE id = %s", [tool_id])

    def approve(self, tool_id: str, waiting: str) -> bool:
        """Approve the definition that waits, if it has this digest; return whether it has."""
        statement = """
            UPDATE approvals SET approved = waiting, said = says, waiting = NULL, says = NULL
            WHERE id = %s AND waiting = %s
        """
        return bool(self._execute(statement, [tool_id, waiting]).rowcount > 0)

    def held(self) -> list[tuple[str, str, str, str]]:
        """Return id, approved text, waiting text and waiting digest of the tools that wait, sorted by id."""
        query = "SELECT id, said, says, waiting FROM approvals WHERE waiting IS NOT NULL ORDER BY id"
        return list(self._execute(query, []).fetchall())

    def everything(self) -> list[tuple[str | None, ...]]:
        """Return all rows, sorted by id: id, approved digest and text, waiting digest and text."""
        rows = self._execute("SELECT id, approved, said, waiting, says FROM approvals ORDER BY id", []).fetchall()
        return [tuple(row) for row in rows]

    def replace_all(self, rows: Sequence[tuple[str | None, ...]]) -> None:
        """Put these rows in place of all."""
        self._execute("DELETE FROM approvals WHERE true", [])
        for row in rows:
            statement = "INSERT INTO approvals (id, approved, said, waiting, says) VALUES (%s, %s, %s, %s, %s)"
            self._execute(statement, row)


class Approvals(ABC):
    """A record that several processes may use at once.

    key: a secret, so that no server can search for two definitions whose digests begin alike.
    """

    key: bytes

    @abstractmethod
    def changing(self, *, approving: bool = False) -> AbstractContextManager[ApprovalRows]:
        """Yield the rows in a transaction that no other process changes them in; `approving` moves the stamp."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[ApprovalRows]:
        """Yield the rows as they are."""

    @abstractmethod
    def take_over(self, other: Approvals) -> None:
        """Hold what another record holds, its key included, in place of what is here."""

    @abstractmethod
    def stamp(self) -> int:
        """Return the number of approvals so far. Servers cannot change it, so they cannot cause needless updates."""

    @abstractmethod
    def close(self) -> None:
        """Close the record; a second call does nothing."""


class ApprovalFile(Approvals):
    """A record in a small SQLite file."""

    def __init__(self, path: Path) -> None:
        """Open the file; create it where there is none. Raises StoreError where that fails."""
        self._path = path
        self._lock = threading.Lock()
        with self._errors():
            self._db = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
            self._execute("CREATE TABLE IF NOT EXISTS tools (id TEXT PRIMARY KEY, approved, said, waiting, says)", [])
            self._execute("CREATE TABLE IF NOT EXISTS digest_key (one INTEGER PRIMARY KEY CHECK (one = 1), value)", [])
            self._execute("INSERT OR IGNORE INTO digest_key VALUES (1, %s)", [secrets.token_bytes(32)])
            self.key = bytes(self._execute("SELECT value FROM digest_key", []).fetchone()[0])

    @contextmanager
    def changing(self, *, approving: bool = False) -> Iterator[ApprovalRows]:
        """Yield the rows in a transaction that no other process changes them in; `approving` moves the stamp."""
        with self._lock, self._errors(), self._db:
            self._db.execute("BEGIN IMMEDIATE")
            yield ApprovalRows(self._execute)
            if approving:
                self._db.execute(f"PRAGMA user_version = {self._approvals() + 1}")

    @contextmanager
    def reading(self) -> Iterator[ApprovalRows]:
        """Yield the rows as they are."""
        with self._lock, self._errors():
            yield ApprovalRows(self._execute)

    def take_over(self, other: Approvals) -> None:
        """Hold what another record holds, its key included, in place of what is here."""
        with other.reading() as rows:
            known = rows.everything()
        with self.changing(approving=True) as rows:
            self._execute("UPDATE digest_key SET value = %s", [other.key])
            rows.replace_all(known)
        self.key = other.key

    def stamp(self) -> int:
        """Return the number of approvals so far."""
        with self._lock, self._errors():
            return self._approvals()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    def _approvals(self) -> int:
        return int(self._db.execute("PRAGMA user_version").fetchone()[0])

    def _execute(self, statement: str, values: Sequence[Any]) -> sqlite3.Cursor:
        return self._db.execute(statement.replace("%s", "?").replace(" approvals ", " tools "), values)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(
                f"{self._path} cannot be opened or used: {error}; check the folder, or remove the file"
            ) from None
