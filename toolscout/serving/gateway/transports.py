"""Serves the gateway over stdio and over streamable HTTP."""

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
    from starlette.responses import JSONResponse, Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from toolscout.serving import http_protocol, problems, protected_resource
    from toolscout.serving.gateway.server import Gateway
    from toolscout.serving.limits import HeldBytes, InFlight, Origins, Rates, ServeOptions, share_for, sharer
    from toolscout.serving.live_metrics import LiveView
    from toolscout.serving.middleware import REFUSED, SHARER, SMALL_BODY, announced, key_of, measured, too_large
    from toolscout.serving.page.files import gateway_files
    from toolscout.serving.problems import Problem
    from toolscout.serving.prometheus import MEDIA_TYPE
except ImportError:
    raise MissingExtra("serving", "serve") from None

PATH, METRICS_PATH, LIVE_PATH, HEALTH_PATH = "/mcp", "/metrics", "/page/live", "/health"
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
    """Serve one client on standard input and output until it closes them or this process gets SIGTERM."""
    try:
        await _run_stdio(gateway)
    except* (BrokenPipeError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        # The client has closed its end, which is normal. Python must not try to flush stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


async def _run_stdio(gateway: Gateway) -> None:
    signalled: list[int] = []
    async with stdio_server() as (incoming, outgoing):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_cancel_on_signal, tasks.cancel_scope, signalled)
            async with gateway.backends.running():
                await serve_streams(gateway, incoming, outgoing)
            tasks.cancel_scope.cancel()
        if signalled:
            os._exit(0)  # the servers have ended, but a thread would wait for a line of standard input


async def _cancel_on_signal(scope: anyio.CancelScope, signalled: list[int]) -> None:
    """Cancel the scope at the first SIGTERM, so that the servers behind the gateway are ended."""
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        async for number in signals:
            signalled.append(number)
            scope.cancel()


async def serve_streams(gateway: Gateway, incoming: Any, outgoing: Any) -> None:
    """Serve one client over a pair of streams; input that is not a message gets an error as its answer."""

    async def answer_unreadable(item: Any) -> Any:
        if not isinstance(item, Exception):
            return item
        error = types.JSONRPCError(jsonrpc="2.0", id=None, error=_error_data(item))
        await outgoing.send(SessionMessage(error))
        return None

    server = gateway.server
    await server.run(FilteredStream(incoming, answer_unreadable), outgoing, server.create_initialization_options())


def _error_data(error: Exception) -> types.ErrorData:
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
        # _RequestGuard checks the host.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    return _RequestGuard(app, gateway, options)


class _RequestGuard:
    """Checks host, key, rate and size of each request before the MCP server gets it.

    A request is passed on once it has arrived completely, so that slow clients cost the MCP server nothing.
    """

    def __init__(self, app: ASGIApp, gateway: Gateway, options: ServeOptions) -> None:
        self._app, self._access, self._gateway = app, gateway.access, gateway
        self._key_fetches = protected_resource.KeyFetches(self._access.sign_in)
        self._origins, self._rates = Origins(options), Rates(options.rate, options.burst)
        self._in_flight, self._held = InFlight(options.in_flight), HeldBytes()
        self._sessions = _Sessions(app, options)
        self._files, self._live = gateway_files(), LiveView(gateway.metrics_text)
        self._max_bytes, self._seconds = options.body_bytes, options.seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        response_started = False
        send = protected_resource.challenging(self._access.sign_in, scope, send, PATH)

        async def send_response(message: Message) -> None:
            nonlocal response_started
            response_started = True
            await send(message)

        try:
            await self._handle(scope, receive, send_response)
        except (Problem, ToolscoutError) as error:
            await problems.response(problems.of(error))(scope, receive, send)
        except ClientDisconnect:
            pass  # there is no client to answer
        except Exception:
            _log.exception("a request failed")
            if not response_started:
                detail = "something went wrong in the server, whose log says what; ask again, or report it"
                await problems.response(Problem(500, detail))(scope, receive, send)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, client = Headers(scope=scope), scope.get("client")
        scope[SHARER] = sharer(None, client)
        self._origins.check(headers)
        sign_in, key = self._access.sign_in, key_of(headers)
        if sign_in is not None and scope["path"] in protected_resource.PATHS:
            await protected_resource.metadata(sign_in, scope)(scope, receive, send)
            return
        if scope["method"] == "GET" and (file := self._files.get(scope["path"])):  # says nothing of the catalogue
            await (await file(Request(scope)))(scope, receive, send)
            return
        if scope["path"] == HEALTH_PATH and scope["method"] == "GET":
            await JSONResponse({"status": "ok"}, headers={"Cache-Control": "no-store"})(scope, receive, send)
            return
        await self._key_fetches.ready(key)
        try:
            caller = await anyio.to_thread.run_sync(self._access.caller, key)
        except REFUSED:
            self._rates.take(scope[SHARER])
            raise
        who = scope[SHARER] = sharer(caller, client)
        share_for(who)
        self._rates.take(who)
        if scope["path"] in (METRICS_PATH, LIVE_PATH) and scope["method"] == "GET":
            if self._access.has_keys():  # without keys only this machine asks, which may call every tool
                self._access.require_admin(caller)
                self._access.require_everything(caller)
            await (await self._measured(Request(scope)))(scope, receive, send)
            return
        if announced(headers) > self._max_bytes:
            raise too_large(self._max_bytes)
        owner = AuthenticatedUser(AccessToken(token="", client_id=caller.identity, scopes=[]))
        with self._held.counted(who) as hold, self._in_flight.counted(who) as begin:
            body = await self._read_body(Request(scope, measured(receive, self._max_bytes, hold, begin)))
            if len(body) > SMALL_BODY and values_in(body) > MAX_VALUES:
                raise Problem(413, f"a message may hold {MAX_VALUES:,} values; send fewer lists, objects and numbers")
            await self._sessions(who, {**scope, "user": owner}, _replay(body, receive), send)

    async def _measured(self, request: Request) -> Response:
        headers = {"Cache-Control": "no-store"}
        if request.scope["path"] == LIVE_PATH:
            figures = await anyio.to_thread.run_sync(self._live.look, request.query_params.get("since", ""))
            return JSONResponse(figures, headers=headers)
        text = await anyio.to_thread.run_sync(self._gateway.metrics_text)
        return Response(text, headers=headers, media_type=MEDIA_TYPE)

    async def _read_body(self, request: Request) -> bytes:
        with anyio.move_on_after(self._seconds):
            return await request.body()
        raise Problem(408, f"the body did not arrive within {self._seconds:g} s", {"Connection": "close"})


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives a body read before, then the messages that follow."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return first.pop() if first else await receive()

    return replay


