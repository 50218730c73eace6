"""Searches that wait are made together: each is answered as if it were alone, and nothing waits for nothing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.serving.http_app import Served, served
from toolscout.errors import BadRequest
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.dense import Dense
from toolscout.retrievers.hybrid.retriever import Hybrid
from toolscout.scout import Search
from toolscout.serving.limits import Gate, ServeOptions, share_for
from toolscout.serving.problems import Problem


class Doubling:
    """Doubles numbers in calls that wait until they may go on; a negative number is an error of its own."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.begun, self.may_end = threading.Semaphore(0), threading.Semaphore(0)

    def act(self, numbers: Sequence[int]) -> list[int | Exception]:
        self.calls.append(list(numbers))
        self.begun.release()
        assert self.may_end.acquire(timeout=30)
        return [2 * number if number >= 0 else BadRequest(f"not {number}") for number in numbers]

    async def wait_for_calls(self, count: int) -> None:
        for _ in range(count):
            assert await asyncio.to_thread(self.begun.acquire, timeout=30)


def run(work: Callable[[Gate, Doubling], Coroutine[Any, Any, None]], workers: int = 1, queue: int = 20) -> Doubling:
    doubling = Doubling()

    async def main() -> None:
        gate = Gate(workers, queue, 30)
        try:
            await work(gate, doubling)
        finally:
            doubling.may_end.release(99)
            await asyncio.to_thread(gate.close)
        assert gate.inside == 0

    asyncio.run(main())
    return doubling


def ask(gate: Gate, doubling: Doubling, *numbers: int, who: str = "", most: int = 8) -> asyncio.Task[list[int]]:
    async def asking() -> list[int]:
        share_for(who)
        return await gate.run_together(doubling.act, numbers, most)

    return asyncio.ensure_future(asking())


def test_what_waits_is_done_in_one_call_and_the_first_waits_for_nobody() -> None:
    async def work(gate: Gate, doubling: Doubling) -> None:
        first = ask(gate, doubling, 1)
        await doubling.wait_for_calls(1)
        others = [ask(gate, doubling, number) for number in range(2, 6)]
        await asyncio.sleep(0)
        doubling.may_end.release(99)
        assert [await one for one in [first, *others]] == [[2], [4], [6], [8], [10]]

    assert run(work).calls == [[1], [2, 3, 4, 5]]


def test_a_call_has_a_limit_and_other_threads_get_their_share() -> None:
    async def work(gate: Gate, doubling: Doubling) -> None:
        running = [ask(gate, doubling, 0), ask(gate, doubling, 0)]
        await doubling.wait_for_calls(2)
        waiting = [ask(gate, doubling, number, most=3) for number in range(1, 9)]
        await asyncio.sleep(0)
        doubling.may_end.release(99)
        assert [(await one)[0] for one in [*running, *waiting]] == [0, 0, *range(2, 18, 2)]

    calls = run(work, workers=2).calls
    assert calls[:2] == [[0], [0]]
    assert sorted(number for call in calls[2:] for number in call) == list(range(1, 9))
    assert max(map(len, calls)) == 3


def test_work_of_another_kind_does_not_join() -> None:
    async def work(gate: Gate, doubling: Doubling) -> None:
        first = ask(gate, doubling, 1)
        await doubling.wait_for_calls(1)
        kinds = [ask(gate, doubling, 2), asyncio.ensure_future(gate.run(int, "7")), ask(gate, doubling, 3)]
        await asyncio.sleep(0)
        doubling.may_end.release(99)
        assert (await first, await kinds[0], await kinds[1], await kinds[2]) == ([2], [4], 7, [6])

    # All are of one caller, whose work is begun in order: 3 comes after the work of another kind.
    assert run(work).calls == [[1], [2], [3]]


def test_callers_take_turns_within_a_call() -> None:
    async def work(gate: Gate, doubling: Doubling) -> None:
        first = ask(gate, doubling, 0)
        await doubling.wait_for_calls(1)
        much = ask(gate, doubling, 1, 2, 3, 4, 5, 6, who="much", most=4)
        little = ask(gate, doubling, 7, who="little", most=4)
        await asyncio.sleep(0)
        doubling.may_end.release(99)
        assert (await first, await much, await little) == ([0], [2, 4, 6, 8, 10, 12], [14])

    assert run(work).calls == [[0], [1, 7, 2, 3], [4, 5, 6]]


def test_those_done_in_one_call_take_one_place() -> None:
    async def work(gate: Gate, doubling: Doubling) -> None:
        first = ask(gate, doubling, 0)
        await doubling.wait_for_calls(1)
        waiting = [ask(gate, doubling, number) for number in (1, 2, 3)]
        await asyncio.sleep(0)
        doubling.may_end.release()
        assert await first == [0]
        await doubling.wait_for_calls(1)  # all three run now, in one call: three more may wait
        more = [ask(gate, doubling, number) for number in (4, 5, 6)]
        await asyncio.sleep(0)
        with pytest.raises(Problem) as refused:
            await ask(gate, doubling, 7)
        assert refused.value.status == 503
        doubling.may_end.release(99)
        assert [await one for one in [*waiting, *more]] == [[2], [4], [6], [8], [10], [12]]

    assert run(work, queue=3).calls == [[0], [1, 2, 3], [4, 5, 6]]


