"""The default store, one SQLite file. This module handles vectors and feedback; tools.py and principals.py the rest."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import numpy as np

from toolscout.core.answer import Example
from toolscout.core.arrays import Floats
from toolscout.core.expansion import with_expansion
from toolscout.errors import CorruptStore, DiskFull
from toolscout.stores.approvals import ApprovalFile, Approvals
from toolscout.stores.base import REQUEST_PREFIX, Store, UsedEncoder, VectorBatch
from toolscout.stores.records import (
    HALF,
    another_width,
    durable_by_default,
    in_half_precision,
    searched_expansion,
    storable,
    write_feedback,
)
from toolscout.stores.sqlite.connections import Connections, check_path
from toolscout.stores.sqlite.principals import PrincipalTables
from toolscout.stores.sqlite.tools import ToolTables


def approvals_path(path: Path) -> Path:
    """Return where the approved tool definitions of the store at a path are recorded."""
    return path.with_name(path.name + ".approved")


class SqliteStore(ToolTables, PrincipalTables, Store):
    """A store in one SQLite file with a write-ahead log: many processes read while one writes.

    Open it after a fork, not before: SQLite connections do not survive one.
    """

    def __init__(self, path: str | Path, *, timeout: float = 30.0, durable: bool | None = None) -> None:
        """Open the file at `path`, or create it. Raises StoreError, or a subclass, where that fails.

        `timeout`: seconds that a write waits for another process that writes. `durable`: commits survive a loss of
        power, at the cost of a disk sync for each; without it the last commits may be lost then, but the file stays
        intact. A killed process loses nothing either way. None: as $TOOLSCOUT_DURABLE says, else False.
        """
        check_path(path)
        self.path = Path(os.path.realpath(path))  # SQLite's log must be beside the file, not beside a symbolic link
        self._files = Connections(self.path, timeout, durable_by_default(unset=False) if durable is None else durable)
        try:
            with suppress(DiskFull):  # the store is then searched by its older texts
                self._update_documents()
        except BaseException:
            self.close()
            raise

    def identity(self) -> str:
        """Return a unique id of this store; a store created later at the same path has another one."""
        with self._files.reading() as db:
            return str(db.execute("SELECT identity FROM catalogue").fetchone()[0])

    def stamp(self) -> int:
        """Return a number that changes with every commit of any process; fast enough to call for each request."""
        return self._files.stamp()

    def index_folder(self) -> Path:
        """Return the folder beside the file for what is derived from this store, such as built indexes."""
        return self.path.with_name(self.path.name + ".index")

    def size(self) -> int:
        """Return how many bytes the file and its write-ahead log have."""
        files = self.path, self.path.with_name(self.path.name + "-wal")
        return sum(file.stat().st_size for file in files if file.exists())

    def approvals(self) -> Approvals:
        """Open the record of approved tool definitions, a file beside the store."""
        return ApprovalFile(approvals_path(self.path))

    def has_approvals(self) -> bool:
        """Return whether there is such a file."""
        return approvals_path(self.path).exists()

    def check(self) -> None:
        """Read the whole store. Raises CorruptStore where it is damaged."""
        with self._files.reading() as db:
            found = [row[0] for row in db.execute("PRAGMA integrity_check(3)")]
        if found != ["ok"]:
            raise CorruptStore(
                f"{self.path} is damaged ({'; '.join(found)}); restore a copy of it, or add the sources anew"
            )

    def close(self) -> None:
        """Close the store; a second call does nothing."""
        self._files.close()

    # Vectors

    def vectors(self, fingerprint: str, digests: Sequence[str]) -> dict[str, Floats]:
        """Return the cached vectors of this model by the digest of their text; texts without one are left out."""
        query = """
            SELECT digest, vector FROM vectors WHERE model = (SELECT id FROM models WHERE fingerprint = ?)
            AND digest IN (SELECT value FROM json_each(?))
        """
        with self._files.reading() as db:
            rows = db.execute(query, (storable(fingerprint), json.dumps(list(digests)))).fetchall()
        return dict(zip((row[0] for row in rows), self._matrix([row[1] for row in rows]), strict=True))

    def vectors_after(self, fingerprint: str, cursor: int = 0, limit: int = 8192) -> VectorBatch:
        """Return the next vectors of this model in the order they were cached; no digests when there are no more."""
        # The plus makes SQLite read in the order of `number`; else it would fetch all vectors of the model and sort.
        query = """
            SELECT number, digest, vector FROM vectors
            WHERE number > ? AND +model = (SELECT id FROM models WHERE fingerprint = ?) ORDER BY number LIMIT ?
        """
        with self._files.reading() as db:
            rows = db.execute(query, (cursor, storable(fingerprint), limit)).fetchall()
        digests = tuple(row[1] for row in rows)
        return VectorBatch(rows[-1][0] if rows else cursor, digests, self._matrix([row[2] for row in rows]))

    def last_vector(self, fingerprint: str) -> int:
        """Return the cursor after the last cached vector of this model."""
        query = "SELECT number FROM vectors WHERE +model = ? ORDER BY number DESC LIMIT 1"
        with self._files.reading() as db:
            model = db.execute("SELECT id FROM models WHERE fingerprint = ?", (storable(fingerprint),)).fetchone()
            row = db.execute(query, model).fetchone() if model else None
        return int(row[0]) if row else 0

    def models(self) -> list[str]:
        """Return the fingerprints of the models that vectors are cached of, sorted."""
        query = """
            SELECT fingerprint FROM models WHERE EXISTS (SELECT 1 FROM vectors WHERE vectors.model = models.id)
            ORDER BY fingerprint
        """
        with self._files.reading() as db:
            return [row[0] for row in db.execute(query)]

    def put_vectors(self, fingerprint: str, digests: Sequence[str], vectors: Floats) -> None:
        """Cache vectors in half precision. A vector that is cached already is not replaced."""
        if len(digests) == 0:
            return
        halves = in_half_precision(digests, vectors)
        fingerprint, width = storable(fingerprint), halves.shape[1]
        with self._files.writing() as db:
            db.execute("INSERT OR IGNORE INTO models (fingerprint, width) VALUES (?, ?)", (fingerprint, width))
            model, known = db.execute("SELECT id, width FROM models WHERE fingerprint = ?", (fingerprint,)).fetchone()
            if known != width:
                raise another_width(fingerprint, known, width)
            rows = ((model, digest, row.tobytes()) for digest, row in zip(digests, halves, strict=True))
            db.executemany("INSERT OR IGNORE INTO vectors (model, digest, vector) VALUES (?, ?, ?)", rows)

    def missing_vectors(self, fingerprint: str, limit: int | None = None, since: int = 0) -> list[tuple[str, str]]:
        """Return (digest, text) of each text that this model has no vector for, of tools changed after `since`."""
        # The plus makes SQLite sort only the changed tools; else it would go through all tools in order.
        query = f"""
            SELECT digest, text, expansion FROM tools WHERE version > ? AND NOT EXISTS (
                SELECT 1 FROM vectors WHERE vectors.digest = tools.digest
                AND model = (SELECT id FROM models WHERE fingerprint = ?)
            ) ORDER BY {"+" if since else ""}row
        """
        missing: dict[str, str] = {}
        with self._files.reading() as db:
            for digest, text, expansion in db.execute(query, (since, storable(fingerprint))):
                if len(missing) == limit:
                    break
                missing.setdefault(digest, with_expansion(text, searched_expansion(expansion)))
        return list(missing.items())

    def prune_vectors(self) -> int:
        """Delete the vectors of texts that no tool has any more, of all models; return their number."""
        unused = "DELETE FROM vectors WHERE digest NOT IN (SELECT digest FROM tools) AND digest NOT GLOB ?"
        with self._files.writing() as db:
            return db.execute(unused, (f"{REQUEST_PREFIX}*",)).rowcount

    def encoders(self) -> list[UsedEncoder]:
        """Return the encoders that the tools were embedded with; the first is in use, the others were before."""
        with self._files.reading() as db:
            rows = db.execute("SELECT fingerprint, name FROM encoders ORDER BY turn DESC").fetchall()
        return [UsedEncoder(*row) for row in rows]

    def use_encoder(self, encoder: UsedEncoder) -> None:
        """Record that this encoder is in use from now on."""
        query = """
            INSERT INTO encoders (fingerprint, name, turn) SELECT ?, ?, COALESCE(MAX(turn), 0) + 1 FROM encoders WHERE 1
            ON CONFLICT (fingerprint) DO UPDATE SET name = excluded.name, turn = excluded.turn
        """
        with self._files.writing() as db:
            db.execute(query, (storable(encoder.fingerprint), storable(encoder.name)))

    def _matrix(self, blobs: list[bytes]) -> Floats:
        if len({len(blob) for blob in blobs}) > 1:
            raise CorruptStore(f"{self.path} holds vectors of different lengths for one model; add the sources anew")
        halves = np.frombuffer(b"".join(blobs), dtype=HALF)
        return halves.reshape(len(blobs), len(blobs[0]) // HALF.itemsize if blobs else 0).astype(np.float32)

    # Feedback

    def add_feedback(self, examples: Iterable[Example]) -> None:
        """Store feedback; examples whose id is stored already for their tenant are left out."""
        rows = write_feedback(examples, storable)
        statement = """
            INSERT INTO feedback (request, used, rejected, tenant, source, time, id) VALUES (?, ?, ?, ?, ?, ?, ?)
            ON CONFLICT (tenant, id) DO NOTHING
        """
        with self._files.writing() as db:
            db.executemany(statement, rows)

    def feedback(self, after: int = 0) -> Iterator[tuple[int, Example]]:
        """Yield number and feedback in order of arrival; `after` is the last number already read."""
        query = "SELECT * FROM feedback WHERE number > ? ORDER BY number"
        with self._files.reading() as db:
            for number, request, used, rejected, tenant, source, time, name in db.execute(query, (after,)):
                lists = tuple(json.loads(used)), tuple(json.loads(rejected))
                yield number, Example(request, *lists, tenant, source, datetime.fromisoformat(time), name or "")
