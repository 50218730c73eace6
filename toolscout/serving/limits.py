"""The limits of a server: concurrent searches, requests of one caller, sizes, times, allowed hosts and origins."""

from __future__ import annotations

import asyncio
import ipaddress
import math
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from toolscout.core.permissions import ANONYMOUS
from toolscout.errors import BadRequest
from toolscout.serving.access import Caller
from toolscout.serving.problems import Problem
from toolscout.stores.base import Store

LOOPBACK = ("localhost", "127.0.0.1", "::1")
# Paths of model requests that the proxy forwards: OpenAI's and Anthropic's.
PATHS = ("/v1/chat/completions", "/v1/messages")
_BUCKETS_KEPT = 4096
CONNECTIONS = 1024
"""How many may be connected, as far as the open files of this process allow."""
DESCRIPTORS = 4096
"""How many open files this process asks the system for: the soft limit is often 1,024, the hard one far more."""
DESCRIPTORS_KEPT = 384
"""How many of them are no connections: the catalogue, its index, servers behind, and those just being accepted."""
HELD_BYTES = 512 << 20
"""How many bytes of bodies are held in memory at a time; one caller has half of them at most."""
SMALL_BYTES = 1 << 16
"""A body of so many bytes is held whatever else is."""
READY_FRESH_S = 1.0
"""How long an answer of /ready holds: however often it is asked, the store is read once in this time."""
READY_S = 2.0
"""How long /ready waits for the store before it says that the server is not ready."""
_MINUTE, _DAY = 60.0, 86_400.0
_AGAIN = {"Retry-After": "1"}
Item = TypeVar("Item")
Result = TypeVar("Result")

_SHARER = ContextVar("toolscout_sharer", default="")
"""Who the work of this task is done for. A context variable, because it must reach a Gate through any framework."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How a server behaves.

    `workers` threads search and up to `queue` requests wait for them; more are refused at once. `rate`: requests a
    second from one caller, 0 for no limit, with up to `burst` at once. `hosts`: further names of this server.
    `origins`: other sites whose pages may send requests. `upstream`: where model requests are forwarded to, with at
    most `keep` tools and always the `pinned` ones. `audit`: the file that calls are recorded in. `private`: hosts
    without a public address that the page may add tools from.

    `body_bytes`: the largest body; `add_bytes` that of an admin who adds tools, `forward_bytes` that of a request to a
    model. `seconds`: how long a body may take to arrive, and a search to be answered. `in_flight`: requests of one
    caller that are being answered at the same time, open streams among them. `sessions`: MCP sessions of one caller,
    each of which ends after `session_seconds` without a request. `feedback_minute`, `feedback_day`: examples of
    feedback from one caller in that time. `feedback_kept`: examples of one tenant that the store holds.
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
    in_flight: int = 256
    sessions: int = 256
    session_seconds: float = 1_800.0
    feedback_minute: int = 600
    feedback_day: int = 20_000
    feedback_kept: int = 200_000
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    upstream: str = ""
    upstream_key: str = ""
    keep: int = 10
    pinned: tuple[str, ...] = ()
    audit: Path | None = None
    results: Path | None = None
    private: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise BadRequest for values that no server could work with."""
        if self.workers < 1 or self.queue < 0 or self.rate < 0 or self.burst < 1 or self.seconds <= 0 or self.keep < 1:
            raise BadRequest(f"workers, burst, seconds and keep must be above 0, queue and rate not below, got {self}")
        if self.in_flight < 1 or self.sessions < 1 or self.session_seconds <= 0:
            raise BadRequest(f"in_flight, sessions and session_seconds must be above 0, got {self}")
        if self.upstream and urlsplit(self.upstream).scheme not in ("http", "https"):
            raise BadRequest(f"the upstream must be an http or https address, got {self.upstream!r:.80}")

    @property
    def loopback(self) -> bool:
        """Return whether only this machine can connect."""
        return self.host in LOOPBACK


