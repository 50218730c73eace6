"""The gateway over stdio and over streamable HTTP."""

from __future__ import annotations

import os
import signal
import socket
from typing import Any

from toolscout.catalogue._mcp_client import Tap
from toolscout.errors import BadRequest, MissingExtra, ToolscoutError, Unauthorized

try:
    import anyio
    import mcp_types as types
    import uvicorn
    from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
    from mcp.server.auth.provider import AccessToken
    from mcp.server.stdio import stdio_server
    from mcp.server.transport_security import TransportSecuritySettings
    from mcp.shared.message import SessionMessage
    from pydantic import ValidationError
    from starlette.datastructures import Headers
    from starlette.types import ASGIApp, Receive, Scope, Send

    from toolscout.serving import problems
    from toolscout.serving.edge import key_of
    from toolscout.serving.limits import Origins, Rates, ServeOptions
    from toolscout.serving.mcp import Gateway
except ImportError:
    raise MissingExtra("serving", "serve") from None

PATH = "/mcp"
_DRAIN = 5


async def run_stdio(gateway: Gateway) -> None:
    """Serve the one client that holds our standard input and output, until it closes them or sends SIGTERM."""
    try:
        await _run_stdio(gateway)
    except* (BrokenPipeError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        # The client went while it was being answered, which is an end as good as any. What is still unwritten must
        # not be tried again when the interpreter ends.
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
    """End in order: a server that is left behind would run for ever."""
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        async for number in signals:
            signalled.append(number)
            scope.cancel()


async def serve_streams(gateway: Gateway, incoming: Any, outgoing: Any) -> None:
    """Serve one client over a pair of streams. What is no message is answered too, not passed over in silence."""

    async def take(item: Any) -> Any:
        if not isinstance(item, Exception):
            return item
        error = types.JSONRPCError(jsonrpc="2.0", id=None, error=_unreadable(item))
        await outgoing.send(SessionMessage(error))
        return None

    server = gateway.server
    await server.run(Tap(incoming, take), outgoing, server.create_initialization_options())


def _unreadable(error: Exception) -> types.ErrorData:
    found = error.errors(include_url=False, include_input=False) if isinstance(error, ValidationError) else []
    if found and found[0]["type"] == "json_invalid":
        return types.ErrorData(code=types.PARSE_ERROR, message=f"Parse error: {found[0]['msg'][:200]}")
    return types.ErrorData(code=types.INVALID_REQUEST, message="Invalid request: not a JSON-RPC 2.0 message")


def make_app(gateway: Gateway, options: ServeOptions) -> ASGIApp:
    """The ASGI application: MCP at /mcp, behind the same checks of names, keys, rates and sizes as the HTTP face."""
    app = gateway.server.streamable_http_app(
        streamable_http_path=PATH,
        max_request_body_size=options.body_bytes,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),  # the guard's matter
    )
    return _Guard(app, gateway, options)


class _Guard:
    """Lets nobody through without a key where there are keys, and ties a session to the caller that opened it."""

    def __init__(self, app: ASGIApp, gateway: Gateway, options: ServeOptions) -> None:
        self._app, self._access = app, gateway.access
        self._origins, self._rates = Origins(options), Rates(options.rate, options.burst)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            self._origins.check(headers)
            client = scope.get("client") or ("",)
            try:
                caller = await anyio.to_thread.run_sync(self._access.caller, key_of(headers))
            except Unauthorized:
                self._rates.take(f"?{client[0]}")
                raise
            self._rates.take(caller.name)
        except (problems.Problem, ToolscoutError) as error:
            await problems.response(problems.of(error))(scope, receive, send)
            return
        owner = AuthenticatedUser(AccessToken(token="", client_id=caller.name, scopes=[]))
        await self._app({**scope, "user": owner}, receive, send)


async def run_http(gateway: Gateway, options: ServeOptions) -> None:
    """Serve until SIGTERM or SIGINT; calls that run then have a few seconds to end."""
    check_binding(gateway, options)
    config = uvicorn.Config(
        make_app(gateway, options),
        host=options.host,
        port=options.port,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_DRAIN,
    )
    # After it has drained, uvicorn sends itself the signal once more; the servers behind have to be ended first.
    signal.signal(signal.SIGTERM, lambda *_: None)
    async with gateway.backends.running():
        await uvicorn.Server(config).serve()


def check_binding(gateway: Gateway, options: ServeOptions) -> None:
    """A gateway that others can reach does not start without keys."""
    if not options.loopback and not gateway.access.has_keys():
        raise Unauthorized(
            f"others can reach {options.host}, and there are no keys; make one first with: toolscout keys add NAME"
        )


def check_free(options: ServeOptions) -> None:
    """Say so where the address cannot be listened at, before anything is started."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        socket.create_server((options.host, options.port), family=family).close()
    except OSError as error:
        place, why = f"{options.host} port {options.port}", (error.strerror or str(error)).partition(" (")[0]
        raise BadRequest(f"cannot listen at {place}: {why}; give another with --http") from None