class _Session:
    """One session: its caller, how many requests use it now (`busy`), and when it was last used."""

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
        self._by_id: dict[str, _Session] = {}
        self._opening = Counter[str]()  # by caller: requests that are about to open a session

    async def __call__(self, who: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. Raises Problem 503 where it opens a session and all of its caller's sessions are in use."""
        headers = Headers(scope=scope)
        session_id, version = headers.get(_SESSION), headers.get(_VERSION)
        opens = session_id is None and (version is None or version in HANDSHAKE_PROTOCOL_VERSIONS)
        session = self._by_id.get(session_id or "")
        session = session if session is not None and session.who == who else None

        async def track_session(message: Message) -> None:
            if message["type"] == "http.response.start":
                status, new_id = message["status"], Headers(raw=message["headers"]).get(_SESSION)
                if opens and new_id and status < 400:
                    self._by_id[new_id] = _Session(who, scope["user"])
                # The client or the server has ended it. A 404 of another path says nothing of the session.
                ended = status == 404 or (scope["method"] == "DELETE" and status < 400)
                if ended and session is not None and session_id and scope["path"] == PATH:
                    self._by_id.pop(session_id, None)
            await send(message)

        if opens:
            await self._make_room(who)
            self._opening[who] += 1
        try:
            with session.use() if session is not None else nullcontext():
                await self._app(scope, receive, track_session)
        finally:
            if opens:
                self._opening[who] -= 1
                self._opening = +self._opening

    async def _make_room(self, who: str) -> None:
        """End a caller's least recently used session, where it has as many as it may."""
        expired = time.monotonic() - self._seconds
        self._by_id = {id: one for id, one in self._by_id.items() if one.busy or one.used > expired}
        mine = {id: one for id, one in self._by_id.items() if one.who == who}
        if len(mine) + self._opening[who] < self._most:
            return
        idle = sorted((one.used, id) for id, one in mine.items() if not one.busy)
        if not idle:
            raise Problem(503, f"this caller uses {self._most} sessions; end one of them", {"Retry-After": "1"})
        oldest = idle[0][1]
        await self._end(oldest, self._by_id.pop(oldest))

    async def _end(self, session_id: str, session: _Session) -> None:
        """End a session as its client would, with a DELETE request."""
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "DELETE",
            "scheme": "http",
            "path": PATH,
            "raw_path": PATH.encode(),
            "query_string": b"",
            "headers": [(_SESSION.encode(), session_id.encode())],
            "user": session.user,
        }

        async def ignore(message: Message) -> None:
            """Drop the answer."""

        async def disconnect() -> Message:
            return {"type": "http.disconnect"}

        await self._app(scope, _replay(b"", disconnect), ignore)


async def run_http(gateway: Gateway, options: ServeOptions) -> None:
    """Serve until SIGTERM or SIGINT; running calls then get a few seconds to end."""
    check_binding(gateway, options)
    server = http_protocol.Server(make_app(gateway, options), _DRAIN)
    # After its last request, uvicorn raises the signal again; the servers behind the gateway have to end first.
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
