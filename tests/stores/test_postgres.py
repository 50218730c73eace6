"""What the PostgreSQL store promises beyond the contract: numbers that commit in order, refusals, its stamp."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="the extra 'postgres' is not installed")

import numpy as np
import psycopg

from tests.postgres import Postgres
from tests.stores.contract import FULL
from tests.stores.store_helpers import tool, tools
from toolscout.core.answer import Allowed, Example
from toolscout.errors import ReadOnlyStore, StoreError, StoreUnavailable
from toolscout.stores import open_store
from toolscout.stores.postgres import schema, server
from toolscout.stores.postgres.connection import Connection
from toolscout.stores.postgres.store import PostgresStore

_NUMBERS = count()


@pytest.fixture
def url(postgres: Postgres) -> str:
    """The URL of a schema that is not there yet."""
    return postgres.url(f"p_{next(_NUMBERS)}")


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    with PostgresStore(url) as made:
        yield made


def until(true: Callable[[], bool], seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.005)
    return true()


def test_text_that_the_database_cannot_hold_is_given_back_as_it_was(store: PostgresStore) -> None:
    odd = "a\x00b \uf8f0 \uf8f00"
    store.add([FULL], odd)
    store.add_feedback([Example(odd, tenant=odd, source=odd)])
    assert store.sources()[0].source == odd
    ((_, example),) = store.feedback()
    assert (example.request, example.tenant, example.source) == (odd, odd, odd)
    assert store.add([], odd, sync=True).removed == 1


@pytest.mark.parametrize("kind", [server.FEEDBACK, server.VECTORS])
def test_numbers_commit_in_order(store: PostgresStore, url: str, kind: str) -> None:
    """A number that is drawn first and committed last must not be passed over by who reads on from a cursor."""
    row = {
        server.FEEDBACK: "INSERT INTO feedback (request, used, rejected, tenant, source, time) "
        "VALUES ('first', '[]', '[]', '', '', '2026-01-01')",
        server.VECTORS: "INSERT INTO vectors (model, digest, vector) SELECT id, 'first', '[1,2]' FROM models",
    }[kind]
    store.put_vectors("m", ["before"], np.ones((1, 2), dtype=np.float32))
    cursor = store.last_vector("m")
    drawn, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        with PostgresStore(url) as other, other._server.writing(kind) as transaction:
            transaction.db.execute(row)
            drawn.set()
            assert go_on.wait(20)

    def second() -> None:
        if kind == server.FEEDBACK:
            store.add_feedback([Example("second")])
        else:
            store.put_vectors("m", ["second"], np.ones((1, 2), dtype=np.float32))

    def read() -> list[str]:
        if kind == server.FEEDBACK:
            return [example.request for _, example in store.feedback()]
        return list(store.vectors_after("m", cursor).digests)

    threads = [threading.Thread(target=slow), threading.Thread(target=second)]
    threads[0].start()
    assert drawn.wait(20)
    threads[1].start()
    time.sleep(0.3)
    assert read() == []
    go_on.set()
    for thread in threads:
        thread.join(20)
    assert read() == ["first", "second"]


def test_stamp_hears_of_other_processes(store: PostgresStore, url: str) -> None:
    with PostgresStore(url) as other:
        before = store.stamp()
        other.add(tools(3))
        assert until(lambda: store.stamp() != before, 2)
        assert store.stamp() == other.stamp()
        assert store.count() == 3


def test_a_lost_notification_costs_half_a_second(store: PostgresStore, url: str) -> None:
    def deaf(db: Connection) -> None:
        db.execute("UPDATE commits SET number = number + 1")  # and no NOTIFY

    before = store.stamp()
    with PostgresStore(url) as other, other._server.writing(server.TOOLS) as transaction:
        deaf(transaction.db)
        transaction.wrote = False
    assert until(lambda: store.stamp() == before + 1, 2)


@pytest.mark.timing
def test_stamp_costs_microseconds(store: PostgresStore) -> None:
    began = time.perf_counter()
    for _ in range(10_000):
        store.stamp()
    assert (time.perf_counter() - began) / 10_000 < 5e-6


def test_a_schema_is_a_store_of_its_own(postgres: Postgres, url: str) -> None:
    with PostgresStore(url) as first, open_store(postgres.url(f"p_{next(_NUMBERS)}")) as second:
        first.add([tool("send")])
        assert second.count() == 0
        assert first.identity() != second.identity()
        assert "schema=p_" in repr(first)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"schema": "Robert'); DROP"}, "small letters"),
        ({"schema": "pg_mine"}, "small letters"),
        ({"schema": "public%00"}, "small letters"),
        ({"lock_timeout": "-1"}, "seconds above 0"),
        ({"statement_timeout": "soon"}, "seconds above 0"),
        ({"pool_size": "1"}, "from 2 to 1000"),
        ({"no_such_thing": "1"}, "parameter is unknown"),
        ({"database": "nowhere"}, "nowhere"),
        ({"user": "nobody"}, "nobody"),
    ],
)
def test_what_is_wrong_with_a_url(postgres: Postgres, change: dict[str, str], told: str) -> None:
    with pytest.raises(StoreError, match=told):
        PostgresStore(postgres.url(**change))


def lost_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the server commit once, and break the connection before it answers."""
    execute, lost = Connection.execute, threading.Event()

    def interrupted(db: Connection, query: Any, *values: Any, **options: Any) -> Any:
        done = execute(db, query, *values, **options)
        if query == "COMMIT" and not lost.is_set():
            lost.set()
            db.close()
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return done

    monkeypatch.setattr(Connection, "execute", interrupted)


