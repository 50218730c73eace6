"""A load generator: requests at given moments over kept connections, timed from when they were due."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

_OPENED_AT_MOST = 512
Record = dict[str, Any]


@dataclass(slots=True)
class Tally:
    """What came of many requests: seconds of those that were answered, and how many were not, and how."""

    seconds: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def quantiles(self) -> Record:
        """Milliseconds, and counts."""
        ordered = sorted(self.seconds)
        values = {f"p{share}_ms": 1000 * _at(ordered, share / 100) for share in (50, 95, 99)}
        refused = {"refused_p95_ms": 1000 * _at(sorted(self.refused), 0.95)} if self.refused else {}
        counts = {"answered": len(ordered), "refused": len(self.refused), "errors": len(self.errors)}
        return {**values, "max_ms": 1000 * (ordered[-1] if ordered else 0.0), **counts, **refused}


class Client:
    """Speaks to one server over as many connections as are needed at once."""

    def __init__(self, host: str, port: int, key: str = "") -> None:
        """Nothing is opened yet. `key` is sent with every request."""
        self._host, self._port = host, port
        self._key = f"Authorization: Bearer {key}\r\n" if key else ""
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._room = asyncio.Semaphore(_OPENED_AT_MOST)

    async def ask(self, method: str, path: str, body: Record | None = None) -> tuple[int, bytes]:
        """One request; the status and the body of what comes back."""
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nContent-Length: {len(data)}\r\n"
        head += f"{self._key}Content-Type: application/json\r\n\r\n"
        async with self._room:
            reader, writer = self._kept() or await asyncio.open_connection(self._host, self._port)
            try:
                writer.write(head.encode() + data)
                top = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(top.partition(b"content-length:")[2].partition(b"\r\n")[0])
                found = await reader.readexactly(length)
            except BaseException:
                writer.close()
                raise
            if b"connection: close" in top:
                writer.close()
            else:
                self._idle.append((reader, writer))
            return int(top[9:12]), found

    def _kept(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """A connection from before; those that the server has closed meanwhile, since they were idle, are let go."""
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof():
                return reader, writer
            writer.close()
        return None

    def close(self) -> None:
        """Hang up."""
        for _, writer in self._idle:
            writer.close()


async def paced(
    rate: float, seconds: float, act: Callable[[int, float], Awaitable[None]], until: asyncio.Event | None = None
) -> None:
    """Begin one act after the other at even distances, whether or not those before are done; then wait for all."""
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


def _at(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
