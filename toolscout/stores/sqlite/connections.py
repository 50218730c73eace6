"""The SQLite store's connections to its file: thread-safe, read-only if they must be, with errors as StoreError."""

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
from toolscout.stores.records import CallerError
from toolscout.stores.sqlite import schema

IDLE_READERS = 8
_MIN_BYTES = 512  # of an SQLite file that is not empty
_NO_ROOM = {sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE}
# Path("http://a") has one slash. One letter is not a scheme but a Windows drive.
_URL = re.compile(r"([a-z][a-z0-9+.:-]+):[/\\]|(file|sqlite3?):", re.IGNORECASE)


def check_path(path: str | Path) -> None:
    """Raise StoreError for a URL: as a path it would create a folder named like its scheme."""
    url = _URL.match(str(path))
    if url is None:
        return
    scheme = (url[1] or url[2]).lower()  # show the scheme alone: the rest may hold a password
    if scheme == "file" or scheme.startswith("sqlite"):
        raise StoreError(f"name a store by the path of its file alone, such as tools.db, without {scheme}:")
    raise StoreError(
        f"there is no kind of store for {scheme}: URLs; name an SQLite file by its path, such as tools.db, or a "
        "PostgreSQL database by its URL, such as postgresql://host/database"
    )


def as_store_error(error: sqlite3.Error, path: Path) -> StoreError:
    """Return the StoreError for an error of SQLite."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    if code is None:  # raised by Python's sqlite3 module itself: misuse, or text that is not UTF-8
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
def store_errors(path: Path) -> Iterator[None]:
    """Turn the errors that SQLite raises inside the block into StoreErrors."""
    try:
        yield
    except sqlite3.Error as error:
        raise as_store_error(error, path) from error
    except UnicodeDecodeError as error:  # an SQLite message that quotes damaged text
        raise CorruptStore(_corrupt(path, error)) from error
    except CallerError as wrapped:
        raise wrapped.error from wrapped.error.__cause__


def read_only(path: Path) -> ReadOnlyStore:
    """Return the error for a write to a file that may only be read."""
    return ReadOnlyStore(f"{path} may only be read; make the file and its folder writable, or copy it elsewhere")


def _corrupt(path: Path, error: object) -> str:
    reason = clean_text(str(error))  # may quote what is in the file
    return f"{path} is damaged or no toolscout store ({reason}); restore a copy of it, or move it away and add anew"


class Connections:
    """All connections to one file: one that writes, a pool for reading, and one that only watches for commits.

    Readers have their own connections, so that none waits while another thread writes.
    """

    def __init__(self, path: Path, timeout: float, durable: bool = False) -> None:
        """Open the file; create it and its folder where they are missing."""
        self.path = path
        self._durable = durable
        self._timeout = timeout
        self._lock = threading.Lock()
        self._write_lock = threading.RLock()
        self._idle: list[sqlite3.Connection] = []
        self._watcher: sqlite3.Connection | None = None
        self._closed = False
        self._writer: sqlite3.Connection | None = None
        self._refusal: StoreError | None = None  # raised by every write to a read-only file
        _check_file(path)
        if _may_write(path):
            self._open_writable()
        else:
            self._refusal = read_only(path)
            self._require_current()

    @property
    def read_only(self) -> bool:
        """Return whether this process can only read the file."""
        return self._refusal is not None

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection that sees one committed state during the whole block."""
        with store_errors(self.path):
            db = self._borrow()
            try:
                db.execute("BEGIN")
                yield db
                db.execute("COMMIT")
            except BaseException:
                db.close()  # an unfinished cursor would keep the old state alive: never reuse this connection
                raise
            self._give_back(db)

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection with a transaction: committed at the end of the block, rolled back when it raises."""
        with self._write_lock:
            if self._refusal is not None:
                raise type(self._refusal)(*self._refusal.args)
            if self._writer is None:
                raise self._closed_error()
            db = self._writer
            with store_errors(self.path):
                db.execute("BEGIN IMMEDIATE")
                try:
                    yield db
                    db.execute("COMMIT")
                except BaseException:
                    if db.in_transaction:  # SQLite itself rolls back when the disk is full
                        db.execute("ROLLBACK")
                    raise

    def stamp(self) -> int:
        """Return a number that changes with every commit of any other connection; the watcher itself never commits."""
        if self.read_only:
            return sum(file.stat().st_mtime_ns for file in (self.path, _log(self.path)) if file.exists())
        with self._lock, store_errors(self.path):
            if self._closed:
                raise self._closed_error()
            self._watcher = self._watcher or self._connect("mode=rw")
            return int(self._watcher.execute("PRAGMA data_version").fetchone()[0])

    def close(self) -> None:
        """Close the idle connections now, and those in use when they are given back."""
        with self._write_lock, self._lock:
            self._closed = True
            for db in (*self._idle, self._watcher, self._writer):
                if db is not None:
                    db.close()
            self._idle, self._watcher, self._writer = [], None, None

    def _borrow(self) -> sqlite3.Connection:
        with self._lock:
            if self._closed:
                raise self._closed_error()
            if self._idle:
                return self._idle.pop()
        if self.read_only:
            return self._open_read_only()
        db = self._connect("mode=rw")
        db.execute("PRAGMA query_only = 1")
        return db

    def _give_back(self, db: sqlite3.Connection) -> None:
        with self._lock:
            # A read-only connection keeps seeing the file as it was when it opened, so it is not reused.
            if not self._closed and not self.read_only and len(self._idle) < IDLE_READERS:
                self._idle.append(db)
                return
        db.close()

    def _connect(self, query: str) -> sqlite3.Connection:
        uri = f"{self.path.as_uri()}?{query}"
        return sqlite3.connect(uri, uri=True, timeout=self._timeout, isolation_level=None, check_same_thread=False)

    def _open_writable(self) -> None:
        try:
            with store_errors(self.path):
                self._writer = self._open_writer()
        except DiskFull as full:
            # There is not even room for the log. The file can still be read.
            self._refusal = full
            try:
                self._require_current()
            except StoreError:
                raise full from None

    def _open_writer(self) -> sqlite3.Connection:
        db = self._connect("mode=rwc")
        try:
            # With a log, NORMAL syncs the file only at checkpoints: after a loss of power the last commits may be
            # missing, but the file is intact. FULL syncs the log at every commit; macOS also needs fullfsync.
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
        """Open a connection that never writes.

        A log that is not empty is read too; without one, SQLite must not try to create it beside the file.
        """
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

    def _closed_error(self) -> StoreError:
        return StoreError(f"{self.path} was closed; open it again")


def _log(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def _check_file(path: Path) -> None:
    """Raise StoreError for a path that cannot be a store, and create its folder."""
    try:
        if path.is_dir():
            raise StoreError(f"{path} is a folder; a store is one file: name a file in it, such as {path / 'tools.db'}")
        path.parent.mkdir(parents=True, exist_ok=True)
        # SQLite takes a very short file for an empty one. Do not open the file here: closing it would drop the locks
        # that other connections of this process hold.
        if path.exists() and 0 < path.stat().st_size < _MIN_BYTES:
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
