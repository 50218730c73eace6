"""Scout for coroutines: the loop goes on, answers are those of search, whoever is cancelled leaves nothing behind."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from tests.toys import HashedWords, catalogue
from toolscout import Allowed, Answer, Example, Scout, Tool
from toolscout.errors import BadRequest, StoreError
from toolscout.scout import _CHANGING, _SEARCHING

LION = Tool("zoo", "feed_lion", "Gives the lion its dinner of fresh meat")
REQUESTS = [f"{tool.description} number {number}" for number, tool in enumerate(catalogue(100))]
_NAMES = ("toolscout-search", "toolscout-change")


@pytest.fixture
def scout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scout]:
    toy = HashedWords()
    monkeypatch.setattr("toolscout.retrievers.dense.Encoder.load", lambda folder=None: toy)
    with Scout.open(tmp_path / "tools.db") as opened:
        opened.add([*catalogue(200), LION])
        yield opened


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run it to its end; a task that hangs fails the test."""

    async def bounded() -> Any:
        return await asyncio.wait_for(work, 120)

    return asyncio.run(bounded())


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(_NAMES)]


class Blocked:
    """A search that blocks its thread until it is let go."""

    def __init__(self, scout: Scout, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on = threading.Semaphore(0), threading.Event()
        self.searched: list[str] = []
        real = scout.search

        def search(text: str, *args: Any, **kwargs: Any) -> Answer:
            self.searched.append(text)
            self.begun.release()
            assert self.go_on.wait(60)
            return real(text, *args, **kwargs)

        monkeypatch.setattr(scout, "search", search)

    async def wait(self, count: int) -> None:
        """Until so many searches have begun."""
        for _ in range(count):
            assert await asyncio.to_thread(self.begun.acquire, timeout=60)


@asynccontextmanager
async def lags() -> AsyncIterator[list[float]]:
    """How much later than it should the loop comes back, while the block runs."""
    found: list[float] = []

    async def tick() -> None:
        while True:
            then = time.perf_counter()
            await asyncio.sleep(0.005)
            found.append(time.perf_counter() - then - 0.005)

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0)
    try:
        yield found
    finally:
        ticking.cancel()


@pytest.mark.parametrize("name", ["search", "add", "feedback"])
def test_the_signatures_are_those_of_the_plain_methods(name: str) -> None:
    assert inspect.signature(getattr(Scout, f"a{name}")) == inspect.signature(getattr(Scout, name))


def test_a_hundred_tasks_get_the_answers_of_search(scout: Scout) -> None:
    wanted = [scout.search(text, 3) for text in REQUESTS]

    async def work() -> list[Answer]:
        return await asyncio.gather(*(scout.asearch(text, 3) for text in REQUESTS))

    assert run(work()) == wanted
    assert 0 < len(threads()) <= _SEARCHING


def test_options_are_passed_on(scout: Scout) -> None:
    zoo = Allowed.of(["zoo"])
    found = run(scout.asearch("lion", 2, zoo, tenant="acme", endpoints="skip"))
    assert found == scout.search("lion", 2, zoo, tenant="acme", endpoints="skip")
    assert [hit.tool_id for hit in found.considered] == [LION.id]
    scout.store.grant("ann", zoo)
    assert run(scout.asearch("lion", allowed="ann")).searched == 1


