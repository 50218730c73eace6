"""Searches by PostgreSQL itself: words by full text, vectors by pgvector, for servers without an index of their own."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from pgvector import HalfVector
from pgvector.psycopg import register_vector

from toolscout.core.answer import Allowed
from toolscout.core.arrays import Floats
from toolscout.stores.base import StoreSearch
from toolscout.stores.postgres import text as pg_text
from toolscout.stores.postgres.connection import Connection
from toolscout.stores.postgres.errors import store_errors
from toolscout.stores.postgres.server import Server
from toolscout.stores.records import all_aliases

# The rarest words of a request are looked up until so many tools have one of them; common words only add to scores.
_MOST_TOOLS, _MOST_WORDS = 20_000, 32
_K1, _B = 1.2, 0.75  # as in BM25
_WEIGHTS = "'{0.6, 0, 0, 1}'"  # of a word in the document, and in the name
_KNOWN_S = 60.0  # how long the statistics of words are used
# From so many vectors on an index of a model is built; fewer are compared one by one in less time than it is worth.
INDEXED_FROM = 20_000
# How many candidates the index looks at before it filters, and how much more it takes than is asked for.
_EF_SEARCH, _MORE = 200, 2
_WORDS = """
    SELECT word, lexeme FROM unnest(%s::text[]) WITH ORDINALITY AS given (word, place),
        LATERAL unnest(tsvector_to_array(to_tsvector('pg_catalog.english', word))) AS stems (lexeme) ORDER BY place
"""
_SPELT = """translate(alias, '/.@:_- ()[]{}<>,;!?+*#$&=|~^`"', '')"""
_USER_ALIASES = "ARRAY(SELECT alias FROM aliases WHERE tool_id = tools.id)"
_NAMED = f"""
    SELECT id, aliases, {_USER_ALIASES} FROM tools WHERE id IN (
        SELECT id FROM tools WHERE spelt = ANY(%s)
        UNION ALL SELECT tool_id FROM aliases WHERE lower({_SPELT}) = ANY(%s)
        UNION ALL SELECT id FROM tools WHERE aliases != '[]' AND EXISTS (
            SELECT 1 FROM json_array_elements_text(aliases::json) AS own (alias) WHERE lower({_SPELT}) = ANY(%s)
        )
    )
