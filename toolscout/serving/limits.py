"""What one server bears: how many searches at once, how many from one caller, how large, how long, from where."""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from toolscout.errors import BadRequest
from toolscout.serving.problems import Problem

LOOPBACK = ("localhost", "127.0.0.1", "::1")
# What is forwarded to a model, by the interface of its vendor.
PATHS = ("/v1/chat/completions", "/v1/messages")
_BUCKETS_KEPT = 4096
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How a server behaves.

    `workers` search at once and `queue` requests wait for them; what comes on top is refused at once. `rate`: requests
    a second from one caller, 0 for no limit, `burst` of them at once. `hosts`, `origins`: names that this server
    goes by, and pages of other sites that may ask it, besides its own. `upstream`: where model requests are forwarded
    to, with at most `keep` tools, the `pinned` among them. `audit`: the file that calls are recorded in.
    """

    host: str = "127.0.0.1"
    port: int = 8765
    workers: int = 2
    queue: int = 24
    rate: float = 200.0
    burst: int = 200
    body_bytes: int = 1 << 20
    add_bytes: int = 64 << 20
    forward_bytes: int = 32 << 20
    seconds: float = 30.0
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    upstream: str = ""
    upstream_key: str = ""
    upstream_seconds: float = 600.0
    keep: int = 10
    pinned: tuple[str, ...] = ()
    audit: Path | None = None
    results: Path | None = None

    def __post_init__(self) -> None:
        """Refuse what no server could work with."""
        if self.workers < 1 or self.queue < 0 or self.rate < 0 or self.burst < 1 or self.seconds <= 0 or self.keep < 1:
            raise BadRequest(f"workers, burst, seconds and keep must be above 0, queue and rate not below, got {self}")
        if self.upstream and urlsplit(self.upstream).scheme not in ("http", "https"):
            raise BadRequest(f"the upstream must be an http or https address, got {self.upstream!r:.80}")

    @property
    def loopback(self) -> bool:
        """Whether only this machine can connect."""
        return self.host in LOOPBACK


class Gate:
    """Runs searches in a few threads. Whoever would wait behind too many others is told so at once."""

    def __init__(self, workers: int, queue: int, seconds: float) -> None:
        """Open the threads."""
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="toolscout-serve")
        self._most, self._seconds = workers + queue, seconds
        self.inside = 0
        self.draining = False

    async def run(self, work: Callable[..., Result], *args: Any) -> Result:
        """Do some work in a thread; Problem 503 where too much waits already, or it takes too long."""
        if self.inside >= self._most or self.draining:
            why = "is shutting down" if self.draining else "has more to do than it can"
            raise Problem(503, f"the server {why}; ask again in a second", {"Retry-After": "1"})
        self.inside += 1
        deadline = time.monotonic() + self._seconds
        future = asyncio.get_running_loop().run_in_executor(self._pool, _in_time, deadline, work, args)
        future.add_done_callback(self._leave)
        try:
            # Shielded: a thread cannot be stopped, so the place stays taken until it is done.
            async with asyncio.timeout(self._seconds):
                return await asyncio.shield(future)
        except TimeoutError:
            detail = f"this took longer than {self._seconds:g} s; ask for less at once"
            raise Problem(503, detail, {"Retry-After": "1"}) from None

    def _leave(self, future: asyncio.Future[Any]) -> None:
        self.inside -= 1
        if not future.cancelled():
            future.exception()  # looked at, so that one nobody waits for any more is not complained of

    def close(self) -> None:
        """Let the threads go once what is inside is done."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _in_time(deadline: float, work: Callable[..., Result], args: tuple[Any, ...]) -> Result:
    if time.monotonic() > deadline:
        raise TimeoutError
    return work(*args)


class Rates:
    """A bucket of tokens for each caller."""

    def __init__(self, rate: float, burst: int) -> None:
        """`rate` tokens a second, at most `burst` at once; a rate of 0 lets everything through."""
        self._rate, self._burst = rate, float(burst)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str) -> None:
        """Take a token; Problem 429 where there is none."""
        if not self._rate:
            return
        now = time.monotonic()
        left, then = self._buckets.pop(name, (self._burst, now))
        left = min(self._burst, left + (now - then) * self._rate)
        self._buckets[name] = (left - 1 if left >= 1 else left, now)
        if len(self._buckets) > _BUCKETS_KEPT:
            self._buckets.popitem(last=False)
        if left < 1:
            wait = str(max(1, math.ceil((1 - left) / self._rate)))
            raise Problem(429, f"more than {self._rate:g} requests a second; wait {wait} s", {"Retry-After": wait})


class Origins:
    """Which names this server answers to, and which pages may ask it: a page elsewhere must not reach it by a trick."""

    def __init__(self, options: ServeOptions) -> None:
        """Its own names, and those it was told."""
        self._any = "*" in options.hosts
        names = {options.host, *options.hosts, *(LOOPBACK if options.loopback else ())}
        self._hosts = frozenset(name.lower() for name in names)
        self._origins = frozenset(origin.rstrip("/").lower() for origin in options.origins)

    def check(self, headers: Mapping[str, str]) -> None:
        """Problem 421 for a Host that is not ours, 403 for an Origin that is neither ours nor allowed."""
        host = headers.get("host", "").lower()
        if not self._any and _name(host) not in self._hosts:
            raise Problem(421, "this server does not go by that name; start it with --allow-host NAME")
        origin = headers.get("origin", "").lower()
        if origin and origin not in self._origins and origin.partition("://")[2] != host:
            raise Problem(403, "pages of that origin may not ask this server; start it with --allow-origin ORIGIN")


def _name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
