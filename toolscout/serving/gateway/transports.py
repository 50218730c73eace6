"""The gateway over stdio and over streamable HTTP."""

from __future__ import annotations

import logging
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from toolscout.catalogue.mcp.client import FilteredStream
from toolscout.errors import BadRequest, MissingExtra, ToolscoutError, Unauthorized

try:
    import anyio
    import mcp_types as types
    from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
    from mcp.server.auth.provider import AccessToken
    from mcp.server.stdio import stdio_server
    from mcp.server.transport_security import TransportSecuritySettings
    from mcp.shared.message import SessionMessage
    from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
    from pydantic import ValidationError
    from starlette.datastructures import Headers
    from starlette.requests import ClientDisconnect, Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from toolscout.serving import http_protocol, problems
    from toolscout.serving.gateway.server import Gateway
    from toolscout.serving.limits import HeldBytes, InFlight, Origins, Rates, ServeOptions, share_for, sharer
    from toolscout.serving.middleware import SHARER, SMALL_BODY, announced, key_of, measured, too_large
    from toolscout.serving.problems import Problem
except ImportError:
    raise MissingExtra("serving", "serve") from None

PATH = "/mcp"
# JSON values in one message: each takes some microseconds and about a hundred bytes to parse in the event loop.
MAX_VALUES = 50_000
# A string without an end matches to the end of the text, so that nothing is scanned twice.
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|$)', re.DOTALL)
SESSIONS = 1_000
"""How many sessions there may be in all; ServeOptions says how many of one caller."""
_SESSION, _VERSION = "mcp-session-id", "mcp-protocol-version"
_DRAIN = 5
_log = logging.getLogger("toolscout.serving")


async def run_stdio(gateway: Gateway) -> None:
    """Serve the one client on standard input and output, until it closes them or SIGTERM comes."""
    try:
        await _run_stdio(gateway)
    except* (BrokenPipeError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        # The client has gone, which is a normal end. The interpreter must not try to flush stdout again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


async def _run_stdio(gateway: Gateway) -> None:
    signalled: list[int] = []
    async with stdio_server() as (incoming, outgoing):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_until_signal, tasks.cancel_scope, signalled)
            async with gateway.backends.running():
                await serve_streams(gateway, incoming, outgoing)
            tasks.cancel_scope.cancel()
        if signalled:
            os._exit(0)  # the servers are gone; a thread still waits for a line of standard input


async def _until_signal(scope: anyio.CancelScope, signalled: list[int]) -> None:
    """Cancel the scope at the first signal, so that the servers behind are ended and not left running."""
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        async for number in signals:
            signalled.append(number)
            scope.cancel()


async def serve_streams(gateway: Gateway, incoming: Any, outgoing: Any) -> None:
    """Serve one client over a pair of streams; input that is no message gets an error as its answer."""

    async def take(item: Any) -> Any:
        if not isinstance(item, Exception):
            return item
        error = types.JSONRPCError(jsonrpc="2.0", id=None, error=_unreadable(item))
        await outgoing.send(SessionMessage(error))
        return None

    server = gateway.server
    await server.run(FilteredStream(incoming, take), outgoing, server.create_initialization_options())


def _unreadable(error: Exception) -> types.ErrorData:
    found = error.errors(include_url=False, include_input=False) if isinstance(error, ValidationError) else []
    if found and found[0]["type"] == "json_invalid":
        return types.ErrorData(code=types.PARSE_ERROR, message=f"Parse error: {found[0]['msg'][:200]}")
    return types.ErrorData(code=types.INVALID_REQUEST, message="Invalid request: not a JSON-RPC 2.0 message")


def make_app(gateway: Gateway, options: ServeOptions) -> ASGIApp:
    """Return the ASGI application: MCP at /mcp, with the same checks of host, key, rate and size as the HTTP API."""
    app = gateway.server.streamable_http_app(
        streamable_http_path=PATH,
        max_request_body_size=options.body_bytes,
        session_idle_timeout=options.session_seconds,
        max_sessions=SESSIONS,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),  # the guard's matter
    )
    return _Guard(app, gateway, options)


