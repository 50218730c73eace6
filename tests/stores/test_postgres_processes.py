"""Several processes on one PostgreSQL store: killed in the middle of a write, writing at once, embedding together."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("psycopg", reason="the extra 'postgres' is not installed")

import psycopg

from tests.postgres import Postgres, running
from tests.stores.store_helpers import (
    follow,
    fork,
    hear,
    killed_between_adding_and_removing,
    tool,
    tools,
    wait,
)
from tests.toys import HashedWords
from toolscout.core.answer import Example
from toolscout.errors import StoreUnavailable
from toolscout.scout import Scout
from toolscout.search import embedding_claims
from toolscout.stores.postgres import schema
from toolscout.stores.postgres import tools as postgres_catalogue
from toolscout.stores.postgres.store import PostgresStore

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")]

KILLS = 30
BATCH = 150
_NUMBERS = count()


@pytest.fixture
def url(postgres: Postgres) -> str:
    return postgres.url(f"q_{next(_NUMBERS)}")


def batch(number: int) -> list:
    return [*tools(BATCH, f"commit {number} " + "x" * 300), *tools(1, f"commit {number}", f"only{number}")]


def add_until_killed(url: str, acknowledge: int) -> None:
    """Each commit changes every tool, removes one and adds one; its number is told once it is safe."""
    postgres_catalogue.CHUNK = 20  # in this process alone
    with PostgresStore(url) as store:
        while True:
            number = store.version() + 1
            store.add(batch(number), "killed", sync=True)
            store.add_feedback([Example(f"request {number}")])
            os.write(acknowledge, number.to_bytes(4, "big"))


def test_kill_9_in_the_middle_of_an_add(url: str) -> None:
    chance = random.Random(7)
    committed, followed = 0, (0, {})
    for turn in range(KILLS):
        reading, writing = os.pipe()
        child = fork(lambda writing=writing: add_until_killed(url, writing))
        os.close(writing)
        if turn % 2:  # else the kill may hit while the schema is being made or opened
            os.read(reading, 4)
        time.sleep(chance.uniform(0, 0.1))
        os.kill(child, signal.SIGKILL)
        assert wait(child) == -signal.SIGKILL
        with os.fdopen(reading, "rb") as pipe:
            told = pipe.read()
        committed = max(committed, int.from_bytes(told[-4:], "big"))
        with PostgresStore(url) as store:
            version = store.version()
            assert version >= committed  # what add() said was done is done
            requests = {example.request for _, example in store.feedback()}
            assert {f"request {number}" for number in range(1, committed + 1)} - requests == set()
            committed = version
            if version:
                assert list(store.tools()) == sorted(batch(version), key=lambda tool: tool.id)
                if f"request {version}" not in requests:  # killed between the two
                    store.add_feedback([Example(f"request {version}")])
            digests = {tool.id: tool.digest() for tool in store.tools()}
            followed = (version, follow(followed[1], store.changes(followed[0])))
            assert followed[1] == follow({}, store.changes(0)) == digests
    with PostgresStore(url) as store:
        store.check()
    assert committed >= KILLS / 2


def test_kill_9_between_adding_and_removing_leaves_neither(url: str) -> None:
    with PostgresStore(url) as store:
        store.add(tools(3), "made")
    killed_between_adding_and_removing(lambda: PostgresStore(url), postgres_catalogue)
    with PostgresStore(url) as store:
        assert (list(store.tools()), store.version()) == (tools(3), 1)
        done = store.add([tool("fresh")], "made", remove=["mail/tool_0000"])
        assert (done.added, done.removed, done.version) == (1, 1, 2)


def test_many_processes_make_the_same_schema_and_write_to_it(url: str) -> None:
    def work(number: int) -> None:
        with PostgresStore(url) as store:
            for turn in range(5):
                store.add(tools(3, f"turn {turn}", f"n{number}"), f"s{number}")
                store.add_feedback([Example(f"{number} {turn}")])
                store.put_vectors("m", [f"{number} {turn}"], np.ones((1, 4), dtype=np.float32))

    children = [fork(lambda number=number: work(number)) for number in range(6)]
    assert [wait(child) for child in children] == [0] * 6
    with PostgresStore(url) as store:
        store.check()
        assert (store.version(), store.count(), len(list(store.feedback()))) == (30, 18, 30)
        assert len(store.vectors_after("m").digests) == 30


def test_outcomes_of_writers_at_once_are_those_of_some_order(url: str) -> None:
    """Each add is of the number that was stored before it, plus one: a lost update would leave a lower number."""

    def work(number: int) -> None:
        mine = random.Random(number)
        with PostgresStore(url) as store:
            for _ in range(12):
                with_alias = mine.random() < 0.5
                if with_alias:
                    store.set_alias("mail/shared", f"alias {number} {mine.random()}")
                store.add([tool("shared", f"by {number}"), tool(f"own_{number}", f"{mine.random()}")], replace=True)

    with PostgresStore(url) as store:
        store.add([tool("shared")])
    children = [fork(lambda number=number: work(number)) for number in range(4)]
    seen: dict[str, str] = {}
    last = 0
    with PostgresStore(url) as store:
        while not all(os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) for child in children):
            changes = list(store.changes(last))  # versions come in order, none after a higher one was seen
            seen = follow(seen, changes)
            last = max([last, *(change.version for change in changes)])
        assert [wait(child) for child in children] == [0] * 4
        seen = follow(seen, store.changes(last))
        assert seen == follow({}, store.changes(0)) == {one.id: one.digest() for one in store.tools()}
        versions = [change.version for change in store.changes(0)]
        assert versions == sorted(versions)
        assert store.ids() == sorted(["mail/shared", *(f"mail/own_{number}" for number in range(4))])
        store.check()


def test_a_migration_that_is_interrupted_is_done_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    more = (*schema.MIGRATIONS, ("CREATE TABLE later (x integer)", "SELECT pg_sleep(60)"))
    telling, told = os.pipe()

    def interrupted() -> None:
        schema.MIGRATIONS = more
        os.write(told, b"!")
        PostgresStore(url).close()

    with PostgresStore(url) as store:
        store.add(tools(3))
    child = fork(interrupted)
    hear(telling)
    time.sleep(0.5)
    os.kill(child, signal.SIGKILL)
    wait(child)
    with PostgresStore(url) as store:  # of the version before: nothing of the migration is there
        assert store.count() == 3
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, ("CREATE TABLE later (x integer)",)))
    children = [fork(lambda: PostgresStore(url).close()) for _ in range(4)]  # at once: one of them migrates
    assert [wait(child) for child in children] == [0] * 4
    with PostgresStore(url) as store, store._server.reading() as db:
        done = db.execute("SELECT count(*), max(number) FROM toolscout_migrations").fetchone()
    assert done == (len(schema.MIGRATIONS), len(schema.MIGRATIONS))


def test_a_restart_of_the_server(tmp_path: Path) -> None:
    with running() as server, PostgresStore(server.url()) as store:
        store.add(tools(5))
        stamp = store.stamp()
        server.stop()
        assert store.stamp() == stamp
        began = time.monotonic()
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                store.add(tools(6))
            with pytest.raises(StoreUnavailable):
                store.count()
        assert time.monotonic() - began < 20
        server.start()
        end = time.monotonic() + 20
        while time.monotonic() < end:
            try:
                assert store.add(tools(6)).added == 1
                break
            except StoreUnavailable:
                time.sleep(0.1)
        assert store.count() == 6
        assert store.stamp() > stamp
        server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'toolscout'")
        assert store.count() == 6  # dead connections are passed over
        assert store.add(tools(7)).added == 1


def test_a_statement_that_takes_too_long(postgres: Postgres) -> None:
    name = f"q_{next(_NUMBERS)}"
    with PostgresStore(postgres.url(name, statement_timeout="0.2", lock_timeout="0.1")) as store:
        store.add(tools(2))
        with pytest.raises(StoreUnavailable, match="statement_timeout"), store._server.reading() as db:
            db.execute("SELECT pg_sleep(5)")
        with psycopg.connect(postgres.url(name).partition("&")[0], autocommit=False) as other:
            other.execute(f"SELECT * FROM {name}.catalogue FOR UPDATE")
            assert store.count() == 2  # readers do not care
            with pytest.raises(StoreUnavailable, match="another process is writing"):
                store.add(tools(3))
        assert store.add(tools(3)).added == 1


def test_an_add_takes_longer_the_more_tools_there_are(url: str) -> None:
    many = [tool(f"tool_{number:05}", f"Does {number}. " + "word " * 60, f"n{number % 50}") for number in range(15_000)]
    with PostgresStore(f"{url}&statement_timeout=0.4") as store:
        assert store.add(many).added == len(many)  # one of its statements takes over a second
        with pytest.raises(StoreUnavailable, match="statement_timeout"), store._server.reading() as db:
            db.execute("SELECT pg_sleep(5)")


def test_46587_tools_are_added_within_a_minute(url: str) -> None:
    many = [tool(f"tool_{number:05}", f"Does {number}. " + "word " * 60, f"n{number % 50}") for number in range(46_587)]
    with PostgresStore(url) as store:
        began = time.monotonic()
        assert store.add(many).added == 46_587
        assert time.monotonic() - began < 60
        assert store.add(many).unchanged == 46_587


class Slow(HashedWords):
    """An encoder that tells a pipe of every text that it encodes."""

    def __init__(self, tell: int, seconds: float) -> None:
        super().__init__()
        self.tell, self.seconds = tell, seconds

    def encode_documents(self, texts: Sequence[str], batch: int = 8) -> Iterator:
        for start in range(0, len(texts), 8):
            for positions, rows in super().encode_documents(texts[start : start + 8]):
                os.write(self.tell, b"".join(f"{text.split()[1]}\n".encode() for text in texts[start : start + 8]))
                time.sleep(self.seconds)
                yield positions + start, rows


def embed(url: str, tell: int, seconds: float = 0.02) -> None:
    embedding_claims.CLAIMED_AT_ONCE, embedding_claims.LEASE_S = 24, 1.5
    from toolscout.retrievers.dense import Dense

    with Scout(PostgresStore(url), Dense(encoder=Slow(tell, seconds))) as scout:
        scout.embed()
        assert scout.store.missing_vectors(HashedWords.fingerprint) == []


def test_processes_that_embed_at_once_embed_no_text_twice(url: str) -> None:
    with PostgresStore(url) as store:
        store.add(tools(200))
    reading, writing = os.pipe()
    children = [fork(lambda: embed(url, writing)) for _ in range(3)]
    heard = _heard(reading)
    assert [wait(child) for child in children] == [0] * 3  # each returns when all texts are embedded
    os.close(writing)
    assert Counter(heard()) == Counter({f"tool_{number:04}": 1 for number in range(200)})


def test_what_a_killed_process_was_embedding_is_embedded_by_others(url: str) -> None:
    with PostgresStore(url) as store:
        store.add(tools(100))
    reading, writing = os.pipe()
    killed = fork(lambda: embed(url, writing, 30))  # tells of eight texts, and hangs
    hear(reading)
    os.kill(killed, signal.SIGKILL)
    wait(killed)
    heard = _heard(reading)
    began = time.monotonic()
    children = [fork(lambda: embed(url, writing)) for _ in range(2)]
    assert [wait(child) for child in children] == [0] * 2
    assert time.monotonic() - began < 20
    os.close(writing)
    counted = Counter(heard())
    assert set(counted) >= {f"tool_{number:04}" for number in range(8, 100)}
    assert sum(number - 1 for number in counted.values()) <= 8  # at most what was lost with the killed one


def _heard(reading: int) -> Callable[[], list[str]]:
    """Read a pipe until all its writers are gone; returns what gives the words then."""
    words: list[str] = []

    def read() -> None:
        with os.fdopen(reading) as pipe:
            words.extend(pipe.read().split())

    thread = threading.Thread(target=read)
    thread.start()

    def done() -> list[str]:
        thread.join(20)
        return words

    return done
