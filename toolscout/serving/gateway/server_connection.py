"""Keeps the connection to one MCP server behind the gateway: opens it, follows its tools, reopens it when it ends.

The pause before each further restart doubles. `Backend.problem` says at any moment why the server does not answer.
"""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from toolscout.catalogue.base import ReadOptions, unique
from toolscout.catalogue.importers import mcp as importer
from toolscout.catalogue.mcp.client import (
    MAX_ERROR_BYTES,
    MAX_LIST_TIMEOUTS,
    Action,
    ListTooLong,
    McpServer,
    ServerListing,
    cause_of,
    explain,
    guarded,
    http,
    last_lines,
    list_pages,
    stdio,
)
from toolscout.core.tool import Tool, clean_text
from toolscout.errors import BadSource, MissingExtra, ToolscoutError, UnknownTool
from toolscout.serving.gateway.client_calls import CallsInFlight, ClientCall, Clock
from toolscout.serving.gateway.offers import Offers, list_offers
from toolscout.serving.gateway.server_requests import ServerRequest, tool_call

try:
    import anyio
    import anyio.to_thread
    import mcp_types as types
    from mcp import Client, MCPError
    from mcp.client.subscriptions import SubscriptionLost, ToolsListChanged
    from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
    from pydantic import ValidationError

    from toolscout.catalogue.mcp.messages import REFUSED, Guard
    from toolscout.catalogue.mcp.stdio import Guarding, Tail
except ImportError:
    raise MissingExtra("serving", "serve") from None

OfferKind = Literal["resources", "prompts"]
_log = logging.getLogger("toolscout.gateway")
_BURST = 0.05  # seconds in which several changes count as one
_SETTLED = 10.0  # seconds a connection must last for the pause before a restart to be short again
# Problems with single tools that are logged for one list.
_SHOWN_PROBLEMS = 20
# After a list of tools, the wait until the next one, as a multiple of the time that it took.
_LIST_REST = 4
_ANSWER = Action("answer", "answered")


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """Seconds and characters.

    Seconds: `timeout` for a call without a progress report; `connect` for a server to start, or to list a page of
    tools; `heartbeat` between checks that a server still answers; `relist` between lists of tools where the server
    announces no change; `relist_pause` at least between two lists; `pause` before the first restart, `longest_pause`
    at most before a later one; `grace` that a call waits for a server that has just ended.

    Characters: `max_chars` of the answer of an HTTP service or a function; `max_tool_chars` of one tool as JSON. A
    longer tool is left out, since every search that finds it would count its tokens.
    """

    timeout: float = 60.0
    connect: float = 30.0
    heartbeat: float = 1.0
    relist: float = 60.0
    relist_pause: float = 0.5
    pause: float = 0.25
    grace: float = 5.0
    longest_pause: float = 30.0
    max_chars: int = 1_000_000
    max_tool_chars: int = 256_000


class BackendDown(ToolscoutError):
    """Raised for a server that does not answer now and is being restarted. Callers see the message unchanged."""

    def __init__(self, message: str) -> None:
        """Take a message that names neither a path nor a command line."""
        super().__init__(message, public=message)


class Listeners(Protocol):
    """Who is told what a server says by itself."""

    async def tools_listed(self, backend: Backend, tools: list[Tool]) -> None:
        """Take a new list of the server's tools."""

    async def offers_changed(self, backend: Backend, kinds: Collection[OfferKind]) -> None:
        """Hear that the server's resources or prompts have changed."""

    async def resource_updated(self, backend: Backend, uri: str) -> None:
        """Hear that a resource has changed to which somebody subscribed."""

    def connected_client(self) -> ClientCall | None:
        """Return the client for what concerns no call; None where there is none, or several."""