@cache
def descriptor_limit() -> int:
    """Return how many files this process may have open; the first call raises the limit to DESCRIPTORS if it can."""
    try:
        import resource  # not on Windows

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    except (ImportError, OSError, ValueError):
        return 1024
    return DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def connection_limit() -> int:
    """Return how many connections are kept: CONNECTIONS, or fewer where the limit of open files is low."""
    found = descriptor_limit()
    return max(1, min(CONNECTIONS, found - DESCRIPTORS_KEPT if found > 2 * DESCRIPTORS_KEPT else found // 4))


def sharer(caller: Caller | None, client: Sequence[Any] | None) -> str:
    """Return whose limits a request counts against: the name of a caller with a key, else the client's address.

    All addresses of an IPv6 /64 network count as one, since one client usually has the whole network.
    """
    if caller is not None and (caller.name != ANONYMOUS or caller.admin):
        return f"key {caller.identity}"
    address = str(client[0]) if client else ""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return f"address {address}"
    if isinstance(found, ipaddress.IPv6Address):
        found = found.ipv4_mapped or ipaddress.ip_network((int(found), 64), strict=False).network_address
    return f"address {found}"


def share_for(who: str) -> None:
    """Count the work of this asyncio task, and of tasks it starts, against the limits of `who`."""
    _SHARER.set(who)


class _Job:
    """One request: items of work, started in order, and their results.

    `act` does several items in one call, at most `most`, and those of other jobs with the same `act` among them.
    """

    def __init__(self, act: Callable[[Sequence[Any]], Sequence[Any]], items: Sequence[Any], most: int) -> None:
        self.who, self.act, self.items, self.most = _SHARER.get(), act, items, most
        self.done: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self.context = copy_context()
        self.results: list[Any] = [None] * len(items)
        self.begun = self.finished = 0
        self.left = False

    def fail(self, error: BaseException) -> None:
        """Make waiting for the job raise an error, and start nothing more of it."""
        self.items = self.items[: self.begun]
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # read it, so that asyncio does not log it where nobody waits any more


class Gate:
    """Runs work in a few threads and shares them fairly among callers.

    Waiting callers take turns, one item of work each, so that a caller with much work delays the others by one call
    only. Items that are faster together are collected while all threads are busy, whoever they are for, and then done
    in one call; nothing waits while a thread is free. When the queue is full, a caller with fewer waiting requests
    takes a place of the caller with the most, whose newest request is refused. While nobody else waits, one caller may
    fill the whole queue.
    Servers use a Gate and not Scout.asearch, which works in order of arrival, without callers, deadlines or refusals.
    """

    def __init__(self, workers: int, queue: int, seconds: float, each: int = 0) -> None:
        """Start `workers` threads for `queue` waiting requests of at most `seconds`.

        `each`: how many threads one caller may use at a time, 0 for all.
        """
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="toolscout-serve")
        self._workers, self._most, self._seconds, self._each = workers, workers + queue, seconds, each or workers
        self._waiting: OrderedDict[str, deque[_Job]] = OrderedDict()  # by caller; the first one's turn is next
        self._busy = 0  # threads that work
        self._joined = 0  # requests that run in the call of another, and so take no place of their own
        self._running, self._inside = Counter[str](), Counter[str]()  # by caller: threads that work for it, requests
        self.draining = False

    @property
    def inside(self) -> int:
        """Return how many requests run or wait."""
        return self._inside.total()

    async def run(self, work: Callable[..., Result], *args: Any) -> Result:
        """Run `work` in a thread and return its result; raises Problem 503 where the queue is full or time is up."""
        return (await self.run_each([partial(work, *args)]))[0]

    async def run_each(self, works: Sequence[Callable[[], Result]]) -> list[Result]:
        """Run several pieces of work of one request, which takes one place in the queue; return results in order."""
        return await self._finished(_Job(_call_each, works, 1))

    async def run_together(
        self, act: Callable[[Sequence[Item]], Sequence[Result | Exception]], items: Sequence[Item], most: int
    ) -> list[Result]:
        """Have `act` do the items of one request, with those of others that wait for it, up to `most` in one call.

        `act` returns a result for each item, or the exception to raise for it, which concerns no other request. It runs
        in the context of one of the requests. The results are returned in order.
        """
        return await self._finished(_Job(act, items, most))

    async def _finished(self, job: _Job) -> list[Any]:
        self._enter(job)
        try:
            async with asyncio.timeout(self._seconds):
                return await job.done
        except TimeoutError:
            detail = f"this took longer than {self._seconds:g} s; ask for less at once"
            raise Problem(503, detail, _AGAIN) from None
        finally:
            self._drop(job, asyncio.CancelledError())

    def _enter(self, job: _Job) -> None:
        if self.draining:
            raise _ending()
        if self.inside - self._joined >= self._most:
            last = self._newest_of_most(self._inside[job.who] + 1)
            if last is None:
                raise Problem(503, "the server has more to do than it can; ask again in a second", _AGAIN)
            detail = "others wait too, and this caller has more waiting than they; ask again in a second"
            self._drop(last, Problem(503, detail, _AGAIN))
        self._inside[job.who] += 1
        self._waiting.setdefault(job.who, deque()).append(job)
        self._pump()

    def _newest_of_most(self, fair: int) -> _Job | None:
        """Return the newest waiting job of the caller that has the most, where it has more than `fair`; else None."""
        for who, count in self._inside.most_common():
            if count <= fair:
                return None
            for job in reversed(self._waiting.get(who, ())):
                if not job.begun:
                    return job
        return None

    def _pump(self) -> None:
        """Start as much work as there are free threads, in turn for each caller."""
        while self._busy < self._workers and (batch := self._next_batch()):
            first, items = batch[0][0], [job.items[number] for job, number in batch]
            callers = {job.who for job, _ in batch}
            try:
                work = partial(first.context.copy().run, first.act, items)
                future = asyncio.get_running_loop().run_in_executor(self._pool, work)
            except RuntimeError:  # closed
                for job, _ in batch:
                    job.finished += 1
                    self._drop(job, _ending())
                continue
            future.add_done_callback(partial(self._ended, batch, callers))
            self._busy += 1
            self._joined += len({job for job, _ in batch}) - 1
            self._running.update(callers)

    def _next_batch(self) -> list[tuple[_Job, int]]:
        """Take the items for one call, as jobs and positions: one of the caller whose turn it is, then of the next.

        They are no more than a thread's share of what waits, so that the other threads get some too.
        """
        who = next((who for who in self._waiting if self._running[who] < self._each), None)
        if who is None:
            return []
        act, most = self._waiting[who][0].act, self._waiting[who][0].most
        size = 1
        if most > 1:
            jobs = (job for jobs in self._waiting.values() for job in jobs if job.act == act)
            size = min(most, -(-sum(len(job.items) - job.begun for job in jobs) // self._workers))
        batch: list[tuple[_Job, int]] = []
        while who is not None and len(batch) < size:
            job = self._waiting[who][0]
            self._waiting.move_to_end(who)
            batch.append((job, job.begun))
            job.begun += 1
            if job.begun == len(job.items):
                self._forget(job)
            can_come = (one for one in self._waiting if self._running[one] < self._each)
            who = next((one for one in can_come if self._waiting[one][0].act == act), None)
        return batch

    def _ended(self, batch: Sequence[tuple[_Job, int]], callers: set[str], future: asyncio.Future[Any]) -> None:
        self._busy -= 1
        self._joined -= len({job for job, _ in batch}) - 1
        self._running.subtract(callers)
        error = _ending() if future.cancelled() else future.exception()
        results = future.result() if error is None else [error] * len(batch)
        for (job, number), result in zip(batch, results, strict=True):
            job.finished += 1
            if isinstance(result, BaseException):
                self._drop(job, result)
            else:
                job.results[number] = result
                if job.finished == len(job.results) and not job.done.done():
                    job.done.set_result(job.results)
            self._leave(job)
        self._pump()

    def _drop(self, job: _Job, error: BaseException) -> None:
        """Fail a job. Its thread cannot be stopped, so its place stays taken until the running piece ends."""
        job.fail(error)
        self._forget(job)
        self._leave(job)

    def _forget(self, job: _Job) -> None:
        jobs = self._waiting.get(job.who)
        if jobs and job in jobs:
            jobs.remove(job)
        if not jobs:
            self._waiting.pop(job.who, None)

    def _leave(self, job: _Job) -> None:
        if not job.left and job.finished == job.begun == len(job.items):
            job.left = True
            self._inside[job.who] -= 1
            for counts in (self._inside, self._running):
                if not counts[job.who]:
                    del counts[job.who]

    def close(self) -> None:
        """End the threads once the present work is done."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _call_each(works: Sequence[Callable[[], Any]]) -> list[Any]:
    return [work() for work in works]


def _ending() -> Problem:
    return Problem(503, "the server is shutting down; ask again in a second", _AGAIN)


class ProbeTimeout(Problem):
    """What is probed does not answer in time."""


class Probe:
    """Checks in its own thread that something can be read, so that no search delays it; callers share one check."""

    def __init__(self, read: Callable[[], object]) -> None:
        """Take the function to call; it raises where the thing cannot be read."""
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="toolscout-ready")
        self._read, self._then = read, 0.0
        self._asked: Future[object] | None = None
        self.draining = False

    async def check(self) -> None:
        """Raise what `read` raised; Problem 503 where it takes too long or the server is shutting down."""
        if self.draining:
            raise _ending()
        now = time.monotonic()
        if self._asked is None or (self._asked.done() and now - self._then >= READY_FRESH_S):
            self._asked, self._then = self._pool.submit(self._read), now
        waited = asyncio.wrap_future(self._asked)
        waited.add_done_callback(
            lambda future: future.cancelled() or future.exception()
        )  # read the error, so that asyncio does not log it
        await asyncio.wait([waited], timeout=READY_S)
        if not self._asked.done():
            raise ProbeTimeout(503, f"the catalogue could not be read within {READY_S:g} s", _AGAIN)
        self._asked.result()

    def close(self) -> None:
        """End the thread."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class InFlight:
    """Counts the requests of each caller that are being answered, and limits them."""

    def __init__(self, most: int) -> None:
        """Allow `most` requests of one caller at a time, but at most a quarter of all connections."""
        self._most = most
        self._counts = Counter[str]()

    @contextmanager
    def counted(self, who: str) -> Iterator[Callable[[], None]]:
        """Give a function that counts one request of a caller, until the end of the block.

        Call it when the whole request has arrived: before that the connection can simply be closed. It raises Problem
        503 where the caller has too many.
        """
        mine = 0

        def begin() -> None:
            nonlocal mine
            most = min(self._most, max(1, connection_limit() // 4))
            if self._counts[who] - mine >= most:
                raise Problem(503, f"{most} requests of this caller are being answered; wait for one of them", _AGAIN)
            self._counts[who] += 1 - mine
            mine = 1

        try:
            yield begin
        finally:
            _lessen(self._counts, who, mine)


class HeldBytes:
    """Counts the bytes of requests held in memory, in all and for each caller, and limits them."""

    def __init__(self) -> None:
        """Start at zero."""
        self._counts = Counter[str]()

    @contextmanager
    def counted(self, who: str) -> Iterator[Callable[[int], None]]:
        """Give a function that counts further bytes of one request, until the end of the block.

        It raises Problem 503 where the caller, or all callers together, have sent too much. Small requests are not
        counted, so that large ones do not keep them out.
        """
        size = mine = 0

        def hold(more: int) -> None:
            nonlocal size, mine
            size += more
            if size <= SMALL_BYTES:
                return
            if self._counts[who] + size - mine > HELD_BYTES // 2 or self._counts.total() + size - mine > HELD_BYTES:
                raise Problem(503, "too many large requests at once; ask again in a second", _AGAIN)
            self._counts[who] += size - mine
            mine = size

        try:
            yield hold
        finally:
            _lessen(self._counts, who, mine)


def _lessen(counts: Counter[str], who: str, count: int) -> None:
    counts[who] -= count
    if not counts[who]:
        del counts[who]


class FeedbackQuota:
    """Limits the feedback of one caller in a minute and a day, and the examples stored for one tenant."""

    def __init__(self, store: Store, options: ServeOptions) -> None:
        """Take the store; its examples are counted at the first `take`."""
        self._store, self._kept = store, options.feedback_kept
        self._times = ((_MINUTE, "minute", options.feedback_minute), (_DAY, "day", options.feedback_day))
        self._given: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()
        self._held, self._cursor = Counter[str](), 0
        self._lock = threading.Lock()

    def take(self, tenant: str, count: int) -> None:
        """Count so many examples of the present caller; raises Problem 429, counting none, where they are too many."""
        now, who = time.monotonic(), _SHARER.get()
        with self._lock:
            for number, example in self._store.feedback(self._cursor):
                self._held[example.tenant] += 1
                self._cursor = number
            if self._held[tenant] + count > self._kept:
                detail = f"{self._kept:,} examples of feedback are kept and no more; ask whoever runs the server"
                raise Problem(429, detail, {"Retry-After": str(int(_DAY))})
            taken = {}
            for seconds, name, most in self._times:
                began, given = self._given.get((who, name), (now, 0))
                if now - began >= seconds:
                    began, given = now, 0
                if given + count > most:
                    wait = str(max(1, math.ceil(began + seconds - now)))
                    detail = f"more than {most:,} examples of feedback in a {name}; wait {wait} s"
                    raise Problem(429, detail, {"Retry-After": wait})
                taken[who, name] = (began, given + count)
            for key, value in taken.items():
                self._given[key] = value
                self._given.move_to_end(key)
            while len(self._given) > 2 * _BUCKETS_KEPT:
                self._given.popitem(last=False)


class Rates:
    """Limits the rate of each caller's requests with a token bucket."""

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
    """Checks Host and Origin headers, against DNS rebinding and requests from pages of other sites."""

    def __init__(self, options: ServeOptions) -> None:
        """Accept the server's own names, and those in the options."""
        self._any = "*" in options.hosts
        names = {options.host, *options.hosts, *(LOOPBACK if options.loopback else ())}
        self._hosts = frozenset(name.lower() for name in names)
        self._origins = frozenset(origin.rstrip("/").lower() for origin in options.origins)

    def check(self, headers: Mapping[str, str]) -> None:
        """Raise Problem 421 for a Host that is not ours, 403 for an Origin that is neither ours nor allowed."""
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
