"""The part of the PostgreSQL store that holds tools: add, change, remove, list, and what changed since a version."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace as with_fields
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from toolscout.core.answer import Allowed
from toolscout.core.expansion import Expansion
from toolscout.core.tool import DOCUMENT_VERSION, Listing, Tool, clean_text, namespace_of, text_digest
from toolscout.errors import BadRequest, NewerStore
from toolscout.stores.base import AddReport, Change, ExpansionReport, SourceState, StoredTool
from toolscout.stores.postgres import text as pg_text
from toolscout.stores.postgres.connection import Connection
from toolscout.stores.postgres.server import TOOLS, Server
from toolscout.stores.records import (
    all_aliases,
    caller_code,
    clean_alias,
    content_digest,
    differ_in_order_only,
    expanded_digest,
    given_twice,
    read_expansion,
    read_record,
    refuse_unknown,
    searched_expansion,
    taken,
    write_aliases,
    write_expansion,
    write_record,
)

CHUNK = 2000  # tools held in memory at a time
_FETCH = 1000  # rows of an iterator that are fetched at a time
_SECONDS_A_TOOL = 0.002  # that a statement over incoming tools may take for each, beyond its usual limit

_USER_ALIASES = "ARRAY(SELECT alias FROM aliases WHERE tool_id = tools.id)"
# Tools on their way in. A connection of the pool makes the table once; it is empty after each transaction.
_INCOMING = """
    CREATE TEMP TABLE IF NOT EXISTS incoming (
        position bigint GENERATED ALWAYS AS IDENTITY, id text COLLATE "C", namespace text, name text, content text,
        digest text, aliases text, text text, record text, expansion text DEFAULT ''
    ) ON COMMIT DELETE ROWS
