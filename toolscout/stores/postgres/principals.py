"""The part of the PostgreSQL store that holds principals: their grants, patterns and API keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from toolscout.core.answer import Allowed
from toolscout.core.permissions import Key, Principal, Rules
from toolscout.errors import UnknownPrincipal
from toolscout.stores.postgres.connection import Connection
from toolscout.stores.postgres.server import ACCESS, Server
from toolscout.stores.postgres.text import read, write
from toolscout.stores.records import read_principal


class PrincipalTables:
    """Principals, grants and keys in PostgreSQL tables."""

    _server: Server

    def grant(self, principal: str, allowed: Allowed) -> None:
        """Allow a principal to see these namespaces and ids besides those it may already see."""
        statement = """
            INSERT INTO grants SELECT %s, * FROM unnest(%s::text[], %s::text[]) ON CONFLICT DO NOTHING
        """
        with self._changing() as db:
            db.execute(statement, [write(principal), *_grants(allowed)])

    def revoke(self, principal: str, allowed: Allowed) -> None:
        """Remove these grants of a principal; those it does not have are ignored."""
        statement = """
            DELETE FROM grants WHERE principal = %s
            AND (kind, value) IN (SELECT * FROM unnest(%s::text[], %s::text[]))
        """
        with self._changing() as db:
            db.execute(statement, [write(principal), *_grants(allowed)])

    def grants(self, principal: str) -> Allowed:
        """Return the grants of a principal as they were given, whatever tools there are."""
        with self._server.reading() as db:
            return _granted(db, principal)

    def permissions(self, principal: str) -> Allowed:
        """Return what a principal may see of the present catalogue; one without grants and patterns sees nothing."""
        query = "SELECT id FROM tools WHERE namespace = %s"
        with self._server.reading() as db:
            namespaces = [row[0] for row in db.execute("SELECT DISTINCT namespace FROM tools")]
            return _rules(db, principal).compiled(
                namespaces, lambda namespace: (row[0] for row in db.execute(query, [namespace]).fetchall())
            )

    def rules(self, name: str) -> Rules:
        """Return the rules of a principal: its grants and patterns, independent of the catalogue."""
        with self._server.reading() as db:
            return _rules(db, name)

    def principals(self) -> list[str]:
        """Return the names of all principals that are stored or have grants, sorted."""
        with self._server.reading() as db:
            rows = db.execute("SELECT principal FROM grants UNION SELECT name FROM principals").fetchall()
        return sorted(read(row[0]) for row in rows)

    def put_principal(self, principal: Principal) -> None:
        """Store a principal's patterns, tenant and rights in place of those it had. Its grants and keys stay."""
        statement = """
            INSERT INTO principals (name, allow, deny, admin, tenant) VALUES (%s, %s, %s, %s, %s)
            ON CONFLICT (name) DO UPDATE SET
                allow = excluded.allow, deny = excluded.deny, admin = excluded.admin, tenant = excluded.tenant
        """
        patterns = json.dumps(principal.allow), json.dumps(principal.deny)
        with self._changing() as db:
            db.execute(statement, [write(principal.name), *patterns, principal.admin, write(principal.tenant)])

    def principal(self, name: str) -> Principal | None:
        """Return a stored principal; None if there is none of this name."""
        with self._server.reading() as db:
            return _principal(db, name)

    def remove_principal(self, name: str) -> bool:
        """Remove a principal and its keys; return False if it was not stored. Its grants stay."""
        with self._changing() as db:
            db.execute("DELETE FROM keys WHERE principal = %s", [write(name)])
            return db.execute("DELETE FROM principals WHERE name = %s", [write(name)]).rowcount > 0

    def add_key(self, key: Key) -> None:
        """Add an API key of a stored principal. Raises UnknownPrincipal if it is not stored."""
        with self._changing() as db:
            if _principal(db, key.principal) is None:
                raise UnknownPrincipal(
                    f"nobody is called {key.principal!r:.80}; make a key with: toolscout keys add NAME"
                )
            row = [key.digest, write(key.principal), key.created.isoformat()]
            db.execute("INSERT INTO keys (digest, principal, created) VALUES (%s, %s, %s)", row)

    def api_keys(self) -> list[Key]:
        """Return all API keys, sorted by principal, then oldest first."""
        query = "SELECT digest, principal, created FROM keys ORDER BY principal, created, digest"
        with self._server.reading() as db:
            rows = db.execute(query).fetchall()
        return [Key(digest, read(name), datetime.fromisoformat(created)) for digest, name, created in rows]

    def remove_key(self, digest: str) -> bool:
        """Remove the API key with this digest; return False if there is none."""
        with self._changing() as db:
            return db.execute("DELETE FROM keys WHERE digest = %s", [write(digest)]).rowcount > 0

    def access(self) -> int:
        """Return a number that changes with every change of grants, principals or keys by any process."""
        with self._server.reading() as db:
            return int((db.execute("SELECT number FROM access").fetchone() or (0,))[0])

    @contextmanager
    def _changing(self) -> Iterator[Connection]:
        with self._server.writing(ACCESS) as transaction:
            yield transaction.db
            transaction.db.execute("UPDATE access SET number = number + 1")


def _principal(db: Connection, name: str) -> Principal | None:
    query = "SELECT name, allow, deny, admin, tenant FROM principals WHERE name = %s"
    row = db.execute(query, [write(name)]).fetchone()
    if row is None:
        return None
    stored_name, allow, deny, admin, tenant = row
    return read_principal(read(stored_name), allow, deny, admin, read(tenant))


def _granted(db: Connection, name: str) -> Allowed:
    rows = db.execute("SELECT kind, value FROM grants WHERE principal = %s", [write(name)]).fetchall()
    return Allowed.of(
        namespaces=(read(value) for kind, value in rows if kind == "namespace"),
        ids=(read(value) for kind, value in rows if kind == "id"),
    )


def _rules(db: Connection, name: str) -> Rules:
    granted, principal = _granted(db, name), _principal(db, name)
    return Rules(granted, principal.allow, principal.deny) if principal else Rules(granted)


def _grants(allowed: Allowed) -> tuple[list[str], list[str]]:
    values = [("namespace", value) for value in sorted(allowed.namespaces)]
    values += [("id", value) for value in sorted(allowed.ids)]
    return [kind for kind, _ in values], [write(value) for _, value in values]
