"""Several servers over one PostgreSQL store: fresh, equal, and never wrong after a fault."""

from __future__ import annotations

import http.client
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="the extra 'postgres' is not installed")
pytest.importorskip("starlette", reason="the extra 'serve' is not installed")

from tests.postgres import Postgres, running
from tests.serving.replicas import Nursery, Proxy, nursery
from toolscout.core.tool import Tool
from toolscout.errors import NewerStore, StoreError
from toolscout.scout import Scout
from toolscout.stores import open_store
from toolscout.stores.postgres import schema

pytestmark = pytest.mark.slow

_NUMBERS = count()
_KILLS = int(os.environ.get("TOOLSCOUT_KILLS", "200"))
_GONE = (OSError, http.client.HTTPException)


def tool(namespace: str, name: str, description: str = "") -> Tool:
    return Tool(namespace, name, description or f"Does {name}.")


@pytest.fixture
def url(postgres: Postgres) -> str:
    """The URL of a schema with a few tools."""
    made = postgres.url(f"replicas_{next(_NUMBERS)}")
    with open_store(made) as store:
        store.add([tool("base", f"tool_{number}", f"Does thing {number}.") for number in range(20)])
    return made


@pytest.fixture
def servers(url: str) -> Iterator[Nursery]:
    with nursery(url) as made:
        yield made


def until(true: Callable[[], bool], seconds: float = 10) -> float:
    """Wait until something is true, and return how long that took."""
    begun = time.monotonic()
    while not true():
        assert time.monotonic() < begun + seconds, f"not true within {seconds} s"
        time.sleep(0.01)
    return time.monotonic() - begun


def test_a_change_is_found_on_every_replica_within_a_second(servers: Nursery) -> None:
    replicas = [servers.start() for _ in range(4)]
    waited = []
    for number in range(25):
        name = f"fresh_{number}"
        assert replicas[number % 4].add(name)[0] == 200
        acknowledged = time.monotonic()
        for one in replicas:
            while one.found(name) != [f"live/{name}"]:
                assert time.monotonic() - acknowledged < 5
            waited.append(time.monotonic() - acknowledged)
    assert sorted(waited)[int(0.99 * len(waited))] < 1.0


def test_a_replica_follows_while_nobody_asks(url: str) -> None:
    with Scout.open(url, "bm25", wait=False) as scout, open_store(url) as store:
        scout.follow()
        until(lambda: not scout.searches_store)
        store.add([tool("late", f"arrival_{number}", "Came later.") for number in range(500)])
        version = store.version()
        assert until(lambda: scout._index.version == version, 5) < 1.0


def test_answers_at_one_version_are_equal(url: str) -> None:
    """While tools are added, each replica in its own portions, those that are at one version rank and score alike."""
    words = ("send", "mail", "weather", "city", "flight", "seat", "book", "invoice", "search", "photo", "map", "price")
    choice = random.Random(3)
    requests = [" ".join(choice.sample(words, 3)) for _ in range(20)]

    def answers(scout: Scout) -> tuple[int, int, list[list[tuple[str, float]]]]:
        found = scout.search_many(requests, 5)
        return found[0].version, found[0].words_only, [[(h.tool_id, h.score) for h in one.considered] for one in found]

    with Scout.open(url) as first, Scout.open(url) as second:
        first.embed()
        compared = 0
        for number in range(30):
            text = " ".join(choice.choices(words, k=6))
            first.add([tool("more", f"arrival_{number}", f"{text}.")])
            if number % 3 == 2:  # the other one follows three changes at once
                second.refresh()
                mine, other = answers(first), answers(second)
                assert mine == other
                compared += 1
        assert compared == 10
        with Scout.open(url) as third:  # built from the store
            assert answers(third) == answers(first)
        for number in range(0, 30, 2):  # what is removed counts in word frequencies until an index is settled
            first.remove([f"more/arrival_{number}"])
        first._index.settle()
        second.refresh()
        second._index.settle()
        with Scout.open(url) as third:
            assert answers(first) == answers(second) == answers(third)
            whole = [replace(one, notes=()) for one in first.search_many(requests, 5)]
            assert whole == [replace(one, notes=()) for one in third.search_many(requests, 5)]