"""
_COPY = "COPY incoming (id, namespace, name, content, digest, aliases, text, record) FROM STDIN"


class ToolTables:
    """Tools in PostgreSQL tables."""

    _server: Server

    def version(self) -> int:
        """Return the catalogue version: 0 for a new store, one more after each commit that changes tools."""
        with self._server.reading() as db:
            return _version(db)

    def add(
        self,
        tools: Iterable[Tool],
        source: str = "",
        *,
        replace: bool = False,
        sync: bool = False,
        remove: Sequence[str] = (),
    ) -> AddReport:
        """Add or change tools; a tool that is stored with equal content is not written."""
        source, iterator = pg_text.write(source), iter(tools)
        chunk = list(islice(iterator, CHUNK))  # most sources end here, before anything is locked
        with self._server.writing(TOOLS, lock=False) as transaction:
            db = transaction.db
            db.execute(_INCOMING)
            db.execute("SET LOCAL idle_in_transaction_session_timeout = 0")  # a source may be slow
            copied = 0
            while chunk:
                _copy(db, chunk)
                copied += len(chunk)
                with caller_code():
                    chunk = list(islice(iterator, CHUNK))
            with db.given_time(copied * _SECONDS_A_TOOL):
                given = _without_repeats(db)
                self._server.lock(db, TOOLS)
                _require_tools(db, remove)
                before = _version(db)
                _pass_over_reordered(db)
                if not replace:
                    _refuse_taken(db, source)
                unexpanded = _keep_expansions(db)
                changed = db.execute(_UPDATE, [source, before + 1]).rowcount
                added = db.execute(_INSERT, [source, before + 1, before + 1]).rowcount
                if added:
                    db.execute("DELETE FROM removed USING incoming WHERE removed.id = incoming.id")
                moved = db.execute(_TAKE_OVER, [source, source]).rowcount if replace else 0
                removed = 0
                if sync:
                    missing = "source = %s AND NOT EXISTS (SELECT 1 FROM incoming WHERE incoming.id = tools.id)"
                    removed = _remove(db, missing, [source], before + 1)
            version = before
            if added + changed + removed:
                now = datetime.now(UTC).isoformat(timespec="seconds")
                db.execute(
                    "INSERT INTO sources VALUES (%s, %s) ON CONFLICT (source) DO UPDATE SET changed = excluded.changed",
                    [source, now],
                )
            removed += _remove(db, "id = ANY(%s)", [list(remove)], before + 1) if remove else 0
            if added + changed + removed:
                version = _advance(db, before)
            transaction.wrote = added + changed + removed + moved > 0
        return AddReport(added, changed, given - added - changed, removed, version, unexpanded)

    def remove(self, ids: Sequence[str]) -> int:
        """Remove tools and return how many. Raises UnknownTool, and removes none, where one is not stored."""
        if not ids:
            return 0
        with self._server.writing(TOOLS) as transaction:
            db = transaction.db
            _require_tools(db, ids)
            before = _version(db)
            removed = _remove(db, "id = ANY(%s)", [list(ids)], before + 1)
            _advance(db, before)
        return removed

    def get(self, ids: Sequence[str]) -> list[Tool]:
        """Return the tools with these ids, in this order. Raises UnknownTool where one is not stored."""
        query = f"SELECT id, record, {_USER_ALIASES} FROM tools WHERE id = ANY(%s)"
        with self._server.reading() as db:
            rows = db.execute(query, [pg_text.findable(ids)]).fetchall()
        found = {tool_id: self._tool(record, aliases) for tool_id, record, aliases in rows}
        refuse_unknown(ids, found)
        return [found[tool_id] for tool_id in ids]

    def ids(self, namespace: str | None = None) -> list[str]:
        """Return all tool ids, or those of one namespace, sorted."""
        where, values = _in_namespace(namespace)
        with self._server.reading() as db:
            return [row[0] for row in db.execute(f"SELECT id FROM tools {where} ORDER BY id", values)]

    def count(self, allowed: Allowed | None = None) -> int:
        """Return how many tools there are, or how many of them a caller may see; fast for any number of tools."""
        query, values = "SELECT count(*) FROM tools", list[list[str]]()
        if allowed is not None:
            single = [tool_id for tool_id in allowed.ids if namespace_of(tool_id) not in allowed.namespaces]
            query += " WHERE namespace = ANY(%s) UNION ALL SELECT count(*) FROM tools WHERE id = ANY(%s)"
            values = [pg_text.findable(allowed.namespaces), pg_text.findable(single)]
        with self._server.reading() as db:
            return sum(int(row[0]) for row in db.execute(query, values))

    def namespaces(self) -> dict[str, int]:
        """Return all namespaces, sorted, each with its number of tools."""
        with self._server.reading() as db:
            rows = db.execute("SELECT namespace, count(*) FROM tools GROUP BY namespace ORDER BY namespace").fetchall()
        return {namespace: int(count) for namespace, count in rows}

    def sources(self) -> list[SourceState]:
        """Return all sources that have tools here, sorted by label."""
        query = """
            SELECT source, count(*), max(version), (SELECT changed FROM sources WHERE sources.source = tools.source)
            FROM tools GROUP BY source
        """
        with self._server.reading() as db:
            rows = db.execute(query).fetchall()
        states = [
            SourceState(pg_text.read(source), tools, version, datetime.fromisoformat(changed) if changed else None)
            for source, tools, version, changed in rows
        ]
        return sorted(states, key=lambda state: state.source)

    def source_labels(self, beginning: str) -> list[str]:
        """Return the labels of sources that have tools here and begin so, sorted."""
        query = """
            SELECT source FROM sources WHERE starts_with(source, %s)
            AND EXISTS (SELECT 1 FROM tools WHERE tools.source = sources.source)
        """
        with self._server.reading() as db:
            return sorted(
                pg_text.read(source) for (source,) in db.execute(query, [pg_text.write(beginning)]).fetchall()
            )

    def tools(self, namespace: str | None = None, *, offset: int = 0, limit: int | None = None) -> Iterator[Tool]:
        """Yield the tools, or one page of them, sorted by id. Raises BadRequest for a negative offset or limit."""
        if offset < 0 or (limit is not None and limit < 0):
            raise BadRequest(f"offset and limit must be 0 or more, got {offset} and {limit}")
        where, values = _in_namespace(namespace)
        query = f"SELECT record, {_USER_ALIASES} FROM tools {where} ORDER BY id LIMIT %s OFFSET %s"
        return self._tools(query, [*values, limit, offset])

    def entries(self) -> Iterator[StoredTool]:
        """Yield all tools as they are stored, sorted by id."""
        query = f"SELECT record, source, {_USER_ALIASES} FROM tools ORDER BY id"
        with self._server.reading() as db:
            for record, source, aliases in stream(db, query):
                yield StoredTool(self._tool(record, []), pg_text.read(source), tuple(sorted(aliases)))

    def changes(self, since: int) -> Iterator[Change]:
        """Yield the last change of each tool that changed after version `since`, sorted by version, then id."""
        query = """
            SELECT id, CASE WHEN born > %s THEN 'added' ELSE 'changed' END, version, digest FROM tools
            WHERE version > %s
            UNION ALL SELECT id, 'removed', version, '' FROM removed WHERE version > %s
            ORDER BY version, id
        """
        with self._server.reading() as db:
            for row in stream(db, query, [since] * 3):
                yield Change(*row)

    def documents(self, since: int) -> Iterator[tuple[Change, Listing | None]]:
        """Yield what changes() yields, each with the tool's Listing, or None for a removed tool."""
        query = f"""
            SELECT id, CASE WHEN born > %s THEN 'added' ELSE 'changed' END, version, digest, namespace, name, text,
                aliases, {_USER_ALIASES}, expansion
            FROM tools WHERE version > %s
            UNION ALL SELECT id, 'removed', version, '', '', '', '', '', NULL, '' FROM removed WHERE version > %s
            ORDER BY version, id
        """
        with self._server.reading() as db:
            for tool_id, kind, version, digest, namespace, name, text, own, user, more in stream(
                db, query, [since] * 3
            ):
                change = Change(tool_id, kind, version, digest)
                if kind == "removed":
                    yield change, None
                    continue
                aliases = () if own == "[]" and not user else all_aliases(json.loads(own), user)
                yield change, Listing(tool_id, namespace, name, aliases, text, digest, searched_expansion(more))

    def set_alias(self, tool_id: str, alias: str) -> bool:
        """Add an alias that later imports keep; return False if the tool has it already. The tool counts as changed."""
        statement = "INSERT INTO aliases VALUES (%s, %s) ON CONFLICT DO NOTHING"
        return self._change_alias(statement, tool_id, clean_alias(tool_id, alias))

    def remove_alias(self, tool_id: str, alias: str) -> bool:
        """Remove an alias that set_alias added; return False if there is none."""
        return self._change_alias("DELETE FROM aliases WHERE tool_id = %s AND alias = %s", tool_id, clean_text(alias))

    def _change_alias(self, statement: str, tool_id: str, alias: str) -> bool:
        with self._server.writing(TOOLS) as transaction:
            db = transaction.db
            _require_tools(db, [tool_id])
            transaction.wrote = db.execute(statement, [tool_id, alias]).rowcount > 0
            if transaction.wrote:
                version = _advance(db, _version(db))
                db.execute("UPDATE tools SET version = %s WHERE id = %s", [version, tool_id])
        return transaction.wrote

    def set_expansions(self, expansions: Mapping[str, Expansion]) -> ExpansionReport:
        """Put expansions beside tools, by tool id, in place of those they had; an empty one removes it."""
        changed = unchanged = outdated = unknown = 0
        with self._server.writing(TOOLS) as transaction:
            db, ids = transaction.db, list(expansions)
            before = _version(db)
            for start in range(0, len(ids), CHUNK):
                part = ids[start : start + CHUNK]
                query = "SELECT id, text, expansion FROM tools WHERE id = ANY(%s)"
                stored = db.execute(query, [pg_text.findable(part)]).fetchall()
                unknown += len(part) - len(stored)
                rows: list[tuple[str, str, str]] = []
                for tool_id, text, known in stored:
                    given = expansions[tool_id]
                    if given.digest not in ("", text_digest(text)):
                        outdated += 1
                        continue
                    written = write_expansion(given)
                    if written == known:
                        unchanged += 1
                    else:
                        rows.append((tool_id, written, expanded_digest(text, written)))
                changed += len(rows)
                _set_digests(db, rows, before + 1)
            version = _advance(db, before) if changed else before
            transaction.wrote = changed > 0
        return ExpansionReport(changed, unchanged, outdated, unknown, version)

    def expansions(self, ids: Sequence[str] | None = None) -> dict[str, Expansion]:
        """Return the expansions of these tools, or of all, by tool id; tools without one are left out."""
        query = "SELECT id, expansion FROM tools WHERE expansion != ''"
        query += "" if ids is None else " AND id = ANY(%s)"
        with self._server.reading() as db:
            rows = db.execute(query, [] if ids is None else [pg_text.findable(ids)]).fetchall()
        return {tool_id: read_expansion(written) for tool_id, written in rows}

    def _tools(self, query: str, values: list[Any]) -> Iterator[Tool]:
        with self._server.reading() as db:
            for record, aliases in stream(db, query, values):
                yield self._tool(record, aliases)

    def _tool(self, record: str, user_aliases: list[str]) -> Tool:
        tool = read_record(record, self._server.address)
        return with_fields(tool, aliases=all_aliases(tool.aliases, user_aliases)) if user_aliases else tool

    def _update_documents(self) -> None:
        """Rebuild the searched texts where an older DOCUMENT_VERSION made them; this changes every tool."""
        with self._server.reading() as db:
            stored = _document_version(db)
        if stored > DOCUMENT_VERSION:
            raise NewerStore(
                f"{self._server.address} holds texts made by a newer toolscout; run: pip install --upgrade toolscout"
            )
        if stored == DOCUMENT_VERSION:
            return
        page = "SELECT id, record, expansion FROM tools WHERE id > %s ORDER BY id LIMIT %s"
        with self._server.writing(TOOLS) as transaction:
            db = transaction.db
            if _document_version(db) == DOCUMENT_VERSION:
                return  # another process was faster
            before, last = _version(db), ""
            while rows := db.execute(page, [last, CHUNK]).fetchall():
                texts = [(tool_id, self._tool(record, []).document(), more) for tool_id, record, more in rows]
                db.execute(
                    "UPDATE tools SET text = new.text FROM unnest(%s::text[], %s::text[]) AS new (id, text) "
                    "WHERE tools.id = new.id",
                    [[one[0] for one in texts], [one[1] for one in texts]],
                )
                digests = [(tool_id, more, expanded_digest(text, more)) for tool_id, text, more in texts]
                _set_digests(db, digests, before + 1)
                last = rows[-1][0]
            if last:
                _advance(db, before)
            db.execute("UPDATE catalogue SET document = %s", [DOCUMENT_VERSION])


