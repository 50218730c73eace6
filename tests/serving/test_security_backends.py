"""Hostile MCP servers behind the gateway: each costs itself, and a good one beside it goes on answering."""

from __future__ import annotations

import gzip
import json
import math
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.security.hostile_backend import MIB, USABLE
from tests.serving.gateways import QUICK, called, found, gateway, serving, soon, text
from toolscout.catalogue.mcp import client as mcp_client
from toolscout.catalogue.mcp import messages, stdio
from toolscout.catalogue.mcp.client import McpServer
from toolscout.core.tool import Origin, Tool
from toolscout.serving.gateway import client_calls
from toolscout.serving.gateway import server_connection as backends
from toolscout.serving.gateway.client_calls import ClientCall
from toolscout.serving.gateway.server import Gateway, GatewayOptions
from toolscout.serving.gateway.server_connection import Backend, BackendDown

pytestmark = pytest.mark.timing

HOSTILE = Path(__file__).parents[1] / "security" / "hostile_backend.py"
BRISK = replace(QUICK, timeout=1.0, grace=0.5, connect=5.0)
# Seconds. A quarter is meant; the rest is for a machine on which other tests run.
LONGEST_STALL = 1.0


def hostile(mode: str, *arguments: str, **env: str) -> dict[str, Any]:
    return {"command": sys.executable, "args": [str(HOSTILE), mode, *arguments], "env": env}


class Watch:
    """How the good server and the event loop fare meanwhile."""

    def __init__(self) -> None:
        self.calls = 0
        self.slowest = 0.0
        self.stall = 0.0

    async def call(self, client: Client) -> None:
        while True:
            began = time.monotonic()
            assert text(await called(client, "good/echo")) == "echo"
            self.slowest = max(self.slowest, time.monotonic() - began)
            self.calls += 1
            await anyio.sleep(0.02)

    async def feel(self) -> None:
        while True:
            began = time.monotonic()
            await anyio.sleep(0.01)
            self.stall = max(self.stall, time.monotonic() - began - 0.01)


@asynccontextmanager
async def beside(
    folder: Path, bad: dict[str, Any], options: Any = BRISK, **more: Any
) -> AsyncIterator[tuple[Gateway, Client, Watch]]:
    """A gateway before a good server and a bad one; the good one is called all the time."""
    document = {"mcpServers": {"good": hostile("good"), "bad": bad}}
    async with gateway(folder / "t.db", document, backend=options, **more) as made, Client(made.server) as client:
        await called(client, "good/echo")  # the first call starts what the others use
        watch = Watch()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch.call, client)
            tasks.start_soon(watch.feel)
            yield made, client, watch
            await soon(lambda: watch.calls >= 5, 10)
            tasks.cancel_scope.cancel()
        assert watch.slowest < 1.5
        assert watch.stall < LONGEST_STALL


def test_the_tool_that_is_called_is_the_one_that_was_permitted(tmp_path: Path) -> None:
    calls = tmp_path / "calls"

    def stored(name: str, kind: Any, target: str, **details: Any) -> Tool:
        return Tool("mail", name, "Harmless", origin=Origin(kind, target, details))

    async def main() -> None:
        document = {"mcpServers": {"mail": hostile("good", CALLS=str(calls))}}
        async with gateway(tmp_path / "t.db", document) as made, Client(made.server) as client:
            rows = [
                stored("alias", "mcp", str(HOSTILE), tool="delete_all"),
                stored("shell", "mcp", f"touch {tmp_path / 'ran'}", tool="shell"),
                stored("module", "function", "os:getcwd"),
                stored("address", "http", "http://127.0.0.1:1", method="GET", path="/"),
            ]
            made.backends.scout.store.add(rows, "from elsewhere")
            made.backends.scout.refresh()
            for row in rows:
                answer = await called(client, row.id)
                assert answer.is_error
                assert f"{row.id} is not, or not any more, a tool of its server" in text(answer)
            assert text(await called(client, "mail/echo")) == "echo"
            # Also where the row of a listed tool says that it is another.
            made.backends.scout.store.add([stored("echo", "mcp", str(HOSTILE), tool="delete_all")], "y", replace=True)
            assert text(await called(client, "mail/echo")) == "echo"
        assert calls.read_text().split() == ["echo", "echo"]
        assert not (tmp_path / "ran").exists()

    anyio.run(main)


class Nobody:
    """Listens to a server and does nothing."""

    async def tools_listed(self, *_: Any) -> None: ...

    async def offers_changed(self, *_: Any) -> None: ...

    async def resource_updated(self, *_: Any) -> None: ...

    def connected_client(self) -> None: ...


