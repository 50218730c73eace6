"""A model that writes for a search: how long it may take in all, what of a batch is used, and who is not asked."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.llm.fake_endpoint import Answer, FakeEndpoint, asked, chat, echo, refused
from toolscout.cli.serve import _warm
from toolscout.core.answer import Cost
from toolscout.core.tool import Tool
from toolscout.llm import client
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.hybrid.retriever import Hybrid
from toolscout.retrievers.rewrite import llm_writer
from toolscout.retrievers.rewrite.llm_writer import QueryWriter, WrittenText
from toolscout.retrievers.rewrite.retriever import Rewrite, RewriteOptions
from toolscout.scout import Scout
from toolscout.stores.sqlite.store import SqliteStore

TOOLS = (
    Tool("weather", "get_forecast", "Gets the weather forecast for a city."),
    Tool("mail", "send_email", "Sends an email message to people."),
)


@pytest.fixture(autouse=True)
def reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def texts(written: Sequence[WrittenText]) -> list[str]:
    """What was written; nothing went wrong."""
    assert not any(one.problem for one in written)
    return [one.text for one in written]


@contextmanager
def silent() -> Iterator[FakeEndpoint]:
    """An endpoint that answers nobody before it is closed."""
    over = threading.Event()
    with FakeEndpoint(lambda *_: chat("late") if over.wait(20) else chat("later")) as server:
        try:
            yield server
        finally:
            over.set()


class Clock:
    """Time as it is told, for the author and for its endpoint; who sleeps moves it on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self._lock = threading.Lock()
        for place in ("client", "http"):
            monkeypatch.setattr(f"toolscout.llm.{place}.time", self)
        monkeypatch.setattr(llm_writer, "_now", self.monotonic)

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self.now += seconds


def test_a_slow_endpoint_is_given_up_after_the_timeout_in_all(tmp_path: Path) -> None:
    with silent() as server:
        rewrite = Rewrite(RewriteOptions(llm=server.url, model="m", timeout=0.3), [Bm25()])
        with SqliteStore(tmp_path / "s.db") as store, Scout(store, rewrite) as scout:
            store.add(TOOLS, "tests")
            answer = scout.search("weather in Lisbon")
        assert len(server.requests) == 1  # a second try would begin when the time is over
    assert [hit.tool_id for hit in answer.hits][:1] == ["weather/get_forecast"]
    assert "gave no answer within 0.3 seconds" in answer.notes[0]