def test_kill_9_in_the_middle_of_everything(url: str, servers: Nursery) -> None:
    """Replicas are killed while all of them write: what was acknowledged is there, and no change is there by half."""
    replicas = [servers.start() for _ in range(4)]
    over, acknowledged, removed, sent = threading.Event(), list[str](), list[str](), list[str]()
    unknown = set[str]()  # removals that were not answered
    failures = list[str]()

    def write(place: int) -> None:
        mine: list[str] = []
        for number in count():
            if over.is_set():
                return
            one, name = replicas[place], f"change_{place}_{number}"
            sent.append(name)
            try:
                status, body, _ = one.add(f"{name}_a", f"{name}_b")
                if status == 200:
                    acknowledged.append(name)
                    mine.append(name)
                elif status != 503:
                    failures.append(f"{status} {body}")
                if number % 5 == 4 and mine:
                    gone = mine.pop(0)
                    unknown.add(gone)
                    if one.ask("DELETE", f"/tools/live/{gone}_a")[0] == 200:
                        removed.append(gone)
                        unknown.discard(gone)
                one.found(f"{name}_a")
            except (*_GONE, AssertionError):
                time.sleep(0.02)

    threads = [threading.Thread(target=write, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    choice = random.Random(7)
    for _ in range(_KILLS):
        time.sleep(choice.random() * 0.15)
        place = choice.randrange(4)
        replicas[place].kill()
        replicas[place] = servers.start()
    over.set()
    for thread in threads:
        thread.join(60)
    assert not failures
    with open_store(url) as store:
        there = set(store.ids("live"))
        store.check()
        log = {change.tool_id for change in store.changes(0) if change.kind != "removed"}
    assert log >= there
    for name in acknowledged:
        assert f"live/{name}_b" in there
        if name not in unknown:
            assert (f"live/{name}_a" in there) == (name not in removed), name
    for name in set(sent) - set(acknowledged):
        assert (f"live/{name}_a" in there) == (f"live/{name}_b" in there), name
    assert len(acknowledged) > _KILLS / 4
    for one in replicas:
        until(lambda one=one: one.found("change_0_0_b", 3) == replicas[0].found("change_0_0_b", 3))


def test_postgresql_restarts_under_load() -> None:
    with running() as database:
        url = database.url("restarted")
        with open_store(url) as store:
            store.add([tool("base", f"tool_{number}") for number in range(20)])
        with nursery(url) as servers:
            replicas = [servers.start() for _ in range(2)]
            for one in replicas:
                until(lambda one=one: one.ask("GET", "/ready")[1]["index"] == "own")
            assert replicas[0].add("before")[0] == 200
            until(lambda: replicas[1].found("before") == ["live/before"])
            acknowledged = ["before"]
            database.stop()
            refused = []
            for number in range(5):
                for one in replicas:  # from memory
                    assert one.found("before") == ["live/before"]
                begun = time.monotonic()
                status, _, headers = replicas[number % 2].add(f"while_{number}")
                refused.append(time.monotonic() - begun)
                assert (status, headers["retry-after"]) == (503, "1")
            assert max(refused) < 15
            ready = replicas[0].ask("GET", "/ready")
            assert ready[:2] == (200, {"status": "ready", "index": "own", "store": "unreachable"})
            database.start()
            until(lambda: replicas[0].add("after")[0] == 200, 20)
            acknowledged.append("after")
            for one in replicas:
                for name in acknowledged:
                    until(lambda one=one, name=name: one.found(name) == [f"live/{name}"], 5)
            with open_store(url) as store:
                assert store.ids("live") == ["live/after", "live/before"]


def test_a_network_that_stalls(postgres: Postgres, url: str) -> None:
    proxy = Proxy(f"{postgres.host}/.s.PGSQL.5432")
    name = url.rpartition("=")[2]
    through = (
        f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres?schema={name}&statement_timeout=1&connect_timeout=2"
    )
    try:
        with nursery(through) as servers:
            one = servers.start()
            until(lambda: one.ask("GET", "/ready")[1]["index"] == "own")
            assert one.add("before")[0] == 200
            proxy.stall()
            begun = time.monotonic()
            for _ in range(10):
                assert one.found("before") == ["live/before"]
            assert time.monotonic() - begun < 5
            status, _, headers = one.add("meanwhile")
            assert (status, headers["retry-after"]) == (503, "1")
            assert time.monotonic() - begun < 40
            proxy.resume()
            until(lambda: one.add("after")[0] == 200, 30)
            with open_store(url) as store:
                assert {"live/before", "live/after"} <= set(store.ids("live"))
    finally:
        proxy.close()


def test_a_lost_notification(postgres: Postgres, url: str, servers: Nursery) -> None:
    one = servers.start()
    until(lambda: one.ask("GET", "/ready")[1]["index"] == "own")
    with open_store(url) as store:
        postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
        store.add([tool("live", "unheard")])
        assert until(lambda: one.found("unheard") == ["live/unheard"]) < 2


def refused(answer: tuple[int, Any, dict[str, str]]) -> None:
    """A write that was refused since the database may only be read, with what to do instead."""
    status, body, headers = answer
    assert (status, body["code"]) == (503, "read_only_store"), body
    assert "write to the primary" in body["detail"]
    assert "retry-after" not in headers  # that would change nothing


def test_a_standby(postgres: Postgres, url: str, servers: Nursery) -> None:
    """A server over a hot standby finds what is committed on the primary, and refuses to write until it is promoted."""
    primary = servers.start()
    assert primary.add("before")[0] == 200
    with postgres.standby() as standby:
        second = servers.start(standby.url(url.rpartition("=")[2]))
        until(lambda: second.ask("GET", "/ready")[1] == {"status": "ready", "index": "own", "store": "reached"})
        assert second.found("before") == ["live/before"]
        for number in range(3):
            assert primary.add(f"later_{number}")[0] == 200
            until(lambda number=number: second.found(f"later_{number}") == [f"live/later_{number}"], 5)
        refused(second.add("refused"))
        refused(second.ask("DELETE", "/tools/live/before"))
        refused(second.ask("POST", "/feedback", {"request": "what", "used": ["live/before"]}))
        assert second.found("before") == ["live/before"]
        assert second.ask("GET", "/tools")[1]["total"] == 24
        standby.sql("SELECT pg_promote()")
        until(lambda: second.add("promoted")[0] == 200, 20)
        assert second.found("promoted") == ["live/promoted"]
        assert second.ask("GET", "/tools")[1]["total"] == 25


def test_a_database_that_becomes_read_only(postgres: Postgres) -> None:
    postgres.sql("CREATE DATABASE frozen")
    url = postgres.url(database="frozen")
    postgres.sql("CREATE EXTENSION vector", database="frozen")
    with open_store(url) as store:
        store.add([tool("base", f"tool_{number}") for number in range(20)])
    with nursery(url) as servers:
        one = servers.start()
        until(lambda: one.ask("GET", "/ready")[1]["index"] == "own")
        assert one.add("before")[0] == 200
        reconnect = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'frozen'"
        postgres.sql("ALTER DATABASE frozen SET default_transaction_read_only = on", reconnect)
        until(lambda: one.add("refused")[1].get("code") == "read_only_store", 20)
        refused(one.add("refused"))
        assert one.found("before") == ["live/before"]
        postgres.sql("ALTER DATABASE frozen RESET default_transaction_read_only", reconnect)
        until(lambda: one.add("after")[0] == 200, 20)
        with open_store(url) as store:
            assert store.ids("live") == ["live/after", "live/before"]


def no_room(answer: tuple[int, Any, dict[str, str]]) -> bool:
    """Whether a write was refused since the disk is full; one that was not has been made."""
    status, body, headers = answer
    if status == 200:
        return False
    assert (status, body["code"], headers["retry-after"]) == (503, "disk_full", "30"), body
    assert "no room left" in body["detail"]
    return True


def test_a_full_disk(postgres: Postgres) -> None:
    """The disk of the database has no byte left while two servers write: what they acknowledged is there afterwards."""
    with postgres.small_disk("crowded", 48) as disk:
        url = postgres.url(database="crowded")
        with open_store(url) as store:
            store.add([tool("base", f"tool_{number}") for number in range(20)])
        with nursery(url) as servers:
            replicas = [servers.start() for _ in range(2)]
            for one in replicas:
                until(lambda one=one: one.ask("GET", "/ready")[1]["index"] == "own")
            acknowledged, refused = [], []
            for number in range(3000):
                if number == 10:
                    disk.fill()
                name = f"change_{number}"
                full = no_room(replicas[number % 2].add(f"{name}_a", f"{name}_b"))
                (refused if full else acknowledged).append(name)
                if len(refused) == 20:
                    break
            assert len(refused) == 20  # some fit into pages that were there; then none
            assert len(acknowledged) >= 10
            feedback = [{"request": f"{number} " + "long " * 300, "used": ["base/tool_1"]} for number in range(300)]
            answers = (replicas[0].ask("POST", "/feedback", one) for one in feedback)
            assert any(no_room(answer) for answer in answers)
            for one in replicas:
                for name in acknowledged[-5:]:
                    until(lambda one=one, name=name: one.found(f"{name}_b") == [f"live/{name}_b"], 5)
            disk.make_room()
            assert not no_room(replicas[1].add("room"))
            until(lambda: replicas[0].found("room") == ["live/room"], 5)
            with open_store(url) as store:
                store.check()
                there = set(store.ids("live"))
                assert there == {"live/room"} | {f"live/{name}_{part}" for name in acknowledged for part in "ab"}


def test_the_error_of_a_full_disk(postgres: Postgres, url: str, servers: Nursery) -> None:
    """A trigger raises it: this runs where nothing may be mounted."""
    name = url.rpartition("=")[2]
    one = servers.start()
    until(lambda: one.ask("GET", "/ready")[1]["index"] == "own")
    assert one.add("before")[0] == 200
    postgres.sql(
        f"CREATE FUNCTION {name}.full_disk() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$",
        f"CREATE TRIGGER full_disk BEFORE INSERT ON {name}.tools EXECUTE FUNCTION {name}.full_disk()",
    )
    assert no_room(one.add("no_room_a", "no_room_b"))
    assert one.found("before") == ["live/before"]
    postgres.sql(f"DROP TRIGGER full_disk ON {name}.tools")
    with open_store(url) as store:
        assert store.ids("live") == ["live/before"]
    assert one.add("room")[0] == 200


def test_a_migration_that_is_interrupted_goes_on(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    url = postgres.url(f"replicas_{next(_NUMBERS)}")
    all_of_them = schema.MIGRATIONS
    monkeypatch.setattr(schema, "MIGRATIONS", all_of_them[:1])
    with open_store(url) as store:
        store.add([tool("base", "old", "Was here before.")])
    broken = (*all_of_them[:2], ("CREATE TABLE half (number integer)", "SELECT pg_terminate_backend(pg_backend_pid())"))
    monkeypatch.setattr(schema, "MIGRATIONS", broken)
    with pytest.raises(StoreError):
        open_store(url)
    monkeypatch.setattr(schema, "MIGRATIONS", all_of_them)
    name = url.rpartition("=")[2]
    found = postgres.sql(f"SELECT number FROM {name}.toolscout_migrations ORDER BY number")
    assert found == [(1,), (2,)]
    assert postgres.sql(f"SELECT to_regclass('{name}.half')") == [(None,)]
    with Scout.open(url, "bm25") as scout:
        assert [hit.tool_id for hit in scout.search("was here before").considered] == ["base/old"]


def test_clocks_that_differ(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims expire by the database's clock, and versions are numbers: a machine may live in another year."""
    with open_store(url) as store, open_store(url) as other:
        mine = store.claim_missing("m", 5, 60.0)
        present = time.time
        for skew in (-400 * 86400, 400 * 86400):
            monkeypatch.setattr(time, "time", lambda skew=skew: present() + skew)
            theirs = other.claim_missing("m", 100, 60.0)
            assert not {digest for digest, _ in mine} & {digest for digest, _ in theirs}
            other.add([tool("base", f"skewed_{skew}")])
            assert [change.tool_id for change in store.changes(store.version() - 1)] == [f"base/skewed_{skew}"]
        assert len(mine) == 5


def test_two_versions_over_one_schema(postgres: Postgres, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer version migrates while an older one serves: that one answers from memory and writes nothing more."""
    with Scout.open(url, "bm25") as older:
        assert older.search("thing 3").considered
        newer = (*schema.MIGRATIONS, ("CREATE TABLE newer (number integer)",))
        with monkeypatch.context() as upgraded:
            upgraded.setattr(schema, "MIGRATIONS", newer)
            open_store(url).close()
        assert older.search("thing 3").considered
        with pytest.raises(NewerStore, match="pip install --upgrade toolscout"):
            older.store.add([tool("base", "refused")])
        assert older.search("thing 3").considered
    with pytest.raises(NewerStore, match="pip install --upgrade toolscout"):
        open_store(url)
