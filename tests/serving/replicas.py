"""Servers over one PostgreSQL store that a test starts within a fraction of a second, and kills."""

from __future__ import annotations

import http.client
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

TOKEN = "ts_" + "0" * 40
# A process that has imported everything and forks one server for each line.
_NURSERY = """
import os, signal, sys
import toolscout.cli.main, toolscout.cli.serve, toolscout.scout, toolscout.serving.app, toolscout.serving.http_protocol
import toolscout.stores.postgres.store, toolscout.retrievers.bm25, uvicorn, pgvector.psycopg, psycopg_pool
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    pid = os.fork()
    if not pid:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        words = ["toolscout", "--store", line.strip(), "serve", "--port", "0", "--rate", "0", "--retriever", "bm25"]
        sys.argv = words
        toolscout.cli.main.main()
        os._exit(0)
    os.write(1, b"pid %d\\n" % pid)
"""


@dataclass
class Replica:
    """One server."""

    pid: int
    port: int

    def ask(self, method: str, path: str, body: Any = None, timeout: float = 30) -> tuple[int, Any, dict[str, str]]:
        """Send one request. Raises OSError or http.client.HTTPException where the server is gone."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            data = None if body is None else json.dumps(body)
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read()), {k.lower(): v for k, v in answer.getheaders()}
        finally:
            connection.close()

    def found(self, request: str, k: int = 1) -> list[str]:
        """The best ids for a request."""
        status, body, _ = self.ask("POST", "/search", {"request": request, "k": k})
        assert status == 200, body
        return [hit["tool_id"] for hit in body["considered"]]

    def add(self, *names: str) -> tuple[int, Any, dict[str, str]]:
        """Add tools in one change, each found by its name."""
        tools = [{"name": name, "description": f"What {name} does.", "namespace": "live"} for name in names]
        return self.ask("POST", "/tools", {"tools": tools, "source": "test"})

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class Nursery:
    """Starts servers over a store."""

    def __init__(self, url: str) -> None:
        self._url = url
        environment = {**os.environ, "TOOLSCOUT_TOKEN": TOKEN}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _NURSERY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        self._lock = threading.Lock()
        self._read = b""
        self._started: list[Replica] = []

    def start(self, url: str = "") -> Replica:
        """Start a server and wait until it listens."""
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(f"{url or self._url}\n".encode())
            self._process.stdin.flush()
            # Both processes write to one pipe, each line at once, so that lines may touch.
            started, listening = re.compile(rb"pid (\d+)\n"), re.compile(rb" at http://127.0.0.1:(\d+)/")
            end = time.monotonic() + 60
            while not ((pid := started.search(self._read)) and (port := listening.search(self._read))):
                assert time.monotonic() < end, f"a server did not start: {self._read!r}"
                self._more(end - time.monotonic())
            self._read = b""
            self._started.append(Replica(int(pid[1]), int(port[1])))
            return self._started[-1]

    def _more(self, seconds: float) -> None:
        assert self._process.stdout is not None
        if select.select([self._process.stdout], [], [], max(0.0, seconds))[0]:
            more = os.read(self._process.stdout.fileno(), 65536)
            assert more, "the process that starts servers ended"
            self._read += more

    def close(self) -> None:
        """Kill all."""
        for one in self._started:
            one.kill()
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


@contextmanager
def nursery(url: str) -> Iterator[Nursery]:
    """Servers over a store, killed at the end of the block."""
    made = Nursery(url)
    try:
        yield made
    finally:
        made.close()


class Proxy:
    """A TCP proxy on loopback in front of a Unix socket. While it stalls, connections stay open and nothing passes."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._open = threading.Event()
        self._open.set()
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def stall(self) -> None:
        """Pass nothing on from now on."""
        self._open.clear()

    def resume(self) -> None:
        """Pass on what was held back, and all that comes."""
        self._open.set()

    def close(self) -> None:
        """Close all connections."""
        self._open.set()
        for one in (self._listening, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._path)
            except OSError:
                return
            self._sockets += [client, server]
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._open.wait()
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)