"""
_SPLIT = str.maketrans(dict.fromkeys("/.@:_-", " "))


class PostgresSearch(StoreSearch):
    """The search of a PostgreSQL store."""

    def __init__(self, server: Server) -> None:
        """Search the schema that these connections are to."""
        self._server = server
        self._lock = threading.Lock()
        self._statistics: tuple[float, int, float, Mapping[str, float]] | None = None

    # Words.

    def by_words(self, request: str, k: int, allowed: Allowed | None = None) -> list[tuple[str, float]]:
        """Return the best k tools that share words with a request, with scores above 0."""
        with self._server.reading() as db:
            terms, total, average = self._terms(db, request)
            sought, tools = list[str](), 0.0
            for _, lexeme, found in terms:
                tools += found
                if found and (not sought or tools <= _MOST_TOOLS):
                    sought.append(_quoted(lexeme))
            if not sought:
                return []
            scored = [(_quoted(lexeme), _rarity(found, total)) for _, lexeme, found in terms if found]
            sums = " + ".join(f"%s::float8 * ts_rank({_WEIGHTS}, words, %s::tsquery)" for _ in scored)
            where, values = _permitted(allowed)
            length = f"{1 - _B} + {_B} * length(words) / %s::float8"
            query = f"""
                SELECT id, ({sums}) * {_K1 + 1} / (1 + {_K1} * ({length})) AS score FROM tools
                WHERE words @@ %s::tsquery{where} ORDER BY score DESC, id LIMIT %s
            """
            weighed = [value for lexeme, weight in scored for value in (weight, lexeme)]
            rows = db.execute(query, [*weighed, average, " | ".join(sought), *values, k], prepare=False).fetchall()
        return [(tool_id, float(score)) for tool_id, score in rows]

    def matched_words(
        self, request: str, ids: Sequence[str], sees: Allowed | None = None
    ) -> dict[str, tuple[tuple[str, ...], float]]:
        """Return the words of a request that each tool has, the rarest first, and their share of all by rarity."""
        with self._server.reading() as db:
            terms, total, _ = self._terms(db, request)
            if sees is not None:
                where, values = _permitted(sees)
                query = f"SELECT EXISTS (SELECT 1 FROM tools WHERE words @@ %s::tsquery{where})"
                seen = {one: _first(db, query, [_quoted(one), *values]) for _, one, found in terms if found}
                terms = [(word, one, found if seen.get(one) else 0.0) for word, one, found in terms]
            terms.sort(key=lambda term: term[2])
            query = "SELECT id, tsvector_to_array(words) FROM tools WHERE id = ANY(%s)"
            rows = db.execute(query, [pg_text.findable(ids)]).fetchall()
        weights = [_rarity(found, total) for _, _, found in terms]
        matches = {}
        for tool_id, lexemes in rows:
            own = set(lexemes)
            here = [place for place, (_, lexeme, found) in enumerate(terms) if found and lexeme in own]
            if here:
                share = sum(weights[place] for place in here) / sum(weights)
                matches[tool_id] = tuple(terms[place][0] for place in here), share
        return matches

    def _terms(self, db: Connection, request: str) -> tuple[list[tuple[str, str, float]], int, float]:
        """Return each stem of a request once, as (word, stem, number of tools that have it), the rarest first.

        Beside them the number of tools, and the mean number of different words of a tool.
        """
        words = list(dict.fromkeys(pg_text.write(request).translate(_SPLIT).split()))
        lexemes: dict[str, str] = {}
        for word, lexeme in db.execute(_WORDS, [words]):
            lexemes.setdefault(lexeme, pg_text.read(word))
        total, average, shares = self._known_words(db)
        chosen = list(lexemes)[:_MOST_WORDS]
        rare = [lexeme for lexeme in chosen if lexeme not in shares]
        query = """
            SELECT term, (SELECT count(*) FROM (SELECT 1 FROM tools WHERE words @@ quoted::tsquery LIMIT %s) AS few)
            FROM unnest(%s::text[], %s::text[]) AS rare (term, quoted)
        """
        counts = dict(db.execute(query, [_MOST_TOOLS, rare, list(map(_quoted, rare))]).fetchall()) if rare else {}
        found = [(lexemes[one], one, float(counts.get(one, shares.get(one, 0.0) * total))) for one in chosen]
        return sorted(found, key=lambda term: (term[2], term[1])), total, average

    def _known_words(self, db: Connection) -> tuple[int, float, Mapping[str, float]]:
        """Return the number of tools, their mean number of words, and which share of them has each common word."""
        with self._lock:
            known = self._statistics
        if known is None or time.monotonic() - known[0] > _KNOWN_S:
            total = int(_first(db, "SELECT count(*) FROM tools"))
            average = _first(db, "SELECT avg(length(words)) FROM (SELECT words FROM tools LIMIT 1000) AS few")
            row = db.execute(
                "SELECT most_common_elems::text::text[], most_common_elem_freqs FROM pg_stats "
                "WHERE schemaname = %s AND tablename = 'tools' AND attname = 'words'",
                [self._server.address.schema],
            ).fetchone()
            # Behind the shares of the words stand the least and the greatest of them.
            shares = dict(zip(row[0], row[1], strict=False)) if row and row[0] and row[1] else {}
            known = (time.monotonic(), total, max(1.0, float(average or 1)), shares)
            with self._lock:
                self._statistics = known
        return known[1:]

    def named(self, names: Sequence[str], allowed: Allowed | None = None) -> dict[str, tuple[str, ...]]:
        """Return the tools that have one of these names or aliases, however they are spelt, with their aliases."""
        keys = list({key for name in names if (key := pg_text.write(name).replace("_", "")[:200])})
        where, values = _permitted(allowed)
        with self._server.reading() as db:
            rows = db.execute(_NAMED + where, [keys, keys, keys, *values]).fetchall()
        return {tool_id: all_aliases(json.loads(own), added) for tool_id, own, added in rows}

    # Vectors.

    def by_vector(
        self, fingerprint: str, vector: Floats, k: int, allowed: Allowed | None = None
    ) -> list[tuple[str, float]]:
        """Return the k tools whose cached vectors of this model are nearest to a unit vector, with their cosines."""
        with self._server.reading() as db:
            model, width, _ = _model(db, fingerprint)
            if width != len(vector):
                return []
            register_vector(db)
            db.execute(f"SET LOCAL hnsw.ef_search = {_EF_SEARCH}")
            db.execute("SET LOCAL hnsw.iterative_scan = strict_order")
            where, values = _permitted(allowed)
            # In the collation of `tools`: in another one its index cannot be used, and then that of the vectors is not.
            query = f"""
                SELECT id, halfvec_send(vector)
                FROM vectors JOIN tools ON tools.digest = vectors.digest COLLATE "default"
                WHERE model = {model}{where} ORDER BY vector::halfvec({width}) <=> %s::halfvec({width}) LIMIT %s
            """
            rows = db.execute(query, [*values, HalfVector(vector), k], prepare=False, binary=True).fetchall()
        return sorted(_cosines(rows, vector).items(), key=lambda pair: (-pair[1], pair[0]))

    def cosines(self, fingerprint: str, vector: Floats, ids: Sequence[str]) -> dict[str, float]:
        """Return the cosines of these tools to a unit vector; tools without a cached vector are left out."""
        query = """
            SELECT id, halfvec_send(vector) FROM tools JOIN vectors ON vectors.digest = tools.digest
            WHERE model = (SELECT models.id FROM models WHERE fingerprint = %s) AND tools.id = ANY(%s)
        """
        with self._server.reading() as db:
            rows = db.execute(query, [pg_text.write(fingerprint), pg_text.findable(ids)], binary=True).fetchall()
        return _cosines(rows, vector)

    def unembedded(self, fingerprint: str, allowed: Allowed | None = None) -> int:
        """Return how many tools have no cached vector of this model."""
        where, values = _permitted(allowed)
        query = f"""
            SELECT count(*) FROM tools WHERE NOT EXISTS (
                SELECT 1 FROM vectors WHERE vectors.digest = tools.digest
                AND model = (SELECT models.id FROM models WHERE fingerprint = %s)
            ){where}
        """
        with self._server.reading() as db:
            return int(_first(db, query, [pg_text.write(fingerprint), *values]))

    def prepare(self, fingerprint: str) -> None:
        """Build an HNSW index over the vectors of a model where there are many, unless it is there.

        One process builds it, and writers go on meanwhile. One that was not completed is built anew.
        """
        with store_errors(self._server.address), self._server.connection() as db:
            model, width, valid = _model(db, fingerprint)
            if valid or not width or self._count(db, model) < INDEXED_FROM:
                return
            key = f"toolscout {self._server.identity} hnsw {model}"
            if not _first(db, "SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", [key]):
                return
            db.patience = math.inf
            db.execute("SET statement_timeout = 0")
            db.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {_index(model)}")
            db.execute(
                f"CREATE INDEX CONCURRENTLY {_index(model)} ON vectors "
                f"USING hnsw ((vector::halfvec({width})) halfvec_cosine_ops) WHERE model = {model}"
            )

    def recall(self, fingerprint: str, sample: int, k: int) -> float | None:
        """Return which share of the exact k nearest the HNSW index finds; None where there is none."""
        with self._server.reading() as db:
            model, width, valid = _model(db, fingerprint)
            if not valid:
                return None
            db.execute(f"SET LOCAL hnsw.ef_search = {_EF_SEARCH}")
            query = f"SELECT vector::text FROM vectors WHERE model = {model} ORDER BY hashtext(digest) LIMIT %s"
            asked = db.execute(query, [sample]).fetchall()
            nearest = f"""
                SELECT number FROM vectors WHERE model = {model}
                ORDER BY vector::halfvec({width}) <=> %s::halfvec({width}) LIMIT %s
            """
            found, exact = list[set[int]](), list[set[int]]()
            for way, scans in ((found, "on"), (exact, "off")):
                db.execute(f"SET LOCAL enable_indexscan = {scans}")
                db.execute(f"SET LOCAL enable_seqscan = {'off' if scans == 'on' else 'on'}")
                way += [{row[0] for row in db.execute(nearest, [one[0], k], prepare=False)} for one in asked]
        right = sum(len(one & other) for one, other in zip(found, exact, strict=True))
        return right / max(1, sum(map(len, exact)))

    def _count(self, db: Connection, model: int) -> int:
        return int(_first(db, "SELECT count(*) FROM vectors WHERE model = %s", [model]))


def _model(db: Connection, fingerprint: str) -> tuple[int, int, bool]:
    """Return the number of a model, the width of its vectors, and whether they have an index; zeros if unknown."""
    row = db.execute("SELECT id, width FROM models WHERE fingerprint = %s", [pg_text.write(fingerprint)]).fetchone()
    if row is None:
        return 0, 0, False
    query = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)"
    valid = db.execute(query, [_index(row[0])]).fetchone()
    return int(row[0]), int(row[1]), bool(valid and valid[0])


def _index(model: int) -> str:
    return f"vectors_hnsw_{model:d}"


def _permitted(allowed: Allowed | None) -> tuple[str, list[Any]]:
    """Return a condition on `tools`, and its values, that lets through what is allowed."""
    if allowed is None:
        return "", []
    values = [pg_text.findable(allowed.namespaces), pg_text.findable(allowed.ids)]
    return " AND (tools.namespace = ANY(%s) OR tools.id = ANY(%s))", values


def _cosines(rows: Iterable[tuple[str, bytes]], vector: Floats) -> dict[str, float]:
    """Return the cosines to a unit vector, in double precision as an index in memory computes them."""
    wide = vector.astype(np.float64)
    return {
        tool_id: float(np.frombuffer(sent, dtype=">f2")[2:].astype(np.float32).astype(np.float64) @ wide)
        for tool_id, sent in rows
    }


def _rarity(found: float, total: int) -> float:
    return math.log(1 + (total - min(found, total) + 0.5) / (found + 0.5))


def _quoted(lexeme: str) -> str:
    """Return a lexeme as it stands in a tsquery."""
    return "'" + lexeme.replace("\\", "\\\\").replace("'", "''") + "'"


def _first(db: Connection, query: str, values: Sequence[Any] = ()) -> Any:
    row = db.execute(query, values).fetchone()
    return row[0] if row else None
