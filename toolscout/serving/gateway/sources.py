"""The sources behind the gateway: MCP servers, OpenAPI services and functions, whose tools are in the catalogue.

The catalogue follows each server's list of tools. While a server does not answer, its tools stay in the catalogue,
searches mark them as unavailable, and calls fail with a clear error.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from toolscout import catalogue
from toolscout.calling.dispatch import CallOptions, OriginCaller, allowing
from toolscout.catalogue import poisoning
from toolscout.catalogue.base import ReadOptions, is_url, safe_url
from toolscout.catalogue.importers import functions
from toolscout.catalogue.poisoning import Finding, FindingLevel
from toolscout.core import tracing
from toolscout.core.addresses import Addresses
from toolscout.core.answer import Allowed
from toolscout.core.masking import Secrets, secret_variables
from toolscout.core.targets import Place, place_of
from toolscout.core.tool import Tool, clean_text, namespace_of
from toolscout.errors import MissingExtra, StoreError, ToolscoutError, UnknownTool
from toolscout.scout import Scout
from toolscout.serving.access import Caller
from toolscout.serving.gateway.client_calls import ClientCall
from toolscout.serving.gateway.config import GatewayConfig, Source
from toolscout.serving.gateway.masking import masked
from toolscout.serving.gateway.offers import Offers
from toolscout.serving.gateway.ownership import CallerHeaders, Ownership, Peers
from toolscout.serving.gateway.personal_servers import PersonalServer
from toolscout.serving.gateway.quarantine import Quarantine
from toolscout.serving.gateway.server_connection import (
    AutoResetEvent,
    Backend,
    BackendDown,
    BackendOptions,
    OfferKind,
)
from toolscout.serving.gateway.server_requests import ServerRequest
from toolscout.serving.gateway.upstream_auth import Credentials
from toolscout.stores.listed_by_caller import marked_source

try:
    import anyio
    import anyio.abc
    import anyio.to_thread
    import httpx2
    import mcp_types as types
    from mcp import MCPError
except ImportError:
    raise MissingExtra("serving", "serve") from None

__all__ = ["BackendDown", "BackendOptions", "Backends"]

_log = logging.getLogger("toolscout.gateway")
_T = TypeVar("_T")
_MAX_CALLS = 32  # calls of HTTP services and functions at a time
_SHOWN_TARGETS = 5
_SHOWN_FINDINGS = 20
_MAX_SEEN = 1_024  # callers whose visible tools are remembered
_RETRY_S = 30.0  # before an encoder's endpoint that failed is asked again
_FOLLOW_S = 0.5  # between two looks whether another gateway has changed the catalogue
_CONFIG_KEY = "gateway"  # in an origin's details: the configuration that the tool comes from


class Backends:
    """All sources of a gateway.

    `changed` is called after the catalogue changes or a tool is held back or released; `offers_listener` when resources
    or prompts of a server change, `update_listener` when a resource does that is followed. `connected`: the client for
    what concerns no call; None where there is none, or several.
    """

    def __init__(
        self,
        scout: Scout,
        config: GatewayConfig | None = None,
        options: BackendOptions | None = None,
        quarantine: Quarantine | None = None,
        allow: Sequence[str] = (),
        peers: Peers | None = None,
        quarantine_level: FindingLevel | None = None,
    ) -> None:
        """Take the configuration; running() starts the servers.

        `allow`: targets at which tools of the catalogue that are not from the configuration may be called. `peers`:
        share the stdio servers with other gateways over this store, where it has leases; None: run them all.
        `quarantine_level`: new tools with a finding of the scan at this level wait in the quarantine for approval.
        """
        self.scout = scout
        self.config = config or GatewayConfig()
        self.options = options or BackendOptions()
        self.changed: Callable[[], Awaitable[None]] | None = None
        self.offers_listener: Callable[[str, Collection[OfferKind]], Awaitable[None]] | None = None
        self.update_listener: Callable[[str, str], Awaitable[None]] | None = None
        self.connected: ClientCall | None = None
        self._quarantine, self._quarantine_level = quarantine, quarantine_level
        self._suspicions: dict[str, frozenset[Finding]] = {}  # by server or source: those last logged
        self._credentials = {name: Credentials(name, auth) for name, auth in self.config.auth.items()}
        self._personal: dict[str, PersonalServer] = {}
        for one in self.config.servers:
            name = clean_text(one.name)
            if name in self.config.auth and self.config.auth[name].per_caller:
                credentials = self._credentials[name]
                self._personal[name] = PersonalServer(one, credentials, self.options, self._publish_personal)
        self._seen: dict[str, tuple[object, Caller]] = {}  # by caller's identity, with what it was worked out from
        self._seen_lock = threading.Lock()
        servers = [
            replace(one, auth=_TokenAuth(one.url, shared))
            if (shared := self._credentials.get(clean_text(one.name)))
            else one
            for one in self.config.servers
            if clean_text(one.name) not in self._personal
        ]
        self._servers = {
            backend.name: backend for backend in (Backend(server, self.options, self) for server in servers)
        }
        leases = scout.store.leases() if peers is not None else None
        self._ownership = (
            Ownership(leases, scout.store.identity(), peers, self.options.timeout) if leases and peers else None
        )
        self._latest: dict[str, list[Tool]] = {}  # by server or source: all tools it last listed
        self._admission_locks: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)
        self._sources = {clean_text(source.name): source for source in self.config.sources}
        # Tools that this process read from configured sources: only these are called with the sources' headers.
        self._read_tools: dict[str, dict[str, Tool]] = {}
        self._unread: set[str] = set()  # sources that could not be read
        self._held_back: dict[str, int] = {}
        self._write_lock = anyio.Lock()
        self._unembedded = AutoResetEvent()
        self._ready = anyio.Event()
        self._calls = CallOptions(self.options.timeout, self.options.max_chars, hide_targets=True)
        self._other_tools = OriginCaller(replace(self._calls, allow=tuple(allow)))
        self._call_limiter = anyio.CapacityLimiter(_MAX_CALLS)
        self._tasks: anyio.abc.TaskGroup | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Backends]:
        """Start the servers and read the sources; when the block ends, the servers are ended."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._read_sources)
            tasks.start_soon(self._embed)
            if self.scout.not_embedded() or self.scout.switching:  # such as after a change of the encoder
                self._unembedded.set()
            if self._quarantine is not None:
                tasks.start_soon(self._watch_approvals, self._quarantine)
            if self._ownership is not None:
                tasks.start_soon(self._follow_catalogue)
            for backend in self._servers.values():
                if self._ownership is None or not backend.server.command:
                    tasks.start_soon(backend.run)
                else:
                    forget = partial(self._forget, backend.name)
                    tasks.start_soon(self._ownership.run, backend, self._unembedded.set, forget)
            self._tasks = tasks
            for name, server in self._personal.items():
                if server.public:
                    tasks.start_soon(self._list_for, server, Caller(""), None)
                    continue
                _log.info("%s %s; they are listed for each caller that signs in", name, server.problem)
            try:
                yield self
            finally:
                tasks.cancel_scope.cancel()
        if self._ownership is not None:
            self._ownership.close()

    async def ready(self, longest: float) -> None:
        """Wait until every server and source was tried once, at most `longest` seconds."""
        with anyio.move_on_after(longest):
            await self._ready.wait()
            for backend in self._servers.values():
                await backend.tried.wait()

    def server_names(self) -> list[str]:
        """Return the names of all servers, whether they answer or not."""
        return list(self._servers)

    def problems(self) -> dict[str, str]:
        """Return the servers that do not answer, or that list nothing before somebody signs in, and sources that cannot
        be read, with the reason to follow the name.
        """
        found = {name: backend.problem for name, backend in self._servers.items() if backend.problem}
        found |= dict.fromkeys(list(self._unread), "cannot be read now")
        return found | {name: server.problem for name, server in self._personal.items() if server.problem}

    def held_back(self) -> dict[str, int]:
        """Return by server or source how many of its tools wait for approval."""
        return dict(self._held_back)

    def owners(self) -> dict[str, str]:
        """Return which process runs each stdio server that gateways share, as last seen."""
        return self._ownership.owners() if self._ownership is not None else {}

    @property
    def tasks(self) -> anyio.abc.TaskGroup | None:
        """The task group of what goes on beside requests; None before running()."""
        return self._tasks

    def offers(self) -> dict[str, Offers]:
        """Return what each server offers besides tools, as it last listed it."""
        return {name: backend.offers for name, backend in self._servers.items()}

    async def request(self, server: str, request: ServerRequest, for_call: ClientCall) -> Any:
        """Send a request to a server and return its result. Raises what Backend.request raises."""
        with tracing.span(f"upstream {server}", "client", toolscout__upstream=server):
            secrets = for_call.secrets = self._secrets(server, None)
            try:
                return masked(await self._servers[server].request(request, for_call), secrets)
            except MCPError as error:
                raise MCPError(error.code, secrets.mask(error.message), secrets.mask_json(error.data)) from None

    def follow(self, uris: Mapping[str, Collection[str]]) -> None:
        """Have servers tell when these of their resources change, and no others."""
        for name, backend in self._servers.items():
            backend.subscribe(uris.get(name, ()))

    def set_log_level(self, level: types.LoggingLevel) -> None:
        """Have the servers send log messages of this level and above, those that are started later too."""
        for backend in self._servers.values():
            if self._tasks is not None:
                self._tasks.start_soon(backend.set_log_level, level)

    def roots_changed(self) -> None:
        """Tell the servers that the roots of the only client have changed."""
        for backend in self._servers.values():
            if self._tasks is not None:
                self._tasks.start_soon(backend.roots_changed)

    @property
    def personal(self) -> bool:
        """Whether any server is used in callers' own names."""
        return bool(self._personal)

    @property
    def listed_by_caller(self) -> frozenset[str]:
        """The namespaces of these servers: `seen_by` says which of their tools a caller sees."""
        return frozenset(name for name, server in self._personal.items() if not server.public)

    async def introduce(self, caller: Caller, token: str | None) -> None:
        """Have the servers that are used in callers' own names list their tools for this one, where that is due.

        Waits for a first list only; one that is known is renewed in the background.
        """
        due = [(server, server.wants_list(caller)) for server in self._personal.values()]
        async with anyio.create_task_group() as waiting:
            for server, when in due:
                if when == "now":
                    waiting.start_soon(self._list_for, server, caller, token)
                elif when and self._tasks is not None:
                    self._tasks.start_soon(self._list_for, server, caller, token)

    def seen_by(self, caller: Caller) -> Caller:
        """Return the caller without the tools of such servers that these have not listed for it."""
        if not self._personal:
            return caller
        visible = frozenset().union(*(server.visible(caller) for server in self._personal.values()))
        basis = (caller, visible, self.scout.store.stamp())
        known = self._seen.get(caller.identity)
        if known is not None and known[0] == basis:
            return known[1]
        allowed = caller.allowed
        namespaces = self.scout.store.namespaces().keys() if allowed is None else allowed.namespaces
        ids = {one for one in visible if allowed is None or allowed.permits(one)}
        if allowed is not None:
            ids |= {one for one in allowed.ids if namespace_of(one) not in self._personal}
        made = replace(caller, allowed=Allowed.of(namespaces - self._personal.keys(), ids))
        with self._seen_lock:
            if len(self._seen) >= _MAX_SEEN:
                self._seen.pop(next(iter(self._seen)))
            self._seen[caller.identity] = (basis, made)
        return made

    async def _list_for(self, server: PersonalServer, caller: Caller, token: str | None) -> None:
        before = server.visible(caller)
        await server.list_for(caller, token)
        if server.visible(caller) != before and self.changed is not None:
            await self.changed()

    async def call(
        self,
        tool: Tool,
        arguments: Mapping[str, Any],
        for_call: ClientCall,
        caller: Caller | None = None,
        token: str | None = None,
        headers: CallerHeaders | None = None,
    ) -> types.CallToolResult:
        """Call a tool at its source and return its result; an MCP server may ask and tell the client of `for_call`.

        `caller`: for whom; `token`: what it sent to be known. Only a server that is configured so is told of either.
        `headers` goes with a call of a server that another gateway runs. Raises what Ownership.call raises, and
        NoCredentials where a server cannot be used for this caller. Errors of other sources are results with is_error.
        """
        with tracing.span(f"upstream {tool.namespace}", "client", toolscout__upstream=tool.namespace) as span:
            secrets = for_call.secrets = self._secrets(tool.namespace, token)
            try:
                result = masked(await self._call(tool, arguments, for_call, caller, token, headers), secrets)
            except MCPError as error:
                raise MCPError(error.code, secrets.mask(error.message), secrets.mask_json(error.data)) from None
            if result.is_error:
                span.failed("tool_error")
            return result

    def _secrets(self, namespace: str, token: str | None) -> Secrets:
        """Return what a server may quote and nobody shall see: what it and this gateway are sent to know callers."""
        texts, headers = [token] if token else [], dict[str, str]()
        if (backend := self._servers.get(namespace)) is not None:
            headers = backend.server.headers
            texts += secret_variables(backend.server.env)
        if (credentials := self._credentials.get(namespace)) is not None:
            texts += credentials.secrets()
        return Secrets(texts, headers)

    async def _call(
        self,
        tool: Tool,
        arguments: Mapping[str, Any],
        for_call: ClientCall,
        caller: Caller | None,
        token: str | None,
        headers: CallerHeaders | None,
    ) -> types.CallToolResult:
        backend = self._servers.get(tool.namespace)
        if backend is not None:  # the namespace belongs to a configured server, whatever the tool's origin says
            if self._ownership is None or not backend.server.command:
                return await backend.call(tool.id, dict(arguments), for_call)
            return await self._ownership.call(backend, tool.id, dict(arguments), headers or CallerHeaders(), for_call)

        if (personal := self._personal.get(tool.namespace)) is not None:
            if caller is None:
                raise UnknownTool(f"{tool.id} is used in a caller's own name, and there is none")
            return await personal.call(tool, arguments, caller, token, for_call)
        configured = self._read_tools.get(tool.namespace, {}).get(tool.id)

        def run() -> Any:
            maker = self._other_tools if configured is None else self._source_caller(configured, caller, token)
            return maker.call([(configured or tool, arguments)])[0]

        result = await _in_daemon_thread(run, self._call_limiter)
        text = result.content if result.ok else "\n".join(filter(None, [result.error, result.content]))
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=not result.ok)

    def _source_caller(self, tool: Tool, caller: Caller | None, token: str | None) -> OriginCaller:
        """Return what calls a tool of a configured source; only the source's own servers get its headers."""
        assert tool.origin is not None
        if tool.origin.kind == "function":
            return OriginCaller(self._calls, {tool.id: functions.find(tool.origin.target)})
        source, namespace = self._sources[tool.namespace], tool.namespace
        target = source.base_url or tool.origin.target
        calls = replace(self._calls, targets={namespace: target})
        if place_of(target) in self._places(source):
            headers = dict(source.headers)
            if (credentials := self._credentials.get(namespace)) is not None:
                own = credentials.headers(caller, token)
                taken = {name.lower() for name in own}
                headers = {name: value for name, value in headers.items() if name.lower() not in taken} | own
            return OriginCaller(replace(calls, headers={namespace: headers}))
        # A fetched document chose this server: no headers, and no private address unless it is allowed.
        addresses = None if self._other_tools.permits(tool) else Addresses()
        return OriginCaller(replace(calls, addresses=addresses))

    def _places(self, source: Source) -> set[Place | None]:
        """Return the servers that get a source's headers: those that the configuration names.

        A document fetched from a URL may name other servers, which get none; a local document is trusted.
        """
        if named := source.base_url or (source.source if is_url(source.source) else ""):
            return {place_of(safe_url(named))}
        tools = self._read_tools.get(clean_text(source.name), {}).values()
        return {place_of(tool.origin.target) for tool in tools if tool.origin is not None}

    async def _read_sources(self) -> None:
        """Read all configured sources; retry those that gave no tools every `relist` seconds."""
        failed = list(self.config.sources)
        try:
            failed = [source for source in failed if not await self._read_source(source)]
            await self._change_catalogue(self._remove_unconfigured)
        finally:
            self._ready.set()
        await anyio.to_thread.run_sync(self._warn_of_targets)
        while failed:
            await anyio.sleep(self.options.relist)
            failed = [source for source in failed if not await self._read_source(source)]

    async def _read_source(self, source: Source) -> bool:
        """Read a configured source into the catalogue; return whether it had any tools."""
        options = ReadOptions(namespace=source.name, kind=source.kind, headers=source.headers, keep_going=True)
        try:
            tools = await anyio.to_thread.run_sync(lambda: list(catalogue.read(source.source, options)))
        except ToolscoutError as error:
            options.problem(error)
            tools = []
        for problem in options.problems:
            _log.warning("%s: %s", source.name, problem)
        (self._unread.discard if tools else self._unread.add)(clean_text(source.name))
        if tools:
            await self._store_tools(clean_text(source.name), tools)
            self._warn_of_other_places(source, tools)
        return bool(tools)

    def _warn_of_other_places(self, source: Source, tools: list[Tool]) -> None:
        """Log the servers of a source's tools that do not get its headers."""
        known = self._places(source)
        places = {place_of(source.base_url or tool.origin.target) for tool in tools if tool.origin is not None}
        for place in sorted(place for place in places - known if place is not None):
            if source.headers:
                where = f"{place.scheme}://{place.host}:{place.port}"
                _log.warning("%s: its headers are not sent to %s; to send them, give baseUrl", source.name, where)

    def _warn_of_targets(self) -> None:
        """Log at the start which tools can be found but not called, and which option would allow it."""
        counts: Counter[str] = Counter()
        configured = {*self._servers, *self._personal, *self._sources}
        for tool in self.scout.store.tools():
            if tool.origin is not None and tool.namespace not in configured and not self._other_tools.permits(tool):
                counts[allowing(tool)] += 1
        for option, count in counts.most_common(_SHOWN_TARGETS):
            _log.warning("%s tools of the catalogue are found but not called; to allow it: %s", f"{count:,}", option)
        if len(counts) > _SHOWN_TARGETS:
            _log.warning("%s more targets are not allowed", f"{len(counts) - _SHOWN_TARGETS:,}")

    async def _follow_catalogue(self) -> None:
        """Call `changed` when another gateway has changed the catalogue."""
        store, known = self.scout.store, -1
        while True:
            with suppress(StoreError):  # the next look finds it
                version = await anyio.to_thread.run_sync(store.version)
                if known not in (-1, version) and self.changed is not None:
                    await self.changed()
                known, seen = version, store.stamp()
                while store.stamp() == seen:
                    await anyio.sleep(_FOLLOW_S)
            await anyio.sleep(_FOLLOW_S)

    def _forget(self, name: str) -> None:
        """Forget what a server listed: another process may run it from now on."""
        self._latest.pop(name, None)
        self._held_back.pop(name, None)
        self._servers[name].offers = Offers()

    async def tools_listed(self, backend: Backend, tools: list[Tool]) -> None:
        """Write a server's new list of tools to the catalogue."""
        await self._store_tools(backend.name, tools)

    async def offers_changed(self, backend: Backend, kinds: Collection[OfferKind]) -> None:
        """Hand on that a server's resources or prompts have changed."""
        if self.offers_listener is not None:
            await self.offers_listener(backend.name, kinds)

    async def resource_updated(self, backend: Backend, uri: str) -> None:
        """Hand on that a resource has changed."""
        if self.update_listener is not None:
            await self.update_listener(backend.name, uri)

    def connected_client(self) -> ClientCall | None:
        """Return the client for what concerns no call; None where there is none, or several."""
        return self.connected

    async def _publish_personal(self, server: PersonalServer) -> None:
        await self._store_tools(server.name, list(server.listed.values()))

    async def _store_tools(self, name: str, tools: list[Tool] | None = None) -> None:
        """Write the tools of a server or source, those not held back, to the catalogue; by default its last list."""
        async with self._admission_locks[name]:  # else an older list could overwrite a newer one
            admitted = listed = self._latest[name] = self._latest[name] if tools is None else tools
            suspicious = await anyio.to_thread.run_sync(self._suspicious, name, listed)
            if self._quarantine is not None:
                admitted = await anyio.to_thread.run_sync(self._quarantine.admitted, listed, suspicious)
            if name in self._servers:
                self._servers[name].admit(listed, admitted)
            if name in self._personal:
                self._personal[name].admit(admitted)
        if name in self._sources:
            self._read_tools[name] = {tool.id: tool for tool in admitted}
        self._held_back[name] = len(listed) - len(admitted)
        marked = [_with_config(tool, self.config.origin) for tool in admitted]
        origin = self.config.origin
        source = marked_source(name, origin) if name in self.listed_by_caller else f"gateway {origin} {name}"
        await self._change_catalogue(lambda: self.scout.store.add(marked, source, replace=True, sync=True))

    def _suspicious(self, name: str, tools: list[Tool]) -> set[str]:
        """Scan the tools of a server or source, log new findings, and return the ids to hold back."""
        others = [tool.id for other, listed in list(self._latest.items()) if other != name for tool in listed]
        found = poisoning.scan(tools, others)
        new = [one for one in found if one.level != "low" and one not in self._suspicions.get(name, ())]
        self._suspicions[name] = frozenset(found)
        for finding in new[:_SHOWN_FINDINGS]:
            _log.warning("%s", finding.line())
        if len(new) > _SHOWN_FINDINGS:
            _log.warning("%s: and %s more findings; see: toolscout scan", name, f"{len(new) - _SHOWN_FINDINGS:,}")
        level = self._quarantine_level
        return {finding.tool_id for finding in found if level and poisoning.level_reached([finding], level)}

    async def _change_catalogue(self, change: Callable[[], object]) -> None:
        """Change the store in a thread and refresh the index; where the catalogue version moved, call `changed`."""

        def change_and_refresh() -> bool:
            before = self.scout.store.version()
            try:
                change()
                self.scout.refresh()
            except ToolscoutError as error:  # the catalogue can still be served as it is
                _log.error("the catalogue could not be changed: %s", error)
            return self.scout.store.version() != before

        async with self._write_lock:
            moved = await anyio.to_thread.run_sync(change_and_refresh)
        if moved:
            self._unembedded.set()
            if self.changed is not None:
                await self.changed()

    def _remove_unconfigured(self) -> None:
        """Remove the tools of servers and sources that the configuration no longer names."""
        known = {*self._servers, *self._personal, *(clean_text(source.name) for source in self.config.sources)}
        store = self.scout.store
        for namespace in store.namespaces():
            if namespace not in known:
                ids = [tool.id for tool in store.tools(namespace) if _has_config(tool, self.config.origin)]
                if ids:
                    store.remove(ids)

    async def _embed(self) -> None:
        """Embed new tools in the background; until then they are found by their words."""
        while True:
            await self._unembedded.wait(_RETRY_S if self.scout.embedding_problem else math.inf)
            try:
                await anyio.to_thread.run_sync(self.scout.embed)
            except ToolscoutError as error:
                _log.error("the tools could not be embedded: %s", error)

    async def _watch_approvals(self, quarantine: Quarantine) -> None:
        """Store all tools again whenever a person has approved some."""
        seen = quarantine.stamp()
        while True:
            await anyio.sleep(self.options.heartbeat)
            try:
                stamp = quarantine.stamp()
                if stamp != seen:
                    for name in list(self._latest):
                        if name in self._latest:  # else another process runs the server by now
                            await self._store_tools(name)
                    seen = stamp
            except StoreError as error:  # such as a lock of another process; held-back tools stay held back
                _log.error("the record of approved tools cannot be read: %s; it is tried again", error)


