"""What one server bears: how many searches at once, how many from one caller, how large, how long, from where."""

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

from toolscout.errors import BadRequest
from toolscout.serving.access import ANONYMOUS, Caller
from toolscout.serving.problems import Problem
from toolscout.stores.base import Store

LOOPBACK = ("localhost", "127.0.0.1", "::1")
# What is forwarded to a model, by the interface of its vendor.
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
Result = TypeVar("Result")

_SHARER = ContextVar("toolscout_sharer", default="")
"""Who the work of this task is done for. A context variable, because it must reach a Gate through any framework."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How a server behaves.

    `workers` search at once and `queue` requests wait for them; what comes on top is refused at once. `rate`: requests
    a second from one caller, 0 for no limit, `burst` of them at once. `hosts`, `origins`: names that this server
    goes by, and pages of other sites that may ask it, besides its own. `upstream`: where model requests are forwarded
    to, with at most `keep` tools, the `pinned` among them. `audit`: the file that calls are recorded in. `private`:
    hosts that the page may add from though they are not at a public address.

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
    upstream_seconds: float = 600.0
    keep: int = 10
    pinned: tuple[str, ...] = ()
    audit: Path | None = None
    results: Path | None = None
    private: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what no server could work with."""
        if self.workers < 1 or self.queue < 0 or self.rate < 0 or self.burst < 1 or self.seconds <= 0 or self.keep < 1:
            raise BadRequest(f"workers, burst, seconds and keep must be above 0, queue and rate not below, got {self}")
        if self.in_flight < 1 or self.sessions < 1 or self.session_seconds <= 0:
            raise BadRequest(f"in_flight, sessions and session_seconds must be above 0, got {self}")
        if self.upstream and urlsplit(self.upstream).scheme not in ("http", "https"):
            raise BadRequest(f"the upstream must be an http or https address, got {self.upstream!r:.80}")

    @property
    def loopback(self) -> bool:
        """Whether only this machine can connect."""
        return self.host in LOOPBACK


