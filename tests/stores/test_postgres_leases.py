"""Leases of the PostgreSQL store: one holder at a time, told to the others, given back when its session ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count

import pytest

pytest.importorskip("psycopg", reason="the extra 'postgres' is not installed")

from tests.postgres import Postgres
from toolscout.errors import StoreError
from toolscout.stores.base import Leases
from toolscout.stores.postgres.leases import HEARTBEAT_SECONDS, SESSION_SECONDS
from toolscout.stores.postgres.store import PostgresStore
from toolscout.stores.sqlite.store import SqliteStore

_NUMBERS = count()


@pytest.fixture
def url(postgres: Postgres) -> str:
    return postgres.url(f"leases_{next(_NUMBERS)}")


@pytest.fixture
def two(url: str) -> Iterator[tuple[Leases, Leases]]:
    """The leases of one store as two processes see them."""
    with PostgresStore(url) as one, PostgresStore(url) as other:
        yield one.leases(), other.leases()


def test_one_holds_a_lease_at_a_time(two: tuple[Leases, Leases]) -> None:
    one, other = two
    assert other.holder("mail") is None
    lease = one.take("mail", "first \x00")
    assert lease is not None
    assert not lease.inherited
    assert other.take("mail", "second") is None
    assert one.take("mail", "again") is None
    assert one.holder("mail") == other.holder("mail") == "first \x00"
    assert other.take("bank", "second") is not None
    lease.release()
    lease.release()
    assert lease.until == 0
    assert one.holder("mail") is None
    taken = other.take("mail", "second")
    assert taken is not None
    assert not taken.inherited


def test_stores_have_leases_of_their_own(two: tuple[Leases, Leases], postgres: Postgres) -> None:
    with PostgresStore(postgres.url(f"leases_{next(_NUMBERS)}")) as store:
        assert two[0].take("mail", "one") is not None
        assert store.leases().take("mail", "another") is not None


@pytest.mark.timing
def test_a_lease_is_held_as_long_as_its_session(two: tuple[Leases, Leases], postgres: Postgres) -> None:
    one, other = two
    lease = one.take("mail", "first")
    assert lease is not None
    end = time.monotonic() + 2 * SESSION_SECONDS
    while time.monotonic() < end:
        assert SESSION_SECONDS - 2 * HEARTBEAT_SECONDS - 0.5 < lease.until - time.monotonic() < SESSION_SECONDS
        time.sleep(0.05)
    postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")
    began = time.monotonic()
    while lease.until:
        assert time.monotonic() - began < 0.2
    taken = other.take("mail", "second")
    assert taken is not None
    assert taken.inherited
    assert other.holder("mail") == "second"
    assert one.take("mail", "first") is None  # over a session of its own


def test_closing_the_store_gives_all_leases_back(url: str, two: tuple[Leases, Leases]) -> None:
    with PostgresStore(url) as store:
        lease = store.leases().take("mail", "closed")
        assert lease is not None
    assert lease.until == 0
    with pytest.raises(StoreError, match="closed"):
        store.leases().take("mail", "closed")
    end = time.monotonic() + 5
    while two[0].holder("mail") is not None:
        assert time.monotonic() < end
    assert two[0].take("mail", "next") is not None


def test_an_error_of_the_database_ends_no_other_lease(url: str, two: tuple[Leases, Leases], postgres: Postgres) -> None:
    one, other = two
    lease = one.take("mail", "first")
    schema = url.partition("schema=")[2]
    postgres.sql(f"ALTER TABLE {schema}.leases ADD CONSTRAINT no_bank CHECK (name != 'bank')")
    with pytest.raises(StoreError):
        one.take("bank", "first")
    assert lease is not None
    assert lease.until > time.monotonic()
    postgres.sql(f"ALTER TABLE {schema}.leases DROP CONSTRAINT no_bank")
    assert other.take("mail", "second") is None
    assert other.take("bank", "second") is not None


def test_a_file_has_no_leases(path: str) -> None:
    with SqliteStore(path) as store:
        assert store.leases() is None
