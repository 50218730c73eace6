"""Keeps the connection to one MCP server behind the gateway: opens it, follows its tools, reopens it when it ends.

The pause before each further restart doubles. `Backend.problem` says at any moment why the server does not answer.
"""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

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
    send_call,
    stdio,
)
from toolscout.core.tool import Tool, clean_text
from toolscout.errors import BadSource, MissingExtra, ToolscoutError, UnknownTool

try:
    import anyio
    import anyio.to_thread
    import mcp_types as types
    from mcp import Client, MCPError
    from mcp.client.subscriptions import SubscriptionLost
    from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

    from toolscout.catalogue.mcp.messages import REFUSED, Guard
    from toolscout.catalogue.mcp.stdio import Guarding, Tail
except ImportError:
    raise MissingExtra("serving", "serve") from None

Progress = Callable[[float, float | None, str | None], Awaitable[None]]
_log = logging.getLogger("toolscout.gateway")
_BURST = 0.05  # seconds in which several changes count as one
_SETTLED = 10.0  # seconds a connection must last for the pause before a restart to be short again
# Progress reports of one call that may wait for the client to read them, and characters of each message.
_MAX_REPORTS = 100
_MAX_REPORT_CHARS = 1_000
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


class Backend:
    """One MCP server. `problem` says why it does not answer; "" while it does."""

    def __init__(
        self, server: McpServer, options: BackendOptions, publish: Callable[[Backend, list[Tool]], Awaitable[None]]
    ) -> None:
        """Take a server, which run() starts; `publish` is called with each new list of its tools."""
        self.server = server
        self.name = clean_text(server.name)
        self.problem = "is being started"
        self.tried = anyio.Event()  # set once it has listed its tools or failed to
        self.guard: Guarding | None = None  # of the process of a stdio server
        self._options = options
        self._publish = publish
        self._client: Client | None = None
        self._connected: Client | None = None  # becomes `_client` when `admit` says which tools may be called
        self._listed: list[Tool] | None = None
        self._names: dict[str, str] = {}  # tool id -> the server's name for it; only of tools that may be called
        self._changed = AutoResetEvent()
        self._logged: frozenset[str] = frozenset()  # the problems of the last list
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

    async def call(self, tool_id: str, arguments: dict[str, Any], report: Progress) -> types.CallToolResult:
        """Call a tool that the server lists now, and return its result.

        Cancelling this cancels the call on the server; each progress report restarts the timeout. Raises UnknownTool
        where the server does not list the tool or it is held back, BackendDown where the server does not answer,
        ToolscoutError where its answer is beyond the limits, MCPError where the server answers with an error.
        """
        timeout = self._options.timeout
        with anyio.move_on_after(self._options.connect) as scope:
            if self.tried.is_set():  # a server that just ended may be back in a moment
                scope.deadline = self._lost_at + self._options.grace
            await self._up.wait()
        client = self._client
        if client is None:
            raise BackendDown(f"the server {self.name} does not answer: it {self.problem}. It is tried again by itself")
        name = self._names.get(tool_id)
        if name is None:
            raise UnknownTool(f"{tool_id} is not, or not any more, a tool of its server; search again")
        reporting = 0
        with anyio.move_on_after(timeout) as scope:

            async def on_progress(progress: float, total: float | None, message: str | None) -> None:
                nonlocal reporting
                scope.deadline = anyio.current_time() + timeout
                if reporting < _MAX_REPORTS:
                    reporting += 1
                    try:
                        await report(progress, total, message and message[:_MAX_REPORT_CHARS])
                    finally:
                        reporting -= 1

            try:
                result: types.CallToolResult = await send_call(client, name, arguments, on_progress)
                return result
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

        with anyio.fail_after(limit) as scope:
            link = guarded(transport, guard, ended.set)
            async with Client(link, cache=None, message_handler=on_message) as client:
                scope.deadline = math.inf
                self._connected = client
                await self._list(client, guard)
                self.tried.set()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._watch, client, changed, ended)
                    tasks.start_soon(self._relist, client, guard, changed)
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
        await self._publish(self, tools)

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
                with suppress(SubscriptionLost):
                    async with client.listen(tools_list_changed=True) as events:
                        changed.set()  # something may have changed before this subscription
                        async for _ in events:
                            changed.set()
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
