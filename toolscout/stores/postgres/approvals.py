"""The record of approved tool definitions in PostgreSQL, which all gateways share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from toolscout.stores.approvals import ApprovalRows, Approvals
from toolscout.stores.postgres.server import APPROVALS, Server


class ApprovalTable(Approvals):
    """A record in a table of the store."""

    def __init__(self, server: Server) -> None:
        """Read the secret key."""
        self._server = server
        self._seen: tuple[int, int] | None = None  # the store's stamp, and the number of approvals then
        with server.reading() as db:
            self.key = bytes((db.execute("SELECT key FROM approval_state").fetchone() or (b"",))[0])

    @contextmanager
    def changing(self, *, approving: bool = False) -> Iterator[ApprovalRows]:
        """Yield the rows in a transaction that no other process changes them in; `approving` moves the stamp."""
        with self._server.writing(APPROVALS) as transaction:
            db = transaction.db
            transaction.wrote = approving  # what waits is no change that a search has to follow
            yield ApprovalRows(db.execute)
            if approving:
                db.execute("UPDATE approval_state SET approvals = approvals + 1")

    @contextmanager
    def reading(self) -> Iterator[ApprovalRows]:
        """Yield the rows as they are."""
        with self._server.reading() as db:
            yield ApprovalRows(db.execute)

    def stamp(self) -> int:
        """Return the number of approvals so far, which is read again where the store has changed."""
        stamp = self._server.stamp()
        if self._seen is None or self._seen[0] != stamp:
            with self._server.reading() as db:
                self._seen = stamp, int((db.execute("SELECT approvals FROM approval_state").fetchone() or (0,))[0])
        return self._seen[1]

    def close(self) -> None:
        """Do nothing: the store closes its connections itself."""
