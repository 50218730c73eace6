"""Servers that really listen, on a loopback address, and clients that speak to them over plain sockets."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from toolscout.serving.http_protocol import Server, listen

LOOPS = ["asyncio"]
try:
    import uvloop

    LOOPS.append("uvloop")
except ImportError:
    pass


@contextmanager
def listening(app: Any, loop: str = "asyncio", lifespan: bool = True) -> Iterator[int]:
    """A server of an application in a thread of its own; its port."""
    server = Server(app, drain=1)
    server.config.lifespan = "on" if lifespan else "off"
    found = listen("127.0.0.1", 0)
    factory: Callable[[], Any] = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop

    def run() -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(server.serve([found]))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = int(found.getsockname()[1])
    try:
        yield port
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


def connected(port: int, source: str = "127.0.0.1", receive: int = 0) -> socket.socket:
    """A connection from an address of this machine; `receive`: how little the system takes in for it."""
    one = socket.socket()
    if receive:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    one.settimeout(10)
    try:
        one.bind((source, 0))
        one.connect(("127.0.0.1", port))
    except OSError:
        one.close()
        raise
    return one


def message(method: str, path: str, body: Any = None, **headers: str) -> bytes:
    """A request in bytes; underscores in names of headers stand for dashes."""
    data = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    return "\r\n".join([*lines, "", ""]).encode() + data


def read_head(one: socket.socket) -> tuple[int, bytes, bytes]:
    """The status, the head and the beginning of the body of an answer."""
    found = b""
    while b"\r\n\r\n" not in found:
        part = one.recv(65536)
        if not part:
            return 0, found, b""
        found += part
    head, _, rest = found.partition(b"\r\n\r\n")
    return int(head.split()[1]), head, rest


def asked(
    port: int,
    method: str,
    path: str,
    body: Any = None,
    source: str = "127.0.0.1",
    patience: float = 10,
    **headers: str,
) -> int:
    """The status of a request over a connection of its own; 0 where there is no answer within the seconds given."""
    try:
        with connected(port, source) as one:
            one.settimeout(patience)
            one.sendall(message(method, path, body, Connection="close", **headers))
            status = read_head(one)[0]
            while one.recv(65536):
                pass
            return status
    except OSError:
        return 0


def is_closed(one: socket.socket, seconds: float) -> bool:
    """Whether the other side closes within some time; what it sends until then is read."""
    one.settimeout(seconds)
    try:
        while one.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True
