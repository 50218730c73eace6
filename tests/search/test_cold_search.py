"""What PostgreSQL itself answers until the index of a server stands."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("psycopg", reason="the extra 'postgres' is not installed")

from tests.postgres import Postgres
from tests.toys import catalogue
from toolscout.core.answer import Allowed, MatchedWords
from toolscout.core.scope import Scope
from toolscout.core.tool import Tool
from toolscout.errors import BadModel
from toolscout.scout import Scout
from toolscout.search.cold_search import NOTE, cold_retriever
from toolscout.stores import open_store
from toolscout.stores.postgres import cold_search
from toolscout.stores.postgres.store import PostgresStore
from toolscout.stores.sqlite.store import SqliteStore

_NUMBERS = count()
TOOLS = [
    Tool("flights", "searchFlights", "Find flights between two airports.", aliases=("find a plane",)),
    Tool("flights", "book_flight", "Book a seat on a flight."),
    Tool("mail", "send_mail", "Send an e-mail message to a person."),
    Tool("weather", "forecast", "Tell the weather of the coming days in a city."),
    Tool("hidden", "secret_forecast", "Tell the weather of Atlantis."),
]


@pytest.fixture
def url(postgres: Postgres) -> str:
    return postgres.url(f"cold_{next(_NUMBERS)}")


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    with open_store(url) as made:
        assert isinstance(made, PostgresStore)
        made.add(TOOLS)
        yield made


def test_words_are_ranked_by_how_rare_they_are(store: PostgresStore) -> None:
    found = store.own_search().by_words("what is the weather in Atlantis", 5)
    assert [tool_id for tool_id, _ in found] == ["hidden/secret_forecast", "weather/forecast"]
    assert found[0][1] > found[1][1] > 0
    assert store.own_search().by_words("'; & | ! <-> \\ \x00 the", 5) == []


def test_names_come_first_however_they_are_spelt(store: PostgresStore) -> None:
    cold = cold_retriever(store, None, "bm25")
    assert cold is not None
    for request in ("search_flights", "mail/send_mail", "please call book_flight", "find a plane"):
        named = cold.search([request], 1)[0][0]
        assert named.score > 100, request
    store.set_alias("weather/forecast", "rain check")
    assert cold.search(["rain check please"], 1)[0][0].tool_id == "weather/forecast"


def test_what_is_not_allowed_is_neither_found_nor_heard_of(store: PostgresStore) -> None:
    cold = cold_retriever(store, None, "bm25")
    assert cold is not None
    allowed = Allowed.of(namespaces=["weather"], ids=["mail/send_mail"])
    (hits,) = cold.search(["weather in Atlantis"], 5, Scope(allowed))
    assert [hit.tool_id for hit in hits] == ["weather/forecast"]
    (words,) = [reason for reason in hits[0].reasons if isinstance(reason, MatchedWords)]
    assert words.words == ("weather",)
    (named,) = cold.search(["secret_forecast"], 5, Scope(allowed))
    assert [(hit.tool_id, hit.score < 1) for hit in named] == [("weather/forecast", True)]


def test_vectors_are_compared_as_an_index_in_memory_does(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(1)
    vectors = generator.normal(size=(5, 16)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    digests = {change.tool_id: change.digest for change in store.changes(0)}
    ids = sorted(digests)
    search = store.own_search()
    assert search.unembedded("m") == 5
    store.put_vectors("m", [digests[one] for one in ids], vectors)
    assert search.unembedded("m", Allowed.of(namespaces=["mail"])) == 0
    halves = vectors.astype(np.float16).astype(np.float64)
    expected = dict(zip(ids, (halves @ vectors[2].astype(np.float64)).tolist(), strict=True))
    for indexed in (False, True):
        found = search.by_vector("m", vectors[2], 5)
        assert found == sorted(expected.items(), key=lambda pair: (-pair[1], pair[0]))
        only = search.by_vector("m", vectors[2], 5, Allowed.of(namespaces=["mail"]))
        assert [tool_id for tool_id, _ in only] == ["mail/send_mail"]
        assert search.cosines("m", vectors[2], ["mail/send_mail", "none/none"]) == dict(only)
        assert (search.recall("m", 5, 3) == 1.0) if indexed else (search.recall("m", 5, 3) is None)
        monkeypatch.setattr(cold_search, "INDEXED_FROM", 2)
        search.prepare("m")
    search.prepare("m")  # it is there
    assert search.by_vector("unknown", vectors[2], 5) == []


def test_among_many_vectors_the_nearest_come_from_the_index(
    postgres: Postgres, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = catalogue(6_000)
    store.add(tools, "many")
    vectors = np.random.default_rng(1).normal(size=(len(tools), 32)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    store.put_vectors("m", [tool.digest() for tool in tools], vectors)
    monkeypatch.setattr(cold_search, "INDEXED_FROM", 1_000)
    search = store.own_search()
    search.prepare("m")
    postgres.sql("ANALYZE")
    used = "SELECT coalesce(sum(idx_scan), 0) FROM pg_stat_user_indexes WHERE indexrelname = 'vectors_hnsw_1'"
    before = postgres.sql(used)
    assert search.by_vector("m", vectors[7], 100)[0][0] == tools[7].id
    limit = time.monotonic() + 30
    while postgres.sql(used) == before:  # a connection reports what it used when it has been idle for a while
        assert time.monotonic() < limit, "all vectors were compared"
        time.sleep(0.1)


def test_a_cold_server_answers_until_its_index_stands(url: str, store: PostgresStore) -> None:
    with Scout.open(url, "bm25", wait=False) as scout:
        builder = scout._builder
        assert builder is not None
        first = scout.search("book a flight")
        assert first.considered[0].tool_id == "flights/book_flight"
        builder.join(30)
        assert not scout.searches_store
        own = scout.search("book a flight")
        assert own.considered[0].tool_id == "flights/book_flight"
        assert NOTE not in own.notes
        assert own.version == store.version()


def test_the_store_answers_while_the_index_is_built(url: str, store: PostgresStore) -> None:
    with Scout.open(url, "bm25") as scout:
        from toolscout.search.live_index import StoreIndex

        cold = cold_retriever(store, None, "bm25")
        assert cold is not None
        scout._index = StoreIndex(store, cold)
        assert scout.searches_store
        answer = scout.search("book a flight")
        assert answer.version == store.version()
        store.remove(["flights/book_flight"])
        assert [hit.tool_id for hit in scout.search("book a flight").considered] != [answer.considered[0].tool_id]
        with pytest.raises(BadModel):
            cold.save(Path("nowhere"))


def test_sqlite_has_no_engine_and_is_opened_as_ever(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "a.db") as made:
        assert cold_retriever(made, None) is None
    with Scout.open(tmp_path / "a.db", "bm25", wait=False) as scout:
        assert not scout.searches_store
