"""Requests that do not begin as they should, over real connections: none is kept for ever, none keeps others out."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from tests.serving.http_app import served
from toolscout.serving import http_protocol, limits
from toolscout.serving.limits import ServeOptions

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    with served(tmp_path, ServeOptions(rate=0), keyed=False) as server:
        app = server.client.app
        config = uvicorn.Config(
            app, port=0, log_config=None, http=http_protocol.HttpConnection, ws="none", lifespan="off"
        )
        running = uvicorn.Server(config)
        thread = threading.Thread(target=running.run, daemon=True)
        thread.start()
        while not running.started:
            time.sleep(0.01)
        yield int(running.servers[0].sockets[0].getsockname()[1])
        running.should_exit = True
        thread.join(30)


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def answered(one: socket.socket) -> tuple[int, dict[str, object]]:
    """The status and the document of an answer after which the connection is closed."""
    found = b""
    while part := one.recv(65536):
        found += part
    head, _, body = found.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head
    return int(head.split()[1]), json.loads(body)


@pytest.mark.parametrize("sent", [b"\x16\x03\x01 garbage\r\n\r\n", b"BREW /tools HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_what_is_no_request_is_a_problem(port: int, sent: bytes) -> None:
    with connected(port) as one:
        one.sendall(sent)
        status, problem = answered(one)
    assert status == problem["status"] == 400


def test_a_head_without_end_is_refused(port: int) -> None:
    with connected(port) as one:
        one.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-A: " + b"a" * (http_protocol.HEAD_BYTES // 2))
        time.sleep(0.1)
        one.sendall(b"a" * (http_protocol.HEAD_BYTES // 2))
        assert answered(one)[0] == 431


def test_heads_that_do_not_come_are_not_waited_for(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_S", 0.2)
    with connected(port) as silent, connected(port) as half, connected(port) as second:
        half.sendall(b"GET /health HTTP/1.1\r\n")
        second.sendall(HEALTH)
        assert b" 200 " in second.recv(65536)
        second.sendall(b"GET /health HTTP/1.1\r\n")
        assert silent.recv(10) == b""
        assert answered(half)[0] == answered(second)[0] == 408


def test_requests_that_come_one_after_the_other_are_answered(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also several in one packet, and more bytes in all than one head may have."""
    monkeypatch.setattr(http_protocol, "HEAD_BYTES", 200)
    with connected(port) as one:
        for count in (1, 1, 3, 1):
            one.sendall(HEALTH * count)
            found = b""
            while found.count(b'{"status": "ok"}') < count:
                found += one.recv(65536)
        body = json.dumps({"request": "x " * 500}).encode()
        head = b"POST /need HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        for cut in (0, 300, len(body)):
            one.sendall(head % len(body) + body[:cut])
            time.sleep(0.05)
            one.sendall(body[cut:])
            assert b" 200 " in one.recv(65536)


def test_beyond_so_many_connections_the_idle_ones_are_closed(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not those that come: whoever is connected and asks nothing would keep everyone else out."""
    monkeypatch.setattr(limits, "CONNECTIONS", 2)
    with connected(port) as first, connected(port) as second:
        second.sendall(HEALTH)
        assert b" 200 " in second.recv(65536)
        with connected(port) as third:
            third.sendall(HEALTH)
            assert b" 200 " in third.recv(65536)
            assert first.recv(10) == b""
            second.sendall(HEALTH)
            assert b" 200 " in second.recv(65536)


def test_a_body_that_is_announced_too_large_is_refused_before_it_is_sent(port: int) -> None:
    with connected(port) as one:
        one.sendall(b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n")
        one.sendall(b"Content-Type: application/json\r\nExpect: 100-continue\r\n\r\n")
        assert answered(one)[0] == 413
