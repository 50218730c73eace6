"""A cache of completions in an SQLite file, so that an evaluation can be repeated offline and without cost.

It stores digests of the requests, not the requests themselves, and the completions.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from toolscout.errors import CorruptStore, DiskFull, NewerStore, ReadOnlyStore, StoreError
from toolscout.llm.base import Completion

# Format 2 added `repairs`; completions of format 1 are read as if they had none.
FORMAT = 2
_TIMEOUT = 30.0  # seconds that a write waits for another process


def digest(*parts: Any) -> bytes:
    """A digest of the parts of a request."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=32).digest()


class Cache:
    """A cache file. Threads can share an object, and processes can share the file."""

    def __init__(self, path: str | Path, *, read_only: bool = False) -> None:
        """Open or create the file; a write waits a while for another process. Raises StoreError."""
        self.path = Path(path)
        self._lock = threading.Lock()
        if read_only and not self.path.is_file():
            raise StoreError(f"there are no recorded completions at {self.path}; record them first, with the endpoint")
        with self._translated_errors():
            if not read_only:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            where = f"{self.path.absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}"
            self._db = sqlite3.connect(where, _TIMEOUT, isolation_level=None, check_same_thread=False, uri=True)
        try:
            self._prepare(read_only)
        except BaseException:
            self._db.close()
            raise

    def get(self, key: bytes) -> list[Completion] | None:
        """The completions stored under a digest, marked as cached; None where there are none."""
        with self._lock, self._translated_errors():
            row = self._db.execute("SELECT completions FROM completions WHERE digest = ?", (key,)).fetchone()
        if row is None:
            return None
        try:
            records = [record | {"repairs": tuple(record.get("repairs", ()))} for record in json.loads(row[0])]
            return [replace(Completion(**record), cached=True) for record in records]
        except (ValueError, TypeError, AttributeError):
            raise self._corrupt("a record cannot be read") from None

    def put(self, key: bytes, completions: Sequence[Completion]) -> None:
        """Store completions under a digest, on disk when this returns; an existing entry is not replaced."""
        text = json.dumps([asdict(one) for one in completions], ensure_ascii=True)
        with self._lock, self._translated_errors():
            self._db.execute("INSERT OR IGNORE INTO completions VALUES (?, ?)", (key, text))

    def __len__(self) -> int:
        """The number of entries."""
        with self._lock, self._translated_errors():
            return int(self._db.execute("SELECT count(*) FROM completions").fetchone()[0])

    def close(self) -> None:
        """Close the file; twice does no harm."""
        with self._lock:
            self._db.close()

    def _prepare(self, read_only: bool) -> None:
        with self._translated_errors():
            version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
            rows = self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT GLOB 'sqlite_*'")
            tables = {str(name) for (name,) in rows}
            # A newer format may have more tables, but always has this one.
            if tables - {"completions"} and (version <= FORMAT or "completions" not in tables):
                raise StoreError(f"{self.path} is a database of something else; name another file for completions")
            if version > FORMAT:
                raise NewerStore(f"{self.path} was written by a newer toolscout; upgrade it, or name another file")
            if not read_only and version < FORMAT and not (version and self._locked()):
                self._db.execute(
                    "CREATE TABLE IF NOT EXISTS completions (digest BLOB PRIMARY KEY, completions TEXT) WITHOUT ROWID"
                )
                self._db.execute(f"PRAGMA user_version = {FORMAT}")
            elif version == 0:
                raise self._corrupt("it holds no completions")

    def _locked(self) -> bool:
        """Whether the file cannot be written; it can still be read."""
        return not os.access(self.path, os.W_OK) or not os.access(Path(self.path).parent, os.W_OK)

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Turn errors of SQLite and the file system into StoreError and its subclasses."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if "full" in str(error):
                raise DiskFull(f"no room left to write {self.path}; free some, what is recorded is intact") from None
            if "readonly" in str(error):
                raise ReadOnlyStore(f"{self.path} cannot be written; make it writable or name another file") from None
            raise StoreError(f"{self.path} cannot be used ({error}); try again, or name another file") from None
        except sqlite3.DatabaseError as error:
            raise self._corrupt(str(error)) from None
        except OSError as error:
            raise StoreError(f"{self.path} cannot be used ({error.strerror}); name another file") from None

    def _corrupt(self, why: str) -> CorruptStore:
        return CorruptStore(f"{self.path} is no readable file of completions ({why}); delete it or name another one")