def test_an_error_of_one_does_not_reach_the_others() -> None:
    async def work(gate: Gate, doubling: Doubling) -> None:
        first = ask(gate, doubling, 1)
        await doubling.wait_for_calls(1)
        good, bad, other = ask(gate, doubling, 2), ask(gate, doubling, -3), ask(gate, doubling, 4)
        await asyncio.sleep(0)
        doubling.may_end.release(99)
        assert (await first, await good, await other) == ([2], [4], [8])
        with pytest.raises(BadRequest, match="not -3"):
            await bad

    assert run(work).calls == [[1], [2, -3, 4]]


@pytest.mark.parametrize("begun", [False, True])
def test_one_that_is_cancelled_leaves_the_others_alone(begun: bool) -> None:
    async def work(gate: Gate, doubling: Doubling) -> None:
        first = ask(gate, doubling, 1)
        await doubling.wait_for_calls(1)
        stays, leaves, other = ask(gate, doubling, 2), ask(gate, doubling, 3), ask(gate, doubling, 4)
        await asyncio.sleep(0)
        if begun:
            doubling.may_end.release()
            assert await first == [2]
            await doubling.wait_for_calls(1)
        leaves.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaves
        doubling.may_end.release(99)
        assert (await first, await stays, await other) == ([2], [4], [8])

    assert run(work).calls == [[1], [2, 3, 4] if begun else [2, 4]]


def test_what_waits_when_the_server_ends_is_refused() -> None:
    async def work(gate: Gate, doubling: Doubling) -> None:
        first = ask(gate, doubling, 1)
        await doubling.wait_for_calls(1)
        others = [ask(gate, doubling, 2), ask(gate, doubling, 3)]
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(asyncio.to_thread(gate.close))
        await asyncio.sleep(0.05)
        doubling.may_end.release(99)
        await closing
        assert await first == [2]
        for one in others:
            with pytest.raises(Problem) as refused:
                await one
            assert refused.value.status == 503

    assert run(work).calls == [[1]]


REQUESTS = ("send an email", "gives the lion its dinner", "send_email", "how warm it is", "qwzx vbnm", "opens the valt")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path, ServeOptions(rate=0, workers=1)) as running:
        yield running


class Held:
    """Holds the first ranking of a retriever back until it is released, and counts the searches of each call."""

    def __init__(self, server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: list[int] = []
        self.begun, self.may_go_on = threading.Event(), threading.Event()
        retriever = server.scout.retriever
        rank, search_together = retriever.rank, server.scout.search_together

        def counted(searches: Sequence[Search]) -> Any:
            self.counts.append(len(searches))
            return search_together(searches)

        def held(requests: Sequence[str], *args: Any) -> Any:
            if not self.begun.is_set():
                self.begun.set()
                assert self.may_go_on.wait(30)
            return rank(requests, *args)

        monkeypatch.setattr(server.scout, "search_together", counted)
        monkeypatch.setattr(retriever, "rank", held)


def answers_of(server: Served, held: Held, bodies: Sequence[tuple[dict[str, Any], str]]) -> list[Any]:
    """The answers to requests that arrive while another one is searched."""
    with ThreadPoolExecutor(len(bodies) + 1) as pool:
        first = pool.submit(server.post, "/search", {"request": "hold the others back"})
        assert held.begun.wait(30)
        sent = [pool.submit(server.post, "/search", body, key) for body, key in bodies]
        for _ in range(1_000):
            if f"\ntoolscout_searches_inside {len(sent) + 1}\n" in server.get("/metrics").text:
                break
            time.sleep(0.01)
        held.may_go_on.set()
        assert first.result().status_code == 200
        return [one.result() for one in sent]


def test_answers_are_those_of_single_searches(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = [
        ({"request": text, "k": k, "level": level}, key)
        for text in REQUESTS
        for k, level in ((5, "balanced"), (2, "strict"))
        for key in ("admin", "guest")
    ]
    alone = [server.post("/search", body, key).json() for body, key in bodies]
    held = Held(server, monkeypatch)
    found = answers_of(server, held, bodies)
    assert [one.json() for one in found] == alone
    assert held.counts == [1, *[4] * (len(bodies) // 4)]  # of different callers, in any order
    assert {hit["tool_id"].partition("/")[0] for one in alone[1::2] for hit in one["considered"]} == {"mail"}


def test_an_error_is_that_of_its_own_request(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(server, monkeypatch)
    rank = server.scout.retriever.rank

    def failing(requests: Sequence[str], *args: Any) -> Any:
        if "poison" in requests:
            raise BadRequest("poisoned")
        return rank(requests, *args)

    monkeypatch.setattr(server.scout.retriever, "rank", failing)
    bodies = [({"request": text}, "admin") for text in ("send an email", "poison", "how warm it is")]
    found = answers_of(server, held, bodies)
    assert [one.status_code for one in found] == [200, 422, 200]
    assert [one.json()["considered"][0]["tool_id"] for one in (found[0], found[2])] == [
        "mail/send_email",
        "weather/get_forecast",
    ]
    assert found[1].json()["detail"] == "poisoned"


def test_only_quick_methods_are_asked_together() -> None:
    assert Hybrid().ranks_together
    assert Bm25().ranks_together
    assert Dense().ranks_together
    assert not Hybrid(parts=[Bm25(), _Slow()]).ranks_together


class _Slow(Bm25):
    ranks_together = False