@cache
def descriptor_limit() -> int:
    """How many files this process may have open; the first call asks for as many as DESCRIPTORS."""
    try:
        import resource  # which Windows has not

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    except (ImportError, OSError, ValueError):
        return 1024
    return DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def connection_limit() -> int:
    """How many connections are kept: CONNECTIONS, or what other open files leave of the descriptors."""
    found = descriptor_limit()
    return max(1, min(CONNECTIONS, found - DESCRIPTORS_KEPT if found > 2 * DESCRIPTORS_KEPT else found // 4))


def sharer(caller: Caller | None, client: Sequence[Any] | None) -> str:
    """Whom limits are counted for: the name of a caller that has a key, else the address it comes from.

    An IPv6 network of 64 bits counts as one address: whoever has one of its addresses has all of them.
    """
    if caller is not None and (caller.name != ANONYMOUS or caller.admin):
        return f"key {caller.name}"
    address = str(client[0]) if client else ""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return f"address {address}"
    if isinstance(found, ipaddress.IPv6Address):
        found = found.ipv4_mapped or ipaddress.ip_network((int(found), 64), strict=False).network_address
    return f"address {found}"


def share_for(who: str) -> None:
    """Count the work of this task, and of those that it starts, for this sharer."""
    _SHARER.set(who)


class _Job:
    """One request: pieces of work that are begun one by one, in order, and their results."""

    def __init__(self, works: Sequence[Callable[[], Any]]) -> None:
        self.who, self.works = _SHARER.get(), works
        self.done: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self.context = copy_context()
        self.results: list[Any] = [None] * len(works)
        self.begun = self.finished = 0
        self.left = False

    def fail(self, error: BaseException) -> None:
        """Raise an error where the job is waited for, and begin nothing more of it."""
        self.works = self.works[: self.begun]
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # looked at, so that one nobody waits for any more is not complained of


class Gate:
    """Runs work in a few threads, and shares them among callers.

    The callers that wait take turns, one piece of work each, so that one who asks for much delays the others by one
    piece and not by all of it. When all places are taken, whoever has fewer of them than another gets one of the
    other's: the last to come there is refused. While nobody else waits one caller may have every place.
    Servers search through a Gate and not with Scout.asearch, which does what it is given in the order in which it
    comes: it knows neither callers nor deadlines, and refuses nothing.
    """

    def __init__(self, workers: int, queue: int, seconds: float, each: int = 0) -> None:
        """Open the threads. `each`: how many of them one caller may have at a time, 0 for all."""
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="toolscout-serve")
        self._workers, self._most, self._seconds, self._each = workers, workers + queue, seconds, each or workers
        self._waiting: OrderedDict[str, deque[_Job]] = OrderedDict()  # by caller, whose turn is next first
        self._running, self._inside = Counter[str](), Counter[str]()
        self.draining = False

    @property
    def inside(self) -> int:
        """How many requests run or wait."""
        return self._inside.total()

    async def run(self, work: Callable[..., Result], *args: Any) -> Result:
        """Do some work in a thread; Problem 503 where too much waits already, or it takes too long."""
        return (await self.run_each([partial(work, *args)]))[0]

    async def run_each(self, works: Sequence[Callable[[], Result]]) -> list[Result]:
        """Do several pieces of work for one request, which takes one place, and give their results in order."""
        job = _Job(works)
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
        if self.inside >= self._most:
            last = self._newest_of_most(self._inside[job.who] + 1)
            if last is None:
                raise Problem(503, "the server has more to do than it can; ask again in a second", _AGAIN)
            detail = "others wait too, and this caller has more waiting than they; ask again in a second"
            self._drop(last, Problem(503, detail, _AGAIN))
        self._inside[job.who] += 1
        self._waiting.setdefault(job.who, deque()).append(job)
        self._pump()

    def _newest_of_most(self, fair: int) -> _Job | None:
        """The last job, not begun, of the caller that has most of them and more than is fair."""
        for who, count in self._inside.most_common():
            if count <= fair:
                return None
            for job in reversed(self._waiting.get(who, ())):
                if not job.begun:
                    return job
        return None

    def _pump(self) -> None:
        """Begin as much as there are threads for: a piece of the caller whose turn it is, then one of the next."""
        while self._running.total() < self._workers:
            who = next((who for who in self._waiting if self._running[who] < self._each), None)
            if who is None:
                return
            job = self._waiting[who][0]
            self._waiting.move_to_end(who)
            try:
                work = partial(job.context.copy().run, job.works[job.begun])
                future = asyncio.get_running_loop().run_in_executor(self._pool, work)
            except RuntimeError:  # closed
                self._drop(job, _ending())
                continue
            future.add_done_callback(partial(self._ended, job, job.begun))
            job.begun += 1
            self._running[who] += 1
            if job.begun == len(job.works):
                self._forget(job)

    def _ended(self, job: _Job, number: int, future: asyncio.Future[Any]) -> None:
        self._running[job.who] -= 1
        job.finished += 1
        error = _ending() if future.cancelled() else future.exception()
        if error is not None:
            self._drop(job, error)
        else:
            job.results[number] = future.result()
            if job.finished == len(job.results) and not job.done.done():
                job.done.set_result(job.results)
        self._leave(job)
        self._pump()

    def _drop(self, job: _Job, error: BaseException) -> None:
        """End a job that is not done. A thread cannot be stopped: the place stays taken until what runs has ended."""
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
        if not job.left and job.finished == job.begun == len(job.works):
            job.left = True
            self._inside[job.who] -= 1
            for counts in (self._inside, self._running):
                if not counts[job.who]:
                    del counts[job.who]

    def close(self) -> None:
        """Let the threads go once what is inside is done."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _ending() -> Problem:
    return Problem(503, "the server is shutting down; ask again in a second", _AGAIN)


class Probe:
    """Finds out whether something can be read, in a thread of its own: behind no search, and once for all who ask."""

    def __init__(self, read: Callable[[], object]) -> None:
        """`read` raises where the thing cannot be read."""
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="toolscout-ready")
        self._read, self._then = read, 0.0
        self._asked: Future[object] | None = None
        self.draining = False

    async def check(self) -> None:
        """Raise what the reading raised; Problem 503 where it takes too long or the server is shutting down."""
        if self.draining:
            raise _ending()
        now = time.monotonic()
        if self._asked is None or (self._asked.done() and now - self._then >= READY_FRESH_S):
            self._asked, self._then = self._pool.submit(self._read), now
        waited = asyncio.wrap_future(self._asked)
        waited.add_done_callback(lambda future: future.cancelled() or future.exception())  # looked at below, if ever
        await asyncio.wait([waited], timeout=READY_S)
        if not self._asked.done():
            raise Problem(503, f"the catalogue could not be read within {READY_S:g} s", _AGAIN)
        self._asked.result()

    def close(self) -> None:
        """Let the thread go."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class InFlight:
    """How many requests of each caller are being answered at the same time: a quarter of all connections at most."""

    def __init__(self, most: int) -> None:
        """At most so many of one caller."""
        self._most = most
        self._counts = Counter[str]()

    @contextmanager
    def counted(self, who: str) -> Iterator[Callable[[], None]]:
        """A function that begins to count a request, until the end of the block.

        It is called when all of the request is there: before that whoever sends it can be hung up on. It raises Problem
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
    """How many bytes of requests are held in memory, in all and for each caller."""

    def __init__(self) -> None:
        """Nothing is held yet."""
        self._counts = Counter[str]()

    @contextmanager
    def counted(self, who: str) -> Iterator[Callable[[int], None]]:
        """A function that counts the bytes of one request, until the end of the block.

        It raises Problem 503 where the caller, or all callers together, have sent more than may be held. Small requests
        are not counted, so that large ones do not keep them out.
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
    """How much feedback one caller may give in a minute and a day, and how much of one tenant is kept."""

    def __init__(self, store: Store, options: ServeOptions) -> None:
        """Count what the store holds when it is first asked for."""
        self._store, self._kept = store, options.feedback_kept
        self._times = ((_MINUTE, "minute", options.feedback_minute), (_DAY, "day", options.feedback_day))
        self._given: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()
        self._held, self._cursor = Counter[str](), 0
        self._lock = threading.Lock()

    def take(self, tenant: str, count: int) -> None:
        """Admit so many examples, all or none, from whom this work is done for; Problem 429 where they are too many."""
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
