"""Connections of the SQLite store to its file: thread-safe, read-only where need be, errors as StoreError."""

from __future__ import annotations

import errno
import os
import re
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from toolscout.core.tool import clean_text
from toolscout.errors import CorruptStore, DiskFull, ReadOnlyStore, StoreError
from toolscout.stores.sqlite import schema as schema

IDLE_READERS = 8
_SMALLEST = 512  # bytes in the smallest SQLite file that holds anything
_NO_ROOM = {sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE}
DURABLE_VARIABLE = "TOOLSCOUT_DURABLE"
# As the command line reads them.
_ON, _OFF = ("1", "true", "t", "yes", "y", "on"), ("", "0", "false", "f", "no", "n", "off")
# A Path has one slash where its URL had two. One letter is no scheme but a drive of Windows.
_URL = re.compile(r"([a-z][a-z0-9+.:-]+):[/\\]|(file|sqlite3?):", re.IGNORECASE)


def check_path(path: str | Path) -> None:
    """Refuse a URL: it would be taken for a path, and its scheme for the name of a folder to make."""
    url = _URL.match(str(path))
    if url is None:
        return
    scheme = (url[1] or url[2]).lower()  # alone: what follows may hold a password
    if scheme == "file" or scheme.startswith("sqlite"):
        raise StoreError(f"name a store by the path of its file alone, such as tools.db, without {scheme}:")
    raise StoreError(
        f"there is no kind of store for {scheme}: URLs; the only kind is an SQLite file, named by its path, such as "
        "tools.db"
    )


def durable_by_default() -> bool:
    """Whether $TOOLSCOUT_DURABLE asks for stores whose commits survive a loss of power."""
    value = os.environ.get(DURABLE_VARIABLE, "").strip().lower()
    if value not in _ON + _OFF:
        raise StoreError(f"{DURABLE_VARIABLE} is 1 or 0, got {value!r:.40}; set it to one of them")
    return value in _ON


def in_our_words(error: sqlite3.Error, path: Path) -> StoreError:
    """Return the StoreError for an error of SQLite."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    if code is None:  # raised by Python's module itself: misuse, or text that is not UTF-8
        if isinstance(error, sqlite3.ProgrammingError):
            return StoreError(f"{path} cannot be used: {error}")
        return CorruptStore(_corrupt(path, error))
    primary = code & 0xFF
    if primary in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT) or code == sqlite3.SQLITE_IOERR_SHORT_READ:
        return CorruptStore(_corrupt(path, error))
    if primary == sqlite3.SQLITE_FULL or code in _NO_ROOM:
        return DiskFull(
            f"no room left to write {path}: the disk is full, or a limit on its size is reached. "
            "Nothing that was saved before is lost; make room and try again"
        )
    if primary == sqlite3.SQLITE_READONLY:
        return read_only(path)
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreError(f"another process is writing to {path}; try again when it has finished")
    if primary == sqlite3.SQLITE_CANTOPEN:
        return StoreError(f"{path} cannot be opened; check that it is there and that you may read it")
    return StoreError(f"{path}: {error}")


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn what SQLite raises inside the block into errors of toolscout."""
    try:
        yield
    except sqlite3.Error as error:
        raise in_our_words(error, path) from error
    except UnicodeDecodeError as error:  # Python's module, on a message that quotes what is damaged
        raise CorruptStore(_corrupt(path, error)) from error
    except _Foreign as carried:
        raise carried.error from carried.error.__cause__


@contextmanager
def foreign() -> Iterator[None]:
    """Run code of the caller inside a `translated` block: its errors pass through unchanged."""
    try:
        yield
    except Exception as error:
        raise _Foreign(error) from None


class _Foreign(Exception):
    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def read_only(path: Path) -> ReadOnlyStore:
    """The error for a write where only reading is possible."""
    return ReadOnlyStore(f"{path} may only be read; make the file and its folder writable, or copy it elsewhere")


def _corrupt(path: Path, error: object) -> str:
    said = clean_text(str(error))  # may quote what is in the file
    return f"{path} is damaged or no toolscout store ({said}); restore a copy of it, or move it away and add anew"


