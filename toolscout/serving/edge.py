"""What every request passes before anything looks at it: names, keys, rates, sizes; and how every answer is counted."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolscout.errors import Unauthorized
from toolscout.serving import problems
from toolscout.serving.access import Access, Caller
from toolscout.serving.audit import Audit
from toolscout.serving.limits import PATHS, Origins, Rates, ServeOptions
from toolscout.serving.metrics import Metrics
from toolscout.serving.problems import Problem

CALLER, LABEL, _SECONDS = "toolscout.caller", "toolscout.route", "toolscout.seconds"
KEY_HEADER = "x-toolscout-key"
# Asked by probes, which have no key; they say nothing of the catalogue.
_OPEN = frozenset(["/health", "/ready", "/openapi.json"])
_log = logging.getLogger("toolscout.serving")


class Edge:
    """The outermost layer."""

    def __init__(self, app: ASGIApp, access: Access, options: ServeOptions, metrics: Metrics, audit: Audit) -> None:
        """In front of an app."""
        self._app, self._access, self._metrics, self._audit = app, access, metrics, audit
        self._rates, self._origins = Rates(options.rate, options.burst), Origins(options)
        self._seconds, self._usual = options.seconds, options.body_bytes
        self._most = dict.fromkeys(("/tools", "/page/add"), options.add_bytes)
        self._most |= dict.fromkeys(PATHS, options.forward_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            try:
                headers = self._admit(scope)
                most = self._most.get(scope["path"], self._usual)
                length = headers.get("content-length", "")
                if length.isdecimal() and (len(length) > 15 or int(length) > most):
                    raise _too_large(most)  # at once: nobody need send it, nor wait for it
                await self._app(scope, _measured(receive, most), noted)
            except Problem as problem:
                await problems.response(problem)(scope, receive, noted)
            except ClientDisconnect:
                pass  # nobody is left to answer
            except Exception:
                _log.exception("a request failed")
                if not status:
                    detail = "something went wrong in the server, whose log says what; ask again, or report it"
                    await problems.response(Problem(500, detail))(scope, receive, noted)
        finally:
            self._note(scope, status, time.perf_counter() - began)

    def _admit(self, scope: Scope) -> Headers:
        headers = Headers(scope=scope)
        self._origins.check(headers)
        scope[_SECONDS] = self._seconds
        if scope["path"] in _OPEN:
            return headers
        try:
            caller: Caller | Exception = self._access.caller(key_of(headers))
        except Unauthorized as error:
            caller = error
        scope[CALLER] = caller
        client = scope.get("client") or ("",)
        self._rates.take(caller.name if isinstance(caller, Caller) else f"?{client[0]}")
        return headers

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        label = scope.get(LABEL) or ("page" if scope["path"].startswith("/page") or scope["path"] == "/" else "other")
        self._metrics.observe(label, status, seconds)
        caller = scope.get(CALLER)
        if caller is not None and label != "other":
            tool = str(scope.get("path_params", {}).get("id", ""))
            who = caller if isinstance(caller, Caller) else "?"
            self._audit.record(who, label, tool, ok=0 < status < 400, ms=1000 * seconds)


def key_of(headers: Headers) -> str | None:
    """The key in the headers: one of our own, so that the others may carry a model's through; else the usual ones."""
    own = headers.get(KEY_HEADER)
    if own is not None:
        return own
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else headers.get("x-api-key")


async def body_of(request: Request, types: Sequence[str]) -> bytes:
    """The body, if it is of one of these types and sent in time; the edge sees to its size."""
    # No form of another site can send these types, so no other site can make a visitor's browser change anything.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() not in types:
        raise Problem(415, f"send Content-Type: {' or '.join(types)}")
    seconds = request.scope[_SECONDS]
    try:
        async with asyncio.timeout(seconds):
            return await request.body()
    except TimeoutError:
        raise Problem(408, f"the body did not arrive within {seconds:g} s", {"Connection": "close"}) from None


def _too_large(most: int) -> Problem:
    return Problem(413, f"a body may have {most:,} bytes here; send less at once", {"Connection": "close"})


def _measured(receive: Receive, most: int) -> Receive:
    """Refuses a body of unknown length as soon as it is too large."""
    size = 0

    async def measured() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > most:
            raise _too_large(most)
        return message

    return measured
