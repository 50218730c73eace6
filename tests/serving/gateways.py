"""Gateways and servers for tests: real ones, over stdio and HTTP, most of them in this process to start quickly."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import uvicorn
from mcp import Client
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.serving.small_server import make_server
from toolscout.catalogue.poisoning import FindingLevel
from toolscout.scout import Scout
from toolscout.serving.access import Access
from toolscout.serving.audit import Audit
from toolscout.serving.gateway.config import parse_config
from toolscout.serving.gateway.quarantine import Quarantine
from toolscout.serving.gateway.server import Gateway, GatewayOptions
from toolscout.serving.gateway.sources import BackendOptions, Backends
from toolscout.stores.approvals import ApprovalFile

SMALL = Path(__file__).with_name("small_server.py")
RAW = Path(__file__).parents[1] / "catalogue" / "raw_server.py"
QUICK = BackendOptions(timeout=5, connect=20, heartbeat=0.2, pause=0.05, grace=20)


def command(name: str, **env: str) -> dict[str, Any]:
    """A stdio server as an mcpServers file names it."""
    return {"command": sys.executable, "args": [str(SMALL), name], "env": env}


class Old:
    """A server that knows nothing of the newest protocol."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        versions = [value for key, value in scope.get("headers", ()) if key == b"mcp-protocol-version"]
        if any(version > b"2026" for version in versions):
            await Response("Bad Request: Unsupported protocol version", 400)(scope, receive, send)
        else:
            await self.app(scope, receive, send)


@asynccontextmanager
async def serving(app: ASGIApp, path: str = "/mcp", port: int = 0) -> AsyncIterator[str]:
    """The URL of an application that is served over real HTTP."""
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="critical", timeout_graceful_shutdown=0))
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server._serve)
        while not server.started:
            await anyio.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}{path}"
        finally:
            server.should_exit = True
            for listener in server.servers:
                listener.close()


@asynccontextmanager
async def small_http(name: str, old: bool = False, port: int = 0) -> AsyncIterator[dict[str, Any]]:
    """A small server over HTTP, as an mcpServers file names it."""
    app: ASGIApp = make_server(name).streamable_http_app()
    async with serving(Old(app) if old else app, port=port) as url:
        yield {"url": url}


@asynccontextmanager
async def gateway(
    store: Path,
    document: Mapping[str, Any] | None = None,
    *,
    backend: BackendOptions = QUICK,
    options: GatewayOptions | None = None,
    retriever: Any = "bm25",
    quarantine: Path | None = None,
    audit: Path | None = None,
    allow: tuple[str, ...] = (),
    level: FindingLevel | None = None,
) -> AsyncIterator[Gateway]:
    """A gateway whose backends run and were tried once."""
    held = Quarantine(ApprovalFile(quarantine)) if quarantine else None
    config = parse_config(document, "test") if document else None
    with Scout.open(store, retriever) as scout:
        backends = Backends(scout, config, backend, held, allow, quarantine_level=level)
        made = Gateway(Access(scout, listed_by_caller=backends.listed_by_caller), backends, options, Audit(audit))
        async with backends.running():
            await backends.ready(30)
            yield made
    if held:
        held.close()


async def called(client: Client, name: str, arguments: dict[str, Any] | None = None, **more: Any) -> Any:
    """Call a tool through the gateway."""
    return await client.call_tool("call_tool", {"name": name, "arguments": arguments or {}}, **more)


async def found(client: Client, query: str, k: int = 5) -> dict[str, Any]:
    """What a search tells."""
    answer = await client.call_tool("search_tools", {"query": query, "k": k})
    assert not answer.is_error, text(answer)
    assert json.loads(text(answer)) == answer.structured_content
    told: dict[str, Any] = answer.structured_content
    return told


def names(told: dict[str, Any]) -> list[str]:
    return [tool["name"] for tool in told["tools"]]


def text(result: types.CallToolResult) -> str:
    block = result.content[0]
    assert isinstance(block, types.TextContent)
    return block.text


async def soon(check: Callable[[], Any], seconds: float = 2.0) -> float:
    """Wait until something holds; how long it took. It must hold within the seconds."""
    began = time.monotonic()
    while True:
        value = check()
        value = await value if hasattr(value, "__await__") else value
        if value:
            return time.monotonic() - began
        assert time.monotonic() - began < seconds, "it did not happen in time"
        await anyio.sleep(0.02)
