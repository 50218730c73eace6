"""ASGI middleware for every request: checks host, key, rate and size, and records every answer."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolscout.core import tracing
from toolscout.core.permissions import KEY_PREFIX
from toolscout.errors import Forbidden, SignInUnavailable, Unauthorized
from toolscout.serving import problems, protected_resource, request_bodies
from toolscout.serving.access import Access, Caller
from toolscout.serving.audit import Audit
from toolscout.serving.limits import PATHS, Gate, HeldBytes, InFlight, Origins, Rates, ServeOptions, share_for, sharer
from toolscout.serving.problems import Problem
from toolscout.serving.prometheus import Metrics

CALLER, LABEL, SHARER, _SECONDS = "toolscout.caller", "toolscout.route", "toolscout.sharer", "toolscout.seconds"
KEY_HEADER = "x-toolscout-key"
REQUEST_ID = "x-request-id"
SMALL_BODY = 1 << 14  # bytes of JSON that take less than a millisecond or two to read
# Paths open to probes without a key; they reveal nothing of the catalogue.
_OPEN = frozenset(["/health", "/ready", "/openapi.json", *protected_resource.PATHS])
# What stands for the caller of a key or token that is not accepted.
REFUSED = (Unauthorized, Forbidden, SignInUnavailable)
# Paths where admins add tools.
ADDS = ("/tools", "/page/add")
_KEY = re.compile(rf"(?<![\w-]){KEY_PREFIX}[\w-]{{43}}(?![\w-])")
_TOKEN = re.compile(r"(?<![\w-])eyJ[\w-]+\.[\w-]+\.[\w-]*")  # a JWT: {" in base64
_log = logging.getLogger("toolscout.serving")


class Edge:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, access: Access, options: ServeOptions, metrics: Metrics, audit: Audit) -> None:
        """Wrap an app."""
        self._app, self._access, self._metrics, self._audit = app, access, metrics, audit
        self._key_fetches = protected_resource.KeyFetches(access.sign_in)
        self._rates, self._origins = Rates(options.rate, options.burst), Origins(options)
        self._in_flight, self._held = InFlight(options.in_flight), HeldBytes()
        self._seconds, self._usual = options.seconds, options.body_bytes
        self._most = dict.fromkeys(PATHS, options.forward_bytes) | dict.fromkeys(ADDS, options.add_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope)
        token = tracing.request_id.set(tracing.checked_request_id(given.get(REQUEST_ID)))
        try:
            with tracing.span(f"{scope['method']}", "server", tracing.extracted(given)) as span:
                await self._answer(scope, receive, send, span)
        finally:
            tracing.request_id.reset(token)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, span: tracing.Span) -> None:
        began, status = time.perf_counter(), 0
        request_id = tracing.request_id.get().encode()
        answer = protected_resource.challenging(self._access.sign_in, scope, send, "")

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = list(message.get("headers", ()))
                if all(name.lower() != REQUEST_ID.encode() for name, _ in headers):  # that of a forwarded answer stays
                    message = {**message, "headers": [*headers, (REQUEST_ID.encode(), request_id)]}
            await answer(message)

        try:
            try:
                most, who = await self._admit(scope), scope[SHARER]
                with self._held.counted(who) as hold, self._in_flight.counted(who) as begin:
                    await self._app(scope, measured(receive, most, hold, begin), noted)
            except Problem as problem:
                await problems.response(problem)(scope, receive, noted)
            except ClientDisconnect:
                pass  # the client has gone
            except Exception:
                _log.exception("a request failed")
                if not status:
                    detail = "something went wrong in the server, whose log says what; ask again, or report it"
                    await problems.response(Problem(500, detail))(scope, receive, noted)
        finally:
            self._note(scope, status, time.perf_counter() - began, span)

    async def _admit(self, scope: Scope) -> int:
        """Return how many bytes the body may have; raises where the request is not let in.

        The caller, or the error for its key, is stored in the scope for the route.
        """
        headers = Headers(scope=scope)
        scope[SHARER] = sharer(None, scope.get("client"))
        self._origins.check(headers)
        scope[_SECONDS] = self._seconds
        if scope["path"] in _OPEN:
            return self._usual
        key = key_of(headers)
        await self._key_fetches.ready(key)
        try:
            caller: Caller | Exception = self._access.caller(key)
        except REFUSED as error:
            caller = error
        scope[CALLER] = caller
        if isinstance(caller, Caller):
            scope[SHARER] = sharer(caller, scope.get("client"))
        share_for(scope[SHARER])
        self._rates.take(scope[SHARER])
        most = self._most.get(scope["path"], self._usual)
        if scope["path"] in ADDS and not (isinstance(caller, Caller) and caller.admin):
            most = self._usual  # without the rights of an admin a larger body would only be refused later
        elif announced(headers) > most:
            raise too_large(most)  # at once, before the body is sent
        return most

    def _note(self, scope: Scope, status: int, seconds: float, span: tracing.Span) -> None:
        label = scope.get(LABEL) or ("page" if scope["path"].startswith("/page") or scope["path"] == "/" else "other")
        self._metrics.observe(label, status, seconds)
        about = {"http.route": label.rpartition(" ")[2], "http.request.method": scope["method"]}
        about |= {"http.response.status_code": status}
        tracing.record("http.server.request.duration", seconds, "s", "Duration of HTTP requests.", **about)
        span.set(**about)
        if status >= 500:
            span.failed(str(status))
        _log.info("%s %s", label, status, extra={"route": label, "status": status, "ms": round(1000 * seconds, 1)})
        caller = scope.get(CALLER)
        if caller is not None and label != "other":
            tool = without_keys(str(scope.get("path_params", {}).get("id", "")))
            who = caller if isinstance(caller, Caller) else "?"
            self._audit.record(who, label, tool, ok=0 < status < 400, ms=1000 * seconds)


def without_keys(text: str) -> str:
    """Return a text for logs, with a mark in place of anything that looks like a toolscout key or a token."""
    return _TOKEN.sub("eyJ…", _KEY.sub(f"{KEY_PREFIX}…", text))


def key_of(headers: Headers) -> str | None:
    """Return the key in the headers: our own header first, as the usual ones may carry a model vendor's key."""
    toolscout_key = headers.get(KEY_HEADER)
    if toolscout_key is not None:
        return toolscout_key
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else headers.get("x-api-key")