def test_a_list_of_an_earlier_connection_lets_nothing_be_called() -> None:
    async def main() -> None:
        made = Backend(McpServer(command=("x",), name="mail"), BRISK, Nobody())
        old = [Tool("mail", "send", origin=Origin("mcp", "x", {"tool": "send"}))]
        made._connected, made._listed = object(), list(old)  # type: ignore[assignment]
        made.admit(old, old)
        assert made._client is None
        assert made._names == {}
        made.admit(made._listed, old)  # type: ignore[arg-type]
        assert made._names == {"mail/send": "send"}

    anyio.run(main)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_an_odd_tool_costs_itself(tmp_path: Path, mode: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        document = {"mcpServers": {"bad": hostile("odd")}}
        shown = GatewayOptions(pass_through=100)
        async with gateway(tmp_path / "t.db", document, options=shown) as made:
            assert made.backends.problems() == {}
            assert sorted(made.backends.scout.store.ids()) == sorted(f"bad/{name}" for name in USABLE)
            async with Client(made.server, mode=mode) as client:
                listed = (await client.list_tools()).tools
                assert sorted(tool.name for tool in listed) == sorted(f"bad__{name}" for name in USABLE)
                assert all(tool.input_schema["type"] == "object" for tool in listed)
                for name in USABLE:
                    answer = await called(client, f"bad/{name}", {"text": "x"})
                    assert not answer.is_error, text(answer)
                    assert text(answer) == name

    anyio.run(main)
    for name in ("infinite", "huge_number", "nothing", "text", "words", "deep", "half", "nnn"):
        assert sum(name in line for line in caplog.messages if "report it" in line) >= 1, name
    assert len([line for line in caplog.messages if "report it" in line]) == 10


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        ("text_50", "refused: it has more than 16 MiB"),
        ("lists", "refused: it has more than"),
        ("objects", "refused: it has more than 500,000 values"),
        ("keys", "refused: it has more than 50,000 values"),
        ("parts", "refused: it has more than"),
        ("nested", "refused: nested too deeply"),
        ("wrong", "refused: it is not a JSON-RPC message"),
        ("mute", "did not answer within 1 s"),
        ("wrong_ids", "did not answer within 1 s"),
        ("line", "did not answer within 1 s"),
    ],
)
def test_answers_that_are_too_much(tmp_path: Path, mode: str, told: str) -> None:
    slow = mode not in ("mute", "wrong_ids", "line")

    async def main() -> None:
        options = replace(BRISK, timeout=30.0) if slow else BRISK
        async with beside(tmp_path, hostile(mode), options) as (made, client, _):
            answer = await called(client, "bad/echo")
            assert answer.is_error
            assert told in text(answer)
            assert made.backends.problems() == {}  # the connection goes on

    anyio.run(main)


def test_answers_that_are_large_or_hard_to_send_are_passed_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with beside(tmp_path, hostile("text_15"), replace(BRISK, timeout=30.0)) as (_, client, _watch):
            assert len(text(await called(client, "bad/echo"))) == 15 * MIB
        async with beside(tmp_path, hostile("half")) as (_, client, _watch):
            answer = await called(client, "bad/echo")
            assert (text(answer), answer.structured_content) == ("cut ?", {"a": None})
        async with beside(tmp_path, hostile("smuggled")) as (made, client, _watch):
            assert not (await called(client, "bad/echo")).is_error
            await anyio.sleep(0.3)
            assert "bad/smuggled" not in made.backends.scout.store.ids()

    anyio.run(main)


