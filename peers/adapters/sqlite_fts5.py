"""SQLite's full-text index FTS5, ranked by its bm25, with the Porter stemmer; words are joined by OR."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from peers.adapters.base import Adapter, Record, text_of, words_of


class Peer(Adapter):
    """A database file; it comes with Python."""

    def __init__(self, tools: Sequence[Record], folder: Path, **options: Any) -> None:
        self._open(folder)
        self.db.execute("CREATE VIRTUAL TABLE tools USING fts5(name UNINDEXED, text, tokenize='porter unicode61')")
        self.db.executemany("INSERT INTO tools VALUES (?, ?)", ((tool["name"], text_of(tool)) for tool in tools))
        self.db.commit()

    def _open(self, folder: Path) -> None:
        self.db = sqlite3.connect(folder / "tools.db")

    def search(self, request: str, k: int) -> list[str]:
        if not (words := words_of(request)):
            return []
        query = " OR ".join(f'"{word}"' for word in words)
        rows = self.db.execute("SELECT name FROM tools WHERE tools MATCH ? ORDER BY rank LIMIT ?", (query, k))
        return [name for (name,) in rows]

    def add(self, tool: Record) -> None:
        self.db.execute("INSERT INTO tools VALUES (?, ?)", (tool["name"], text_of(tool)))
        self.db.commit()

    def remove(self, name: str) -> None:
        self.db.execute("DELETE FROM tools WHERE name = ?", (name,))
        self.db.commit()

    @classmethod
    def reopen(cls, tools: Sequence[Record], folder: Path, **options: Any) -> Self:
        peer = cls.__new__(cls)
        peer._open(folder)
        return peer