class _TokenAuth(httpx2.Auth):
    """Adds the gateway's own token to each request to one MCP server, and to no other place."""

    def __init__(self, url: str, credentials: Credentials) -> None:
        self._place, self._credentials = place_of(url), credentials

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        if place_of(str(request.url)) != self._place:
            yield request
            return
        request.headers.update(await anyio.to_thread.run_sync(self._credentials.headers, None, None))
        response = yield request
        if response.status_code == 401:  # such as a token that was revoked: once more with a new one
            self._credentials.forget()
            request.headers.update(await anyio.to_thread.run_sync(self._credentials.headers, None, None))
            yield request


async def _in_daemon_thread(work: Callable[[], _T], limiter: anyio.CapacityLimiter) -> _T:
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
        except Exception as error:  # raised again in the task that waits
            failures.append(error)
        with suppress(RuntimeError):  # the event loop has already ended
            loop.call_soon_threadsafe(end)

    await limiter.acquire_on_behalf_of(borrower)
    threading.Thread(target=copy_context().run, args=[run], name="toolscout-gateway-call", daemon=True).start()
    await ended.wait()
    if failures:
        raise failures[0]
    return results[0]


def _with_config(tool: Tool, origin: str) -> Tool:
    """Return a tool whose origin's details name the configuration that it comes from."""
    if tool.origin is None:
        return tool
    return replace(tool, origin=replace(tool.origin, details={**tool.origin.details, _CONFIG_KEY: origin}))


def _has_config(tool: Tool, origin: str) -> bool:
    return tool.origin is not None and tool.origin.details.get(_CONFIG_KEY) == origin
