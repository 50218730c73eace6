"""Requests of every broken kind, against the server as a user starts it: each is answered, and nothing is lost."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.security.http_fuzz import requests
from tests.serving.http_app import TOOLS
from toolscout import Scout
from toolscout.core.permissions import Principal, new_key
from toolscout.stores.sqlite.store import SqliteStore

REFUSED = {400, 401, 403, 404, 405, 408, 409, 413, 415, 421, 422, 429, 431, 501, 503}
_HEADER = re.compile(rb"^([\w-]+):\s*(.*?)\r?$", re.MULTILINE)


@contextmanager
def started(folder: Path) -> Iterator[tuple[int, list[str], Path]]:
    """A server of its own process over a catalogue with three callers; its port, their keys, and its log."""
    store, log = folder / "tools.db", folder / "log.txt"
    with Scout.open(store, "bm25") as scout:
        scout.add(TOOLS)
        keys = []
        for name, allow, admin in (("limited", "mail/*", True), ("user", "*", False), ("guest", "zoo/*", False)):
            scout.store.put_principal(Principal(name, allow=(allow,), admin=admin))
            key, resting = new_key(name)
            scout.store.add_key(resting)
            keys.append(key)
    words = ["--store", str(store), "serve", "--port", "0", "--rate", "0", "--retriever", "bm25"]
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "toolscout", *words], stdout=subprocess.PIPE, stderr=errors, text=True, cwd=folder
        ) as process,
    ):
        assert process.stdout
        found = re.search(r":(\d+)/", process.stdout.readline())
        assert found, log.read_text()
        killer = threading.Timer(600, process.kill)
        killer.start()
        try:
            yield int(found[1]), keys, log
        finally:
            process.terminate()
            code = process.wait(40)
            killer.cancel()
        assert code == 0


class Line:
    """A connection that is opened again whenever the server closes it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket: socket.socket | None = None
        self._rest = b""

    def ask(self, request: bytes) -> tuple[int, dict[str, str], bytes]:
        """The status, the headers and the body of the answer."""
        for attempt in (1, 2):
            if self._socket is None:
                self._socket, self._rest = socket.create_connection(("127.0.0.1", self._port), timeout=40), b""
            try:
                self._socket.sendall(request)
                return self._answer(request.startswith(b"HEAD "))
            except (ConnectionError, EOFError):
                self.close()  # closed after the answer before, as it had said or as the time went by
                if attempt == 2:
                    raise
        raise AssertionError

    def _answer(self, head_only: bool) -> tuple[int, dict[str, str], bytes]:
        while b"\r\n\r\n" not in self._rest:
            self._more()
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        status = int(head[9:12])
        headers = {name.decode().lower(): value.decode("latin-1") for name, value in _HEADER.findall(head)}
        if status == 100:
            return self._answer(head_only)
        body = b""
        if headers.get("transfer-encoding") == "chunked":
            while not self._rest.endswith(b"0\r\n\r\n"):
                self._more()
            body, self._rest = self._rest, b""
        elif not head_only and status not in (204, 304):
            length = int(headers.get("content-length", 0))
            while len(self._rest) < length:
                self._more()
            body, self._rest = self._rest[:length], self._rest[length:]
        if headers.get("connection") == "close":
            self.close()
        return status, headers, body

    def _more(self) -> None:
        assert self._socket is not None
        data = self._socket.recv(1 << 16)
        if not data:
            raise EOFError
        self._rest += data

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket, self._rest = None, b""


def fuzz(folder: Path, count: int, seed: int) -> Counter[int]:
    """Send so many requests; how often each status came."""
    statuses: Counter[int] = Counter()
    with started(folder) as (port, keys, log):
        line = Line(port)
        for request in requests(count, seed, [*keys, "ts_guess"]):
            try:
                status, headers, body = line.ask(request)
            except (OSError, EOFError) as error:
                raise AssertionError(
                    f"{request[:400]!r} got no answer ({error!r}); log: {log.read_text()[-2000:]}"
                ) from None
            statuses[status] += 1
            assert status < 400 or status in REFUSED, (request[:400], body[:400])
            assert str(folder).encode() not in body
            assert b"Traceback" not in body
            if status >= 400 and body:
                problem = json.loads(body)
                assert problem["status"] == status
                assert problem["detail"]
                assert headers["content-type"] == "application/problem+json"
        status, _, body = line.ask(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert (status, json.loads(body)) == (200, {"status": "ok"})
        line.close()
    assert "Traceback" not in log.read_text()
    assert not (folder / "owned").exists()
    with SqliteStore(folder / "tools.db") as store:
        store.check()
        # The one who may change things may change mail alone, and could bring no origin.
        others = [tool for tool in TOOLS if tool.namespace != "mail"]
        assert [tool.id for tool in store.tools() if tool.namespace != "mail"] == sorted(tool.id for tool in others)
        assert store.get([tool.id for tool in others]) == others
        assert all(tool.origin is None for tool in store.tools())
    return statuses


def test_broken_requests_are_answered(tmp_path: Path) -> None:
    statuses = fuzz(tmp_path, 600, int(os.environ.get("TOOLSCOUT_FUZZ_SEED", "3")))
    assert {200, 401, 403, 404, 422} <= statuses.keys()  # they get far enough to be worth sending


@pytest.mark.slow
def test_ten_thousand_broken_requests(tmp_path: Path) -> None:
    fuzz(tmp_path, 10_000, int(os.environ.get("TOOLSCOUT_FUZZ_SEED", "5")))