class _Guard:
    """Requires a key where there are keys, and allows a session only to the caller that opened it.

    A request is passed on once it has arrived completely, so that slow clients cost the MCP server nothing.
    """

    def __init__(self, app: ASGIApp, gateway: Gateway, options: ServeOptions) -> None:
        self._app, self._access = app, gateway.access
        self._origins, self._rates = Origins(options), Rates(options.rate, options.burst)
        self._in_flight, self._held = InFlight(options.in_flight), HeldBytes()
        self._sessions = _Sessions(app, options)
        self._most, self._seconds = options.body_bytes, options.seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._admitted(scope, receive, noted)
        except (Problem, ToolscoutError) as error:
            await problems.response(problems.of(error))(scope, receive, send)
        except ClientDisconnect:
            pass  # nobody is left to answer
        except Exception:
            _log.exception("a request failed")
            if not begun:
                detail = "something went wrong in the server, whose log says what; ask again, or report it"
                await problems.response(Problem(500, detail))(scope, receive, send)

    async def _admitted(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, client = Headers(scope=scope), scope.get("client")
        scope[SHARER] = sharer(None, client)
        self._origins.check(headers)
        try:
            caller = await anyio.to_thread.run_sync(self._access.caller, key_of(headers))
        except Unauthorized:
            self._rates.take(scope[SHARER])
            raise
        who = scope[SHARER] = sharer(caller, client)
        share_for(who)
        self._rates.take(who)
        if announced(headers) > self._most:
            raise too_large(self._most)
        owner = AuthenticatedUser(AccessToken(token="", client_id=caller.name, scopes=[]))
        with self._held.counted(who) as hold, self._in_flight.counted(who) as begin:
            body = await self._read_body(Request(scope, measured(receive, self._most, hold, begin)))
            if len(body) > SMALL_BODY and values_in(body) > MAX_VALUES:
                raise Problem(413, f"a message may hold {MAX_VALUES:,} values; send fewer lists, objects and numbers")
            await self._sessions(who, {**scope, "user": owner}, _replayed(body, receive), send)

    async def _read_body(self, request: Request) -> bytes:
        with anyio.move_on_after(self._seconds):
            return await request.body()
        raise Problem(408, f"the body did not arrive within {self._seconds:g} s", {"Connection": "close"})


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives a body read before, then the messages that follow."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return first.pop() if first else await receive()

    return replayed


class _Session:
    """One session: its caller, and when it was last used."""

    def __init__(self, who: str, user: AuthenticatedUser) -> None:
        self.who, self.user = who, user
        self.busy, self.used = 0, time.monotonic()

    @contextmanager
    def use(self) -> Iterator[None]:
        """Mark the session as in use inside the block."""
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1
            self.used = time.monotonic()


def values_in(body: bytes) -> int:
    """Estimate how many values a JSON text holds: each takes memory and time, however short it is."""
    bare = _TEXT.sub(b"", body)
    return bare.count(b",") + bare.count(b"[") + bare.count(b"{")


class _Sessions:
    """The sessions of the older protocol; a caller that opens too many loses the one it used longest ago."""

    def __init__(self, app: ASGIApp, options: ServeOptions) -> None:
        self._app, self._most, self._seconds = app, options.sessions, options.session_seconds
        self._kept: dict[str, _Session] = {}
        self._opening = Counter[str]()

    async def __call__(self, who: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; raises Problem 503 where it would open a session and all of its caller's are in use."""
        headers = Headers(scope=scope)
        given, version = headers.get(_SESSION), headers.get(_VERSION)
        opens = given is None and (version is None or version in HANDSHAKE_PROTOCOL_VERSIONS)
        known = self._kept.get(given or "")
        known = known if known is not None and known.who == who else None

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                status, made = message["status"], Headers(raw=message["headers"]).get(_SESSION)
                if opens and made and status < 400:
                    self._kept[made] = _Session(who, scope["user"])
                # Ended by the client, or not there any more. A 404 of another address says nothing of the session.
                gone = status == 404 or (scope["method"] == "DELETE" and status < 400)
                if gone and known is not None and given and scope["path"] == PATH:
                    self._kept.pop(given, None)
            await send(message)

        if opens:
            await self._make_room(who)
            self._opening[who] += 1
        try:
            with known.use() if known is not None else nullcontext():
                await self._app(scope, receive, noted)
        finally:
            if opens:
                self._opening[who] -= 1
                self._opening = +self._opening

    async def _make_room(self, who: str) -> None:
        """End a caller's least recently used session, where it has as many as it may."""
        over = time.monotonic() - self._seconds
        self._kept = {id: one for id, one in self._kept.items() if one.busy or one.used > over}
        mine = {id: one for id, one in self._kept.items() if one.who == who}
        if len(mine) + self._opening[who] < self._most:
            return
        idle = sorted((one.used, id) for id, one in mine.items() if not one.busy)
        if not idle:
            raise Problem(503, f"this caller uses {self._most} sessions; end one of them", {"Retry-After": "1"})
        session = idle[0][1]
        await self._end(session, self._kept.pop(session))

    async def _end(self, session: str, one: _Session) -> None:
        """End a session as its client would."""
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "DELETE",
            "scheme": "http",
            "path": PATH,
            "raw_path": PATH.encode(),
            "query_string": b"",
            "headers": [(_SESSION.encode(), session.encode())],
            "user": one.user,
        }

        async def ignored(message: Message) -> None:
            """Nobody waits for this answer."""

        async def gone() -> Message:
            return {"type": "http.disconnect"}

        await self._app(scope, _replayed(b"", gone), ignored)


async def run_http(gateway: Gateway, options: ServeOptions) -> None:
    """Serve until SIGTERM or SIGINT; running calls then get a few seconds to end."""
    check_binding(gateway, options)
    server = http_protocol.Server(make_app(gateway, options), _DRAIN)
    # After it has drained, uvicorn sends itself the signal once more; the servers behind have to be ended first.
    signal.signal(signal.SIGTERM, lambda *_: None)
    with http_protocol.listen(options.host, options.port) as listening:
        async with gateway.backends.running():
            await server.serve([listening])


def check_binding(gateway: Gateway, options: ServeOptions) -> None:
    """Raise Unauthorized where other machines can reach the gateway and there are no keys."""
    if not options.loopback and not gateway.access.has_keys():
        raise Unauthorized(
            f"others can reach {options.host}, and there are no keys; make one first with: toolscout keys add NAME"
        )


def check_free(options: ServeOptions) -> None:
    """Raise BadRequest where the address cannot be listened at, before anything is started."""
    try:
        http_protocol.listen(options.host, options.port).close()
    except OSError as error:
        place, why = f"{options.host} port {options.port}", (error.strerror or str(error)).partition(" (")[0]
        raise BadRequest(f"cannot listen at {place}: {why}; give another with --http") from None
