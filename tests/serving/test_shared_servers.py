"""Several gateway processes over one PostgreSQL store: one runs each stdio server, and all of them can call it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp import MCPError

pytest.importorskip("psycopg", reason="the extra 'postgres' is not installed")

from tests.postgres import Postgres
from tests.serving.gateways import called, text
from tests.serving.shared_gateways import Gateways, Network, SharedGateway, runs, until, watching
from toolscout.core.permissions import Principal, new_key
from toolscout.stores import open_store

pytestmark = [pytest.mark.slow, pytest.mark.timing]

TAKEOVER_S = 5.0
OVERLAP_S = 0.05  # the test itself looks every few milliseconds
_NUMBERS = count()
Start = Callable[..., Gateways]


@pytest.fixture
def start(postgres: Postgres, tmp_path: Path) -> Iterator[Start]:
    """Make a folder and a schema, and start so many gateways over it."""
    made: list[Gateways] = []

    def begin(many: int, **options: Any) -> Gateways:
        folder = tmp_path / f"gateways-{len(made)}"
        folder.mkdir()
        made.append(Gateways(postgres.url(f"shared_{os.getpid()}_{next(_NUMBERS)}"), folder, **options))
        for _ in range(many):
            made[-1].start()
        return made[-1]

    try:
        yield begin
    finally:
        for one in made:
            one.end()


def call(at: SharedGateway, name: str, word: str, **more: Any) -> Any:
    """Call a tool of the counting server at a gateway, by a client of its own."""

    async def main() -> Any:
        async with at.client() as client:
            return await called(client, f"count/{name}", {"word": word}, **more)

    return anyio.run(main)


def answers(gateways: Gateways, at: SharedGateway) -> float:
    """Call until there is an answer; how long it took."""

    def answered() -> bool:
        try:
            return not call(at, "note", f"try-{next(_NUMBERS)}").is_error
        except Exception:  # such as a refusal while the database does not answer
            return False

    return until(answered, 100)


def test_one_of_three_runs_the_server_and_all_call_it(start: Start) -> None:
    gateways = start(3)
    with watching(gateways) as seen:
        owner, others = gateways.owner(), gateways.others()
        assert len(others) == 2
        assert "count: run by this process" in owner.told()
        for other in others:
            assert f"(process {owner.pid}) at {owner.url}" in other.told()

        async def main() -> None:
            results, reports = [], []
            for one in (owner, *others):
                told: list[Any] = []

                async def progress(*report: Any, told: list[Any] = told) -> None:
                    told.append(report)

                async with one.client() as client:
                    noted = await called(client, "count/note", {"word": "same"})
                    slow = await called(client, "count/slow", {"word": "same"}, progress_callback=progress)
                    bad = await called(client, "count/note", {"word": "bad"})
                    direct = await client.call_tool("count__note", {"word": "same"})
                    wrong = await called(client, "count/note", {"word": 7})
                    with pytest.raises(MCPError) as failed:
                        await called(client, "count/fail", {"word": "way"})
                    results.append((noted, slow, bad, direct, wrong, failed.value.error))
                    reports.append(told)
            assert reports[0] == reports[1] == reports[2] == [(n, 3, f"at {n}") for n in (1, 2, 3)]
            plain = [[one.model_dump(mode="json") for one in each] for each in results]
            assert plain[0] == plain[1] == plain[2]

        anyio.run(main)
        assert gateways.lines("calls").count("same") == 9
        assert len(gateways.lines("starts")) == 1
    assert seen.longest == 0


def test_what_is_cancelled_at_another_gateway_is_cancelled_at_the_server(start: Start) -> None:
    gateways = start(2)
    other = gateways.others()[0]

    async def main() -> None:
        async with other.client() as client:
            with anyio.move_on_after(1):
                await called(client, "count/slow", {"word": "long", "seconds": 60})
            assert gateways.lines("calls") == ["long"]
            with anyio.fail_after(5):
                while gateways.lines("cancelled") != ["long"]:
                    await anyio.sleep(0.02)

    anyio.run(main)


def test_what_a_server_asks_reaches_the_client_of_another_gateway(start: Start) -> None:
    gateways = start(2)
    asked: list[str] = []

    async def elicit(_: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        asked.append(params.message)
        return types.ElicitResult(action="accept", content={"word": "blue"})

    async def main() -> None:
        for one in (gateways.owner(), *gateways.others()):
            for mode in ("legacy", "auto"):
                async with one.client(mode=mode, elicitation_callback=elicit) as client:
                    result = await called(client, "count/ask", {"word": "Which colour?"})
                    assert result.structured_content["word"] == "blue"

    anyio.run(main)
    assert asked == 4 * ["count: Which colour?"]


def test_ten_owners_are_killed(start: Start, record_property: Callable[[str, object], None]) -> None:
    gateways = start(2)
    started, answered = [], []
    with watching(gateways) as seen:
        for _ in range(10):
            owner, other = gateways.owner(), gateways.others()[0]
            before = len(gateways.lines("starts"))
            owner.end(signal.SIGKILL)
            began = time.monotonic()
            until(lambda before=before: len(gateways.lines("starts")) > before, TAKEOVER_S)
            started.append(time.monotonic() - began)
            answers(gateways, other)
            answered.append(time.monotonic() - began)
            gateways.running.remove(owner)
            gateways.start()
    record_property("seconds until the server ran", started)
    record_property("seconds until a call was answered", answered)
    record_property("longest overlap", seen.longest)
    assert max(started) < TAKEOVER_S
    assert max(answered) < TAKEOVER_S
    assert seen.longest < OVERLAP_S


def test_a_stubborn_server_of_a_killed_owner_is_killed_before_the_next_starts(start: Start) -> None:
    gateways = start(2, stubborn=True)
    with watching(gateways) as seen:
        server = gateways.servers()[0]
        owner, other = gateways.owner(), gateways.others()[0]
        owner.end(signal.SIGKILL)
        until(lambda: not runs(server), 2)
        until(lambda: len(gateways.servers()) == 1, TAKEOVER_S)
        answers(gateways, other)
    assert seen.longest < OVERLAP_S


def test_an_owner_that_is_stopped_loses_its_server(start: Start) -> None:
    """PostgreSQL hears nothing of it and ends its session; its watchdog kills the server, which it cannot do itself."""
    gateways = start(2)
    with watching(gateways) as seen:
        owner, other = gateways.owner(), gateways.others()[0]
        owner.process.send_signal(signal.SIGSTOP)
        until(lambda: len(gateways.lines("starts")) == 2, TAKEOVER_S)
        answers(gateways, other)
        owner.process.send_signal(signal.SIGCONT)
        time.sleep(1)
        assert gateways.owner() is other
        assert not call(owner, "note", "again").is_error
    assert seen.longest < OVERLAP_S


def test_a_network_that_stalls(start: Start, postgres: Postgres) -> None:
    """The owner reaches PostgreSQL no more, and its connection stays open: it stops its server before another could."""
    gateways = start(0)
    network = Network(postgres.host)
    try:
        behind = gateways.start(
            url=gateways.url.replace(f"host={postgres.host}", f"host=127.0.0.1&port={network.port}")
        )
        assert gateways.owner() is behind
        other = gateways.start()
        with watching(gateways) as seen:
            first = gateways.servers()[0]
            network.stall()
            stopped = until(lambda: not runs(first), TAKEOVER_S)
            took = stopped + until(lambda: len(gateways.servers()) == 1, TAKEOVER_S)
            assert took < TAKEOVER_S
            assert gateways.owner() is other
            answers(gateways, other)
            network.flow()
            answers(gateways, behind)
            time.sleep(2)
            assert gateways.owner() is other
        assert seen.longest < OVERLAP_S
        assert len(gateways.lines("starts")) == 2
    finally:
        network.close()


def test_an_owner_that_is_asked_to_end_hands_over_at_once(start: Start) -> None:
    gateways = start(2)
    with watching(gateways) as seen:
        owner, other = gateways.owner(), gateways.others()[0]
        owner.process.send_signal(signal.SIGTERM)
        took = until(lambda: len(gateways.lines("starts")) == 2, TAKEOVER_S)
        answers(gateways, other)
    assert took < 2
    assert owner.process.wait(10) is not None
    assert seen.longest < OVERLAP_S


def test_postgresql_is_restarted(start: Start, postgres: Postgres) -> None:
    gateways = start(3)
    with watching(gateways) as seen:
        for _ in range(3):
            before = len(gateways.lines("starts"))
            postgres.stop()
            until(lambda: not gateways.servers(), 3)
            postgres.start()
            until(lambda before=before: len(gateways.lines("starts")) > before, 10)
            until(lambda: len(gateways.servers()) == 1)
            for one in gateways.running:
                answers(gateways, one)
    assert seen.longest < OVERLAP_S


def test_a_session_that_an_administrator_ends(start: Start, postgres: Postgres) -> None:
    gateways = start(2)
    with watching(gateways) as seen:
        for turn in range(2, 5):
            postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")
            until(lambda turn=turn: len(gateways.lines("starts")) == turn, TAKEOVER_S)
            answers(gateways, gateways.running[0])
    assert seen.longest < OVERLAP_S


def test_calls_while_the_owner_changes_are_never_made_twice(start: Start) -> None:
    """Clients call through both others while owners are killed: each call has one answer, or one clear error."""
    gateways = start(3)
    made: dict[str, str] = {}

    async def client(gateway: SharedGateway, name: str, done: anyio.Event) -> None:
        number = 0
        while not done.is_set():
            word = f"{name}-{number}"
            number += 1
            made[word] = "?"
            try:
                async with gateway.client() as one:
                    with anyio.fail_after(30):
                        made[word] = text(result := await called(one, "count/note", {"word": word}))
                        if not result.is_error:
                            made[word] = "ok"
            except Exception as error:
                if gateway.process.poll() is not None:  # the gateway itself was killed
                    return
                made[word] = f"raised {error!r}"
            await anyio.sleep(0.02)

    async def main() -> None:
        for _ in range(2):
            owner, others = gateways.owner(), gateways.others()
            done = anyio.Event()
            async with anyio.create_task_group() as tasks:
                for one in others:
                    for task in range(2):
                        tasks.start_soon(client, one, f"{owner.pid}-{one.pid}-{task}", done)
                await anyio.sleep(1)
                await anyio.to_thread.run_sync(owner.end)
                await anyio.sleep(6)
                done.set()

    with watching(gateways) as seen:
        anyio.run(main)
    calls = gateways.lines("calls")
    assert len(calls) == len(set(calls))
    failed = {word: told for word, told in made.items() if told not in ("ok", "?")}
    assert {word for word, told in made.items() if told == "ok"} <= set(calls)
    assert all("may have been executed" in told or "try again" in told for told in failed.values()), failed
    assert sum(told == "ok" for told in made.values()) > 20
    assert seen.longest < OVERLAP_S


def test_the_owner_checks_the_callers_own_key(start: Start, postgres: Postgres) -> None:
    gateways = start(0)
    with open_store(gateways.url) as store:
        keys = {}
        for name, allow in (("all", ("*",)), ("notes", ("count/note",))):
            secret, key = new_key(name)
            store.put_principal(Principal(name, allow=allow))
            store.add_key(key)
            keys[name] = secret
    audit = gateways.folder / "audit"
    first = gateways.start("--audit", str(audit))
    second = gateways.start()
    assert gateways.owner() is first

    async def main() -> None:
        for name, tool, ok in (("all", "slow", True), ("notes", "note", True), ("notes", "slow", False)):
            async with keyed(second, keys[name]) as client:
                result = await called(client, f"count/{tool}", {"word": f"{name} {tool}"})
                assert result.is_error is not ok

    anyio.run(main)
    assert gateways.lines("calls") == ["all slow", "notes note"]
    told = audit.read_text()
    assert '"all"' in told
    assert '"notes"' in told


def keyed(at: SharedGateway, key: str) -> Any:
    from contextlib import asynccontextmanager

    import httpx2
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    @asynccontextmanager
    async def connected() -> Any:
        async with (
            httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}) as web,
            Client(streamable_http_client(at.url, http_client=web)) as client,
        ):
            yield client

    return connected()


def test_an_owner_without_an_address_is_named(start: Start) -> None:
    gateways = start(0)
    owner = gateways.start(advertise=False)
    other = gateways.start()
    told = text(call(other, "note", "nowhere"))
    assert f"(process {owner.pid})" in told
    assert "--advertise URL" in told
    assert gateways.lines("calls") == []


def test_keys_go_only_to_hosts_that_were_named(start: Start) -> None:
    gateways = start(0)
    gateways.start()
    other = gateways.start("--peer", "gateway-*")
    told = text(call(other, "note", "nowhere"))
    assert "--peer HOST" in told
    assert gateways.lines("calls") == []


def test_a_forwarded_call_is_not_forwarded_again(start: Start) -> None:
    import httpx2
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    gateways = start(2)
    other = gateways.others()[0]

    async def main() -> None:
        async with (
            httpx2.AsyncClient(headers={"X-Toolscout-Forwarded": "1"}) as web,
            Client(streamable_http_client(other.url, http_client=web)) as client,
        ):
            with pytest.raises(MCPError, match="is not run by this gateway; nothing was called"):
                await called(client, "count/note", {"word": "loop"})

    anyio.run(main)
    assert gateways.lines("calls") == []
