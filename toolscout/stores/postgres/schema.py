"""The tables of the PostgreSQL store as numbered migrations, and the function that applies them to a schema."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg import sql

from toolscout.errors import CorruptStore, NewerStore, StoreError
from toolscout.stores.postgres.address import Address
from toolscout.stores.postgres.connection import Connection
from toolscout.stores.postgres.errors import read_only

_LOCK_SECONDS = 600  # how long a process waits for another one that migrates
_OLDEST_SERVER = 140000

# MIGRATIONS[n] takes a schema from number n to n + 1. Never edit one that was released: append another.
# Text is sorted by code points, as Python and SQLite do, whatever the locale of the database is.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        # One row each. `document` is the DOCUMENT_VERSION that every searched text was made with. Writers of tools
        # lock the first row, so that versions commit in order. `commits` counts all commits: see Commits.
        """CREATE TABLE catalogue (version bigint NOT NULL, document integer NOT NULL, identity text NOT NULL)""",
        "INSERT INTO catalogue VALUES (0, 0, replace(gen_random_uuid()::text, '-', ''))",
        "CREATE TABLE commits (number bigint NOT NULL)",
        "INSERT INTO commits VALUES (0)",
        "CREATE TABLE access (number bigint NOT NULL)",
        "INSERT INTO access VALUES (0)",
        # `content` and `digest` identify the record and the searched text; `born` and `version` are the catalogue
        # versions of its arrival and of its last change. `record`, `aliases` and `expansion` are JSON in ASCII.
        """CREATE TABLE tools (
            id text COLLATE "C" PRIMARY KEY,
            namespace text COLLATE "C" NOT NULL,
            name text COLLATE "C" NOT NULL,
            source text COLLATE "C" NOT NULL,
            content text NOT NULL,
            digest text NOT NULL,
            born bigint NOT NULL,
            version bigint NOT NULL,
            aliases text NOT NULL,
            text text NOT NULL,
            record text NOT NULL,
            expansion text NOT NULL DEFAULT ''
        )""",
        "CREATE INDEX tools_version ON tools (version, id)",
        "CREATE INDEX tools_namespace ON tools (namespace, id)",
        "CREATE INDEX tools_source ON tools USING hash (source)",
        "CREATE INDEX tools_digest ON tools (digest)",
        'CREATE TABLE removed (id text COLLATE "C" PRIMARY KEY, version bigint NOT NULL)',
        "CREATE INDEX removed_version ON removed (version, id)",
        'CREATE TABLE sources (source text COLLATE "C" PRIMARY KEY, changed text NOT NULL)',
        # Given by users, kept apart from the records so that an import never touches them.
        """CREATE TABLE aliases (
            tool_id text COLLATE "C", alias text COLLATE "C", PRIMARY KEY (tool_id, alias)
        )""",
        """CREATE TABLE models (
            id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            fingerprint text COLLATE "C" NOT NULL UNIQUE,
            width integer NOT NULL
        )""",
        # Models differ in width, so the column has none; an index of one model is made on (vector::halfvec(WIDTH)).
        """CREATE TABLE vectors (
            number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            model integer NOT NULL REFERENCES models,
            digest text COLLATE "C" NOT NULL,
            vector halfvec NOT NULL,
            UNIQUE (model, digest)
        )""",
        "CREATE INDEX vectors_number ON vectors (model, number)",
        """CREATE TABLE encoders (
            fingerprint text COLLATE "C" PRIMARY KEY, name text NOT NULL, turn bigint NOT NULL
        )""",
        """CREATE TABLE grants (
            principal text COLLATE "C", kind text, value text COLLATE "C", PRIMARY KEY (principal, kind, value)
        )""",
        # `allow` and `deny` are lists of patterns as JSON; of a key only the digest rests here.
        """CREATE TABLE principals (
            name text COLLATE "C" PRIMARY KEY, allow text NOT NULL, deny text NOT NULL, admin boolean NOT NULL,
            tenant text NOT NULL
        )""",
        """CREATE TABLE keys (
            digest text COLLATE "C" PRIMARY KEY, principal text COLLATE "C" NOT NULL, created text COLLATE "C" NOT NULL
        )""",
        """CREATE TABLE feedback (
            number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            request text NOT NULL,
            used text NOT NULL,
            rejected text NOT NULL,
            tenant text NOT NULL,
            source text NOT NULL,
            time text NOT NULL
        )""",
        # What a gateway holds back. The key keeps servers from searching for two definitions with like digests.
        """CREATE TABLE approvals (
            id text COLLATE "C" PRIMARY KEY, approved text, said text, waiting text, says text
        )""",
        "CREATE TABLE approval_state (key bytea NOT NULL, approvals bigint NOT NULL)",
        "INSERT INTO approval_state VALUES (uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()), 0)",
        # Lines that servers append and read on from a number: ids that a model assigned to tools.
        """CREATE TABLE lines (
            number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, log text COLLATE "C" NOT NULL, line text NOT NULL
        )""",
        "CREATE INDEX lines_log ON lines (log, number)",
        # Texts that a process is embedding; after `until` another one may take them.
        """CREATE TABLE claims (
            fingerprint text COLLATE "C", digest text COLLATE "C", until timestamptz NOT NULL,
            PRIMARY KEY (fingerprint, digest)
        )""",
    ),
    (
        # Who took which lease. A row stays where its holder ended without releasing it; only the lock counts.
        """CREATE TABLE leases (name text COLLATE "C" PRIMARY KEY, holder text NOT NULL)""",
    ),
    (
        # What a server searches until its own index stands. The words of the name have a weight of their own; paths and
        # addresses are taken apart, which the parser would keep whole. A vector of words is 1 MB at most.
        r"""ALTER TABLE tools
            ADD words tsvector NOT NULL GENERATED ALWAYS AS (
                setweight(to_tsvector('pg_catalog.english', regexp_replace(
                    translate(left(name, 1000), '/.@:_-', '      '), '([a-z])([A-Z])', '\1 \2', 'g')), 'A')
                || to_tsvector('pg_catalog.english', translate(left(text, 100000), '/.@:_-', '      '))
            ) STORED,
            ADD spelt text COLLATE "C" NOT NULL GENERATED ALWAYS AS (
                left(lower(translate(name, '/.@:_- ()[]{}<>,;!?+*#$&=|~^`"', '')), 200)
            ) STORED""",
        "CREATE INDEX tools_words ON tools USING gin (words)",
        "CREATE INDEX tools_spelt ON tools (spelt)",
        "CREATE INDEX tools_aliased ON tools (id) WHERE aliases != '[]'",
    ),
    (
        # Made by whoever gives the feedback; NULL in older rows, which differ from each other all the same.
        'ALTER TABLE feedback ADD COLUMN id text COLLATE "C"',
        "CREATE UNIQUE INDEX feedback_id ON feedback (tenant, id)",
    ),
)


def migrate(db: Connection, address: Address) -> None:
    """Create the schema and its tables, or apply the missing migrations, each in its own transaction.

    One process at a time migrates a schema; others wait for it. Raises NewerStore for a schema with unknown migrations,
    CorruptStore for one of another program, and StoreError, with what an administrator has to do, where this user may
    not make what is missing.
    """
    if db.info.server_version < _OLDEST_SERVER:
        raise StoreError(f"{address} is PostgreSQL {db.info.server_version // 10000}; 14 or newer is needed")
    if (encoding := _one(db, "SHOW server_encoding")) != "UTF8":
        raise StoreError(f"{address} is a database in {encoding}; make one with: CREATE DATABASE name ENCODING 'UTF8'")
    found = _inspect(db, address)
    if found == len(MIGRATIONS):
        return
    if _one(db, "SHOW transaction_read_only") == "on":
        raise read_only(address, "is of an older format" if found else "has no catalogue yet")
    db.execute("SELECT set_config('statement_timeout', '0', false), set_config('lock_timeout', %s, false)", [_lock()])
    db.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", [f"toolscout migration of {address.schema}"])
    try:
        _create_schema(db, address)
        _create_extension(db, address)
        db.use_schema(address.schema)
        for number in range(_inspect(db, address), len(MIGRATIONS)):
            with db.transaction():
                for statement in MIGRATIONS[number]:
                    db.execute(statement)
                db.execute("INSERT INTO toolscout_migrations (number) VALUES (%s)", [number + 1])
    finally:
        if not db.closed:
            db.execute("SELECT pg_advisory_unlock_all()")


def _inspect(db: Connection, address: Address) -> int:
    """Return how many migrations a schema has had."""
    tables = db.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", [address.schema]).fetchall()
    if not tables:
        return 0
    if ("toolscout_migrations",) not in tables:
        raise CorruptStore(f"{address} is a schema of another program; name another one with schema= in the URL")
    table = sql.Identifier(address.schema, "toolscout_migrations")
    found = int(_one(db, sql.SQL("SELECT COALESCE(max(number), 0) FROM {}").format(table)))
    if found > len(MIGRATIONS):
        raise newer(address, found)
    return found


def newer(address: Address, found: int) -> NewerStore:
    """Return the error for a schema that has had more migrations than this version knows."""
    return NewerStore(
        f"{address} was written by a newer toolscout (format {found}, this one knows {len(MIGRATIONS)}); "
        "run: pip install --upgrade toolscout"
    )


def _create_schema(db: Connection, address: Address) -> None:
    schema = sql.Identifier(address.schema)
    try:
        if _one(db, "SELECT count(*) FROM pg_namespace WHERE nspname = %s", [address.schema]) == 0:
            db.execute(sql.SQL("CREATE SCHEMA {}").format(schema))
        table = sql.Identifier(address.schema, "toolscout_migrations")
        db.execute(
            sql.SQL(
                "CREATE TABLE IF NOT EXISTS {} (number integer PRIMARY KEY, time timestamptz NOT NULL DEFAULT now())"
            ).format(table)
        )
    except pg.InsufficientPrivilege as error:
        raise StoreError(
            f"this user may not make the tables of {address}; as an administrator, run in database "
            f"{db.info.dbname}: CREATE SCHEMA IF NOT EXISTS {address.schema}; "
            f'GRANT ALL ON SCHEMA {address.schema} TO "{db.info.user}";'
        ) from error


def _create_extension(db: Connection, address: Address) -> None:
    try:
        if _one(db, "SELECT count(*) FROM pg_extension WHERE extname = 'vector'") == 0:
            # Not in the schema of this store: other stores use it too, and would lose their vectors with that schema.
            shared = _one(db, "SELECT count(*) FROM pg_namespace WHERE nspname = 'public'")
            db.execute("CREATE EXTENSION IF NOT EXISTS vector" + (" SCHEMA public" if shared else ""))
    except (pg.InsufficientPrivilege, pg.FeatureNotSupported, pg.UndefinedFile) as error:
        first = "" if isinstance(error, pg.InsufficientPrivilege) else "install pgvector on the server, and then "
        raise StoreError(
            f"{address} lacks the extension pgvector, and this user may not add it; {first}"
            f"as an administrator, run in database {db.info.dbname}: CREATE EXTENSION vector;"
        ) from error
    if _one(db, "SELECT count(*) FROM pg_type WHERE typname = 'halfvec'") == 0:
        raise StoreError(
            f"{address} has a pgvector older than 0.7; as an administrator, run in database {db.info.dbname}: "
            "ALTER EXTENSION vector UPDATE;"
        )


def _one(db: Connection, query: str | sql.Composed, values: list[object] | None = None) -> Any:
    row = db.execute(query, values).fetchone()
    if row is None:
        raise psycopg.DataError("no row where one is always")
    return row[0]


def _lock() -> str:
    return f"{_LOCK_SECONDS}s"
