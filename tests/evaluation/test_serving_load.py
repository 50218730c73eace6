"""The load of a server is measured as it is: paced, timed from when a request was due, every change looked for."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.toys import catalogue
from toolscout import Scout
from toolscout.errors import ToolscoutError
from toolscout.evaluation.bench import serving_load, speed
from toolscout.evaluation.bench.http_client import Client, Tally, run_at_rate
from toolscout.evaluation.bench.serving_load import ChangingTools, ServingPlan


def test_a_server_is_loaded_and_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLSCOUT_ENCODER", str(tmp_path / "none"))
    monkeypatch.setattr(serving_load, "_LIVE", 2)
    with Scout.open(tmp_path / "tools.db", "bm25") as scout:
        scout.add(catalogue(50))
    plan = ServingPlan(tmp_path / "tools.db", "bm25", "bundled", rate=40, seconds=1, writes=6, storm=100, step_s=0.3)
    row, storm = serving_load.measure(plan)
    values = row["values"]
    assert (row["bench"], row["tools"], row["requests"]) == ("serve", 50, "bundled")
    assert (values["answered"], values["errors"], values["missing"], values["stale"]) == (40, 0, 0, 0)
    assert values["added"] == 6
    assert 2 <= values["removed"] <= 4  # what is not there yet is not removed
    assert 0 < values["p50_ms"] <= values["p95_ms"] <= values["max_ms"]
    assert storm["bench"] == "storm"
    assert len(speed.lines(row)) == len(values)
    with Scout.open(tmp_path / "tools.db", "bm25") as scout:
        assert scout.count() == 50


def test_a_request_is_timed_from_when_it_was_due() -> None:
    taken: list[float] = []

    async def act(number: int, due: float) -> None:
        if not number:
            time.sleep(0.1)  # the generator itself is kept from its work
        taken.append(time.perf_counter() - due)

    asyncio.run(run_at_rate(100, 0.05, act))
    assert len(taken) == 5
    assert min(taken) > 0.05


def test_a_removed_tool_in_an_answer_is_stale_only_where_that_was_known() -> None:
    live = ChangingTools([], removed_at={"live/a": 5.0})
    live.check(["live/a", "live/b"], 4.0)
    assert live.stale == 0
    live.check(["live/a", "live/b"], 6.0)
    assert live.stale == 1


def test_quantiles_of_nothing() -> None:
    assert Tally().quantiles()["p95_ms"] == 0.0
    assert Tally([0.001, 0.002], [0.003]).quantiles()["refused_p95_ms"] == 3.0


def test_a_connection_that_the_server_closed_meanwhile_is_no_error() -> None:
    asked = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        await reader.readuntil(b"\r\n\r\n")
        asked += 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        writer.close()

    async def ask_twice() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            client = Client("127.0.0.1", server.sockets[0].getsockname()[1])
            for _ in range(2):
                assert await client.ask("GET", "/") == (200, b"ok")
                await asyncio.sleep(0.05)
            client.close()

    asyncio.run(ask_twice())
    assert asked == 2


def test_a_catalogue_with_keys_is_not_loaded_without_one() -> None:
    class Keyed(Client):
        async def ask(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
            return 401, b"{}"

    with pytest.raises(ToolscoutError, match="has keys"):
        asyncio.run(serving_load._read_metrics(Keyed("127.0.0.1", 1)))
