"""Connections that do nothing, or that do not read, keep nobody else out, of either server."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tests.security.live_server import LOOPS, asked, connected, is_closed, listening, message, read_head
from tests.serving.http_app import TOOLS, served
from toolscout import Scout
from toolscout.core.permissions import Principal, new_key
from toolscout.serving import http_protocol, limits
from toolscout.serving.access import Access, Caller
from toolscout.serving.gateway.server import Gateway, GatewayOptions
from toolscout.serving.gateway.sources import Backends
from toolscout.serving.gateway.transports import make_app
from toolscout.serving.limits import ServeOptions

pytestmark = pytest.mark.timing

LARGE = 8 << 20
HALVES = [
    b"",
    b"POST /search HTTP/1.1\r\nHost: localhost\r\n",
    b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{",
]


async def large(_: Request) -> Response:
    return Response(b"x" * LARGE)


async def health(_: Request) -> Response:
    return Response(b"ok")


async def slow(_: Request) -> StreamingResponse:
    """A stream that says something every now and then, and nothing at first."""

    async def parts() -> AsyncIterator[bytes]:
        for number in range(30):
            await asyncio.sleep(0.1)
            yield b"%d\n" % number

    return StreamingResponse(parts())


PLAIN = Starlette(routes=[Route("/large", large), Route("/health", health), Route("/slow", slow)])


@pytest.fixture(params=LOOPS)
def plain(request: pytest.FixtureRequest) -> Iterator[int]:
    with listening(PLAIN, request.param) as port:
        yield port


@pytest.fixture(params=LOOPS)
def catalogue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    with (
        served(tmp_path, ServeOptions(rate=0), keyed=False) as server,
        listening(server.client.app, request.param, lifespan=False) as port,
    ):
        yield port


@contextmanager
def gateway(folder: Path, options: ServeOptions, *names: str) -> Iterator[tuple[int, list[str]]]:
    """An MCP gateway over HTTP: its port, and a key for each name."""
    with Scout.open(folder / "tools.db", "bm25") as scout:
        scout.add(TOOLS)
        keys = []
        for name in names:
            scout.store.put_principal(Principal(name, allow=("*",)))
            key, resting = new_key(name)
            scout.store.add_key(resting)
            keys.append(key)
        made = Gateway(Access(scout), Backends(scout), GatewayOptions(start=0))
        with listening(make_app(made, options)) as port:
            yield port, keys


def initialize(session: str = "") -> dict[str, Any]:
    about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    return {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about}


ACCEPT = {"Accept": "application/json, text/event-stream"}


def opened(port: int, **headers: str) -> str:
    """A new session; empty where it is refused."""
    with connected(port) as one:
        one.sendall(message("POST", "/mcp", initialize(), **ACCEPT, **headers))
        status, head, _ = read_head(one)
        if status != 200:
            return ""
        found = [line.partition(b": ")[2] for line in head.splitlines() if line.startswith(b"mcp-session-id")]
        return found[0].decode()


def listed(port: int, session: str, **headers: str) -> int:
    """The status of a request in a session."""
    body = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    return asked(port, "POST", "/mcp", body, **ACCEPT, mcp_session_id=session, **headers)


def crowd(opened: ExitStack, port: int, count: int) -> list[socket.socket]:
    """So many connections that ask nothing whole, or nothing more."""
    found = []
    for number in range(count):
        one = opened.enter_context(connected(port))
        one.sendall(HALVES[number % len(HALVES)])
        found.append(one)
    return found


def trickled(one: socket.socket, seconds: float) -> float:
    """For how long single bytes can be sent."""
    began = time.perf_counter()
    try:
        while time.perf_counter() - began < seconds:
            one.sendall(b"x")
            time.sleep(0.05)
    except OSError:
        pass
    return time.perf_counter() - began


def received(one: socket.socket) -> bool:
    """Whether all of a large answer comes."""
    found = 0
    one.settimeout(2)
    try:
        while found < LARGE and (part := one.recv(1 << 20)):
            found += len(part)
    except OSError:
        pass
    return found >= LARGE


def test_new_clients_get_in_while_others_do_nothing(catalogue: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONNECTIONS", 40)
    with ExitStack() as opened:
        waiting = crowd(opened, catalogue, 200)
        began = time.perf_counter()
        found = [asked(catalogue, "POST", "/search", {"request": "feed the lion"}) for _ in range(20)]
        assert found == [200] * 20
        assert time.perf_counter() - began < 10
        crowd(opened, catalogue, 100)
        assert asked(catalogue, "GET", "/ready") == 200
        assert sum(is_closed(one, 0.01) for one in waiting) >= 160


def test_what_is_being_answered_is_not_closed_for_those_who_come(plain: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONNECTIONS", 20)
    with ExitStack() as opened:
        stream = opened.enter_context(connected(plain))
        stream.sendall(message("GET", "/slow", Connection="close"))
        found = read_head(stream)[2]
        crowd(opened, plain, 100)
        while part := stream.recv(65536):
            found += part
    assert b"29\n" in found


def test_where_all_are_being_answered_probes_are_still(plain: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONNECTIONS", 4)
    with ExitStack() as opened:
        for _ in range(4):
            opened.enter_context(connected(plain)).sendall(message("GET", "/slow"))
        time.sleep(0.3)
        assert asked(plain, "GET", "/health") == 200
        with connected(plain) as refused:
            refused.sendall(message("GET", "/large"))
            status, head, _ = read_head(refused)
    assert (status, b"retry-after: 1" in head) == (503, True)
    time.sleep(0.2)  # until the server has seen that they are gone
    assert asked(plain, "GET", "/large") == 200


def test_a_client_that_does_not_read_is_closed(plain: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "WRITE_S", 0.5)
    with connected(plain, receive=4096) as kept, connected(plain, receive=4096) as closing:
        kept.sendall(message("GET", "/large"))
        closing.sendall(message("GET", "/large", Connection="close"))
        time.sleep(2)
        assert [received(one) for one in (kept, closing)] == [0, 0]


def test_a_client_that_reads_slowly_gets_all_of_it(plain: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "WRITE_S", 0.5)
    with connected(plain) as one:
        one.sendall(message("GET", "/large", Connection="close"))
        found, began = 0, time.perf_counter()
        while part := one.recv(1 << 16):
            found += len(part)
            time.sleep(0.015)
    assert found > LARGE
    assert time.perf_counter() - began > 1.5  # longer than one that reads nothing has


def test_what_waits_to_be_read_is_bounded(plain: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that read nothing are closed before one that reads."""
    monkeypatch.setattr(http_protocol, "UNREAD_BYTES", 5 * LARGE)
    with ExitStack() as opened:
        reads = opened.enter_context(connected(plain))
        reads.sendall(message("GET", "/large", Connection="close"))
        found = sum(len(reads.recv(1 << 16)) for _ in range(50))
        waiting = []
        for _ in range(12):
            one = opened.enter_context(connected(plain, receive=4096))
            one.sendall(message("GET", "/large"))
            time.sleep(0.05)
            found += len(reads.recv(1 << 16))
            waiting.append(one)
        time.sleep(0.3)
        while part := reads.recv(1 << 20):
            found += len(part)
        whole = sum(received(one) for one in waiting)
    assert found > LARGE
    assert whole <= 4


