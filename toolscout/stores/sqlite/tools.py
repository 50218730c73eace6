"""The part of the SQLite store that holds tools: add, change, remove, list, and what changed since a version."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
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
    storable,
    taken,
    write_aliases,
    write_expansion,
    write_record,
)
from toolscout.stores.sqlite.connections import Connections

CHUNK = 2000  # tools held in memory at a time

# Lists of ids are passed as one JSON text: they may have any length and hold any text.
_LISTED = "(SELECT value FROM json_each(?))"
_USER_ALIASES = "(SELECT json_group_array(alias) FROM aliases WHERE tool_id = tools.id)"
_PUT = """
    INSERT INTO tools (id, namespace, name, source, content, digest, born, version, aliases, text, record, expansion)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET
        source = excluded.source, content = excluded.content, digest = excluded.digest, version = excluded.version,
        aliases = excluded.aliases, text = excluded.text, record = excluded.record,
        expansion = excluded.expansion
"""


class ToolTables:
    """Tools in SQLite tables."""

    _files: Connections

    def version(self) -> int:
        """Return the catalogue version: 0 for a new store, one more after each commit that changes tools."""
        with self._files.reading() as db:
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
        source, iterator = storable(source), iter(tools)
        chunk = list(islice(iterator, CHUNK))  # most sources end here, before the write lock is taken
        done: Counter[str] = Counter()
        with self._files.writing() as db:
            _require_tools(db, remove)
            before = _version(db)
            db.execute("CREATE TEMP TABLE incoming (id TEXT PRIMARY KEY, content TEXT NOT NULL) WITHOUT ROWID")
            while chunk:
                done += _add_chunk(db, chunk, source, replace, before + 1)
                with caller_code():
                    chunk = list(islice(iterator, CHUNK))
            if sync:
                missing = "source = ? AND id NOT IN (SELECT id FROM incoming)"
                done["removed"] = _remove(db, missing, source, before + 1)
            db.execute("DROP TABLE incoming")
            version = before
            if done["added"] + done["changed"] + done["removed"]:
                now = datetime.now(UTC).isoformat(timespec="seconds")
                db.execute("INSERT OR REPLACE INTO sources (source, changed) VALUES (?, ?)", (source, now))
            done["removed"] += _remove(db, f"id IN {_LISTED}", json.dumps(list(remove)), before + 1)
            if done["added"] + done["changed"] + done["removed"]:
                version = _advance(db, before)
        counts = done["added"], done["changed"], done["unchanged"], done["removed"]
        return AddReport(*counts, version, done["unexpanded"])

    def remove(self, ids: Sequence[str]) -> int:
        """Remove tools and return how many. Raises UnknownTool, and removes none, where one is not stored."""
        if not ids:
            return 0
        with self._files.writing() as db:
            _require_tools(db, ids)
            before = _version(db)
            removed = _remove(db, f"id IN {_LISTED}", json.dumps(list(ids)), before + 1)
            _advance(db, before)
        return removed

    def get(self, ids: Sequence[str]) -> list[Tool]:
        """Return the tools with these ids, in this order. Raises UnknownTool where one is not stored."""
        query = f"SELECT id, record, {_USER_ALIASES} FROM tools WHERE id IN {_LISTED}"
        with self._files.reading() as db:
            rows = db.execute(query, (json.dumps(list(ids)),)).fetchall()
        found = {tool_id: self._tool(record, aliases) for tool_id, record, aliases in rows}
        refuse_unknown(ids, found)
        return [found[tool_id] for tool_id in ids]

    def ids(self, namespace: str | None = None) -> list[str]:
        """Return all tool ids, or those of one namespace, sorted."""
        where, values = _in_namespace(namespace)
        with self._files.reading() as db:
            return [row[0] for row in db.execute(f"SELECT id FROM tools {where} ORDER BY id", values)]

    def count(self, allowed: Allowed | None = None) -> int:
        """Return how many tools there are, or how many of them a caller may see; fast for any number of tools."""
        query, values = "SELECT count(*) FROM tools", tuple[str, ...]()
        if allowed is not None:
            single = [tool_id for tool_id in allowed.ids if namespace_of(tool_id) not in allowed.namespaces]
            query += f" WHERE namespace IN {_LISTED} UNION ALL SELECT count(*) FROM tools WHERE id IN {_LISTED}"
            values = json.dumps(sorted(allowed.namespaces)), json.dumps(single)
        with self._files.reading() as db:
            return sum(int(row[0]) for row in db.execute(query, values))

    def namespaces(self) -> dict[str, int]:
        """Return all namespaces, sorted, each with its number of tools."""
        with self._files.reading() as db:
            return dict(db.execute("SELECT namespace, count(*) FROM tools GROUP BY namespace ORDER BY namespace"))

    def sources(self) -> list[SourceState]:
        """Return all sources that have tools here, sorted by label."""
        query = """
            SELECT source, count(*), max(version), (SELECT changed FROM sources WHERE sources.source = tools.source)
            FROM tools GROUP BY source ORDER BY source
        """
        with self._files.reading() as db:
            rows = db.execute(query).fetchall()
        return [
            SourceState(source, tools, version, datetime.fromisoformat(changed) if changed else None)
            for source, tools, version, changed in rows
        ]

    def source_labels(self, beginning: str) -> list[str]:
        """Return the labels of sources that have tools here and begin so, sorted."""
        query = """
            SELECT source FROM sources WHERE substr(source, 1, ?) = ?
            AND EXISTS (SELECT 1 FROM tools WHERE tools.source = sources.source) ORDER BY source
        """
        with self._files.reading() as db:
            return [source for (source,) in db.execute(query, (len(beginning), beginning))]

    def tools(self, namespace: str | None = None, *, offset: int = 0, limit: int | None = None) -> Iterator[Tool]:
        """Yield the tools, or one page of them, sorted by id. Raises BadRequest for a negative offset or limit."""
        if offset < 0 or (limit is not None and limit < 0):
            raise BadRequest(f"offset and limit must be 0 or more, got {offset} and {limit}")
        where, values = _in_namespace(namespace)
        query = f"SELECT record, {_USER_ALIASES} FROM tools {where} ORDER BY id LIMIT ? OFFSET ?"
        return self._tools(query, (*values, -1 if limit is None else limit, offset))

    def entries(self) -> Iterator[StoredTool]:
        """Yield all tools as they are stored, sorted by id."""
        with self._files.reading() as db:
            for record, source, aliases in db.execute(f"SELECT record, source, {_USER_ALIASES} FROM tools ORDER BY id"):
                yield StoredTool(self._tool(record, "[]"), source, tuple(sorted(json.loads(aliases))))

    def changes(self, since: int) -> Iterator[Change]:
        """Yield the last change of each tool that changed after version `since`, sorted by version, then id."""
        query = """
            SELECT id, iif(born > ?1, 'added', 'changed'), version, digest FROM tools WHERE version > ?1
            UNION ALL SELECT id, 'removed', version, '' FROM removed WHERE version > ?1
            ORDER BY version, id
        """
        with self._files.reading() as db:
            for row in db.execute(query, (since,)):
                yield Change(*row)

    def documents(self, since: int) -> Iterator[tuple[Change, Listing | None]]:
        """Yield what changes() yields, each with the tool's Listing, or None for a removed tool."""
        query = f"""
            SELECT id, iif(born > ?1, 'added', 'changed'), version, digest, namespace, name, text, aliases,
                {_USER_ALIASES}, expansion
            FROM tools WHERE version > ?1
            UNION ALL SELECT id, 'removed', version, '', '', '', '', '', '', '' FROM removed WHERE version > ?1
            ORDER BY version, id
        """
        with self._files.reading() as db:
            for tool_id, kind, version, digest, namespace, name, text, own, user, more in db.execute(query, (since,)):
                change = Change(tool_id, kind, version, digest)
                if kind == "removed":
                    yield change, None
                    continue
                aliases = () if own == user == "[]" else all_aliases(json.loads(own), json.loads(user))
                yield change, Listing(tool_id, namespace, name, aliases, text, digest, searched_expansion(more))

    def set_alias(self, tool_id: str, alias: str) -> bool:
        """Add an alias that later imports keep; return False if the tool has it already. The tool counts as changed."""
        statement = "INSERT OR IGNORE INTO aliases VALUES (?, ?)"
        return self._change_alias(statement, tool_id, clean_alias(tool_id, alias))

    def remove_alias(self, tool_id: str, alias: str) -> bool:
        """Remove an alias that set_alias added; return False if there is none."""
        return self._change_alias("DELETE FROM aliases WHERE tool_id = ? AND alias = ?", tool_id, clean_text(alias))

    def _change_alias(self, statement: str, tool_id: str, alias: str) -> bool:
        with self._files.writing() as db:
            _require_tools(db, [tool_id])
            done = db.execute(statement, (tool_id, alias)).rowcount > 0
            if done:
                version = _advance(db, _version(db))
                db.execute("UPDATE tools SET version = ? WHERE id = ?", (version, tool_id))
        return done

    def set_expansions(self, expansions: Mapping[str, Expansion]) -> ExpansionReport:
        """Put expansions beside tools, by tool id, in place of those they had; an empty one removes it."""
        query = f"SELECT id, text, expansion FROM tools WHERE id IN {_LISTED}"
        update = "UPDATE tools SET expansion = ?, digest = ?, version = ? WHERE id = ?"
        done: Counter[str] = Counter()
        with self._files.writing() as db:
            before, ids = _version(db), list(expansions)
            for start in range(0, len(ids), CHUNK):
                rows: list[tuple[Any, ...]] = []
                part = ids[start : start + CHUNK]
                stored = db.execute(query, (json.dumps(part),)).fetchall()
                done["unknown"] += len(part) - len(stored)
                for tool_id, text, known in stored:
                    given = expansions[tool_id]
                    if given.digest not in ("", text_digest(text)):
                        done["outdated"] += 1
                        continue
                    written = write_expansion(given)
                    done["unchanged" if written == known else "changed"] += 1
                    if written != known:
                        rows.append((written, expanded_digest(text, written), before + 1, tool_id))
                db.executemany(update, rows)
            version = _advance(db, before) if done["changed"] else before
        return ExpansionReport(done["changed"], done["unchanged"], done["outdated"], done["unknown"], version)

    def expansions(self, ids: Sequence[str] | None = None) -> dict[str, Expansion]:
        """Return the expansions of these tools, or of all, by tool id; tools without one are left out."""
        query = "SELECT id, expansion FROM tools WHERE expansion != ''"
        query += "" if ids is None else f" AND id IN {_LISTED}"
        with self._files.reading() as db:
            rows = db.execute(query, () if ids is None else (json.dumps(list(ids)),)).fetchall()
        return {tool_id: read_expansion(written) for tool_id, written in rows}

    def _tools(self, query: str, values: tuple[object, ...]) -> Iterator[Tool]:
        with self._files.reading() as db:
            for record, aliases in db.execute(query, values):
                yield self._tool(record, aliases)

    def _tool(self, record: str, user_aliases: str) -> Tool:
        tool = read_record(record, self._files.path)
        if user_aliases == "[]":
            return tool
        return with_fields(tool, aliases=all_aliases(tool.aliases, json.loads(user_aliases)))

    def _update_documents(self) -> None:
        """Rebuild the searched texts where an older DOCUMENT_VERSION made them; this changes every tool."""
        with self._files.reading() as db:
            stored = _document_version(db)
        if stored > DOCUMENT_VERSION:
            raise NewerStore(
                f"{self._files.path} holds texts made by a newer toolscout; run: pip install --upgrade toolscout"
            )
        if stored == DOCUMENT_VERSION or self._files.read_only:
            return  # a read-only store is searched by its older texts
        page = "SELECT row, record, expansion FROM tools WHERE row > ? ORDER BY row LIMIT ?"
        update = "UPDATE tools SET text = ?, digest = ?, version = ? WHERE row = ?"
        with self._files.writing() as db:
            if _document_version(db) == DOCUMENT_VERSION:
                return  # another process was faster
            before, last = _version(db), 0
            while rows := db.execute(page, (last, CHUNK)).fetchall():
                texts = [(self._tool(record, "[]").document(), row, more) for row, record, more in rows]
                db.executemany(
                    update, ((text, expanded_digest(text, more), before + 1, row) for text, row, more in texts)
                )
                last = rows[-1][0]
            if last:
                _advance(db, before)
            db.execute("UPDATE catalogue SET document = ?", (DOCUMENT_VERSION,))