@pytest.mark.timing
def test_the_loop_goes_on_while_a_hundred_search(scout: Scout) -> None:
    async def work() -> tuple[list[float], float]:
        await scout.asearch("warm up")
        async with lags() as found:
            then = time.perf_counter()
            await asyncio.gather(*(scout.asearch(text) for text in REQUESTS))
            return found, time.perf_counter() - then

    found, took = run(work())
    assert len(found) > 5  # the loop ran beside the searches, not after them
    assert sorted(found)[len(found) // 2] < 0.05
    assert max(found) < min(0.5, took / 2)


def test_the_loop_is_free_while_every_thread_is_taken(scout: Scout, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = Blocked(scout, monkeypatch)

    async def work() -> None:
        tasks = [asyncio.create_task(scout.asearch(text)) for text in REQUESTS]
        await blocked.wait(_SEARCHING)
        for _ in range(100):  # no search can end meanwhile
            await asyncio.sleep(0)
        assert not any(task.done() for task in tasks)
        assert len(blocked.searched) == _SEARCHING
        blocked.go_on.set()
        assert len(await asyncio.gather(*tasks)) == 100

    run(work())


def test_half_are_cancelled_and_the_others_are_answered(scout: Scout, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [scout.search(text) for text in REQUESTS]
    blocked = Blocked(scout, monkeypatch)

    async def work() -> list[Any]:
        tasks = [asyncio.create_task(scout.asearch(text)) for text in REQUESTS]
        await blocked.wait(_SEARCHING)  # some are being searched, most wait
        for task in tasks[::2]:
            task.cancel()
        gone, _ = await asyncio.wait(tasks[::2], timeout=20)
        assert len(gone) == 50  # though no thread has been let go
        blocked.go_on.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    found = run(work())
    assert all(isinstance(one, asyncio.CancelledError) for one in found[::2])
    assert found[1::2] == wanted[1::2]
    assert len(blocked.searched) <= 50 + _SEARCHING  # those that waited were never searched
    assert len(threads()) <= _SEARCHING
    monkeypatch.undo()
    assert scout.search(REQUESTS[0]).considered  # nothing is left locked


def test_a_timeout_ends_the_wait(scout: Scout, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = Blocked(scout, monkeypatch)

    async def work() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await scout.asearch("lion")
        blocked.go_on.set()
        assert (await scout.asearch("lion dinner")).considered

    run(work())


def test_searches_adds_and_feedback_together(scout: Scout) -> None:
    async def work() -> list[Any]:
        adds = [scout.aadd([Tool("new", f"tool_{n}", f"Waters plant {n}")], label=f"s{n}") for n in range(10)]
        used = [scout.afeedback(Example(f"dinner {n}", (LION.id,))) for n in range(10)]
        return await asyncio.gather(*(scout.asearch(text) for text in REQUESTS), *adds, *used)

    found = run(work())
    assert [one.report.added for one in found[100:110]] == [1] * 10
    assert found[110:] == [None] * 10
    assert scout.count() == 211
    assert len(list(scout.store.feedback())) == 10
    assert scout.words_only() == 0
    assert len(threads()) <= _SEARCHING + _CHANGING
    assert run(scout.asearch("waters plant 7", 1)).considered[0].tool_id == "new/tool_7"


def test_adds_that_hang_keep_no_search_waiting(scout: Scout) -> None:
    go_on = threading.Event()

    def slow(number: int) -> Iterator[Tool]:
        assert go_on.wait(60)
        yield Tool("slow", f"tool_{number}")

    async def work() -> None:
        adds = [asyncio.create_task(scout.aadd(slow(number), label=f"s{number}")) for number in range(20)]
        await asyncio.sleep(0.05)
        assert (await scout.asearch("lion dinner")).considered
        assert sum(name.startswith("toolscout-change") for name in threads()) <= _CHANGING
        go_on.set()
        await asyncio.gather(*adds)

    run(work())
    assert scout.store.namespaces()["slow"] == 20


@pytest.mark.parametrize("at", [0, 3, 2500])
def test_an_add_that_is_cancelled_while_it_is_read_stores_nothing(scout: Scout, at: int) -> None:
    reading, go_on, version = threading.Event(), threading.Event(), scout.store.version()

    def source() -> Iterator[Tool]:
        for number in range(3000):
            if number == at:
                reading.set()
                assert go_on.wait(60)
            yield Tool("late", f"tool_{number}")

    async def work() -> None:
        adding = asyncio.create_task(scout.aadd(source(), label="late"))
        assert await asyncio.to_thread(reading.wait, 60)
        adding.cancel()
        done, _ = await asyncio.wait([adding], timeout=20)
        assert done  # before the source goes on
        go_on.set()
        # The next one waits for no lock that it left.
        assert (await scout.aadd([Tool("next", "one")], label="next")).report.added == 1

    run(work())
    scout.close()
    with Scout.open(scout.store.path, "bm25") as again:
        assert again.store.namespaces().get("late") is None
        assert again.store.version() == version + 1


def test_an_add_that_waits_and_is_cancelled_is_never_begun(scout: Scout) -> None:
    go_on, read = threading.Event(), []

    def slow() -> Iterator[Tool]:
        assert go_on.wait(60)
        yield from ()

    def late() -> Iterator[Tool]:
        read.append(1)
        yield Tool("late", "one")

    async def work() -> None:
        before = [asyncio.create_task(scout.aadd(slow(), label=f"s{number}")) for number in range(_CHANGING)]
        await asyncio.sleep(0)
        adding = asyncio.create_task(scout.aadd(late(), label="late"))
        using = asyncio.create_task(scout.afeedback(Example("never", (LION.id,))))
        await asyncio.sleep(0.05)
        for task in (adding, using):
            task.cancel()
        await asyncio.wait([adding, using], timeout=20)
        go_on.set()
        await asyncio.gather(*before)

    run(work())
    assert read == []
    assert list(scout.store.feedback()) == []


def test_an_add_that_is_cancelled_while_it_embeds_is_whole(scout: Scout, monkeypatch: pytest.MonkeyPatch) -> None:
    embedding, go_on, asked = threading.Event(), threading.Event(), []
    encoder = scout.retriever.encoder
    assert encoder is not None
    real = type(encoder).encode_documents

    def slow(self: Any, texts: list[str]) -> Iterator[Any]:
        for start in range(0, len(texts), 600):
            embedding.set()
            assert go_on.wait(60)
            asked.append(start)
            for positions, vectors in real(self, texts[start : start + 600]):
                yield positions + start, vectors

    monkeypatch.setattr(type(encoder), "encode_documents", slow)

    async def work() -> None:
        tools = [Tool("many", f"tool_{number}", f"Does {number}") for number in range(3000)]
        adding = asyncio.create_task(scout.aadd(tools, label="many"))
        assert await asyncio.to_thread(embedding.wait, 60)
        adding.cancel()
        assert (await asyncio.wait([adding], timeout=20))[0]
        go_on.set()
        await scout.afeedback(Example("lion", (LION.id,)))

    run(work())
    assert scout.store.namespaces()["many"] == 3000
    monkeypatch.undo()
    scout.close()
    assert asked == [0]  # no more after the batch that was being made
    with Scout.open(scout.store.path) as again:
        assert again.search("tool_2999", 1).considered[0].tool_id == "many/tool_2999"


def test_an_error_reaches_whoever_waits_for_it_alone(scout: Scout) -> None:
    async def work() -> list[Any]:
        asked = [scout.asearch(" " if number % 10 == 0 else text) for number, text in enumerate(REQUESTS)]
        return await asyncio.gather(*asked, scout.aadd("no/such/file"), return_exceptions=True)

    found = run(work())
    for number, one in enumerate(found[:100]):
        assert isinstance(one, BadRequest if number % 10 == 0 else Answer)
    assert "does not exist" in str(found[100])


def test_context_variables_are_those_of_the_task(scout: Scout) -> None:
    name: ContextVar[str] = ContextVar("name", default="")

    async def one(number: int) -> str:
        name.set(f"task {number}")
        return await scout.arun(name.get)

    async def work() -> list[str]:
        return await asyncio.gather(*map(one, range(50)))

    assert run(work()) == [f"task {number}" for number in range(50)]
    assert name.get() == ""


def test_one_scout_serves_several_loops(scout: Scout) -> None:
    found: list[Answer] = []
    loops = [threading.Thread(target=lambda: found.append(run(scout.asearch("lion dinner")))) for _ in range(4)]
    for loop in loops:
        loop.start()
    for loop in loops:
        loop.join(60)
    assert found == [scout.search("lion dinner")] * 4


def test_closing_waits_for_what_has_begun_and_refuses_the_rest(scout: Scout, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = Blocked(scout, monkeypatch)

    async def work() -> list[Any]:
        tasks = [asyncio.create_task(scout.asearch("lion dinner")) for _ in range(10)]
        await blocked.wait(_SEARCHING)
        closing = asyncio.create_task(asyncio.to_thread(scout.close))
        while not scout._searchers._closed:
            await asyncio.sleep(0.01)
        blocked.go_on.set()
        await closing
        return await asyncio.gather(*tasks, return_exceptions=True)

    found = run(work())
    assert sum(isinstance(one, Answer) for one in found) == _SEARCHING
    assert all("the Scout is closed" in str(one) for one in found if not isinstance(one, Answer))
    assert threads() == []
    for call in (scout.asearch("x"), scout.aadd([LION]), scout.afeedback(Example("x"))):
        with pytest.raises(StoreError, match="closed; open it again"):
            run(call)


def test_closing_ends_an_add_that_is_being_read(scout: Scout) -> None:
    def endless() -> Iterator[Tool]:
        number = 0
        while True:
            number += 1
            yield Tool("endless", f"tool_{number}")
            time.sleep(0.001)

    async def work() -> list[Any]:
        adding = asyncio.create_task(scout.aadd(endless(), label="endless"))
        await asyncio.sleep(0.1)
        await asyncio.to_thread(scout.close)
        return await asyncio.gather(adding, return_exceptions=True)

    (found,) = run(work())
    assert isinstance(found, StoreError)
    assert "none of them is" in str(found)
    with Scout.open(scout.store.path, "bm25") as again:
        assert again.store.count() == 201


def test_who_never_awaits_has_no_threads(scout: Scout) -> None:
    scout.search("lion")
    scout.add([Tool("a", "b")], label="x")
    assert threads() == []
