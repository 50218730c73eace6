"""The tables of the SQLite store as numbered migrations, and the function that applies them to a file."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from toolscout.errors import CorruptStore, NewerStore, ReadOnlyStore

APPLICATION_ID = 0x54534354  # "TSCT": marks an SQLite file as a store

# MIGRATIONS[n] takes a file from user_version n to n + 1. Never edit one that was released: append another.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        f"PRAGMA application_id = {APPLICATION_ID}",
        # One row. `document` is the DOCUMENT_VERSION that every searched text was made with.
        "CREATE TABLE catalogue (version INTEGER NOT NULL, document INTEGER NOT NULL)",
        "INSERT INTO catalogue (version, document) VALUES (0, 0)",
        # `content` and `digest` identify the record and the searched text; `born` and `version` are the catalogue
        # versions of its arrival and of its last change. The two long columns stand last, so that a scan of the
        # others need not follow them into overflow pages.
        """CREATE TABLE tools (
            row INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            namespace TEXT NOT NULL,
            name TEXT NOT NULL,
            source TEXT NOT NULL,
            content TEXT NOT NULL,
            digest TEXT NOT NULL,
            born INTEGER NOT NULL,
            version INTEGER NOT NULL,
            aliases TEXT NOT NULL,
            text TEXT NOT NULL,
            record TEXT NOT NULL
        )""",
        "CREATE INDEX tools_version ON tools (version, id)",
        "CREATE INDEX tools_namespace ON tools (namespace, id)",
        "CREATE INDEX tools_source ON tools (source)",
        "CREATE TABLE removed (id TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID",
        "CREATE INDEX removed_version ON removed (version, id)",
        # Given by users, kept apart from the records so that an import never touches them.
        "CREATE TABLE aliases (tool_id TEXT, alias TEXT, PRIMARY KEY (tool_id, alias)) WITHOUT ROWID",
        "CREATE TABLE models (id INTEGER PRIMARY KEY, fingerprint TEXT NOT NULL UNIQUE, width INTEGER NOT NULL)",
        # AUTOINCREMENT: a pruned number never comes again, so a reader's cursor never skips a vector.
        """CREATE TABLE vectors (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            model INTEGER NOT NULL REFERENCES models,
            digest TEXT NOT NULL,
            vector BLOB NOT NULL,
            UNIQUE (model, digest)
        )""",
        """CREATE TABLE grants (
            principal TEXT, kind TEXT CHECK (kind IN ('namespace', 'id')), value TEXT,
            PRIMARY KEY (principal, kind, value)
        ) WITHOUT ROWID""",
        """CREATE TABLE feedback (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            request TEXT NOT NULL,
            used TEXT NOT NULL,
            rejected TEXT NOT NULL,
            tenant TEXT NOT NULL,
            source TEXT NOT NULL,
            time TEXT NOT NULL
        )""",
    ),
    (
        "ALTER TABLE catalogue ADD COLUMN identity TEXT NOT NULL DEFAULT ''",
        "UPDATE catalogue SET identity = lower(hex(randomblob(16)))",
    ),
    ("CREATE TABLE sources (source TEXT PRIMARY KEY, changed TEXT NOT NULL) WITHOUT ROWID",),
    (
        # `allow` and `deny` are lists of patterns as JSON; of a key only the digest rests here.
        """CREATE TABLE principals (
            name TEXT PRIMARY KEY, allow TEXT NOT NULL, deny TEXT NOT NULL, admin INTEGER NOT NULL, tenant TEXT NOT NULL
        ) WITHOUT ROWID""",
        "CREATE TABLE keys (digest TEXT PRIMARY KEY, principal TEXT NOT NULL, created TEXT NOT NULL) WITHOUT ROWID",
        # Moves with every change of grants, principals and keys: those who remember them need not read them again.
        "ALTER TABLE catalogue ADD COLUMN access INTEGER NOT NULL DEFAULT 0",
    ),
    # The encoders that all tools have been embedded with; the one with the highest turn is in use.
    ("CREATE TABLE encoders (fingerprint TEXT PRIMARY KEY, name TEXT NOT NULL, turn INTEGER NOT NULL) WITHOUT ROWID",),
    # What others wrote about a tool, as JSON; "" for nothing. `digest` is of both texts then.
    ("ALTER TABLE tools ADD COLUMN expansion TEXT NOT NULL DEFAULT ''",),
    # Made by whoever gives the feedback; NULL in older rows, which differ from each other all the same.
    ("ALTER TABLE feedback ADD COLUMN id TEXT", "CREATE UNIQUE INDEX feedback_id ON feedback (tenant, id)"),
)


def inspect(db: sqlite3.Connection, path: Path) -> int:
    """Return how many migrations a file has had.

    Raises CorruptStore for an SQLite file of another program, NewerStore for one with unknown migrations.
    """
    found = int(db.execute("PRAGMA user_version").fetchone()[0])
    owner = int(db.execute("PRAGMA application_id").fetchone()[0])
    fresh = not (found or owner or db.execute("SELECT 1 FROM sqlite_master").fetchone())
    if owner != APPLICATION_ID and not fresh:
        raise CorruptStore(f"{path} is an SQLite file of another program; choose another path for the store")
    if found > len(MIGRATIONS):
        raise NewerStore(
            f"{path} was written by a newer toolscout (format {found}, this one knows {len(MIGRATIONS)}); "
            "run: pip install --upgrade toolscout"
        )
    return found


def migrate(db: sqlite3.Connection, path: Path, timeout: float) -> None:
    """Create the tables or apply the missing migrations, each in its own transaction."""
    db.execute("BEGIN")  # one consistent state: another process may be creating the same file
    found = inspect(db, path)
    db.execute("COMMIT")
    if found == 0:
        db.execute("PRAGMA page_size = 8192")  # records of one or two kilobytes waste less space than in pages of 4096
        _use_wal(db, timeout)
    for number in range(found, len(MIGRATIONS)):
        db.execute("BEGIN IMMEDIATE")
        try:
            if inspect(db, path) == number:  # else another process was faster
                for statement in MIGRATIONS[number]:
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {number + 1}")
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise


def require_current(db: sqlite3.Connection, path: Path) -> None:
    """Raise ReadOnlyStore for a read-only file that needs a migration."""
    if inspect(db, path) < len(MIGRATIONS):
        raise ReadOnlyStore(
            f"{path} is of an older format and may not be written here; open it once where it may be written"
        )


def _use_wal(db: sqlite3.Connection, timeout: float) -> None:
    """Switch to a write-ahead log. SQLite does not wait for another process that is doing the same, so wait here."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