class Connections:
    """One connection that writes, one that watches, and a pool that reads, all to one file.

    Readers have connections of their own, so none waits while another thread is in the middle of a long write.
    """

    def __init__(self, path: Path, timeout: float, durable: bool = False) -> None:
        """Open the file, making it and its folder where they are missing."""
        self.path = path
        self._durable = durable
        self._timeout = timeout
        self._lock = threading.Lock()
        self._write_lock = threading.RLock()
        self._idle: list[sqlite3.Connection] = []
        self._watcher: sqlite3.Connection | None = None
        self._closed = False
        self._writer: sqlite3.Connection | None = None
        self._refusal: StoreError | None = None  # why nothing can be written, where it cannot
        _look_at(path)
        if _may_write(path):
            self._open_writable()
        else:
            self._refusal = read_only(path)
            self._require_current()

    @property
    def read_only(self) -> bool:
        """Whether this file can only be read from here."""
        return self._refusal is not None

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection that sees one committed state for the length of the block."""
        with translated(self.path):
            db = self._borrow()
            try:
                db.execute("BEGIN")
                yield db
                db.execute("COMMIT")
            except BaseException:
                db.close()  # a half-read cursor would keep the old state alive; the next reader gets a new one
                raise
            self._give_back(db)

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction: committed at the end of the block, undone when it raises."""
        with self._write_lock:
            if self._refusal is not None:
                raise type(self._refusal)(*self._refusal.args)
            if self._writer is None:
                raise self._gone()
            db = self._writer
            with translated(self.path):
                db.execute("BEGIN IMMEDIATE")
                try:
                    yield db
                    db.execute("COMMIT")
                except BaseException:
                    if db.in_transaction:  # a full disk has already ended it
                        db.execute("ROLLBACK")
                    raise

    def stamp(self) -> int:
        """Return a number that changes with every commit of any other connection; the watcher itself never commits."""
        if self.read_only:
            return sum(file.stat().st_mtime_ns for file in (self.path, _log(self.path)) if file.exists())
        with self._lock, translated(self.path):
            if self._closed:
                raise self._gone()
            self._watcher = self._watcher or self._connect("mode=rw")
            return int(self._watcher.execute("PRAGMA data_version").fetchone()[0])

    def close(self) -> None:
        """Close what is idle now, and the rest as it is given back."""
        with self._write_lock, self._lock:
            self._closed = True
            for db in (*self._idle, self._watcher, self._writer):
                if db is not None:
                    db.close()
            self._idle, self._watcher, self._writer = [], None, None

    def _borrow(self) -> sqlite3.Connection:
        with self._lock:
            if self._closed:
                raise self._gone()
            if self._idle:
                return self._idle.pop()
        if self.read_only:
            return self._open_read_only()
        db = self._connect("mode=rw")
        db.execute("PRAGMA query_only = 1")
        return db

    def _give_back(self, db: sqlite3.Connection) -> None:
        with self._lock:
            # Where the log cannot be shared, a connection sees the file as it was when it opened: take a new one.
            if not self._closed and not self.read_only and len(self._idle) < IDLE_READERS:
                self._idle.append(db)
                return
        db.close()

    def _connect(self, query: str) -> sqlite3.Connection:
        uri = f"{self.path.as_uri()}?{query}"
        return sqlite3.connect(uri, uri=True, timeout=self._timeout, isolation_level=None, check_same_thread=False)

    def _open_writable(self) -> None:
        try:
            with translated(self.path):
                self._writer = self._open_writer()
        except DiskFull as full:
            # There is not even room for the log. What is in the file can still be read.
            self._refusal = full
            try:
                self._require_current()
            except StoreError:
                raise full from None

    def _open_writer(self) -> sqlite3.Connection:
        db = self._connect("mode=rwc")
        try:
            # With a log, NORMAL syncs the file at checkpoints alone: after a loss of power the last commits may be
            # missing, but the file is whole. FULL syncs the log at every commit; macOS needs to be told twice.
            db.execute(f"PRAGMA synchronous = {'FULL' if self._durable else 'NORMAL'}")
            db.execute(f"PRAGMA fullfsync = {int(self._durable)}")
            db.execute("PRAGMA cache_size = -32768")
            db.execute("PRAGMA journal_size_limit = 67108864")
            schema.migrate(db, self.path, self._timeout)
        except BaseException:
            db.close()
            raise
        return db

    def _require_current(self) -> None:
        if not self.path.exists():
            raise ReadOnlyStore(f"{self.path} cannot be made: its folder may not be written; choose another path")
        with self.reading() as db:
            schema.require_current(db, self.path)

    def _open_read_only(self) -> sqlite3.Connection:
        """A log with something in it must be read along; without one the file is all there is, and SQLite must not
        try to make a log beside it."""
        log = _log(self.path)
        try:
            pending = log.stat().st_size > 0
        except OSError:
            pending = False
        db = self._connect("mode=ro" if pending else "mode=ro&immutable=1")
        try:
            db.execute("PRAGMA user_version").fetchone()
        except sqlite3.OperationalError as error:
            db.close()
            if pending and getattr(error, "sqlite_errorcode", 0) & 0xFF in (
                sqlite3.SQLITE_CANTOPEN,
                sqlite3.SQLITE_READONLY,
            ):
                raise ReadOnlyStore(
                    f"{self.path} has unfinished changes in {log.name} that may not be merged here; "
                    "open it once where it may be written"
                ) from error
            raise
        return db

    def _gone(self) -> StoreError:
        return StoreError(f"{self.path} was closed; open it again")


def _log(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def _look_at(path: Path) -> None:
    """Raise StoreError for a path that cannot be a store, and create its folder."""
    try:
        if path.is_dir():
            raise StoreError(f"{path} is a folder; a store is one file: name a file in it, such as {path / 'tools.db'}")
        path.parent.mkdir(parents=True, exist_ok=True)
        # SQLite would take a very short file for an empty one. Never open the file here to look into it: closing it
        # again would drop the locks that other connections of this process hold.
        if path.exists() and 0 < path.stat().st_size < _SMALLEST:
            raise CorruptStore(_corrupt(path, "it is no SQLite file"))
    except OSError as error:
        message = f"{path} cannot be reached: {error.filename}: {error.strerror}"
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise ReadOnlyStore(f"{message}; check who may use it, or choose another path") from error
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"{message}; make room, or choose another path") from error
        raise StoreError(f"{message}; choose another path") from error


def _may_write(path: Path) -> bool:
    """Return whether the file and its folder, which holds the log, are writable."""
    effective = os.access in os.supports_effective_ids
    places = [path.parent, path] if path.exists() else [path.parent]
    return all(os.access(place, os.W_OK, effective_ids=effective) for place in places)