def test_a_body_that_comes_after_its_answer_is_not_waited_for(plain: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where it trickles in, nor where the connection is idle once it is complete."""
    monkeypatch.setattr(http_protocol, "BODY_S", 0.5)
    head = b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000\r\n\r\n"
    with connected(plain) as one:
        one.sendall(head)
        assert read_head(one)[0] == 200
        assert trickled(one, 4) < 4


def test_idle_connections_end_whatever_was_sent_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "KEEP_ALIVE_S", 1)
    with listening(PLAIN) as port, connected(port) as one:
        one.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\n")
        assert read_head(one)[0] == 200
        one.sendall(b"xyz")
        assert is_closed(one, 4)


def test_the_gateway_has_the_same_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONNECTIONS", 40)
    with gateway(tmp_path, ServeOptions(rate=0)) as (port, _), ExitStack() as held:
        crowd(held, port, 200)
        assert all(opened(port) for _ in range(10))
        monkeypatch.setattr(http_protocol, "HEAD_S", 0.3)
        with connected(port) as half, connected(port) as silent:
            half.sendall(b"POST /mcp HTTP/1.1\r\n")
            assert read_head(half)[0] == 408
            assert is_closed(silent, 3)


def test_requests_of_clients_that_were_closed_keep_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their keys are still being looked up, in threads, when the next clients come."""
    monkeypatch.setattr(limits, "CONNECTIONS", 40)
    caller = Access.caller

    def slow_caller(self: Access, key: str | None) -> Caller:
        time.sleep(1)
        return caller(self, key)

    monkeypatch.setattr(Access, "caller", slow_caller)
    with gateway(tmp_path, ServeOptions(rate=0)) as (port, _), ExitStack() as held:
        for _ in range(60):
            held.enter_context(connected(port)).sendall(HALVES[-1])
            time.sleep(0.01)  # so that each request is begun before its client is closed
        assert opened(port)


def test_the_gateway_does_not_wait_for_bodies(tmp_path: Path) -> None:
    with gateway(tmp_path, ServeOptions(seconds=0.3, body_bytes=1000)) as (port, _):
        with connected(port) as one:
            one.sendall(message("POST", "/mcp", initialize(), **ACCEPT)[:-5])
            assert read_head(one)[0] == 408
        with connected(port) as one:
            one.sendall(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1001\r\n\r\n")
            assert read_head(one)[0] == 413
        with connected(port) as one:
            one.sendall(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
            one.sendall(b"7d0\r\n" + b"x" * 2000 + b"\r\n")
            assert read_head(one)[0] == 413


def test_a_stream_lives_as_long_as_its_client_wants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEAD_S", "BODY_S", "WRITE_S"):
        monkeypatch.setattr(http_protocol, name, 0.2)
    monkeypatch.setattr(http_protocol, "KEEP_ALIVE_S", 1)
    monkeypatch.setattr(limits, "CONNECTIONS", 20)
    with gateway(tmp_path, ServeOptions(rate=0, session_seconds=0.3)) as (port, _), ExitStack() as held:
        session = opened(port)
        stream = held.enter_context(connected(port))
        stream.sendall(message("GET", "/mcp", Accept="text/event-stream", mcp_session_id=session))
        assert read_head(stream)[0] == 200
        crowd(held, port, 60)
        assert not is_closed(stream, 2)
        assert listed(port, session) == 200
        stream.close()
        time.sleep(1)
        assert listed(port, session) == 404


def test_a_caller_has_so_many_streams(tmp_path: Path) -> None:
    with gateway(tmp_path, ServeOptions(rate=0, in_flight=2), "a", "b") as (port, keys), ExitStack() as held:
        found = {}
        for name, key in zip("ab", keys, strict=True):
            headers = {"Authorization": f"Bearer {key}"}
            statuses = []
            for _ in range(2):
                session = opened(port, **headers)
                if session:
                    stream = held.enter_context(connected(port))
                    get = message("GET", "/mcp", Accept="text/event-stream", mcp_session_id=session, **headers)
                    stream.sendall(get)
                    statuses.append(read_head(stream)[0])
            statuses.append(asked(port, "POST", "/mcp", initialize(), **ACCEPT, **headers))
            found[name] = statuses
    assert found == {"a": [200, 200, 503], "b": [200, 200, 503]}


def test_a_caller_has_so_many_sessions(tmp_path: Path) -> None:
    """The one that it used longest ago ends for the next; those of others stay, and those in use too."""
    with gateway(tmp_path, ServeOptions(rate=0, sessions=3), "a", "b") as (port, keys), ExitStack() as held:
        a, b = ({"Authorization": f"Bearer {key}"} for key in keys)
        other = opened(port, **b)
        first = [opened(port, **a) for _ in range(3)]
        assert listed(port, first[0], **a) == 200
        opened(port, **a)
        assert [listed(port, session, **a) for session in first] == [200, 404, 200]
        assert listed(port, other, **b) == 200
        assert listed(port, other, **a) == 404
        for session in [opened(port, **a) for _ in range(3)]:
            stream = held.enter_context(connected(port))
            stream.sendall(message("GET", "/mcp", Accept="text/event-stream", mcp_session_id=session, **a))
            assert read_head(stream)[0] == 200
        assert asked(port, "POST", "/mcp", initialize(), **ACCEPT, **a) == 503
        assert opened(port, **b)
        assert asked(port, "DELETE", "/mcp", mcp_session_id=other, **b) == 200
        assert listed(port, other, **b) == 404


def test_a_client_that_goes_is_no_traceback(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with gateway(tmp_path, ServeOptions(rate=0)) as (port, _):
        for number in range(60):
            version = {"mcp_protocol_version": "2026-07-28"} if number % 2 else {}
            whole = message("POST", "/mcp", initialize(), **ACCEPT, **version)
            with connected(port) as one:
                one.sendall(whole[:-5] if number % 3 else whole)
        assert opened(port)
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(told) <= 1
    assert not any(record.exc_info for record in told)


def test_what_libraries_log_is_one_line_of_each_kind(caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    with http_protocol.short_logs():
        for number in range(100):
            try:
                raise OSError(24, "Too many open files")
            except OSError:
                logging.getLogger("asyncio").exception("socket.accept() out of system resource\nsocket: %d", number)
        monkeypatch.setattr(http_protocol, "LOG_S", 0.0)
        for number in range(2):
            logging.getLogger("mcp.server.streamable_http").warning(f"session {number} is not there")
    told = [record.getMessage() for record in caplog.records]
    assert told[0] == "asyncio: socket.accept() out of system resource (OSError: [Errno 24] Too many open files)"
    assert len(told) == 3
    assert not any(record.exc_info for record in caplog.records)


def test_connections_leave_descriptors_for_everything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    for descriptors, expected in ((1 << 20, 1024), (4096, 1024), (1024, 640), (256, 64), (3, 1)):
        monkeypatch.setattr(limits, "descriptor_limit", lambda found=descriptors: found)
        assert limits.connection_limit() == expected


@pytest.mark.parametrize(
    ("face", "count", "descriptors"),
    [
        ("mcp", 700, 512),
        pytest.param("mcp", 1300, 1024, marks=pytest.mark.slow),
        pytest.param("serve", 1300, 1024, marks=pytest.mark.slow),
    ],
)
def test_more_half_open_sockets_than_descriptors(tmp_path: Path, face: str, count: int, descriptors: int) -> None:
    """The command as a user starts it, in a shell whose limits it cannot raise."""
    store, log = tmp_path / "tools.db", tmp_path / "log.txt"
    with Scout.open(store, "bm25") as scout:
        scout.add(TOOLS)
    port = 20_000 + os.getpid() % 10_000  # none that a client could be given for its own end
    where = ["mcp", "--http", f"127.0.0.1:{port}"] if face == "mcp" else ["serve", "--port", str(port)]
    command = [sys.executable, "-m", "toolscout", "--store", str(store), *where, "--retriever", "bm25"]
    environment = os.environ | {"TOOLSCOUT_ENCODER": str(tmp_path / "none")}
    path, body = ("/mcp", initialize()) if face == "mcp" else ("/search", {"request": "feed the lion"})
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count + 200:
        pytest.skip(f"this process may open {soft} files only")

    def answered(seconds: float = 5) -> int:
        status, over = 0, time.monotonic() + seconds
        while status != 200 and time.monotonic() < over:  # 429 for a moment: all of them come from this address
            status = asked(port, "POST", path, body, **ACCEPT)
            time.sleep(0 if status == 200 else 0.1)
        return status

    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            stdout=file,
            stderr=file,
            env=environment,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors)),
        )
    try:
        assert answered(30) == 200
        with ExitStack() as opened:
            crowd(opened, port, count)
            assert [answered() for _ in range(5)] == [200] * 5
            assert len(os.listdir(f"/proc/{process.pid}/fd")) < descriptors
        assert answered() == 200
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
    assert b"Traceback" not in log.read_bytes()
    assert log.read_bytes().count(b"\n") < 10
