"""Names, rates, queues, time: what a server refuses, at once, and how it ends."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.serving.http_app import TOOLS, Served, served
from toolscout import Scout
from toolscout.cli.main import app
from toolscout.errors import BadRequest
from toolscout.serving.limits import Gate, Origins, Rates, ServeOptions
from toolscout.serving.problems import Problem


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("limits"), ServeOptions(rate=1, burst=3)) as running:
        yield running


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "", "[", "localhost:80@evil.example", "::1"]
)
def test_other_names_are_not_answered_to(server: Served, host: str) -> None:
    assert server.get("/health", "nobody", Host=host).status_code == 421


@pytest.mark.parametrize("host", ["localhost", "localhost:99", "127.0.0.1:8765", "[::1]:80", "LOCALHOST"])
def test_its_own_names_are(server: Served, host: str) -> None:
    assert server.get("/health", "nobody", Host=host).status_code == 200


def test_pages_of_other_sites_may_not_ask() -> None:
    origins = Origins(ServeOptions(origins=("https://friend.example/",), hosts=("tools.example",)))
    origins.check({"host": "tools.example", "origin": "https://friend.example"})
    origins.check({"host": "tools.example", "origin": "http://tools.example"})
    for origin in ("https://evil.example", "null", "http://tools.example.evil.example"):
        with pytest.raises(Problem) as refused:
            origins.check({"host": "tools.example", "origin": origin})
        assert refused.value.status == 403


def test_one_caller_does_not_use_up_anothers_rate(server: Served) -> None:
    found = [server.get("/tools", "guest").status_code for _ in range(8)]
    assert found[:3] == [200, 200, 200]
    assert found[-1] == 429
    refused = server.get("/tools", "guest")
    assert (refused.headers["retry-after"], refused.json()["code"]) == ("1", "too_many_requests")
    assert server.get("/tools", "user").status_code == 200
    unknown = [server.client.get("/tools", headers={"X-API-Key": f"ts_{n}"}).status_code for n in range(8)]
    assert (unknown[0], unknown[-1]) == (401, 429)


def test_tokens_come_back_with_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("toolscout.serving.limits.time.monotonic", lambda: now[0])
    rates = Rates(2, 2)
    rates.take("a")
    rates.take("a")
    with pytest.raises(Problem):
        rates.take("a")
    now[0] = 0.5
    rates.take("a")
    with pytest.raises(Problem):
        rates.take("a")
    Rates(0, 1).take("a")


@pytest.mark.timing
def test_beyond_the_queue_it_refuses_at_once() -> None:
    async def crowd() -> list[object]:
        gate, open_ = Gate(2, 3, 10), threading.Event()
        waiting = [asyncio.ensure_future(gate.run(open_.wait)) for _ in range(20)]
        await asyncio.sleep(0.05)
        refused = [task for task in waiting if task.done()]
        began = time.perf_counter()
        with pytest.raises(Problem):
            await gate.run(open_.wait)
        assert time.perf_counter() - began < 0.05
        open_.set()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert (len(refused), gate.inside) == (15, 0)
        gate.close()
        return found

    found = asyncio.run(crowd())
    assert found[:5] == [True] * 5
    assert {one.status for one in found[5:] if isinstance(one, Problem)} == {503}


def test_what_takes_too_long_is_given_up_but_keeps_its_place() -> None:
    async def slow() -> None:
        gate, open_ = Gate(1, 0, 0.05), threading.Event()
        with pytest.raises(Problem) as late:
            await gate.run(open_.wait)
        assert late.value.status == 503
        with pytest.raises(Problem):
            await gate.run(int)
        open_.set()
        await asyncio.sleep(0.05)
        assert await gate.run(int) == 0
        gate.close()

    asyncio.run(slow())


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"queue": -1}, {"seconds": 0.0}, {"upstream": "file:///etc"}])
def test_options_that_cannot_work_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(BadRequest):
        ServeOptions(**wrong)  # type: ignore[arg-type]


def test_beyond_this_machine_keys_are_required(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLSCOUT_ENCODER", str(tmp_path / "none"))
    with Scout.open(tmp_path / "tools.db", "bm25") as scout:
        scout.add(TOOLS)
    store = str(tmp_path / "tools.db")
    done = CliRunner().invoke(app, ["--store", store, "serve", "--host", "0.0.0.0", "--port", "0"])
    assert done.exit_code == 2
    assert "toolscout keys add" in done.stderr
    done = CliRunner().invoke(app, ["--store", str(tmp_path / "no.db"), "serve"])
    assert done.exit_code == 2


def seconds(connection: http.client.HTTPConnection) -> float:
    began = time.perf_counter()
    connection.request("GET", "/health")
    connection.getresponse().read()
    return time.perf_counter() - began


@pytest.mark.timing
def test_sigterm_answers_what_was_begun_and_then_ends(tmp_path: Path) -> None:
    store = tmp_path / "tools.db"
    with Scout.open(store, "bm25") as scout:
        scout.add(TOOLS)
    command = [sys.executable, "-m", "toolscout", "--store", str(store), "serve", "--port", "0", "--retriever", "bm25"]
    environment = os.environ | {"TOOLSCOUT_ENCODER": str(tmp_path / "none")}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=environment, **pipes) as process:  # type: ignore[call-overload]
        ending = threading.Timer(20, process.kill)
        ending.start()
        port = int(re.search(r":(\d+)/", process.stdout.readline())[1])  # type: ignore[index]
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        assert min(seconds(connection) for _ in range(40)) < 0.03
        assert min(seconds(connection) for _ in range(5)) < 0.03  # no packet waits for the last to be acknowledged
        connection.putrequest("POST", "/search")
        body = json.dumps({"request": "feed the lion"}).encode()
        for name, value in (("Content-Type", "application/json"), ("Content-Length", str(len(body)))):
            connection.putheader(name, value)
        connection.endheaders()
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        connection.send(body)
        answer = connection.getresponse()
        assert answer.status == 200
        assert json.load(answer)["hits"][0]["tool_id"] == "zoo/feed_lion"
        connection.close()
        assert process.wait(10) == 0
        ending.cancel()
        assert process.stderr.read() == ""