def test_a_rest_that_is_asked_for_ends_with_the_timeout_too(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    wait = {"Retry-After": "12"}

    def script(_: Any, number: int) -> Answer:
        clock.sleep(10)
        return refused(429, "slow down", wait)

    with FakeEndpoint(script) as server:
        (found,) = QueryWriter(server.url, "m", timeout=20).session().write(asked("a"), 0.0, 8)
        assert len(server.requests) == 1
    assert "asks to wait 12 seconds" in found.problem
    assert clock.now == 1010.0
    wait["Retry-After"] = "3"
    with FakeEndpoint(script) as server:
        (found,) = QueryWriter(server.url, "m", timeout=20).session().write(asked("a"), 0.0, 8)
        assert len(server.requests) == 2
    assert "429" in found.problem
    assert clock.now <= 1010.0 + 25


def test_a_turn_that_comes_too_late_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    with FakeEndpoint(echo) as server:
        author = QueryWriter(server.url, "m", timeout=2, requests_per_minute=6)
        with ThreadPoolExecutor(4) as pool:
            found = [few[0] for few in pool.map(lambda text: author.session().write(asked(text), 0.0, 8), "abcd")]
        assert clock.now == 1000.0
        assert sorted(bool(one.problem) for one in found) == [False, True, True, True]
        assert all("requests_per_minute" in one.problem for one in found if one.problem)
        clock.now += 8.5  # those who were refused took no turn, and the endpoint is not taken for one that is down
        assert texts(author.session().write(asked("e"), 0.0, 8)) == ["E"]
        assert len(server.requests) == 2


def test_all_that_is_written_for_one_search_shares_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    def slow(request: dict[str, Any], number: int) -> Answer:
        clock.sleep(11)
        return echo(request, number)

    with FakeEndpoint(slow) as server:
        author = QueryWriter(server.url, "m", timeout=20)
        session = author.session()
        assert texts(session.write(asked("a"), 0.0, 8)) == ["A"]
        assert texts(session.write(asked("b"), 0.0, 8)) == ["B"]  # asked in time, and answered at once
        (late,) = session.write(asked("c"), 0.0, 8)
        assert "took longer than 20 seconds in all" in late.problem
        assert texts(author.session().write(asked("d"), 0.0, 8)) == ["D"]  # another search
        assert len(server.requests) == 3


def test_who_waits_longer_has_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    def limited(request: dict[str, Any], number: int) -> Answer:
        return refused(429, "slow down", {"Retry-After": "50"}) if number % 2 == 0 else echo(request, number)

    with FakeEndpoint(limited) as server:
        author = QueryWriter(server.url, "m", timeout=20, concurrency=1, requests_per_minute=2)
        assert texts(author.session("wait").write(asked("a", "b"), 0.0, 8)) == ["A", "B"]
    assert clock.now > 1100


def test_many_at_once_have_the_time_of_their_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    def slow(request: dict[str, Any], number: int) -> Answer:
        clock.sleep(15)
        return echo(request, number)

    with FakeEndpoint(slow) as server:
        author = QueryWriter(server.url, "m", timeout=20, concurrency=1)
        assert texts(author.session().write(asked(*"abc"), 0.0, 8)) == ["A", "B", "C"]


def stumbling(request: dict[str, Any], number: int) -> Answer:
    return refused(500, "oops") if request["messages"][-1]["content"] == "bad" else echo(request, number)


@pytest.mark.parametrize("patient", [True, False])
@pytest.mark.parametrize("concurrency", [1, 8])
def test_one_that_fails_spoils_no_other_and_what_they_cost_is_counted(
    patient: bool, concurrency: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client.time, "sleep", lambda _: None)
    sent = [*"abcdefghijklm", "bad", *"nopqrstuvwxyz"]
    with FakeEndpoint(stumbling) as server:
        author = QueryWriter(server.url, "m", concurrency=concurrency, prices=(1.0, 1.0))
        found = author.session("wait" if patient else "ask").write(asked(*sent), 0.0, 8)
        assert len(server.requests) == 26 + (6 if patient else 2)
    assert [one.text for one in found] == ["" if text == "bad" else text.upper() for text in sent]
    assert [text for text, one in zip(sent, found, strict=True) if one.problem] == ["bad"]
    cost = Cost.total(one.cost for one in found)
    assert cost is not None
    assert (cost.calls, cost.failed) == (26, 1)
    assert (cost.prompt_tokens, cost.completion_tokens) == (260, 104)
    assert cost.price == pytest.approx(364e-6)
    assert "answered 500 (oops)" in cost.problem


def test_an_endpoint_that_breaks_down_is_given_up_and_what_it_answered_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client.time, "sleep", lambda _: None)

    def script(request: dict[str, Any], number: int) -> Answer:
        return echo(request, number) if number < 3 else refused(401, "revoked")

    with FakeEndpoint(script) as server:
        author = QueryWriter(server.url, "m", concurrency=1)
        found = author.session("wait").write(asked(*"abcdefghijklmnop"), 0.0, 8)
        assert [one.text for one in found[:4]] == ["A", "B", "C", ""]
        assert all("revoked" in one.problem for one in found[3:])
        assert len(server.requests) == 3 + 5
    assert sum(one.cost.calls for one in found) == 3


def test_a_server_warms_up_without_asking_an_endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolscout.index.worker_threads.WORKER_THREADS.rest", lambda: None)
    switching = sys.getswitchinterval()
    with FakeEndpoint(lambda *_: chat("weather forecast for a city")) as server:
        rewrite = Rewrite(RewriteOptions(llm=server.url, model="m", examples=0), [Bm25()])
        for number, retriever in enumerate((rewrite, Hybrid(parts=[rewrite]), Hybrid(parts=[rewrite, Bm25()]))):
            with SqliteStore(tmp_path / f"{number}.db") as store, Scout(store, retriever) as scout:
                store.add(TOOLS, "tests")
                try:
                    _warm(scout)
                finally:
                    sys.setswitchinterval(switching)
                assert server.requests == []
                if retriever is rewrite:
                    answer = scout.search("hello")
                    assert answer.asked == ("weather forecast for a city",)
                    assert answer.cost is not None
                    assert answer.cost.failed == 0
                    server.requests.clear()


def test_a_model_on_this_machine_is_opened_by_the_warm_up(tmp_path: Path) -> None:
    script = tmp_path / "script.jsonl"
    script.write_text('{"text": "weather forecast", "when": ""}\n')
    author = QueryWriter(f"scripted:{script}")
    assert texts(author.session("skip").write(asked("a"), 0.0, 8)) == ["weather forecast"]
