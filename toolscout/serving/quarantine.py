"""Holds back a tool whose server changed what it says, until a person approves it.

What a server first lists is taken as it is. From then on a tool whose name, title, description, schemas or annotations
differ from what was approved is neither found nor called. The record is a small file beside the catalogue.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolscout.errors import StoreError, UnknownTool
from toolscout.tool import Tool

_SCHEMA = "CREATE TABLE IF NOT EXISTS tools (id TEXT PRIMARY KEY, approved TEXT, said TEXT, waiting TEXT, says TEXT)"


@dataclass(frozen=True, slots=True)
class Held:
    """A tool that waits: what it said when it was approved, and what it says now, where that differs."""

    tool_id: str
    before: str
    now: str


def quarantine_path(store: Path) -> Path:
    """Where the record of a catalogue lies."""
    return store.with_name(store.name + ".approved")


class Quarantine:
    """The record of approved tools. Several processes may use it at once."""

    def __init__(self, path: Path) -> None:
        """Open it, made where it is not there yet."""
        self._lock = threading.Lock()
        try:
            self._db = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
            self._db.execute(_SCHEMA)
        except sqlite3.Error as error:
            raise StoreError(f"{path} cannot be opened: {error}; check the folder, or remove the file") from None

    def admitted(self, tools: Iterable[Tool]) -> list[Tool]:
        """The tools that may be shown: new ones, which are approved by this, and those that say what was approved."""
        kept: list[Tool] = []
        with self._lock, self._db:
            self._db.execute("BEGIN IMMEDIATE")
            for tool in tools:
                digest, said = _digest(tool), json.dumps(_told(tool), sort_keys=True, default=dict)
                row = self._db.execute("SELECT approved, waiting FROM tools WHERE id = ?", (tool.id,)).fetchone()
                if row is None:
                    self._db.execute("INSERT INTO tools VALUES (?, ?, ?, NULL, NULL)", (tool.id, digest, said))
                elif row[0] != digest:
                    if row[1] != digest:
                        self._db.execute("UPDATE tools SET waiting=?, says=? WHERE id=?", (digest, said, tool.id))
                    continue
                elif row[1] is not None:  # it says again what was approved
                    self._db.execute("UPDATE tools SET waiting = NULL, says = NULL WHERE id = ?", (tool.id,))
                kept.append(tool)
        return kept

    def held(self) -> list[Held]:
        """The tools that wait, by id."""
        with self._lock:
            rows = self._db.execute("SELECT id, said, says FROM tools WHERE waiting IS NOT NULL ORDER BY id")
            return [Held(tool_id, *_apart(_read(said), _read(says))) for tool_id, said, says in rows.fetchall()]

    def approve(self, ids: Iterable[str]) -> int:
        """Approve what these tools say now; UnknownTool, and nothing approved, where one does not wait."""
        wanted = list(dict.fromkeys(ids))
        with self._lock, self._db:
            self._db.execute("BEGIN IMMEDIATE")
            for tool_id in wanted:
                done = self._db.execute(
                    "UPDATE tools SET approved = waiting, said = says, waiting = NULL, says = NULL "
                    "WHERE id = ? AND waiting IS NOT NULL",
                    (tool_id,),
                )
                if done.rowcount == 0:
                    raise UnknownTool(f"{tool_id} does not wait for approval; see: toolscout approve")
        return len(wanted)

    def stamp(self) -> tuple[int, ...]:
        """Moves when anyone approves something."""
        with self._lock, closing(self._db.execute("SELECT count(*), count(waiting) FROM tools")) as counts:
            version = self._db.execute("PRAGMA data_version").fetchone()[0]
            return (version, *counts.fetchone())

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._db.close()


def _told(tool: Tool) -> dict[str, Any]:
    """What a model is told of a tool."""
    return {
        "name": tool.name,
        "title": tool.title,
        "description": tool.description,
        "inputSchema": tool.input_schema,
        "outputSchema": tool.output_schema,
        "annotations": tool.annotations,
    }


def _digest(tool: Tool) -> str:
    text = json.dumps(list(_told(tool).values()), sort_keys=True, default=dict)
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def _read(told: str) -> dict[str, Any]:
    """A record; those that hold the description alone are read as well."""
    try:
        value = json.loads(told)
    except ValueError:
        value = None
    return value if isinstance(value, dict) and "description" in value else {"description": told}


def _apart(before: dict[str, Any], now: dict[str, Any]) -> tuple[str, str]:
    """Both as texts of what differs: a parameter's description can mislead a model as well as the tool's own."""
    changes = list(_changes(before, now, ""))
    if [path for path, _, _ in changes] == ["description"]:
        return str(changes[0][1]), str(changes[0][2])
    old, new = ([f"{path}: {_text(pair[side])}" for path, *pair in changes] for side in (0, 1))
    return "\n".join(old), "\n".join(new)


def _changes(before: Any, now: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now}):
            yield from _changes(before.get(key), now.get(key), f"{path}.{key}" if path else key)
    elif before != now:
        yield path, before, now


def _text(value: Any) -> str:
    return "-" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