def stream(db: Connection, query: str, values: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield rows that the server hands over as they are read."""
    with db.cursor(name="rows") as cursor:
        cursor.itersize = _FETCH
        yield from cursor.execute(query, values)


_CHANGED = "tools.id = incoming.id AND tools.content != incoming.content"
_UPDATE = f"""
    UPDATE tools SET source = %s, content = incoming.content, digest = incoming.digest, version = %s,
        aliases = incoming.aliases, text = incoming.text, record = incoming.record, expansion = incoming.expansion
    FROM incoming WHERE {_CHANGED}
"""
_INSERT = """
    INSERT INTO tools (id, namespace, name, source, content, digest, born, version, aliases, text, record, expansion)
    SELECT id, namespace, name, %s, content, digest, %s, %s, aliases, text, record, '' FROM incoming
    WHERE NOT EXISTS (SELECT 1 FROM tools WHERE tools.id = incoming.id)
"""
# Unchanged tools get the new source too, which does not count as a change.
_TAKE_OVER = "UPDATE tools SET source = %s FROM incoming WHERE tools.id = incoming.id AND tools.source != %s"


def _copy(db: Connection, chunk: list[Tool]) -> None:
    """Write tools into the table of incoming ones."""
    rows = []
    for tool in chunk:
        record, text = write_record(tool), tool.document()
        names = tool.id, tool.namespace, tool.name
        rows.append((*names, content_digest(record), text_digest(text), write_aliases(tool), text, record))
    with db.cursor().copy(_COPY) as copy:
        for row in rows:
            copy.write_row(row)


def _without_repeats(db: Connection) -> int:
    """Keep each incoming tool once, and return how many there are. Raises DuplicateTool where two of one id differ."""
    given, ids = db.execute("SELECT count(*), count(DISTINCT id) FROM incoming").fetchone() or (0, 0)
    if given > CHUNK:
        db.execute("ANALYZE incoming")
    if given == ids:
        return int(ids)
    query = "SELECT id FROM incoming GROUP BY id HAVING min(content) != max(content) ORDER BY min(position) LIMIT 1"
    if twice := db.execute(query).fetchone():
        raise given_twice(twice[0])
    db.execute(
        "DELETE FROM incoming USING incoming AS one WHERE one.id = incoming.id AND one.position < incoming.position"
    )
    return int(ids)


def _refuse_taken(db: Connection, source: str) -> None:
    """Raise DuplicateTool where a tool of another source is to be changed."""
    query = f"""
        SELECT tools.id, tools.source FROM tools, incoming WHERE {_CHANGED} AND tools.source != %s
        ORDER BY position LIMIT 1
    """
    if other := db.execute(query, [source]).fetchone():
        raise taken(other[0], pg_text.read(other[1]))


def _pass_over_reordered(db: Connection) -> None:
    """Let incoming tools that differ from the stored ones in the order of keys alone count as unchanged."""
    query = f"""
        SELECT tools.id, tools.record, incoming.record FROM tools, incoming
        WHERE {_CHANGED} AND length(tools.record) = length(incoming.record)
    """
    equal = [tool_id for tool_id, known, record in stream(db, query) if differ_in_order_only(known, record)]
    if equal:
        same = (
            "UPDATE incoming SET content = tools.content FROM tools WHERE tools.id = incoming.id AND tools.id = ANY(%s)"
        )
        db.execute(same, [equal])


def _keep_expansions(db: Connection) -> int:
    """Let changed tools keep the expansions that were written for the text they still have; return how many lose it."""
    query = f"""
        SELECT tools.id, tools.expansion, tools.digest, incoming.text FROM tools, incoming
        WHERE {_CHANGED} AND tools.expansion != ''
    """
    rows = db.execute(query).fetchall()
    kept = [one for one, written, digest, text in rows if expanded_digest(text, written) == digest]
    if kept:
        keep = """
            UPDATE incoming SET expansion = tools.expansion, digest = tools.digest FROM tools
            WHERE tools.id = incoming.id AND tools.id = ANY(%s)
        """
        db.execute(keep, [kept])
    return len(rows) - len(kept)


def _set_digests(db: Connection, rows: list[tuple[str, str, str]], version: int) -> None:
    """Give tools, by id, an expansion and a digest."""
    statement = """
        UPDATE tools SET expansion = new.expansion, digest = new.digest, version = %s
        FROM unnest(%s::text[], %s::text[], %s::text[]) AS new (id, expansion, digest) WHERE tools.id = new.id
    """
    if rows:
        db.execute(statement, [version, *map(list, zip(*rows, strict=True))])


def _remove(db: Connection, where: str, values: list[Any], version: int) -> int:
    """Remove the tools that match `where`, record their ids for `changes`, and return how many they were."""
    statement = f"""
        WITH gone AS (DELETE FROM tools WHERE {where} RETURNING id)
        INSERT INTO removed SELECT id, %s FROM gone ON CONFLICT (id) DO UPDATE SET version = excluded.version
    """
    return db.execute(statement, [*values, version]).rowcount


def _version(db: Connection) -> int:
    return int((db.execute("SELECT version FROM catalogue").fetchone() or (0,))[0])


def _document_version(db: Connection) -> int:
    return int((db.execute("SELECT document FROM catalogue").fetchone() or (0,))[0])


def _advance(db: Connection, before: int) -> int:
    db.execute("UPDATE catalogue SET version = %s", [before + 1])
    return before + 1


def _in_namespace(namespace: str | None) -> tuple[str, list[str]]:
    return ("", []) if namespace is None else ("WHERE namespace = %s", [pg_text.write(namespace)])


def _require_tools(db: Connection, ids: Sequence[str]) -> None:
    rows = db.execute("SELECT id FROM tools WHERE id = ANY(%s)", [pg_text.findable(ids)]).fetchall()
    refuse_unknown(ids, {row[0] for row in rows})
