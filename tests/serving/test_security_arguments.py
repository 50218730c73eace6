"""Hostile arguments at a running gateway: the caller gets a short answer soon, and others are served meanwhile."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client

from tests.serving.gateways import called, found, gateway, names, serving, soon, text
from toolscout import Scout, Tool
from toolscout.serving.gateway.argument_process import ArgumentChecks
from toolscout.serving.gateway.transports import make_app
from toolscout.serving.limits import ServeOptions

ITEMS = {"type": "array", "items": {"type": "integer"}}
NAMES = {f"^x{number}.*y{{1,20}}$": {"type": "string"} for number in range(600)}
SCHEMAS: dict[str, dict[str, Any]] = {
    "going_back": {"type": "object", "properties": {"v": {"type": "string", "pattern": "^(a+)+$"}}},
    "items": {"type": "object", "properties": {"v": ITEMS}},
    "patterns": {"type": "object", "patternProperties": NAMES},
}
TOOLS = [
    *(Tool("odd", name, f"Weighs by {name}.", input_schema=schema) for name, schema in SCHEMAS.items()),
    *(Tool("plain", f"tool_{number}", f"Does the plain thing {number}.") for number in range(12)),
]
ATTACKS: dict[str, dict[str, Any]] = {
    "odd/going_back": {"v": "a" * 28 + "!"},
    "odd/items": {"v": ["wrong by a text"] * 45_000},
    "odd/patterns": {f"x{number}{'y' * 30}!": 1 for number in range(2000)},
}
HANGS = "import os, time; print('ready', flush=True); open({!r}, 'w').write(str(os.getpid())); time.sleep(60)"


@asynccontextmanager
async def two_clients(store: Path) -> AsyncIterator[tuple[Any, Client, Client]]:
    """A gateway over real HTTP and two who talk to it."""
    with Scout.open(store, "bm25") as scout:
        scout.add(TOOLS)
    async with (
        gateway(store) as made,
        serving(make_app(made, ServeOptions(rate=0))) as url,
        Client(url) as one,
        Client(url) as other,
    ):
        yield made, one, other


@pytest.mark.timing
@pytest.mark.parametrize("name", ATTACKS)
def test_others_are_served_while_arguments_are_checked(tmp_path: Path, name: str) -> None:
    lags: list[float] = []
    waits: list[float] = []
    answers: list[str] = []

    async def watch() -> None:
        while True:
            began = time.monotonic()
            await anyio.sleep(0.005)
            lags.append(time.monotonic() - began)

    async def attack(client: Client) -> None:
        for _ in range(3):
            result = await called(client, name, ATTACKS[name])
            assert result.is_error
            answers.append(text(result))

    async def main() -> None:
        async with two_clients(tmp_path / "t.db") as (made, one, other):
            await found(other, "the plain thing")
            began = time.monotonic()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch)
                tasks.start_soon(attack, one)
                while len(answers) < 3:
                    asked = time.monotonic()
                    assert "plain/tool_7" in names(await found(other, "the plain thing 7"))
                    waits.append(time.monotonic() - asked)
                tasks.cancel_scope.cancel()
            assert time.monotonic() - began < 20
            made.checks.close()

    anyio.run(main)
    assert all(len(answer) < 5000 and "do not fit" in answer for answer in answers)
    # The clients, and the reading of a megabyte of JSON, share this loop with the gateway.
    assert max(lags) < 0.5
    assert max(waits) < 2


@pytest.mark.timing
def test_a_check_that_hangs_is_ended_and_others_are_served(tmp_path: Path) -> None:
    note = tmp_path / "pid"

    async def main() -> None:
        async with two_clients(tmp_path / "t.db") as (made, one, other):
            made.checks = ArgumentChecks(5, command=[sys.executable, "-c", HANGS.format(str(note))])
            results: list[Any] = []

            async def call() -> None:
                results.append(await called(one, "odd/items", {"v": [1]}))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call)
                await soon(note.exists, 20)
                began = time.monotonic()
                assert names(await found(other, "the plain thing 3"))[0] == "plain/tool_3"
                assert not results
                assert time.monotonic() - began < 4
            assert "could not be checked within 5 s" in text(results[0])
            await soon(lambda: not Path(f"/proc/{note.read_text()}").exists(), 5)
            made.checks = ArgumentChecks()
            assert "must be an integer" in text(await called(one, "odd/items", {"v": ["x"]}))
            made.checks.close()

    anyio.run(main)


def test_a_message_with_too_many_values_is_refused_at_the_door(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path / "t.db") as made, serving(make_app(made, ServeOptions())) as url:
            body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"x": [[]] * 100_000}})
            async with httpx2.AsyncClient() as web:
                answer = await web.post(url, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 413
        assert "50,000 values" in answer.json()["detail"]

    anyio.run(main)


def test_arguments_that_are_too_large_are_not_checked_at_all(tmp_path: Path) -> None:
    async def main() -> None:
        with Scout.open(tmp_path / "t.db", "bm25") as scout:
            scout.add(TOOLS)
        async with gateway(tmp_path / "t.db") as made, Client(made.server) as client:
            for arguments in ({"v": ["x" * 1000] * 2000}, {"v": [["x"] * 1000] * 300}):
                answer = text(await called(client, "odd/items", arguments))
                assert "too large" in answer
                assert len(answer) < 300
            assert made.checks._running == []

    anyio.run(main)


@contextmanager
def started(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """`toolscout mcp` whose checks hang, and the file in which the process that checks writes who it is."""
    with Scout.open(folder / "t.db", "bm25") as scout:
        scout.add(TOOLS)
    note = folder / "pid"
    hanging = [sys.executable, "-c", HANGS.format(str(note))]
    code = (
        "import sys; from toolscout.serving.gateway import argument_process as argument_checks; "
        f"argument_checks._command = lambda seconds: {hanging!r}; argument_checks.ArgumentChecks.__init__.__defaults__"
        " = (60.0, 60.0, None); from toolscout.cli.main import main; sys.exit(main())"
    )
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", code, "--store", str(folder / "t.db"), "mcp", "--retriever", "bm25", *words]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            yield process, note
        finally:
            process.kill()


def wait_for(check: Any, seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.02)


def ends_with_its_check(process: subprocess.Popen[bytes], note: Path, seconds: float) -> None:
    wait_for(lambda: note.exists() and note.read_text())
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.wait(30)
    assert time.monotonic() - began < seconds
    wait_for(lambda: not Path(f"/proc/{note.read_text()}").exists(), 5)


def test_sigterm_ends_a_gateway_over_stdio_during_a_check(tmp_path: Path) -> None:
    about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    call = {"name": "call_tool", "arguments": {"name": "odd/items", "arguments": {"v": [1]}}}
    with started(tmp_path) as (process, note):
        assert process.stdin and process.stdout  # noqa: PT018 - for the types alone
        for number, method, params in ((1, "initialize", about), (2, "tools/call", call)):
            message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()
            if number == 1:
                process.stdout.readline()
        ends_with_its_check(process, note, 4)


def test_sigterm_ends_a_gateway_over_http_during_a_check(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    with started(tmp_path, "--http", f"127.0.0.1:{port}") as (process, note):
        wait_for(lambda: is_open(port))
        caller = subprocess.Popen([sys.executable, "-c", CALL, str(port)], stderr=subprocess.DEVNULL)
        try:
            ends_with_its_check(process, note, 12)  # calls that run have five seconds to end
        finally:
            caller.kill()
            caller.wait()


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


CALL = """
import sys, anyio
from mcp import Client
async def main():
    async with Client(f"http://127.0.0.1:{sys.argv[1]}/mcp") as client:
        await client.call_tool("call_tool", {"name": "odd/items", "arguments": {"v": [1]}})
anyio.run(main)
"""