def _add_chunk(db: sqlite3.Connection, chunk: list[Tool], source: str, replace: bool, version: int) -> Counter[str]:
    """Write tools, and return how many were added, changed and unchanged."""
    new = _without_repeats(db, chunk)
    ids = json.dumps(list(new))
    query = f"SELECT id, content, source, digest, expansion FROM tools WHERE id IN {_LISTED}"
    stored = {tool_id: known for tool_id, *known in db.execute(query, (ids,))}
    rows: list[tuple[Any, ...]] = []
    done: Counter[str] = Counter()
    for tool_id, (tool, record, content) in new.items():
        known, owner, digest, expansion = stored.get(tool_id, ("", source, "", ""))
        if known == content or (known and _differs_in_order_only(db, tool_id, record)):
            done["unchanged"] += 1
            continue
        if owner != source and not replace:
            raise taken(tool_id, owner)
        done["changed" if known else "added"] += 1
        text, names = tool.document(), (tool_id, tool.namespace, tool.name, source)
        aliases = write_aliases(tool)
        if expansion and expanded_digest(text, expansion) != digest:  # it was written for another text
            expansion = ""
            done["unexpanded"] += 1
        rows.append(
            (*names, content, expanded_digest(text, expansion), version, version, aliases, text, record, expansion)
        )
    db.executemany(_PUT, rows)
    if done["added"]:
        db.execute(f"DELETE FROM removed WHERE id IN {_LISTED}", (ids,))
    if replace:  # unchanged tools get the new source too, which does not count as a change
        db.execute(f"UPDATE tools SET source = ? WHERE source != ? AND id IN {_LISTED}", (source, source, ids))
    return done


