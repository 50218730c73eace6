"""Gateways as processes of their own over one PostgreSQL store, and what is seen of the servers that they share."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from mcp import Client

COUNTING = Path(__file__).with_name("counting_server.py")


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def until(true: Callable[[], Any], seconds: float = 30.0) -> float:
    """Wait until something holds; how long it took."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < seconds, "it did not happen in time"
        time.sleep(0.01)
    return time.monotonic() - began


@dataclass
class SharedGateway:
    """One gateway process."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path
    advertised: bool

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    @property
    def pid(self) -> int:
        return self.process.pid

    def client(self, **more: Any) -> Client:
        return Client(self.url, **more)

    def told(self) -> str:
        return self.log.read_text(errors="replace")

    def end(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.send_signal(number)
        self.process.wait(30)


@dataclass
class Gateways:
    """Starts gateways over the store at `url`, in front of one counting server; `end` ends them all."""

    url: str
    folder: Path
    stubborn: bool = False
    running: list[SharedGateway] = field(default_factory=list)

    def start(self, *words: str, url: str | None = None, advertise: bool = True, wait: bool = True) -> SharedGateway:
        number, port = len(list(self.folder.glob("log-*"))), free_port()
        config = self.folder / "servers.json"
        args = [str(COUNTING), str(self.folder), *(["stubborn"] if self.stubborn else [])]
        config.write_text(json.dumps({"mcpServers": {"count": {"command": sys.executable, "args": args}}}))
        more = ["--advertise", f"http://127.0.0.1:{port}/mcp"] if advertise else []
        command = [sys.executable, "-m", "toolscout", "--store", url or self.url, "mcp", "--config", str(config)]
        command += ["--http", f"127.0.0.1:{port}", "--retriever", "bm25", *more, *words]
        log = self.folder / f"log-{number}"
        with log.open("wb") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, "COLUMNS": "400"})
        made = SharedGateway(process, port, log, advertise)
        self.running.append(made)
        if wait:
            until(lambda: "count: run by" in made.told() or process.poll() is not None)
            assert process.poll() is None, made.told()
        return made

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def servers(self) -> list[int]:
        """The process ids of the servers that run now."""
        return [pid for line in self.lines("starts") if runs(pid := int(line))]

    def owner(self) -> SharedGateway:
        """The gateway whose child the one running server is."""
        until(lambda: len(self.servers()) == 1)
        parent = parent_of(self.servers()[0])
        return next(one for one in self.running if one.pid == parent)

    def others(self) -> list[SharedGateway]:
        owner = self.owner()
        return [one for one in self.running if one is not owner and one.process.poll() is None]

    def end(self) -> None:
        for one in self.running:
            with suppress(ProcessLookupError):
                one.end()
        until(lambda: not self.servers(), 5)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def runs(pid: int) -> bool:
    """Whether a process runs or is stopped; one that has ended and was not waited for does not."""
    return _stat(pid)[:1] not in ([], ["Z"], ["X"])


def parent_of(pid: int) -> int:
    return int(_stat(pid)[1])


@dataclass
class Watched:
    """The longest time in which more than one server ran."""

    longest: float = 0.0
    looks: int = 0


@contextmanager
def watching(gateways: Gateways) -> Iterator[Watched]:
    """Look again and again how many servers run at the same time."""
    seen, done = Watched(), threading.Event()

    def watch() -> None:
        since = 0.0
        while not done.wait(0.005):
            now, many = time.monotonic(), len(gateways.servers()) > 1
            seen.looks += 1
            since = (since or now) if many else 0.0
            seen.longest = max(seen.longest, now - since if many else 0.0)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


class Network:
    """A network between a gateway and PostgreSQL: a port that leads to its socket, and that can stall."""

    def __init__(self, host: str) -> None:
        self._target = f"{host}/.s.PGSQL.5432"
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._flows = threading.Event()
        self._flows.set()
        self._open: list[socket.socket] = [self._listening]
        threading.Thread(target=self._accept, daemon=True).start()

    def stall(self) -> None:
        """Hold back everything, in both directions, and close nothing."""
        self._flows.clear()

    def flow(self) -> None:
        self._flows.set()

    def close(self) -> None:
        self._flows.set()
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._target)
                self._open += [client, server]
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self._flows.wait()
                sink.sendall(data)
            self._flows.wait()
            sink.shutdown(socket.SHUT_WR)
