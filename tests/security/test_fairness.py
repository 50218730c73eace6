"""No caller takes the server from another: turns in the queue, shares of it, a lane for probes, quotas."""

from __future__ import annotations

import asyncio
import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.security.live_server import asked, connected, listening, message, read_head
from tests.serving.http_app import Served, served
from toolscout import Scout
from toolscout.core.answer import Example
from toolscout.core.permissions import ANONYMOUS
from toolscout.errors import StoreError
from toolscout.serving import limits
from toolscout.serving.access import MAX_FEEDBACK_TOOLS, Access, Caller, CallerSearch
from toolscout.serving.limits import FeedbackQuota, Gate, HeldBytes, InFlight, Probe, ServeOptions, share_for, sharer
from toolscout.serving.problems import Problem

pytestmark = pytest.mark.timing

LION = {"request": "feed the lion"}


def run(who: str, gate: Gate, *works: Callable[[], Any]) -> asyncio.Task[list[Any]]:
    """Work in a gate, for somebody."""

    async def inside() -> list[Any]:
        share_for(who)
        return await gate.run_each(works)

    return asyncio.ensure_future(inside())


def test_callers_take_turns_by_pieces() -> None:
    done: list[str] = []

    async def both() -> None:
        gate, open_ = Gate(1, 10, 10), threading.Event()
        blocked = run("a", gate, open_.wait)
        await asyncio.sleep(0.01)
        works = [run("a", gate, *[lambda: done.append("a")] * 8) for _ in range(3)]
        works += [run("b", gate, lambda: done.append("b")) for _ in range(3)]
        await asyncio.sleep(0.01)
        open_.set()
        await asyncio.gather(blocked, *works)
        assert gate.inside == 0
        gate.close()

    asyncio.run(both())
    assert sorted(done) == ["a"] * 24 + ["b"] * 3
    assert max(place for place, who in enumerate(done) if who == "b") <= 6


def test_who_has_fewer_places_gets_one_of_the_others() -> None:
    async def both() -> list[dict[str, int]]:
        gate, open_ = Gate(2, 10, 10), threading.Event()
        flood = [run("a", gate, open_.wait) for _ in range(30)]
        await asyncio.sleep(0.05)
        late = [run("b", gate, open_.wait) for _ in range(4)]
        await asyncio.sleep(0.05)
        more = [run("a", gate, open_.wait) for _ in range(5)]
        await asyncio.sleep(0.05)
        assert gate.inside == 12
        open_.set()
        found = [await asyncio.gather(*tasks, return_exceptions=True) for tasks in (flood, late, more)]
        assert gate.inside == 0
        gate.close()
        problems = [one for group in found for one in group if isinstance(one, Problem)]
        assert {(one.status, one.headers["Retry-After"]) for one in problems} == {(503, "1")}
        return [{"done": sum(one == [True] for one in group), "all": len(group)} for group in found]

    flood, late, more = asyncio.run(both())
    assert late == {"done": 4, "all": 4}
    assert flood["done"] == 12 - 4
    assert more["done"] == 0


def test_one_caller_has_not_all_threads_where_work_is_long() -> None:
    async def both() -> None:
        gate, open_ = Gate(4, 20, 10, each=2), threading.Event()
        long = [run("a", gate, open_.wait) for _ in range(10)]
        await asyncio.sleep(0.05)
        assert await run("b", gate, lambda: 7) == [7]
        open_.set()
        assert await asyncio.gather(*long) == [[True]] * 10
        gate.close()

    asyncio.run(both())


