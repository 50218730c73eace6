"""HTTP load: sends requests at a fixed rate over keep-alive connections and times each from when it was due."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

_MAX_CONNECTIONS = 512
Record = dict[str, Any]


@dataclass(slots=True)
class Tally:
    """The outcomes of many requests: seconds of the answered and of the refused ones, and the texts of errors."""

    seconds: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def quantiles(self) -> Record:
        """Return latency percentiles and the maximum in milliseconds, and the number of requests by outcome."""
        ordered = sorted(self.seconds)
        values = {f"p{share}_ms": 1000 * _quantile(ordered, share / 100) for share in (50, 95, 99)}
        refused = {"refused_p95_ms": 1000 * _quantile(sorted(self.refused), 0.95)} if self.refused else {}
        counts = {"answered": len(ordered), "refused": len(self.refused), "errors": len(self.errors)}
        return {**values, "max_ms": 1000 * (ordered[-1] if ordered else 0.0), **counts, **refused}


class Client:
    """An HTTP/1.1 client of one server; it opens a connection whenever all others are busy, up to a limit."""

    def __init__(self, host: str, port: int, key: str = "") -> None:
        """Connect on the first request. `key` is sent as bearer token with every request."""
        self._host, self._port = host, port
        self._key = f"Authorization: Bearer {key}\r\n" if key else ""
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._room = asyncio.Semaphore(_MAX_CONNECTIONS)

    async def ask(self, method: str, path: str, body: Record | None = None) -> tuple[int, bytes]:
        """Send one request and return the status and the body of the response.

        Raises OSError, asyncio.IncompleteReadError or ValueError where the connection or the response is broken.
        """
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nContent-Length: {len(data)}\r\n"
        head += f"{self._key}Content-Type: application/json\r\n\r\n"
        async with self._room:
            reader, writer = self._idle_connection() or await asyncio.open_connection(self._host, self._port)
            try:
                writer.write(head.encode() + data)
                top = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(top.partition(b"content-length:")[2].partition(b"\r\n")[0])
                content = await reader.readexactly(length)
            except BaseException:
                writer.close()
                raise
            if b"connection: close" in top:
                writer.close()
            else:
                self._idle.append((reader, writer))
            return int(top[9:12]), content

    def _idle_connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """Return an idle connection that is still open, or None; those that the server has closed are dropped."""
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof():
                return reader, writer
            writer.close()
        return None

    def close(self) -> None:
        """Close the idle connections."""
        for _, writer in self._idle:
            writer.close()


async def run_at_rate(
    rate: float, seconds: float, act: Callable[[int, float], Awaitable[None]], until: asyncio.Event | None = None
) -> None:
    """Call `act` `rate` times a second for `seconds`, without waiting for earlier calls; then wait for all of them.

    `act` takes the number of the call and the time it was due. Setting `until` stops further calls.
    """
    begun, tasks = time.perf_counter(), set[asyncio.Task[None]]()
    for number in range(int(rate * seconds)):
        due = begun + number / rate
        if (ahead := due - time.perf_counter()) > 0:
            await asyncio.sleep(ahead)
        if until is not None and until.is_set():
            break
        task = asyncio.ensure_future(act(number, due))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