class Backend:
    """One MCP server. `problem` says why it does not answer; "" while it does."""

    def __init__(self, server: McpServer, options: BackendOptions, listeners: Listeners) -> None:
        """Take a server, which run() starts."""
        self.server = server
        self.name = clean_text(server.name)
        self.problem = "is being started"
        self.tried = anyio.Event()  # set once it has listed its tools or failed to
        self.guard: Guarding | None = None  # of the process of a stdio server
        self.offers = Offers()
        self._options = options
        self._listeners = listeners
        self._in_flight = CallsInFlight(self.name, listeners.connected_client)
        self._client: Client | None = None
        self._connected: Client | None = None  # becomes `_client` when `admit` says which tools may be called
        self._listed: list[Tool] | None = None
        self._names: dict[str, str] = {}  # tool id -> the server's name for it; only of tools that may be called
        self._changed = AutoResetEvent()
        self._offers_changed = AutoResetEvent()
        self._logged: frozenset[str] = frozenset()  # the problems of the last list
        self._subscribed: frozenset[str] = frozenset()
        self._subscriptions_changed = AutoResetEvent()
        self._listening: anyio.CancelScope | None = None  # around a stream of events, which names the resources
        self._log_level: types.LoggingLevel | None = None
        self._up = anyio.Event()
        self._up_at = math.inf
        self._lost_at = -math.inf

    async def run(self) -> None:
        """Connect, follow changes, and reconnect when the connection ends, until cancelled."""
        pause = self._options.pause
        while True:
            problem, details = await self._run_connection()
            if anyio.current_time() - self._up_at > _SETTLED:  # it worked for a while
                pause = self._options.pause
            self.mark_down(problem)
            self.tried.set()
            _log.warning("%s %s; next try in %.3g s", self.name, details, pause)
            await anyio.sleep(pause)
            pause = min(2 * pause, self._options.longest_pause)

    def admit(self, listed: list[Tool], admitted: Iterable[Tool]) -> None:
        """Allow calls of the `admitted` tools and no others; ignored where `listed` is not the latest list."""
        if listed is not self._listed or self._connected is None:
            return
        self._names = {tool.id: str(tool.origin.details["tool"]) for tool in admitted if tool.origin is not None}
        if self._client is None:
            self._client, self._up_at, self.problem = self._connected, anyio.current_time(), ""
            self._up.set()

    async def call(self, tool_id: str, arguments: dict[str, Any], call: ClientCall) -> types.CallToolResult:
        """Call a tool that the server lists now, and return its result.

        Raises UnknownTool where the server does not list the tool or it is held back, and what `request` raises.
        """

        def find() -> ServerRequest:
            name = self._names.get(tool_id)
            if name is None:
                raise UnknownTool(f"{tool_id} is not, or not any more, a tool of its server; search again")
            return tool_call(name, arguments)

        result: types.CallToolResult = await self._send(find, call)
        return result

    async def request(self, request: ServerRequest, call: ClientCall) -> Any:
        """Send a request to the server for a client's call, and return its result.

        Cancelling this cancels the request on the server; each progress report restarts the timeout, which stands still
        while the client is asked something. Raises BackendDown where the server does not answer, ToolscoutError where
        its answer is beyond the limits, MCPError where the server answers with an error.
        """
        return await self._send(lambda: request, call)

    async def _send(self, make: Callable[[], ServerRequest], call: ClientCall) -> Any:
        timeout = self._options.timeout
        await self._wait_until_up()
        client = self._client
        if client is None:
            raise BackendDown(f"the server {self.name} does not answer: it {self.problem}. It is tried again by itself")
        request = make()
        call.clock = clock = Clock(timeout)
        with clock.scope, self._in_flight.working_on(call):
            try:
                return await request.send(client, call)
            except MCPError as error:
                if error.code == REFUSED:
                    problem = f"the server {self.name} was called, but {clean_text(str(error))[:300]}; ask it for less"
                    raise ToolscoutError(problem, public=problem) from None
                if error.code == types.HEADER_MISMATCH:  # its tools changed unannounced: list them for the next call
                    self._changed.set()
                if error.code != types.CONNECTION_CLOSED:
                    raise
                raise BackendDown(f"the server {self.name} ended during the call; it is started again") from None
        raise BackendDown(f"the server {self.name} did not answer within {timeout:g} s; the call was cancelled there")

    def subscribe(self, uris: Collection[str]) -> None:
        """Have the server tell when one of these resources changes, and no others."""
        if self._subscribed != (wanted := frozenset(uris)):
            self._subscribed = wanted
            self._subscriptions_changed.set()
            if self._listening is not None:
                self._listening.cancel()

    async def set_log_level(self, level: types.LoggingLevel) -> None:
        """Have the server send log messages of this level and above, now and when it is started again."""
        self._log_level = level
        if self._connected is not None:
            await self._send_log_level(self._connected)

    async def roots_changed(self) -> None:
        """Tell the server that the client's roots have changed."""
        if self._connected is not None and self._connected.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS:
            with anyio.move_on_after(self._options.connect):  # it may not read
                await self._connected.session.send_notification(types.RootsListChangedNotification())

    async def _wait_until_up(self) -> None:
        """Wait for a server that is being started, or has just ended and may be back in a moment."""
        with anyio.move_on_after(self._options.connect) as scope:
            if self.tried.is_set():
                scope.deadline = self._lost_at + self._options.grace
            await self._up.wait()

    async def _send_log_level(self, client: Client) -> None:
        has = client.server_capabilities
        if self._log_level is None or has.logging is None or client.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS:
            return  # those of the newest protocol are told with each request
        request = types.SetLevelRequest(params=types.SetLevelRequestParams(level=self._log_level))
        try:
            await client.session.send_request(request, types.EmptyResult, self._options.connect)
        except MCPError as error:
            _log.debug("%s: the level of its log was not set: %s", self.name, error)

    def start_again(self) -> None:
        """Let calls wait for the server as for one that has just ended; another process ran it until now."""
        self.problem, self._lost_at = "is being started", anyio.current_time()

    def mark_down(self, problem: str) -> None:
        """Call nothing any more until the server has listed its tools again."""
        self.problem = problem
        self._connected = self._listed = None
        if self._client is not None:
            self._client, self._up, self._lost_at = None, anyio.Event(), anyio.current_time()

    async def _run_connection(self) -> tuple[str, str]:
        """Open one connection, and return when it ends why it did: in words for callers and in words for the log.

        The words for callers show neither the command line nor messages of the server or the system.
        """
        server = self.server
        self._up_at = math.inf
        refusals: list[int] = []
        errors = Tail(MAX_ERROR_BYTES)
        try:
            path = server.env.get("PATH")
            if server.command and not server.cwd and shutil.which(server.command[0], path=path) is None:
                missing = f"there is no command {server.command[0]!r}"
                raise BadSource(
                    f"cannot be started: {missing}; install it, or give its full path in the config",
                    public="cannot be started",
                )
            await self._follow_server(errors, refusals)
            return "ended", f"ended{last_lines(errors)}"
        except Exception as error:
            cause = cause_of(error)
            if isinstance(cause, TimeoutError):
                problem = f"did not answer within {self._options.connect:g} s"
                return problem, f"{problem}{last_lines(errors)}"
            if isinstance(cause, ListTooLong):
                return str(cause), f"{cause}{last_lines(errors)}"
            if isinstance(cause, ToolscoutError):
                return cause.public or "cannot be used", f"{cause}{last_lines(errors)}"
            details = explain(cause, server, refusals, _ANSWER)
            return details.partition(":")[0].partition(";")[0], f"{details}{last_lines(errors)}"

    async def _follow_server(self, errors: Tail, refusals: list[int]) -> None:
        """Connect, list the tools, and follow their changes until the connection ends."""
        guard = Guard()
        ended, changed = anyio.Event(), self._changed
        limit = self._options.connect
        transport = (
            stdio(self.server, errors, self.guard) if self.server.command else http(self.server, limit, refusals, True)
        )

        async def on_message(message: Any) -> None:
            if isinstance(message, types.ToolListChangedNotification):
                changed.set()
            elif isinstance(message, types.ResourceListChangedNotification | types.PromptListChangedNotification):
                self._offers_changed.set()
            elif isinstance(message, types.ResourceUpdatedNotification):
                await self._listeners.resource_updated(self, message.params.uri)
            elif isinstance(message, types.ElicitCompleteNotification):
                await self._in_flight.visited(message.params.elicitation_id)

        with anyio.fail_after(limit) as scope:
            link = guarded(transport, guard, ended.set)
            callbacks = self._in_flight.callbacks()
            async with Client(link, cache=None, message_handler=on_message, **callbacks) as client:
                scope.deadline = math.inf
                self._connected = client
                await self._list(client, guard)
                await self._list_offers(client)
                self.tried.set()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._send_log_level, client)
                    tasks.start_soon(self._watch, client, changed, ended)
                    tasks.start_soon(self._relist, client, guard, changed)
                    tasks.start_soon(self._relist_offers, client)
                    tasks.start_soon(self._keep_subscribed, client)
                    await ended.wait()
                    self.mark_down("ended and is being started again")
                    tasks.cancel_scope.cancel()

    async def _list(self, client: Client, guard: Guard) -> None:
        """List the tools, log new problems with single tools, and publish the rest."""
        last = anyio.current_time() + MAX_LIST_TIMEOUTS * self._options.connect
        with anyio.fail_after(self._options.connect) as scope:

            def before_page() -> None:
                scope.deadline = min(anyio.current_time() + self._options.connect, last)

            listing = await list_pages(client, guard, before_page)
        tools, problems = await anyio.to_thread.run_sync(self._tools, listing)
        new = [problem for problem in problems if problem not in self._logged]
        self._logged = frozenset(problems)
        for problem in new[:_SHOWN_PROBLEMS]:
            _log.warning("%s: %s", self.name, problem)
        if len(new) > _SHOWN_PROBLEMS:
            _log.warning("%s: and %s more problems with single tools", self.name, f"{len(new) - _SHOWN_PROBLEMS:,}")
        self._listed = tools
        await self._listeners.tools_listed(self, tools)

    async def _list_offers(self, client: Client) -> None:
        """List the resources and prompts; where that fails, those known before stay."""
        before = self.offers
        try:
            with anyio.fail_after(self._options.connect):
                self.offers = await list_offers(client)
        except (MCPError, ValidationError, TimeoutError) as error:
            _log.warning("%s: its resources and prompts cannot be listed: %.300s", self.name, error or "no answer")
            return
        for problem in self.offers.problems:
            if problem not in before.problems:
                _log.warning("%s: %s", self.name, problem)
        kinds: list[OfferKind] = []
        if (before.resources, before.templates) != (self.offers.resources, self.offers.templates):
            kinds.append("resources")
        if before.prompts != self.offers.prompts:
            kinds.append("prompts")
        if kinds:
            await self._listeners.offers_changed(self, kinds)

    async def _relist_offers(self, client: Client) -> None:
        """List resources and prompts again, as tools are."""
        while True:
            await self._offers_changed.wait(self._options.relist)
            await anyio.sleep(_BURST)
            await self._list_offers(client)
            await anyio.sleep(self._options.relist_pause)

    async def _keep_subscribed(self, client: Client) -> None:
        """Subscribe to the resources that clients follow, and end subscriptions that nobody needs any more."""
        if client.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS:
            return  # _watch does
        has = client.server_capabilities.resources
        if has is None or not has.subscribe:
            return
        known: set[str] = set()
        while True:
            for uri in self._subscribed ^ known:
                params: dict[str, Any] = {"params": {"uri": uri}}
                new = uri in self._subscribed
                asked = types.SubscribeRequest if new else types.UnsubscribeRequest
                (known.add if new else known.discard)(uri)
                try:
                    request = asked.model_validate({"method": asked.model_fields["method"].default} | params)
                    await client.session.send_request(request, types.EmptyResult, self._options.connect)
                except MCPError as error:
                    _log.warning("%s: %s cannot be followed: %.300s", self.name, uri[:300], error)
            await self._subscriptions_changed.wait(math.inf)

    def _tools(self, listing: ServerListing) -> tuple[list[Tool], list[str]]:
        options = ReadOptions(namespace=self.name, keep_going=True)
        found = importer.tools_of(self.server, listing, options, most=self._options.max_tool_chars)
        return list(unique(found, options)), options.problems

    async def _relist(self, client: Client, guard: Guard, changed: AutoResetEvent) -> None:
        """List the tools again whenever the server says they changed, and at intervals for servers that never do."""
        while True:
            await changed.wait(self._options.relist)
            await anyio.sleep(_BURST)
            began = anyio.current_time()
            await self._list(client, guard)
            took = anyio.current_time() - began
            await anyio.sleep(min(max(self._options.relist_pause, _LIST_REST * took), self._options.relist))

    async def _watch(self, client: Client, changed: AutoResetEvent, ended: anyio.Event) -> None:
        """Subscribe to changes of the tools, or poll for them; set `ended` where the server answers no more."""
        if client.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS:
            if self.server.url:
                await self._ping(client, ended)
            return
        try:
            while not ended.is_set():
                uris = self._subscribed
                with suppress(SubscriptionLost), anyio.CancelScope() as self._listening:
                    async with client.listen(
                        tools_list_changed=True,
                        prompts_list_changed=True,
                        resources_list_changed=True,
                        resource_subscriptions=sorted(uris),
                    ) as events:
                        changed.set()  # something may have changed before this subscription
                        self._offers_changed.set()
                        async for event in events:
                            if isinstance(event, ToolsListChanged):
                                changed.set()
                if uris != self._subscribed:
                    continue
                # A stream ends for many reasons; the server has ended only if it does not answer any more.
                if not await self._answers(client):
                    ended.set()
                await anyio.sleep(self._options.heartbeat)
        except MCPError:  # the server has no subscriptions: poll
            while True:
                await anyio.sleep(10 * self._options.heartbeat)
                changed.set()

    async def _answers(self, client: Client) -> bool:
        try:
            with anyio.fail_after(self._options.connect):
                await client.list_tools()
        except (MCPError, TimeoutError) as error:
            _log.debug("%s: %s", self.name, error)
            return False
        return True

    async def _ping(self, client: Client, ended: anyio.Event) -> None:
        while True:
            await anyio.sleep(self._options.heartbeat)
            try:
                with anyio.fail_after(self._options.connect):
                    await client.session.send_ping()
            except MCPError as error:
                if error.code != types.METHOD_NOT_FOUND:
                    _log.debug("%s: ping: %s", self.name, error)
                    ended.set()
            except TimeoutError:
                ended.set()


class AutoResetEvent:
    """An event that each wait resets; setting it several times before a wait counts as once."""

    def __init__(self) -> None:
        """Start unset."""
        self._event = anyio.Event()

    def set(self) -> None:
        """Wake the task that waits, or the next one that will."""
        self._event.set()

    async def wait(self, longest: float) -> None:
        """Wait until the event is set, at most `longest` seconds, and reset it."""
        with anyio.move_on_after(longest):
            await self._event.wait()
        self._event = anyio.Event()
