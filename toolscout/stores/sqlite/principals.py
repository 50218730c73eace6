"""The part of the SQLite store that holds principals: their grants, patterns and API keys."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from toolscout.core.answer import Allowed
from toolscout.core.permissions import Key, Principal, Rules
from toolscout.errors import UnknownPrincipal
from toolscout.stores.records import read_principal, storable
from toolscout.stores.sqlite.connections import Connections

_SELECT = "SELECT name, allow, deny, admin, tenant FROM principals WHERE name = ?"


class PrincipalTables:
    """Principals, grants and keys in SQLite tables."""

    _files: Connections

    def grant(self, principal: str, allowed: Allowed) -> None:
        """Allow a principal to see these namespaces and ids besides those it may already see."""
        with self._changing() as db:
            db.executemany("INSERT OR IGNORE INTO grants VALUES (?, ?, ?)", _grants(principal, allowed))

    def revoke(self, principal: str, allowed: Allowed) -> None:
        """Remove these grants of a principal; those it does not have are ignored."""
        with self._changing() as db:
            statement = "DELETE FROM grants WHERE principal = ? AND kind = ? AND value = ?"
            db.executemany(statement, _grants(principal, allowed))

    def grants(self, principal: str) -> Allowed:
        """Return the grants of a principal as they were given, whatever tools there are."""
        with self._files.reading() as db:
            return _granted(db, principal)

    def permissions(self, principal: str) -> Allowed:
        """Return what a principal may see of the present catalogue; one without grants and patterns sees nothing."""
        with self._files.reading() as db:
            namespaces = (row[0] for row in db.execute("SELECT DISTINCT namespace FROM tools"))
            query = "SELECT id FROM tools WHERE namespace = ?"
            return _rules(db, principal).compiled(
                namespaces, lambda namespace: (row[0] for row in db.execute(query, (namespace,)))
            )

    def rules(self, name: str) -> Rules:
        """Return the rules of a principal: its grants and patterns, independent of the catalogue."""
        with self._files.reading() as db:
            return _rules(db, name)

    def principals(self) -> list[str]:
        """Return the names of all principals that are stored or have grants, sorted."""
        query = "SELECT principal FROM grants UNION SELECT name FROM principals ORDER BY 1"
        with self._files.reading() as db:
            return [row[0] for row in db.execute(query)]

    def put_principal(self, principal: Principal) -> None:
        """Store a principal's patterns, tenant and rights in place of those it had. Its grants and keys stay."""
        patterns = json.dumps(principal.allow), json.dumps(principal.deny)
        row = (storable(principal.name), *patterns, int(principal.admin), storable(principal.tenant))
        with self._changing() as db:
            db.execute(
                "INSERT OR REPLACE INTO principals (name, allow, deny, admin, tenant) VALUES (?, ?, ?, ?, ?)", row
            )

    def principal(self, name: str) -> Principal | None:
        """Return a stored principal; None if there is none of this name."""
        with self._files.reading() as db:
            return _principal(db, name)

    def remove_principal(self, name: str) -> bool:
        """Remove a principal and its keys; return False if it was not stored. Its grants stay."""
        with self._changing() as db:
            db.execute("DELETE FROM keys WHERE principal = ?", (storable(name),))
            return db.execute("DELETE FROM principals WHERE name = ?", (storable(name),)).rowcount > 0

    def add_key(self, key: Key) -> None:
        """Add an API key of a stored principal. Raises UnknownPrincipal if it is not stored."""
        with self._changing() as db:
            if _principal(db, key.principal) is None:
                raise UnknownPrincipal(
                    f"nobody is called {key.principal!r:.80}; make a key with: toolscout keys add NAME"
                )
            row = (key.digest, storable(key.principal), key.created.isoformat())
            db.execute("INSERT INTO keys (digest, principal, created) VALUES (?, ?, ?)", row)

    def api_keys(self) -> list[Key]:
        """Return all API keys, sorted by principal, then oldest first."""
        query = "SELECT digest, principal, created FROM keys ORDER BY principal, created, digest"
        with self._files.reading() as db:
            return [Key(digest, name, datetime.fromisoformat(created)) for digest, name, created in db.execute(query)]

    def remove_key(self, digest: str) -> bool:
        """Remove the API key with this digest; return False if there is none."""
        with self._changing() as db:
            return db.execute("DELETE FROM keys WHERE digest = ?", (storable(digest),)).rowcount > 0

    def access(self) -> int:
        """Return a number that changes with every change of grants, principals or keys by any process."""
        with self._files.reading() as db:
            return int(db.execute("SELECT access FROM catalogue").fetchone()[0])

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        with self._files.writing() as db:
            yield db
            db.execute("UPDATE catalogue SET access = access + 1")


def _principal(db: sqlite3.Connection, name: str) -> Principal | None:
    row = db.execute(_SELECT, (storable(name),)).fetchone()
    if row is None:
        return None
    stored_name, allow, deny, admin, tenant = row
    return read_principal(stored_name, allow, deny, bool(admin), tenant)


def _granted(db: sqlite3.Connection, name: str) -> Allowed:
    rows = db.execute("SELECT kind, value FROM grants WHERE principal = ?", (storable(name),)).fetchall()
    return Allowed.of(
        namespaces=(value for kind, value in rows if kind == "namespace"),
        ids=(value for kind, value in rows if kind == "id"),
    )


def _rules(db: sqlite3.Connection, name: str) -> Rules:
    granted, principal = _granted(db, name), _principal(db, name)
    return Rules(granted, principal.allow, principal.deny) if principal else Rules(granted)


def _grants(principal: str, allowed: Allowed) -> list[tuple[str, str, str]]:
    return [
        *((storable(principal), "namespace", storable(value)) for value in sorted(allowed.namespaces)),
        *((storable(principal), "id", storable(value)) for value in sorted(allowed.ids)),
    ]
