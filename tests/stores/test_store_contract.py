"""The kinds of store that come with the package keep the contract."""

from __future__ import annotations

import sqlite3
from hashlib import blake2b

import pytest

from tests.postgres import Postgres
from tests.stores.contract import Chunks, Make, StoreContract
from toolscout.stores import Store
from toolscout.stores.sqlite.store import SqliteStore


class TestSqlite(StoreContract):
    @pytest.fixture
    def driver_error(self) -> Exception:
        return sqlite3.DatabaseError("another file")

    @pytest.fixture
    def make(self) -> Make:
        return lambda folder: SqliteStore(folder / "store.db")

    @pytest.fixture
    def chunks(self, monkeypatch: pytest.MonkeyPatch) -> Chunks:
        return lambda size: monkeypatch.setattr("toolscout.stores.sqlite.tools.CHUNK", size)


class TestPostgres(StoreContract):
    @pytest.fixture
    def driver_error(self) -> Exception:
        return pytest.importorskip("psycopg").OperationalError("another server")

    @pytest.fixture
    def make(self, postgres: Postgres) -> Make:
        from toolscout.stores.postgres.store import PostgresStore

        # A schema belongs to a folder: its name tells both that a test made it, and for which folder.
        return lambda folder: PostgresStore(postgres.url(f"t_{blake2b(bytes(folder), digest_size=12).hexdigest()}"))

    @pytest.fixture
    def chunks(self, monkeypatch: pytest.MonkeyPatch) -> Chunks:
        return lambda size: monkeypatch.setattr("toolscout.stores.postgres.tools.CHUNK", size)


def test_a_store_that_lacks_a_method_cannot_be_made() -> None:
    class Forgetful(SqliteStore):
        feedback = Store.feedback

    with pytest.raises(TypeError, match=r"abstract.*feedback"):
        Forgetful("never.db")
