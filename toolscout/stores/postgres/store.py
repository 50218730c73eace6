"""The store in PostgreSQL. This module handles vectors and feedback; tools.py and principals.py the rest."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime

import numpy as np
from numpy.typing import NDArray
from pgvector import HalfVector
from pgvector.psycopg import register_vector

from toolscout.core.answer import Example
from toolscout.core.arrays import Floats
from toolscout.core.expansion import with_expansion
from toolscout.errors import CorruptStore, ReadOnlyStore
from toolscout.stores.approvals import Approvals
from toolscout.stores.base import REQUEST_PREFIX, Store, UsedEncoder, VectorBatch
from toolscout.stores.line_log import LineLog
from toolscout.stores.postgres.address import read_address
from toolscout.stores.postgres.approvals import ApprovalTable
from toolscout.stores.postgres.cold_search import PostgresSearch
from toolscout.stores.postgres.connection import Connection
from toolscout.stores.postgres.leases import PostgresLeases
from toolscout.stores.postgres.line_table import LineTable
from toolscout.stores.postgres.principals import PrincipalTables
from toolscout.stores.postgres.server import CLAIMS, FEEDBACK, VECTORS, Server
from toolscout.stores.postgres.text import read, write
from toolscout.stores.postgres.tools import ToolTables, stream
from toolscout.stores.records import (
    another_width,
    durable_by_default,
    in_half_precision,
    searched_expansion,
    write_feedback,
)

_NETWORK_HALF = np.dtype(">f2")
_HEADER = 2  # of a vector as the server sends it, in numbers of two bytes: its width, and nothing
_MODEL = "(SELECT id FROM models WHERE fingerprint = %s)"
_MODEL_NAMED = "(SELECT id FROM models WHERE fingerprint = %(model)s)"


class PostgresStore(ToolTables, PrincipalTables, Store):
    """A store in one schema of a PostgreSQL database with pgvector, which many processes and machines share.

    Open it after a fork, not before: connections do not survive one.
    """

    def __init__(self, url: str, *, durable: bool | None = None) -> None:
        """Open the schema that the URL names, or create it. Raises StoreError, or a subclass, where that fails.

        url: as libpq reads it (postgresql://user@host:port/database?sslmode=require), with parameters of our own:
            schema (toolscout), pool_size (10 connections), statement_timeout (60 seconds) and lock_timeout (30
            seconds that a write waits for another process that writes). Give a password in $PGPASSWORD, ~/.pgpass or a
            service file rather than here.
        durable: False lets the last commits be lost when the server loses power. None: as $TOOLSCOUT_DURABLE says,
            else True.
        """
        self._server = Server(read_address(url), durable_by_default(unset=True) if durable is None else durable)
        self._leases = PostgresLeases(self._server.address, self._server.identity, self._server.connect)
        self._search = PostgresSearch(self._server)
        try:
            with suppress(ReadOnlyStore):  # a standby is searched by its older texts
                self._update_documents()
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        """Return host, database and schema, never a password."""
        return f"PostgresStore({self._server.address})"

    def identity(self) -> str:
        """Return a unique id of this store; a store created later at the same place has another one."""
        return self._server.identity

    def stamp(self) -> int:
        """Return a number that changes with every commit of any process; it never waits for the server."""
        return self._server.stamp()

    def size(self) -> int:
        """Return how many bytes the tables of the schema have, with their indexes."""
        query = """
            SELECT COALESCE(sum(pg_total_relation_size(pg_class.oid)), 0) FROM pg_class
            JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE nspname = %s AND relkind = 'r'
        """
        with self._server.reading() as db:
            return int((db.execute(query, [self._server.address.schema]).fetchone() or (0,))[0])

    def line_log(self, name: str) -> LineLog:
        """Return a log that all servers over this store share."""
        return LineTable(self._server, name)

    def approvals(self) -> Approvals:
        """Open the record of approved tool definitions, which all gateways over this store share."""
        return ApprovalTable(self._server)

    def has_approvals(self) -> bool:
        """Return whether any definition is recorded."""
        with self._server.reading() as db:
            return db.execute("SELECT 1 FROM approvals LIMIT 1").fetchone() is not None

    def check(self) -> None:
        """Read the whole store. Raises CorruptStore where it is damaged."""
        query = "SELECT number, vector_dims(vector) != width FROM vectors JOIN models ON models.id = model"
        with self._server.reading() as db:
            if any(wrong for _, wrong in stream(db, query)):
                raise self._mixed_widths()
        for _ in self.entries():
            pass
        for _ in self.documents(0):
            pass
        for _ in self.feedback():
            pass
        for name in self.principals():
            self.rules(name)
        self.expansions()

    def leases(self) -> PostgresLeases:
        """Return the leases of this store, which hang on a connection of their own."""
        return self._leases

    def own_search(self) -> PostgresSearch:
        """Return the search of the database: full text and pgvector."""
        return self._search

    def close(self) -> None:
        """Close the store; a second call does nothing."""
        self._leases.close()
        self._server.close()

    # Vectors

    def vectors(self, fingerprint: str, digests: Sequence[str]) -> dict[str, Floats]:
        """Return the cached vectors of this model by the digest of their text; texts without one are left out."""
        query = f"SELECT digest, halfvec_send(vector) FROM vectors WHERE model = {_MODEL} AND digest = ANY(%s)"
        with self._server.reading() as db:
            rows = db.execute(query, [write(fingerprint), list(map(write, digests))], binary=True).fetchall()
        return dict(zip((read(row[0]) for row in rows), self._matrix([row[1] for row in rows]), strict=True))

    def vectors_after(self, fingerprint: str, cursor: int = 0, limit: int = 8192) -> VectorBatch:
        """Return the next vectors of this model in the order they were cached; no digests when there are no more."""
        query = f"""
            SELECT number, digest, halfvec_send(vector) FROM vectors WHERE model = {_MODEL} AND number > %s
            ORDER BY number LIMIT %s
        """
        with self._server.reading() as db:
            rows = db.execute(query, [write(fingerprint), cursor, limit], binary=True).fetchall()
        digests = tuple(read(row[1]) for row in rows)
        return VectorBatch(rows[-1][0] if rows else cursor, digests, self._matrix([row[2] for row in rows]))

    def last_vector(self, fingerprint: str) -> int:
        """Return the cursor after the last cached vector of this model."""
        with self._server.reading() as db:
            row = db.execute(f"SELECT max(number) FROM vectors WHERE model = {_MODEL}", [write(fingerprint)]).fetchone()
        return int(row[0]) if row and row[0] is not None else 0

    def models(self) -> list[str]:
        """Return the fingerprints of the models that vectors are cached of, sorted."""
        query = "SELECT fingerprint FROM models WHERE EXISTS (SELECT 1 FROM vectors WHERE vectors.model = models.id)"
        with self._server.reading() as db:
            return sorted(read(row[0]) for row in db.execute(query).fetchall())

    def put_vectors(self, fingerprint: str, digests: Sequence[str], vectors: Floats) -> None:
        """Cache vectors in half precision. A vector that is cached already is not replaced."""
        if len(digests) == 0:
            return
        halves = in_half_precision(digests, vectors)
        width = halves.shape[1]
        with self._server.writing(VECTORS) as transaction:
            db = transaction.db
            model = _model(db, fingerprint, width)
            db.execute(
                "CREATE TEMP TABLE IF NOT EXISTS incoming_vectors "
                "(position bigint GENERATED ALWAYS AS IDENTITY, digest text, vector halfvec) ON COMMIT DELETE ROWS"
            )
            _copy(db, digests, halves)
            statement = """
                INSERT INTO vectors (model, digest, vector) SELECT %s, digest, vector FROM incoming_vectors
                ORDER BY position ON CONFLICT DO NOTHING
            """
            transaction.wrote = db.execute(statement, [model]).rowcount > 0
            _forget_claims(db, fingerprint, digests)

    def missing_vectors(self, fingerprint: str, limit: int | None = None, since: int = 0) -> list[tuple[str, str]]:
        """Return (digest, text) of each text that this model has no vector for, of tools changed after `since`."""
        query = f"""
            SELECT digest, text, expansion FROM tools WHERE version > %s AND NOT EXISTS (
                SELECT 1 FROM vectors WHERE vectors.digest = tools.digest AND model = {_MODEL}
            ) ORDER BY id
        """
        missing: dict[str, str] = {}
        with self._server.reading() as db:
            for digest, text, expansion in stream(db, query, [since, write(fingerprint)]):
                if len(missing) == limit:
                    break
                missing.setdefault(digest, with_expansion(text, searched_expansion(expansion)))
        return list(missing.items())

    def claim_missing(self, fingerprint: str, limit: int, seconds: float, since: int = 0) -> list[tuple[str, str]]:
        """Return texts without a vector that nobody else is embedding, which others leave alone for so many seconds.

        A text that is embedded or claimed meanwhile is passed over: a claim ends in the transaction that stores the
        vector, so whoever does not see the one sees the other.
        """
        query = f"""
            WITH missing AS (
                SELECT digest, text, expansion FROM tools WHERE version > %(since)s AND NOT EXISTS (
                    SELECT 1 FROM vectors WHERE vectors.digest = tools.digest AND model = {_MODEL_NAMED}
                ) AND NOT EXISTS (
                    SELECT 1 FROM claims WHERE claims.digest = tools.digest AND fingerprint = %(model)s
                    AND until > clock_timestamp()
                ) ORDER BY id LIMIT %(limit)s FOR UPDATE OF tools SKIP LOCKED
            ), claimed AS (
                INSERT INTO claims (fingerprint, digest, until)
                SELECT DISTINCT %(model)s, digest, clock_timestamp() + %(seconds)s * interval '1 second' FROM missing
                ON CONFLICT (fingerprint, digest) DO UPDATE SET until = excluded.until
                WHERE claims.until <= clock_timestamp() RETURNING digest
            )
            SELECT DISTINCT ON (digest) digest, text, expansion FROM missing JOIN claimed USING (digest)
        """
        values = {"since": since, "model": write(fingerprint), "limit": limit, "seconds": seconds}
        with self._server.writing(CLAIMS, lock=False) as transaction:
            rows = transaction.db.execute(query, values).fetchall()
            transaction.wrote = False
        return [(digest, with_expansion(text, searched_expansion(expansion))) for digest, text, expansion in rows]

    def claimed_elsewhere(self, fingerprint: str, since: int = 0) -> bool:
        """Return whether any text lacks a vector: after claim_missing gave none, others are embedding it."""
        query = f"""
            SELECT EXISTS (SELECT 1 FROM tools WHERE version > %s AND NOT EXISTS (
                SELECT 1 FROM vectors WHERE vectors.digest = tools.digest AND model = {_MODEL}
            ))
        """
        with self._server.reading() as db:
            return bool((db.execute(query, [since, write(fingerprint)]).fetchone() or (False,))[0])

    def renew_claims(self, fingerprint: str, digests: Sequence[str], seconds: float) -> None:
        """Keep claimed texts for so many seconds from now; with 0 give them back."""
        renew = """
            UPDATE claims SET until = clock_timestamp() + %s * interval '1 second'
            WHERE fingerprint = %s AND digest = ANY(%s)
        """
        with self._server.writing(CLAIMS, lock=False) as transaction:
            if seconds > 0:
                transaction.db.execute(renew, [seconds, write(fingerprint), list(digests)])
            else:
                _forget_claims(transaction.db, fingerprint, digests)
            transaction.wrote = False

    def prune_vectors(self) -> int:
        """Delete the vectors of texts that no tool has any more, of all models; return their number."""
        unused = """
            DELETE FROM vectors WHERE NOT EXISTS (SELECT 1 FROM tools WHERE tools.digest = vectors.digest)
            AND NOT starts_with(digest, %s)
        """
        with self._server.writing(VECTORS) as transaction:
            pruned = transaction.db.execute(unused, [REQUEST_PREFIX]).rowcount
            transaction.wrote = pruned > 0
        return pruned

    def encoders(self) -> list[UsedEncoder]:
        """Return the encoders that the tools were embedded with; the first is in use, the others were before."""
        with self._server.reading() as db:
            rows = db.execute("SELECT fingerprint, name FROM encoders ORDER BY turn DESC").fetchall()
        return [UsedEncoder(read(fingerprint), read(name)) for fingerprint, name in rows]

    def use_encoder(self, encoder: UsedEncoder) -> None:
        """Record that this encoder is in use from now on."""
        statement = """
            INSERT INTO encoders SELECT %s, %s, COALESCE(max(turn), 0) + 1 FROM encoders
            ON CONFLICT (fingerprint) DO UPDATE SET name = excluded.name, turn = excluded.turn
        """
        with self._server.writing(VECTORS) as transaction:
            transaction.db.execute(statement, [write(encoder.fingerprint), write(encoder.name)])

    def _matrix(self, sent: list[bytes]) -> Floats:
        if len({len(one) for one in sent}) > 1:
            raise self._mixed_widths()
        numbers = np.frombuffer(b"".join(sent), dtype=_NETWORK_HALF)
        rows = numbers.reshape(len(sent), len(sent[0]) // _NETWORK_HALF.itemsize if sent else _HEADER)
        return rows[:, _HEADER:].astype(np.float32)

    def _mixed_widths(self) -> CorruptStore:
        return CorruptStore(
            f"{self._server.address} holds vectors of different lengths for one model; add the sources anew"
        )

    # Feedback

    def add_feedback(self, examples: Iterable[Example]) -> None:
        """Store feedback; examples whose id is stored already for their tenant are left out."""
        rows = write_feedback(examples, write)
        statement = """
            INSERT INTO feedback (request, used, rejected, tenant, source, time, id)
            VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT (tenant, id) DO NOTHING
        """
        with self._server.writing(FEEDBACK) as transaction:
            cursor = transaction.db.cursor()
            cursor.executemany(statement, rows)
            transaction.wrote = cursor.rowcount > 0

    def feedback(self, after: int = 0) -> Iterator[tuple[int, Example]]:
        """Yield number and feedback in order of arrival; `after` is the last number already read."""
        query = """
            SELECT number, request, used, rejected, tenant, source, time, COALESCE(id, '') FROM feedback
            WHERE number > %s ORDER BY number
        """
        with self._server.reading() as db:
            for number, request, used, rejected, tenant, source, time, name in stream(db, query, [after]):
                texts = read(tenant), read(source), datetime.fromisoformat(time), read(name)
                yield number, Example(read(request), tuple(json.loads(used)), tuple(json.loads(rejected)), *texts)


def _forget_claims(db: Connection, fingerprint: str, digests: Sequence[str]) -> None:
    statement = "DELETE FROM claims WHERE fingerprint = %s AND digest = ANY(%s)"
    db.execute(statement, [write(fingerprint), list(map(write, digests))])


def _model(db: Connection, fingerprint: str, width: int) -> int:
    """Return the number of a model, which is made where it is new. Raises StoreError where its width is another."""
    name = write(fingerprint)
    db.execute("INSERT INTO models (fingerprint, width) VALUES (%s, %s) ON CONFLICT DO NOTHING", [name, width])
    model, known = db.execute("SELECT id, width FROM models WHERE fingerprint = %s", [name]).fetchone() or (0, 0)
    if known != width:
        raise another_width(fingerprint, known, width)
    return int(model)


def _copy(db: Connection, digests: Sequence[str], halves: NDArray[np.float16]) -> None:
    register_vector(db)
    with db.cursor().copy("COPY incoming_vectors (digest, vector) FROM STDIN (FORMAT BINARY)") as copy:
        copy.set_types(["text", "halfvec"])
        for digest, row in zip(digests, halves, strict=True):
            copy.write_row((write(digest), HalfVector(row)))