def _without_repeats(db: sqlite3.Connection, chunk: list[Tool]) -> dict[str, tuple[Tool, str, str]]:
    """Return by id the tools that earlier chunks of this `add` did not have, each with its record and its digest.

    Raises DuplicateTool where two tools of one id differ.
    """
    new: dict[str, tuple[Tool, str, str]] = {}
    for tool in chunk:
        tool_id, record = tool.id, write_record(tool)
        content = content_digest(record)
        if new.setdefault(tool_id, (tool, record, content))[2] != content:
            raise given_twice(tool_id)
    for tool_id, content in db.execute(f"SELECT * FROM incoming WHERE id IN {_LISTED}", (json.dumps(list(new)),)):
        if new.pop(tool_id)[2] != content:
            raise given_twice(tool_id)
    db.executemany("INSERT INTO incoming VALUES (?, ?)", ((tool_id, item[2]) for tool_id, item in new.items()))
    return new


def _differs_in_order_only(db: sqlite3.Connection, tool_id: str, record: str) -> bool:
    return differ_in_order_only(db.execute("SELECT record FROM tools WHERE id = ?", (tool_id,)).fetchone()[0], record)


def _remove(db: sqlite3.Connection, where: str, value: str, version: int) -> int:
    """Remove the tools that match `where`, record their ids for `changes`, and return how many they were."""
    db.execute(f"INSERT OR REPLACE INTO removed SELECT id, ? FROM tools WHERE {where}", (version, value))
    return db.execute(f"DELETE FROM tools WHERE {where}", (value,)).rowcount


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT version FROM catalogue").fetchone()[0])


def _document_version(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT document FROM catalogue").fetchone()[0])


def _advance(db: sqlite3.Connection, before: int) -> int:
    db.execute("UPDATE catalogue SET version = ?", (before + 1,))
    return before + 1


def _in_namespace(namespace: str | None) -> tuple[str, tuple[str, ...]]:
    return ("", ()) if namespace is None else ("WHERE namespace = ?", (storable(namespace),))


def _require_tools(db: sqlite3.Connection, ids: Sequence[str]) -> None:
    query = f"SELECT id FROM tools WHERE id IN {_LISTED}"
    refuse_unknown(ids, {row[0] for row in db.execute(query, (json.dumps(list(ids)),))})
