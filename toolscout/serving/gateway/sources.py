"""The sources behind the gateway: MCP servers, OpenAPI services and functions, whose tools are in the catalogue.

The catalogue follows each server's list of tools. While a server does not answer, its tools stay in the catalogue,
searches mark them as unavailable, and calls fail with a clear error.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sqlite3
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

from toolscout import catalogue
from toolscout.calling.dispatch import CallOptions, OriginCaller, allowing
from toolscout.catalogue.base import ReadOptions, is_url, safe_url
from toolscout.catalogue.importers import functions
from toolscout.core.addresses import Addresses
from toolscout.core.targets import Place, place_of
from toolscout.core.tool import Tool, clean_text
from toolscout.errors import MissingExtra, ToolscoutError
from toolscout.scout import Scout
from toolscout.serving.gateway.config import GatewayConfig, Source
from toolscout.serving.gateway.quarantine import Quarantine
from toolscout.serving.gateway.server_connection import Backend, BackendDown, BackendOptions, Bell, Progress

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
_SHOWN_TARGETS = 5
_MARK = "gateway"  # in an origin's details: the config that brought the tool


class Backends:
    """All sources of a gateway. `changed` is called after the catalogue changes or a tool is held back or released."""

    def __init__(
        self,
        scout: Scout,
        config: GatewayConfig | None = None,
        options: BackendOptions | None = None,
        quarantine: Quarantine | None = None,
        allow: Sequence[str] = (),
    ) -> None:
        """Take the configuration; running() starts the servers. `allow`: targets where other tools may be called."""
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
        self._admitting: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)
        self._sources = {clean_text(source.name): source for source in self.config.sources}
        # Tools that this process read from configured sources: only these are called with the sources' headers.
        self._read_tools: dict[str, dict[str, Tool]] = {}
        self._writing = anyio.Lock()
        self._unembedded = Bell()
        self._ready = anyio.Event()
        self._calls = CallOptions(self.options.timeout, self.options.max_chars, hide_targets=True)
        self._elsewhere = OriginCaller(replace(self._calls, allow=tuple(allow)))
        self._calling = anyio.CapacityLimiter(_CALLS)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Backends]:
        """Start everything; when the block ends, the servers end too."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._begin)
            tasks.start_soon(self._embed)
            if self.scout.not_embedded():  # such as after a change of the encoder
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
        """Call a tool at its source. Raises BackendDown where that does not answer, MCPError as the server does."""
        backend = self._servers.get(tool.namespace)
        if backend is not None:  # the namespace belongs to a configured server, whatever the tool's origin says
            return await backend.call(tool.id, dict(arguments), progress)

        configured = self._read_tools.get(tool.namespace, {}).get(tool.id)

        def run() -> Any:
            caller = self._elsewhere if configured is None else self._source_caller(configured)
            return caller.call([(configured or tool, arguments)])[0]

        result = await _aside(run, self._calling)
        text = result.content if result.ok else "\n".join(filter(None, [result.error, result.content]))
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=not result.ok)

    def _source_caller(self, tool: Tool) -> OriginCaller:
        """Return the caller for a tool of a configured source; only the source's own servers get its headers."""
        assert tool.origin is not None
        if tool.origin.kind == "function":
            return OriginCaller(self._calls, {tool.id: functions.find(tool.origin.target)})
        source, namespace = self._sources[tool.namespace], tool.namespace
        target = source.base_url or tool.origin.target
        calls = replace(self._calls, targets={namespace: target})
        if place_of(target) in self._places(source):
            return OriginCaller(replace(calls, headers={namespace: source.headers}))
        # A fetched document chose this server: no headers, and no private address unless it is allowed.
        named = None if self._elsewhere.permits(tool) else Addresses()
        return OriginCaller(replace(calls, addresses=named))

    def _places(self, source: Source) -> set[Place | None]:
        """Return the servers that get a source's headers: those that the configuration names.

        A document fetched from a URL may name other servers, which get none; a local document is trusted.
        """
        if named := source.base_url or (source.source if is_url(source.source) else ""):
            return {place_of(safe_url(named))}
        tools = self._read_tools.get(clean_text(source.name), {}).values()
        return {place_of(tool.origin.target) for tool in tools if tool.origin is not None}

    async def _begin(self) -> None:
        failed = list(self.config.sources)
        try:
            failed = [source for source in failed if not await self._read(source)]
            await self._write(self._forget)
        finally:
            self._ready.set()
        await anyio.to_thread.run_sync(self._warn_of_targets)
        while failed:
            await anyio.sleep(self.options.relist)
            failed = [source for source in failed if not await self._read(source)]

    async def _read(self, source: Source) -> bool:
        """Read a configured source into the catalogue; return whether it had any tools."""
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
            self._warn_of_other_places(source, tools)
        return bool(tools)

    def _warn_of_other_places(self, source: Source, tools: list[Tool]) -> None:
        known = self._places(source)
        places = {place_of(source.base_url or tool.origin.target) for tool in tools if tool.origin is not None}
        for place in sorted(place for place in places - known if place is not None):
            if source.headers:
                where = f"{place.scheme}://{place.host}:{place.port}"
                _log.warning("%s: its headers are not sent to %s; to send them, give baseUrl", source.name, where)

    def _warn_of_targets(self) -> None:
        """Log at the start which tools can be found but not called, and which option would allow it."""
        counts: Counter[str] = Counter()
        configured = {*self._servers, *self._sources}
        for tool in self.scout.store.tools():
            if tool.origin is not None and tool.namespace not in configured and not self._elsewhere.permits(tool):
                counts[allowing(tool)] += 1
        for option, count in counts.most_common(_SHOWN_TARGETS):
            _log.warning("%s tools of the catalogue are found but not called; to allow it: %s", f"{count:,}", option)
        if len(counts) > _SHOWN_TARGETS:
            _log.warning("%s more targets are not allowed", f"{len(counts) - _SHOWN_TARGETS:,}")

    async def _publish(self, backend: Backend, tools: list[Tool]) -> None:
        await self._put(backend.name, tools)

    async def _put(self, name: str, tools: list[Tool] | None = None) -> None:
        """Write the tools of a server or source to the catalogue; without `tools` those of its last list."""
        async with self._admitting[name]:  # else an older list could overwrite a newer one
            kept = listed = self._latest[name] = self._latest[name] if tools is None else tools
            if self._quarantine is not None:
                kept = await anyio.to_thread.run_sync(self._quarantine.admitted, listed)
            if name in self._servers:
                self._servers[name].admit(listed, kept)
        if name in self._sources:
            self._read_tools[name] = {tool.id: tool for tool in kept}
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
        """Remove the tools of servers and sources that the configuration no longer names."""
        known = {*self._servers, *(clean_text(source.name) for source in self.config.sources)}
        store = self.scout.store
        for namespace in store.namespaces():
            if namespace not in known:
                brought = [tool.id for tool in store.tools(namespace) if _brought_by(tool, self.config.origin)]
                if brought:
                    store.remove(brought)

    async def _embed(self) -> None:
        """Embed new tools in the background; until then they are found by their words."""
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
                    for name in list(self._latest):
                        await self._put(name)
                    seen = stamp
            except sqlite3.Error as error:  # locked by another process, say; what was held back stays so
                _log.error("the record of approved tools cannot be read: %s; it is tried again", error)


async def _aside(work: Callable[[], _T], limiter: anyio.CapacityLimiter) -> _T:
    """Run work in a new daemon thread and return its result, so that it delays neither other threads nor the exit.

    When cancelled, the thread goes on, and counts against `limiter` until it ends.
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