async def record_of(request: Request, gate: Gate) -> dict[str, Any]:
    """Return the JSON object in a body. A large one is parsed in a worker thread, not in the event loop."""
    body = await body_of(request, ("application/json",))
    return request_bodies.record(body) if len(body) <= SMALL_BODY else await gate.run(request_bodies.record, body)


async def body_of(request: Request, types: Sequence[str]) -> bytes:
    """Return the body; raises Problem where it is of another content type or does not arrive in time."""
    # Forms of other sites cannot send these types, so no other site can make a visitor's browser change anything.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() not in types:
        raise Problem(415, f"send Content-Type: {' or '.join(types)}")
    seconds = request.scope[_SECONDS]
    try:
        async with asyncio.timeout(seconds):
            return await request.body()
    except TimeoutError:
        raise Problem(408, f"the body did not arrive within {seconds:g} s", {"Connection": "close"}) from None


def announced(headers: Headers) -> int:
    """Return the Content-Length; 0 where there is none."""
    length = headers.get("content-length", "")
    return int(length[:16]) if length.isascii() and length.isdecimal() else 0


def too_large(most: int) -> Problem:
    """Return the problem (413) for a body of more than `most` bytes."""
    return Problem(413, f"a body may have {most:,} bytes here; send less at once", {"Connection": "close"})


def measured(receive: Receive, most: int, hold: Callable[[int], None], begin: Callable[[], None]) -> Receive:
    """Wrap `receive` so that it raises as soon as a body has more than `most` bytes.

    Calls `hold` with the number of bytes of each chunk, and `begin` when the body is complete.
    """
    size = 0

    async def counted() -> Message:
        nonlocal size
        message = await receive()
        if message["type"] == "http.request":
            taken = len(message.get("body", b""))
            size += taken
            if size > most:
                raise too_large(most)
            hold(taken)
            if not message.get("more_body", False):
                begin()
        return message

    return counted
