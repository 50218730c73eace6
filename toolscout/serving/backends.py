"""What stands behind the gateway: MCP servers, OpenAPI services and functions, their tools kept in the catalogue.

A server's tools are found as soon as it lists them, and follow its list. While it does not answer they stay, say so in
every search, and fail with a clear error when they are called.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

from toolscout import catalogue
from toolscout.calling import CallOptions, OriginCaller
from toolscout.catalogue.base import ReadOptions
from toolscout.errors import MissingExtra, ToolscoutError
from toolscout.scout import Scout
from toolscout.serving.backend import Backend, BackendDown, BackendOptions, Bell, Progress
from toolscout.serving.gateway_config import GatewayConfig, Source
from toolscout.serving.quarantine import Quarantine
from toolscout.tool import Tool, clean_text

try:
    import anyio
    import anyio.to_thread
    import mcp_types as types
except ImportError:
    raise MissingExtra("serving", "serve") from None

__all__ = ["BackendDown", "BackendOptions", "Backends"]

_log = logging.getLogger("toolscout.gateway")
_T = TypeVar("_T")
_CALLS = 32
_MARK = "gateway"  # in an origin's details: the config that brought the tool


class Backends:
    """All of them. `changed` is told after the catalogue changed or a tool was held back or let go."""

    def __init__(
        self,
        scout: Scout,
        config: GatewayConfig | None = None,
        options: BackendOptions | None = None,
        quarantine: Quarantine | None = None,
    ) -> None:
        """Nothing is started before running()."""
        self.scout = scout
        self.config = config or GatewayConfig()
        self.options = options or BackendOptions()
        self.changed: Callable[[], Awaitable[None]] | None = None
        self._quarantine = quarantine
        self._servers = {
            backend.name: backend
            for backend in (Backend(server, self.options, self._publish) for server in self.config.servers)
        }
        self._latest: dict[str, list[Tool]] = {}
        self._writing = anyio.Lock()
        self._unembedded = Bell()
        self._ready = anyio.Event()
        named = {clean_text(source.name): source for source in self.config.sources}
        calls = CallOptions(
            timeout=self.options.timeout,
            max_chars=self.options.max_chars,
            headers={name: source.headers for name, source in named.items()},
            targets={name: source.base_url for name, source in named.items() if source.base_url},
        )
        self._elsewhere = OriginCaller(calls)
        self._calling = anyio.CapacityLimiter(_CALLS)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Backends]:
        """Start everything; when the block ends, the servers end too."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._begin)
            tasks.start_soon(self._embed)
            if self.scout.not_embedded():  # of another encoder, say: nobody else would embed them
                self._unembedded.ring()
            if self._quarantine is not None:
                tasks.start_soon(self._watch_approvals, self._quarantine)
            for backend in self._servers.values():
                tasks.start_soon(backend.run)
            yield self
            tasks.cancel_scope.cancel()

    async def ready(self, longest: float) -> None:
        """Wait until every server and source was tried once."""
        with anyio.move_on_after(longest):
            await self._ready.wait()
            for backend in self._servers.values():
                await backend.tried.wait()

    def problems(self) -> dict[str, str]:
        """Every server that does not answer, and why."""
        return {name: backend.problem for name, backend in self._servers.items() if backend.problem}

    async def call(self, tool: Tool, arguments: Mapping[str, Any], progress: Progress) -> types.CallToolResult:
        """Run a tool where it comes from. BackendDown where that does not answer, MCPError as the server raised it."""
        backend = self._servers.get(tool.namespace)
        if backend is not None and tool.origin is not None and tool.origin.kind == "mcp":
            name = str(tool.origin.details.get("tool") or tool.name)
            return await backend.call(name, dict(arguments), progress)

        def run() -> Any:
            return self._elsewhere.call([(tool, arguments)])[0]

        result = await _aside(run, self._calling)
        text = result.content if result.ok else "\n".join(filter(None, [result.error, result.content]))
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=not result.ok)

    async def _begin(self) -> None:
        try:
            for source in self.config.sources:
                await self._read(source)
            await self._write(self._forget)
        finally:
            self._ready.set()

    async def _read(self, source: Source) -> None:
        options = ReadOptions(namespace=source.name, kind=source.kind, headers=source.headers, keep_going=True)
        try:
            tools = await anyio.to_thread.run_sync(lambda: list(catalogue.read(source.source, options)))
        except ToolscoutError as error:
            options.problem(error)
            tools = []
        for problem in options.problems:
            _log.warning("%s: %s", source.name, problem)
        if tools:
            await self._put(clean_text(source.name), tools)

    async def _publish(self, backend: Backend, tools: list[Tool]) -> None:
        await self._put(backend.name, tools)

    async def _put(self, name: str, tools: list[Tool]) -> None:
        self._latest[name] = tools
        kept = tools
        if self._quarantine is not None:
            kept = await anyio.to_thread.run_sync(self._quarantine.admitted, tools)
        marked = [_marked(tool, self.config.origin) for tool in kept]
        source = f"gateway {self.config.origin} {name}"
        await self._write(lambda: self.scout.store.add(marked, source, replace=True, sync=True))

    async def _write(self, change: Callable[[], object]) -> None:
        before = self.scout.store.version()
        try:
            async with self._writing:
                await anyio.to_thread.run_sync(change)
                await anyio.to_thread.run_sync(self.scout.refresh)
        except ToolscoutError as error:  # what is in the catalogue can still be served
            _log.error("the catalogue could not be changed: %s", error)
        if self.scout.store.version() != before:
            self._unembedded.ring()
            if self.changed is not None:
                await self.changed()

    def _forget(self) -> None:
        """Remove what a server or source brought that the file no longer names."""
        known = {*self._servers, *(clean_text(source.name) for source in self.config.sources)}
        store = self.scout.store
        for namespace in store.namespaces():
            if namespace not in known:
                brought = [tool.id for tool in store.tools(namespace) if _brought_by(tool, self.config.origin)]
                if brought:
                    store.remove(brought)

    async def _embed(self) -> None:
        """Beside everything else: a new tool is found by its words at once, and by its meaning a little later."""
        while True:
            await self._unembedded.heard(math.inf)
            try:
                await anyio.to_thread.run_sync(self.scout.embed)
            except ToolscoutError as error:
                _log.error("the tools could not be embedded: %s", error)

    async def _watch_approvals(self, quarantine: Quarantine) -> None:
        seen = quarantine.stamp()
        while True:
            await anyio.sleep(self.options.heartbeat)
            try:
                stamp = quarantine.stamp()
                if stamp != seen:
                    for name, tools in list(self._latest.items()):
                        await self._put(name, tools)
                    seen = stamp
            except sqlite3.Error as error:  # locked by another process, say; what was held back stays so
                _log.error("the record of approved tools cannot be read: %s; it is tried again", error)


async def _aside(work: Callable[[], _T], limiter: anyio.CapacityLimiter) -> _T:
    """Do it in a thread of its own, which keeps neither the other threads' work waiting nor the process from ending.

    Where this is cancelled the thread is left to itself, and counts until it ends.
    """
    results: list[_T] = []
    failures: list[Exception] = []
    ended, loop, borrower = anyio.Event(), asyncio.get_running_loop(), object()

    def end() -> None:
        limiter.release_on_behalf_of(borrower)
        ended.set()

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:  # whoever waits is told
            failures.append(error)
        with suppress(RuntimeError):  # the gateway ended before
            loop.call_soon_threadsafe(end)

    await limiter.acquire_on_behalf_of(borrower)
    threading.Thread(target=run, name="toolscout-gateway-call", daemon=True).start()
    await ended.wait()
    if failures:
        raise failures[0]
    return results[0]


def _marked(tool: Tool, origin: str) -> Tool:
    if tool.origin is None:
        return tool
    return replace(tool, origin=replace(tool.origin, details={**tool.origin.details, _MARK: origin}))


def _brought_by(tool: Tool, origin: str) -> bool:
    return tool.origin is not None and tool.origin.details.get(_MARK) == origin