@pytest.mark.parametrize(
    "mode", ["notifications", "errors", "junk", "asks", "newlines", "changing", "large_messages", "heavy_messages"]
)
def test_floods_slow_the_server_that_sends_them(tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lists: list[float] = []
    original = Backend._list

    async def counted(self: Backend, *arguments: Any) -> None:
        lists.append(time.monotonic()) if self.name == "bad" else None
        await original(self, *arguments)

    monkeypatch.setattr(Backend, "_list", counted)

    async def main() -> None:
        began = time.monotonic()
        async with beside(tmp_path, hostile(mode), replace(BRISK, connect=2.0)) as (_, client, watch):
            await anyio.sleep(2)
            assert watch.calls > 5
            if mode in ("notifications", "errors"):
                assert text(await called(client, "bad/echo")) == "echo"
            await found(client, "does it")
        took = time.monotonic() - began
        assert len(lists) <= 3 + took / BRISK.relist_pause

    anyio.run(main)


def test_progress_without_end_neither_piles_up_nor_says_too_much(tmp_path: Path) -> None:
    held: list[str] = []

    async def main() -> None:
        async with gateway(tmp_path / "t.db", {"mcpServers": {"bad": hostile("progress")}}, backend=BRISK) as made:

            class Unread(ClientCall):
                async def _report(self, progress: float, total: float | None, message: str | None) -> None:
                    held.append(message or "")
                    await anyio.sleep(math.inf)  # as a client that does not read

            tool = made.backends.scout.store.get(["bad/echo"])[0]
            with anyio.move_on_after(3):
                await made.backends.call(tool, {}, Unread())
            assert 0 < len(held) <= client_calls._MAX_PENDING
            assert {len(message) for message in held} == {client_calls._MAX_REPORT_CHARS}

    anyio.run(main)


@pytest.mark.parametrize(
    ("mode", "limit", "told"),
    [
        ("pages", ("MAX_PAGES", 30), "never ends its list of tools: it goes on with the cursor '31'"),
        ("tools", ("MAX_TOOLS", 20_000), "lists more than 20,000 tools"),
        ("bytes", ("MAX_LIST_CHARS", 20 * MIB), "say more than 20 MiB"),
        ("large", ("MAX_LIST_VALUES", 100_000), "or 100,000 values"),
        ("cursor", ("MAX_CURSOR_CHARS", 10_000), "never ends its list of tools: it goes on with the cursor '000"),
        ("values", None, "did not answer"),
    ],
)
def test_lists_without_end(
    tmp_path: Path, mode: str, limit: tuple[str, int] | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if limit:
        monkeypatch.setattr(mcp_client, *limit)

    async def main() -> None:
        async with beside(tmp_path, hostile(mode), replace(BRISK, connect=20.0)) as (made, _, _watch):
            await soon(lambda: told in made.backends.problems().get("bad", ""), 20)
            assert made.backends.scout.store.ids() == ["good/delete_all", "good/echo"]

    anyio.run(main)


def test_a_large_list_is_taken(tmp_path: Path) -> None:
    async def main() -> None:
        async with beside(tmp_path, hostile("large"), replace(BRISK, connect=30.0)) as (made, client, _):
            await soon(lambda: len(made.backends.scout.store.ids()) == 3_002, 60)
            assert text(await called(client, "bad/t2999")) == "t2999"

    anyio.run(main)


def test_a_tool_that_is_too_long_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "tools.json"
    tools = [{"name": name, "description": text * 300_000} for name, text in (("short", ""), ("long", "x"))]
    file.write_text(json.dumps(tools))

    async def main() -> None:
        async with gateway(tmp_path / "t.db", {"mcpServers": {"bad": hostile("file", str(file))}}) as made:
            assert made.backends.scout.store.ids() == ["bad/short"]

    anyio.run(main)
    assert "long has more than 256,000 characters" in caplog.text


def test_a_server_that_dies_all_the_time_is_started_less_and_less_often(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "_SETTLED", 1.5)  # longer than "dies" is up on a busy machine
    slow = {"command": sys.executable, "args": ["-c", "import time; time.sleep(1.6)"]}  # never up, but not at once

    async def main() -> None:
        document = {"mcpServers": {"dies": hostile("dies"), "slow": slow}}
        async with gateway(tmp_path / "t.db", document, backend=replace(BRISK, pause=0.1)):
            await soon(lambda: all(len(pauses(name)) >= 4 for name in ("dies", "slow")), 40)

    def pauses(name: str) -> list[float]:
        lines = [line for line in caplog.messages if line.startswith(f"{name} ended")]
        return [float(line.partition("next try in ")[2].split()[0]) for line in lines]

    anyio.run(main)
    for name in ("dies", "slow"):
        assert pauses(name)[:4] == [0.1, 0.2, 0.4, 0.8]


def test_callers_are_not_told_the_command(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    document = {
        "mcpServers": {
            "gone": {"command": "/no/such/secret-command"},
            "barred": {"command": str(tmp_path), "cwd": str(tmp_path)},
            "ends": {"command": sys.executable, "args": ["-c", "raise SystemExit('secret words')"]},
        }
    }

    async def main() -> None:
        async with gateway(tmp_path / "t.db", document, backend=BRISK) as made:
            problems = made.backends.problems()
            assert set(problems) == {"gone", "barred", "ends"}
            assert "secret" not in str(problems)
            assert str(tmp_path) not in str(problems)
            with pytest.raises(BackendDown) as caught:
                await made.backends.call(Tool("gone", "x"), {}, lambda *_: None)  # type: ignore[arg-type]
            assert "secret" not in str(caught.value)

    anyio.run(main)
    assert "secret-command" in caplog.text
    assert "secret words" in caplog.text


class Web:
    """A server over HTTP in the older protocol; `answer` makes the response to a call."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.streams: list[float] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (await self.response(Request(scope, receive)))(scope, receive, send)

    async def response(self, request: Request) -> ASGIApp:
        if request.method == "GET":
            self.streams.append(time.monotonic())
            return Response(b"retry: 0\nid: 1\ndata:\n\n", media_type="text/event-stream")
        message = json.loads(await request.body()) if request.method == "POST" else {}
        results: dict[str, Any] = {
            "initialize": {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "web", "version": "1"},
            },
            "tools/list": {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]},
            "ping": {},
        }
        method = message.get("method")
        headers = {"mcp-session-id": "one"}
        if "id" not in message:
            return Response(status_code=202)
        if method in results:
            answer = {"jsonrpc": "2.0", "id": message["id"], "result": results[method]}
        elif method == "tools/call":
            return self.called(message["id"])
        else:
            answer = {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "no"}}
        return Response(json.dumps(answer), media_type="application/json", headers=headers)

    def called(self, number: int) -> Response:
        kind, _, how = self.mode.partition(" ")
        length = {"large": 15, "huge": 50, "small": 0}[kind] * MIB
        result = {"content": [{"type": "text", "text": "x" * length}]}
        body = json.dumps({"jsonrpc": "2.0", "id": number, "result": result}).encode()
        if how == "events":
            pieces = (b"event: message\ndata: ", body, b"\n\n")
            return StreamingResponse(iter(pieces), media_type="text/event-stream")
        if how == "lines":
            body = b"data: " + body.replace(b'"result"', b'\ndata: "result"') + b"\n\n"
            return Response(body, media_type="text/event-stream")
        if how == "packed":
            return Response(gzip.compress(body, 1), media_type="application/json", headers={"content-encoding": "gzip"})
        if how == "other":
            return Response(body, media_type="application/json", headers={"content-encoding": "zstd"})
        return Response(body, media_type="application/json")


@pytest.mark.parametrize("how", ["", " events", " lines", " packed"])
def test_answers_over_http_are_bounded(tmp_path: Path, how: str) -> None:
    async def main() -> None:
        for mode in ("small", "large", "huge"):
            web = Web(mode + how)
            async with serving(web) as url:
                document = {"mcpServers": {"bad": {"url": url}}}
                options = replace(BRISK, timeout=60.0)
                async with (
                    gateway(tmp_path / "t.db", document, backend=options) as made,
                    Client(made.server) as client,
                ):
                    answer = await called(client, "bad/echo")
                    if mode == "huge":
                        assert "refused: it has more than 16 MiB" in text(answer)
                    else:
                        assert len(text(answer)) == (15 * MIB if mode == "large" else 0)
                    assert made.backends.problems() == {}

    anyio.run(main)


def test_streams_over_http_are_not_asked_for_without_end(tmp_path: Path) -> None:
    async def main() -> None:
        web = Web("small other")
        async with serving(web) as url:
            document = {"mcpServers": {"bad": {"url": url}}}
            async with gateway(tmp_path / "t.db", document, backend=BRISK) as made, Client(made.server) as client:
                await anyio.sleep(2.5)
                assert 1 <= len(web.streams) <= 5  # it closes each at once
                answer = await called(client, "bad/echo")
                assert answer.is_error  # compressed in a way that was not asked for

    anyio.run(main)


class Chunks:
    """A stream of bytes as a pipe gives them."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self.data), 65_536):
            yield self.data[start : start + 65_536]


def test_a_long_line_takes_time_linear_in_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "MAX_MESSAGE_BYTES", 100_000_000)

    async def read(size: int) -> float:
        throttle = messages.Throttle(math.inf, math.inf)
        began = time.perf_counter()
        stream: Any = Chunks(b"x" * size + b"\n" + b"y\n")
        lines = [line async for line in stdio._lines(stream, throttle)]
        assert [len(line) for line in lines if isinstance(line, bytes)] == [size, 1]
        return time.perf_counter() - began

    async def main() -> None:
        assert await read(50_000_000) < 2.0  # the SDK's own reader takes 800 times the copying of one of 64 KB
        monkeypatch.setattr(stdio, "MAX_MESSAGE_BYTES", 1_000_000)
        stream: Any = Chunks(b'{"jsonrpc":"2.0","id":7,"result":"' + b"x" * 50_000_000 + b'"}\n{}\n')
        cut, rest = [line async for line in stdio._lines(stream, messages.Throttle(math.inf, math.inf))]
        assert isinstance(cut, stdio.CutLine)
        assert cut.refusal("too long").id == 7  # type: ignore[union-attr]
        assert rest == b"{}"

    anyio.run(main)


def test_what_a_server_writes_to_standard_error_takes_no_room() -> None:
    tail = stdio.Tail(1_000)
    for number in range(10_000):
        tail.add(b"%d said again\n" % number)
        assert len(tail._kept) <= 2_100
    assert tail.text().endswith("9999 said again\n")
    assert len(tail.text()) == 1_000
