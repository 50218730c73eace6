"""HTTP connections and their limits: time for a request to arrive, idle time, number of connections, unread bytes.

Both servers, `serve` and `mcp --http`, are made here, so that both have the same limits.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from toolscout.serving import problems
from toolscout.serving.limits import connection_limit
from toolscout.serving.middleware import SHARER
from toolscout.serving.problems import Problem

HEAD_BYTES = 1 << 16
"""How large the headers of a request may be."""
HEAD_S = 10.0
"""How long the headers of a request may take to arrive."""
BODY_S = 45.0
"""How long a body may take to arrive, whoever reads it; a route that wants it waits for less."""
KEEP_ALIVE_S = 30
"""How long a connection stays open between two requests."""
WRITE_S = 10.0
"""How often is looked whether a client reads what it is sent; one that took less than WRITE_BYTES is closed."""
WRITE_BYTES = 1 << 14
"""How much a client must take of its answer in WRITE_S, where so much is left."""
SEND_BUFFER = 1 << 17
"""How much of an answer the system takes before the client reads it. By itself it takes megabytes, of which nobody sees
for many seconds whether a slow client reads them."""
UNREAD_BYTES = 64 << 20
"""How many bytes of answers wait in memory for clients to read them; one caller has half of them at most."""
GRACE_S = 1.0
"""How long a client that has just connected is not the first to be closed."""
SPARE_CONNECTIONS = 64
"""How many more than the limit stay connected long enough to be told 503, or to be answered a probe."""
ACCEPTED_AT_ONCE = 32
"""How many connections are accepted before those that are open are looked at again."""
BACKLOG = 2048
"""How many connections wait in the system to be accepted."""
LOG_S = 10.0
"""In this time one line of each kind is logged; the next one says how many were left out."""

_PROBES = frozenset(["/health", "/ready"])
# Loggers of libraries, which log a traceback for each client that disconnects: no error of this package.
_LIBRARIES = ("uvicorn", "asyncio", "mcp", "sse_starlette")
_log = logging.getLogger("toolscout.serving")


class HttpConnection(HttpToolsProtocol):
    """One connection, with time limits that uvicorn's own protocol lacks.

    uvicorn waits for ever for the end of a request's headers, for the rest of a body and for a client to read, and
    keeps every connection: a few hundred idle clients would keep everyone else out. Here each of these has a deadline,
    and when too many clients are connected, idle connections are closed instead of new ones.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        """Take the arguments that uvicorn gives a protocol."""
        super().__init__(*args, **named)
        self._head, self._body, self._reader = _Timer(self.loop), _Timer(self.loop), _Timer(self.loop)
        self._inside, self._bytes, self._turns = True, 0, 0
        # By the clock itself: uvloop's own time stands still during a turn of its loop, so that many would be equal.
        self._since, self._unread, self._crowded = time.monotonic(), 0, False
        self._untaken = 0  # bytes of an answer that the client had not read at the last check

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline for the headers; close idle connections where there are too many."""
        super().connection_made(transport)
        # With a limit of 0, writing is paused as soon as the system's buffer is full: this shows which clients read,
        # and an answer that is partly unsent holds the next one back.
        transport.set_write_buffer_limits(high=0)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        self._since = time.monotonic()
        self._head.start(HEAD_S, self._head_late)
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers."""
        self._stop_timers()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        """Parse more bytes; answer 431 where the headers are too large."""
        self._since = time.monotonic()
        if self._inside and not self._head.running:
            self._head.start(HEAD_S, self._head_late)
        turns = self._turns
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._inside and turns == self._turns:  # no header section ended in these bytes
            self._bytes += len(data)
            if self._bytes > HEAD_BYTES:
                self._refuse(Problem(431, f"the headers of a request may have {HEAD_BYTES:,} bytes; send less"))
        elif not self._inside and not self._body.running:
            self._body.start(BODY_S, self._body_late)
        elif self._inside and not self._head.running and not self._answering() and not self.timeout_keep_alive_task:
            # The rest of a body came after its answer, which stopped uvicorn's keep-alive timer.
            handler = self.timeout_keep_alive_handler
            self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, handler)

    def on_headers_complete(self) -> None:
        """Handle complete headers; answer 503 where too many are connected or have left work, unless it is a probe."""
        self._inside, self._bytes, self._turns = False, 0, self._turns + 1
        self._head.stop()
        most = connection_limit()
        # A request is worked on for a while after its client has left. Those of clients that are still connected are not
        # many: their number is limited by itself.
        left = len(self.tasks) - len(self.connections)
        crowded = (self._crowded and len(self.connections) > most) or left > most
        self.app = _Crowded(self.config.loaded_app) if crowded else self.config.loaded_app
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Handle the end of a request; the next may begin."""
        self._inside, self._bytes, self._turns = True, 0, self._turns + 1
        self._body.stop()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Handle the end of an answer: the connection is idle from now on."""
        self._since = time.monotonic()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Handle a client that reads too slowly: start checking that it goes on, and limit the unread bytes."""
        super().pause_writing()
        self._unread, self._untaken = self.transport.get_write_buffer_size(), self._not_taken()
        self._reader.start(WRITE_S, self._reads_on)
        self._bound_unread()

    def resume_writing(self) -> None:
        """Handle a client that has read everything."""
        self._reader.stop()
        self._unread = 0
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer 400 to bytes that are not HTTP."""
        self._refuse(Problem(400, "this is no HTTP request, or its method, address or headers are malformed"))

    def _answering(self) -> bool:
        """Return whether a whole request has arrived and its answer is not completely written."""
        return self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body

    def _stop_timers(self) -> None:
        for timer in (self._head, self._body, self._reader):
            timer.stop()
        self._unread = 0

    def _head_late(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._head.start(HEAD_S, self._head_late)  # the previous request is still being answered
        elif self._bytes:
            self._refuse(Problem(408, f"the headers did not arrive within {HEAD_S:g} s"))
        else:
            self.transport.close()

    def _body_late(self) -> None:
        self._refuse(Problem(408, f"the body did not arrive within {BODY_S:g} s"))

    def _reads_on(self) -> None:
        """Close the connection where the client has read almost nothing since the last check."""
        left = self._not_taken()
        if self._untaken - left < WRITE_BYTES:
            self.transport.abort()
        else:
            self._unread, self._untaken = self.transport.get_write_buffer_size(), left
            self._reader.start(WRITE_S, self._reads_on)

    def _not_taken(self) -> int:
        """Return the bytes that the client has not read: in our buffer, and in the system's where it says how many.

        The system's count is needed because it takes more from us only once a large part of its buffer is free, long
        after a slow client has read some.
        """
        waiting = self.transport.get_write_buffer_size()
        with suppress(ImportError, OSError, AttributeError):
            import fcntl
            import termios

            found = fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
            waiting += int.from_bytes(found, sys.byteorder)
        return waiting

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""

    def _sharer(self) -> str:
        """Return whose limits the present answer counts against; the client's address before a caller is known."""
        found = self.cycle.scope.get(SHARER) if self.cycle is not None else None
        return str(found or self._address)

    def _bound_unread(self) -> None:
        """Where this caller, or all together, leave too many bytes unread, close connections: stalled ones first."""
        others = [(one, one.transport.get_write_buffer_size()) for one in self._others() if one._unread]
        others.sort(key=lambda item: (item[0]._unread > item[1], item[0]._since))
        who = self._sharer()
        for mine, most in ((True, UNREAD_BYTES // 2), (False, UNREAD_BYTES)):
            found = [(one, left) for one, left in others if one._unread and (not mine or one._sharer() == who)]
            total = self._unread + sum(left for _, left in found)
            for one, left in found:
                if total <= most:
                    break
                total -= left
                one._stop_timers()
                one.transport.abort()

    def _others(self) -> Iterator[HttpConnection]:
        for one in self.connections:
            if isinstance(one, HttpConnection) and one is not self:
                yield one

    def _make_room(self) -> None:
        """Where too many are connected, close some idle connections; where none are idle, refuse this one.

        First closed are connections without a request in a while, then those of the address with the most connections,
        longest idle first. Several are closed at a time, since finding one costs as much.
        """
        most = connection_limit()
        if len(self.connections) <= most:
            return
        idle = [one for one in self._others() if not one._answering()]
        stale = time.monotonic() - GRACE_S
        # The few idle ones have just connected and are about to send a request.
        if len(idle) <= most // 16 and all(one._since > stale for one in idle):
            self._crowded = True
            if len(self.connections) > most + SPARE_CONNECTIONS:
                self._leave()
            return
        addresses = Counter(one._address for one in self._others())

        def order(one: HttpConnection) -> tuple[bool, int, float]:
            return not (one._head.running and one._since < stale), -addresses[one._address], one._since

        for one in sorted(idle, key=order)[: max(1, most // 16)]:
            one._leave()

    def _leave(self) -> None:
        """Close this connection and stop counting it."""
        self.connections.discard(self)
        if self._inside and not self._bytes and not self._unread:  # no request is unanswered
            self._stop_timers()
            self.transport.close()
        else:
            self._refuse(_crowd())

    def _refuse(self, problem: Problem) -> None:
        """Answer the open request, if any, with a problem, and close."""
        unread, cycle = self._unread, self.cycle
        self._stop_timers()
        answered = cycle is None or cycle.response_complete
        if not answered:
            cycle.disconnected = True  # nothing that its route still sends may follow this answer
            cycle.message_event.set()
        if unread or self.pipeline or (not answered and cycle.response_started):
            self.transport.abort()
            return
        if not self.transport.is_closing() and (self._inside or not answered):
            problem.headers["Connection"] = "close"
            response = problems.response(problem)
            headers = [*self.server_state.default_headers, *response.raw_headers]
            lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
            self.transport.write(STATUS_LINE[problem.status] + lines + b"\r\n" + bytes(response.body))
        self.transport.close()


class _Timer:
    """Calls a function after some seconds, unless it is stopped before."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None

    @property
    def running(self) -> bool:
        return self._handle is not None

    def start(self, seconds: float, act: Callable[[], None]) -> None:
        """Call `act` in `seconds` from now, instead of any earlier one."""
        self.stop()
        self._handle = self._loop.call_later(seconds, self._ring, act)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _ring(self, act: Callable[[], None]) -> None:
        self._handle = None
        act()


def _crowd() -> Problem:
    headers = {"Retry-After": "1", "Connection": "close"}
    return Problem(503, "too many are connected; ask again in a second", headers)


class _Crowded:
    """Answers health probes, and 503 to everything else."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._app if scope["path"] in _PROBES else problems.response(_crowd())
        await answer(scope, receive, send)


class Server(uvicorn.Server):
    """A uvicorn server with HttpConnection as its protocol, and one log line in place of a library's traceback."""

    def __init__(self, app: ASGIApp, drain: int) -> None:
        """Serve an app. `drain`: seconds that running requests get to end at shutdown."""
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=drain,
            backlog=ACCEPTED_AT_ONCE,
            http=HttpConnection,
            ws="none",
        )
        super().__init__(config)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal comes."""
        with short_logs():
            await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen with a long backlog; the event loop itself would also use it as the number to accept at a time."""
        connection_limit()  # raises the limit of open files
        await super().startup(sockets)
        for one in sockets or ():
            one.listen(BACKLOG)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address; raises OSError where it cannot."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only where the protocol is named: without it each answer takes 40 ms longer.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(BACKLOG)  # clients may connect as soon as the address is printed
    except OSError:
        found.close()
        raise
    return found


class _Lines(logging.Handler):
    """Logs a library's record as one line of our own log, and records like it at most every LOG_S seconds."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        # By file, line and kind of error: messages differ for every client.
        self._last: dict[tuple[str, int, str], tuple[float, int]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Log a record in one line, or count it where one like it was logged just before."""
        error = record.exc_info[1] if record.exc_info else None
        kind = (record.name, record.lineno, type(error).__name__)
        then, missed = self._last.get(kind, (float("-inf"), 0))
        now = time.monotonic()
        if now - then < LOG_S:
            self._last[kind] = (then, missed + 1)
            return
        self._last[kind] = (now, 0)
        message = " ".join(record.getMessage().split("\n", 1)[0].split())[:300]
        message += f" ({type(error).__name__}: {error})"[:300] if error else ""
        _log.log(record.levelno, "%s: %s%s", record.name, message, f"; {missed:,} more like it" if missed else "")


@contextmanager
def short_logs() -> Iterator[None]:
    """Log records of the libraries in one line each, inside the block."""
    lines, before = _Lines(), []
    for name in _LIBRARIES:
        logger = logging.getLogger(name)
        before.append((logger, logger.propagate))
        logger.addHandler(lines)
        logger.propagate = False
    try:
        yield
    finally:
        for logger, propagate in before:
            logger.removeHandler(lines)
            logger.propagate = propagate