def test_feedback_is_stored_once_where_the_answer_to_its_commit_is_lost(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = Example("send it", ("mail/send",))
    lost_commit(monkeypatch)
    with pytest.raises(StoreUnavailable):
        store.add_feedback([example])
    assert [one for _, one in store.feedback()] == [example]  # it is there, though nobody was told
    store.add_feedback([example, Example("read it")])
    assert [one.request for _, one in store.feedback()] == ["send it", "read it"]


def test_feedback_of_before_examples_had_ids(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old = (
        "INSERT INTO feedback (request, used, rejected, tenant, source, time) "
        "VALUES ('old', '[\"mail/send\"]', '[]', '', '', '2026-01-01')"
    )
    with monkeypatch.context() as before:
        before.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:3])
        with PostgresStore(url) as store, store._server.writing(server.FEEDBACK) as transaction:
            transaction.db.execute(old)
            transaction.db.execute(old)
    with PostgresStore(url) as store:
        store.add_feedback([Example("new")])
        assert [(one.request, one.used) for _, one in store.feedback()] == [
            ("old", ("mail/send",)),
            ("old", ("mail/send",)),
            ("new", ()),
        ]
        assert [bool(one.id) for _, one in store.feedback()] == [False, False, True]


READ_ONLY = "&options=-c%20default_transaction_read_only%3Don"


def test_where_transactions_are_read_only(store: PostgresStore, url: str) -> None:
    store.add(tools(3))
    store.put_vectors("m", ["kept"], np.ones((1, 2), dtype=np.float32))
    with PostgresStore(url + READ_ONLY) as reader:
        for change in (
            lambda: reader.add(tools(4)),
            lambda: reader.remove(["mail/tool_0000"]),
            lambda: reader.add_feedback([Example("send it")]),
            lambda: reader.put_vectors("m", ["new"], np.ones((1, 2), dtype=np.float32)),
            lambda: reader.claim_missing("m", 5, 60),
            lambda: reader.set_alias("mail/tool_0000", "first"),
            lambda: reader.grant("ann", Allowed.of(["mail"])),
        ):
            with pytest.raises(ReadOnlyStore, match="write to the primary") as refused:
                change()
            assert "write to the primary" in refused.value.public
            assert "pg-" not in refused.value.public
        assert (reader.count(), list(reader.feedback()), list(reader.vectors("m", ["kept"]))) == (3, [], ["kept"])
        before = reader.stamp()
        store.add(tools(4))
        assert until(lambda: reader.stamp() != before, 2)
        assert reader.count() == 4


def test_what_cannot_be_made_or_brought_up_to_date_where_transactions_are_read_only(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ReadOnlyStore, match=r"has no catalogue yet.*write to the primary"):
        PostgresStore(url + READ_ONLY)
    PostgresStore(url).close()
    with monkeypatch.context() as later:
        later.setattr("toolscout.stores.postgres.tools.DOCUMENT_VERSION", 1000)
        PostgresStore(url + READ_ONLY).close()  # it is searched by its older texts
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, ("CREATE TABLE later (x integer)",)))
    with pytest.raises(ReadOnlyStore, match=r"is of an older format.*write to the primary"):
        PostgresStore(url + READ_ONLY)


def test_texts_are_claimed_by_one_process_at_a_time(store: PostgresStore, url: str) -> None:
    store.add([*tools(4), tool("twin", "same"), tool("twin", "same", "other")])
    every = dict(store.missing_vectors("m"))
    with PostgresStore(url) as other:
        mine = dict(store.claim_missing("m", 4, 60))
        theirs = dict(other.claim_missing("m", 100, 60))
        assert len(mine) == 4
        assert mine | theirs == every
        assert not mine.keys() & theirs.keys()
        assert store.claim_missing("m", 100, 60) == other.claim_missing("m", 100, 60) == []
        assert len(store.claim_missing("another model", 100, 60)) == len(every)
        assert other.claimed_elsewhere("m")
        given_back = sorted(mine)[:2]
        store.renew_claims("m", given_back, 0)
        assert sorted(digest for digest, _ in other.claim_missing("m", 100, 0.2)) == given_back
        assert store.claim_missing("m", 100, 60) == []
        time.sleep(0.25)
        assert len(store.claim_missing("m", 100, 60)) == 2  # those of a process that was killed
        store.put_vectors("m", list(every), np.ones((len(every), 2), dtype=np.float32))
        assert not other.claimed_elsewhere("m")
        assert other.claim_missing("m", 100, 60) == []
        with store._server.reading() as db:
            assert db.execute("SELECT count(*) FROM claims WHERE fingerprint = 'm'").fetchone() == (0,)


def test_approvals_of_one_gateway_are_seen_by_another(store: PostgresStore, url: str) -> None:
    with PostgresStore(url) as other:
        first, second = store.approvals(), other.approvals()
        assert first.key == second.key
        seen = second.stamp()
        with first.changing() as rows:
            rows.accept("mail/send", "1", "sends")
        assert second.stamp() == seen
        with first.changing(approving=True) as rows:
            rows.hold("mail/send", "2", "deletes")
        assert until(lambda: second.stamp() != seen, 2)
        with second.reading() as rows:
            assert rows.held() == [("mail/send", "sends", "deletes", "2")]