def test_a_piece_that_fails_ends_its_request_alone() -> None:
    async def both() -> None:
        gate = Gate(1, 10, 10)
        seen: list[int] = []
        failing = run("a", gate, lambda: seen.append(1), lambda: 1 // 0, lambda: seen.append(3))
        fine = run("a", gate, lambda: 5)
        with pytest.raises(ZeroDivisionError):
            await failing
        assert (await fine, seen, gate.inside) == ([5], [1], 0)
        gate.close()

    asyncio.run(both())


def test_what_is_given_up_before_it_began_leaves_its_place() -> None:
    async def both() -> None:
        gate, open_ = Gate(1, 2, 10), threading.Event()
        begun, waits = run("a", gate, open_.wait), run("a", gate, open_.wait)
        await asyncio.sleep(0.02)
        waits.cancel()
        await asyncio.sleep(0.02)
        assert gate.inside == 1
        begun.cancel()  # a thread cannot be stopped
        await asyncio.sleep(0.02)
        assert gate.inside == 1
        open_.set()
        await asyncio.sleep(0.05)
        assert gate.inside == 0
        gate.close()

    asyncio.run(both())


@contextmanager
def live(folder: Path, options: ServeOptions, **more: Any) -> Iterator[tuple[Served, int]]:
    with served(folder, options, **more) as server, listening(server.client.app, lifespan=False) as port:
        yield server, port


def bearer(server: Served, name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {server.keys[name]}"}


def slow_searches(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    search_together = Access.search_together

    def slowly(self: Access, searches: Sequence[CallerSearch]) -> Any:
        time.sleep(seconds * len(searches))
        return search_together(self, searches)

    monkeypatch.setattr(Access, "search_together", slowly)


def test_batches_of_one_key_do_not_starve_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_searches(monkeypatch, 0.03)  # a batch takes a second
    batch = {"requests": ["feed the lion"] * 32}
    with live(tmp_path, ServeOptions(rate=0, queue=8)) as (server, port):
        over, flooded = threading.Event(), []

        def flood() -> None:
            while not over.is_set():
                # Batches of one key take turns with each other: those who flood wait for as long as it takes.
                flooded.append(asked(port, "POST", "/search", batch, patience=60, **bearer(server, "user")))

        threads = [threading.Thread(target=flood) for _ in range(16)]
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        took, found = [], []
        for _ in range(25):
            began = time.perf_counter()
            found.append(asked(port, "POST", "/search", LION, **bearer(server, "guest")))
            took.append(time.perf_counter() - began)
        over.set()
        for thread in threads:
            thread.join()
    assert found == [200] * 25
    assert statistics.median(took) < 0.35  # pieces of a batch are waited for, and not the whole of it
    assert statistics.quantiles(took, n=20)[-1] < 1
    assert {200, 503} >= set(flooded)
    assert 200 in flooded


def test_probes_wait_behind_no_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_ = threading.Event()
    monkeypatch.setattr(Access, "search_together", lambda *_: open_.wait(20) and 1 // 0)
    with live(tmp_path, ServeOptions(rate=0, queue=2, in_flight=6), keyed=False) as (_, port):
        searching = [threading.Thread(target=asked, args=(port, "POST", "/search", LION)) for _ in range(8)]
        for thread in searching:
            thread.start()
        time.sleep(0.3)
        assert asked(port, "POST", "/search", LION) == 503
        began = time.perf_counter()
        assert [asked(port, "GET", path) for path in ("/ready", "/health") * 5] == [200] * 10
        assert time.perf_counter() - began < 2
        open_.set()
        for thread in searching:
            thread.join()


def test_readiness_is_that_of_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "READY_FRESH_S", 0.2)
    monkeypatch.setattr(limits, "READY_S", 0.3)
    state: dict[str, Any] = {"read": 0, "act": lambda: 1}
    with served(tmp_path, ServeOptions(rate=0)) as server:

        def read() -> int:
            state["read"] += 1
            return int(state["act"]())

        found = []
        asyncio.run(probed(read, found, state))
        assert server.get("/ready", "nobody").status_code == 200
    assert found == ["ready", 1, "StoreError", "Problem 503", "Problem 503"]


async def probed(read: Callable[[], int], found: list[Any], state: dict[str, Any]) -> None:
    probe, open_ = Probe(read), threading.Event()

    async def check() -> str:
        try:
            await probe.check()
        except (Problem, StoreError) as error:
            return f"Problem {error.status}" if isinstance(error, Problem) else "StoreError"
        return "ready"

    def fail() -> int:
        raise StoreError("it cannot be read")

    found += set(await asyncio.gather(*(check() for _ in range(200))))
    found.append(state["read"])
    await asyncio.sleep(0.25)
    state["act"] = fail
    found.append(await check())
    await asyncio.sleep(0.25)
    state["act"] = open_.wait
    found += set(await asyncio.gather(*(check() for _ in range(5))))
    open_.set()
    await asyncio.sleep(0.25)
    probe.draining = True
    found.append(await check())
    probe.close()


def test_callers_without_a_key_are_told_apart_by_their_address(tmp_path: Path) -> None:
    with live(tmp_path, ServeOptions(rate=1, burst=3), keyed=False) as (_, port):
        mine = [asked(port, "GET", "/tools", source="127.0.0.1") for _ in range(6)]
        theirs = [asked(port, "GET", "/tools", source="127.0.0.2") for _ in range(3)]
    assert (mine[0], mine[-1], theirs) == (200, 429, [200] * 3)


@pytest.mark.parametrize(
    ("caller", "client", "expected"),
    [
        (Caller("ops"), ("192.0.2.1", 1), "key ops"),
        (Caller(ANONYMOUS), ("192.0.2.1", 1), "address 192.0.2.1"),
        (Caller(ANONYMOUS, admin=True), ("192.0.2.1", 1), "key anonymous"),
        (None, ("::ffff:192.0.2.1", 1), "address 192.0.2.1"),
        (None, ("2001:db8:1:2:3:4:5:6", 1), "address 2001:db8:1:2::"),
        (None, ("2001:db8:1:2::9", 1), "address 2001:db8:1:2::"),
        (None, None, "address "),
    ],
)
def test_whom_limits_are_counted_for(caller: Caller | None, client: Any, expected: str) -> None:
    assert sharer(caller, client) == expected


def test_bodies_in_memory_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HELD_BYTES", 100)
    monkeypatch.setattr(limits, "SMALL_BYTES", 5)
    held = HeldBytes()
    with held.counted("a") as a, held.counted("b") as b, held.counted("c") as c:
        a(50)
        b(40)
        with pytest.raises(Problem, match="too many large requests"):
            a(1)
        with pytest.raises(Problem):
            c(11)
    with held.counted("b") as b, held.counted("a") as a, held.counted("c") as c:
        b(50)
        a(50)
        c(5)
        with pytest.raises(Problem):
            c(1)
    with held.counted("a") as a:
        a(50)


def test_only_an_admin_sends_a_large_body(tmp_path: Path) -> None:
    """Who may not add tools is refused before the server has taken in what he sends."""
    with live(tmp_path, ServeOptions(rate=0, body_bytes=1000)) as (server, port):
        for path in ("/tools", "/page/add"):
            body = {"text": "x" * 5000, "name": "tools.json", "tools": []}
            assert asked(port, "POST", path, body, **bearer(server, "admin")) == 422
            assert asked(port, "POST", path, body, **bearer(server, "user")) in (403, 413)


def test_requests_of_one_caller_at_a_time() -> None:
    found = InFlight(2)
    with found.counted("b") as other, found.counted("a") as first, found.counted("a") as second:
        other()
        first()
        first()  # the same one
        second()
        with found.counted("a") as third, pytest.raises(Problem) as refused:
            third()
    assert refused.value.status == 503
    with found.counted("a") as first, found.counted("a") as second:
        first()
        second()


def test_one_caller_has_a_quarter_of_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONNECTIONS", 8)
    found = InFlight(100)
    with found.counted("a") as first, found.counted("a") as second, found.counted("a") as third:
        first()
        second()
        with pytest.raises(Problem):
            third()


def test_feedback_has_quotas(tmp_path: Path) -> None:
    options = ServeOptions(rate=0, feedback_minute=5, feedback_kept=1000)
    with served(tmp_path, options) as server:
        example = {"request": "feed the lion", "used": ["zoo/feed_lion"]}
        assert server.post("/feedback", {"examples": [example] * 3}, "user").status_code == 200
        assert server.post("/page/feedback", example, "user").status_code == 200
        refused = server.post("/feedback", {"examples": [example] * 2}, "user")
        assert refused.status_code == 429
        assert 0 < int(refused.headers["retry-after"]) <= 60
        assert server.post("/feedback", example, "user").status_code == 200
        assert server.post("/page/feedback", example, "user").status_code == 429
        assert server.post("/feedback", example, "admin").status_code == 200
        assert len(list(server.scout.store.feedback())) == 6  # all of a request or nothing


def test_a_tenant_keeps_so_much_feedback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(limits.time, "monotonic", lambda: now[0])
    with Scout.open(tmp_path / "tools.db", "bm25") as scout:
        quota = FeedbackQuota(scout.store, ServeOptions(feedback_minute=10, feedback_day=25, feedback_kept=30))
        scout.store.add_feedback([Example("x", ("a/b",), (), "full") for _ in range(29)])
        quota.take("full", 1)
        with pytest.raises(Problem, match="30 examples"):
            quota.take("full", 2)
        for minute in range(3):
            now[0] = 60.0 * minute
            quota.take("other", 9 if minute == 0 else 5 + minute)
            with pytest.raises(Problem, match="minute"):
                quota.take("other", 6)
        now[0] = 300.0
        with pytest.raises(Problem, match="day"):
            quota.take("other", 4)
        now[0] = 90_000.0
        quota.take("other", 10)


def test_an_example_names_so_many_tools(tmp_path: Path) -> None:
    with served(tmp_path, ServeOptions(rate=0)) as server:
        many = {"request": "feed the lion", "used": ["zoo/feed_lion"] * (MAX_FEEDBACK_TOOLS + 1)}
        assert server.post("/feedback", many, "user").status_code == 422
        assert server.post("/page/feedback", many, "user").status_code == 422


def test_answers_of_batches_are_as_before(tmp_path: Path) -> None:
    with served(tmp_path, ServeOptions(rate=0)) as server:
        texts = ["feed the lion", "send an email", "how warm will it be"]
        one = [server.post("/search", {"request": text, "k": 2, "format": "openai"}).json() for text in texts]
        all_ = server.post("/search", {"requests": texts, "k": 2, "format": "openai"}).json()
        assert all_ == {"answers": one}
        needs = server.post("/need", {"requests": texts}).json()["answers"]
        assert needs == [server.post("/need", {"request": text}).json() for text in texts]
        assert server.post("/search", {"requests": ["feed the lion", " "]}).status_code == 422
        assert json.loads(server.post("/search", {"requests": texts[:1]}).text)["answers"][0]["request"] == texts[0]


def test_what_is_being_answered_counts_for_its_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is not all there does not: its connection can be closed."""
    slow_searches(monkeypatch, 0.5)
    with live(tmp_path, ServeOptions(rate=0, in_flight=1)) as (server, port), connected(port) as first:
        whole = message("POST", "/search", LION, **bearer(server, "user"))
        first.sendall(whole[:-3])
        time.sleep(0.2)
        assert asked(port, "POST", "/search", LION, **bearer(server, "user")) == 200
        first.sendall(whole[-3:])
        time.sleep(0.2)
        assert asked(port, "POST", "/search", LION, **bearer(server, "user")) == 503
        assert asked(port, "POST", "/search", LION, **bearer(server, "guest")) == 200
        assert read_head(first)[0] == 200
