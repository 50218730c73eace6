"""One MCP server behind the gateway: a connection that is kept, followed, and renewed when it ends.

It is started again after longer and longer pauses. Whether it answers, and if not why, is known at any moment.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

from toolscout.catalogue import mcp as importer
from toolscout.catalogue._mcp_client import (
    Doing,
    Server,
    cause_of,
    explained,
    http,
    listed,
    quoted,
    stdio,
    tapped,
)
from toolscout.catalogue.base import ReadOptions, unique
from toolscout.errors import BadSource, MissingExtra, ToolscoutError
from toolscout.tool import Tool, clean_text

try:
    import anyio
    import mcp_types as types
    from mcp import Client, MCPError
    from mcp.client.subscriptions import SubscriptionLost
    from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
except ImportError:
    raise MissingExtra("serving", "serve") from None

Progress = Callable[[float, float | None, str | None], Awaitable[None]]
_log = logging.getLogger("toolscout.gateway")
_BURST = 0.05
_SETTLED = 10.0
_MAX_ERRORS = 1_000_000
_ALIVE = Doing("answer", "answered")


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """Seconds: `timeout` for a call without a sign of progress, `connect` to start or to list.

    `heartbeat` between looks at a server that cannot say that it ends, `relist` between looks at every list, `pause`
    before the first restart, `grace` that a call waits for a server that just ended.
    """

    timeout: float = 60.0
    connect: float = 30.0
    heartbeat: float = 1.0
    relist: float = 60.0
    pause: float = 0.25
    grace: float = 5.0
    longest_pause: float = 30.0
    max_chars: int = 1_000_000


class BackendDown(ToolscoutError):
    """A server that does not answer now; it is being started again."""


class Backend:
    """One MCP server: `problem` says why it does not answer, and is empty while it does."""

    def __init__(
        self, server: Server, options: BackendOptions, publish: Callable[[Backend, list[Tool]], Awaitable[None]]
    ) -> None:
        """Nothing is started before run()."""
        self.server = server
        self.name = clean_text(server.name)
        self.problem = "is being started"
        self.tried = anyio.Event()  # it listed its tools once, or failed to
        self._options = options
        self._publish = publish
        self._client: Client | None = None
        self._up = anyio.Event()
        self._lost_at = -math.inf

    async def run(self) -> None:
        """Connect, follow, and begin again, until cancelled."""
        pause = self._options.pause
        while True:
            began = anyio.current_time()
            problem, wrote = await self._problem()
            self._lost(problem)
            self.tried.set()
            if anyio.current_time() - began > _SETTLED:
                pause = self._options.pause
            _log.warning("%s %s; next try in %.3g s%s", self.name, problem, pause, wrote)
            await anyio.sleep(pause)
            pause = min(2 * pause, self._options.longest_pause)

    async def call(self, name: str, arguments: dict[str, Any], report: Progress) -> types.CallToolResult:
        """Have the server run a tool. Cancelling this cancels it there; each sign of progress winds the clock up."""
        timeout = self._options.timeout
        with anyio.move_on_after(self._options.connect) as scope:
            if self.tried.is_set():  # a server that just ended may be back in a moment
                scope.deadline = self._lost_at + self._options.grace
            await self._up.wait()
        client = self._client
        if client is None:
            raise BackendDown(f"the server {self.name} does not answer: it {self.problem}. It is tried again by itself")
        with anyio.move_on_after(timeout) as scope:

            async def told(progress: float, total: float | None, message: str | None) -> None:
                scope.deadline = anyio.current_time() + timeout
                await report(progress, total, message)

            try:
                return await client.call_tool(name, arguments, progress_callback=told)
            except MCPError as error:
                if error.code != types.CONNECTION_CLOSED:
                    raise
                raise BackendDown(f"the server {self.name} ended during the call; it is started again") from None
        raise BackendDown(f"the server {self.name} did not answer within {timeout:g} s; the call was cancelled there")

    def _lost(self, problem: str) -> None:
        self.problem = problem
        if self._client is not None:
            self._client, self._up, self._lost_at = None, anyio.Event(), anyio.current_time()

    async def _problem(self) -> tuple[str, str]:
        """Live through one connection; why it ended, and what the server wrote, which is for the log alone."""
        server = self.server
        refusals: list[int] = []
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
            try:
                path = server.env.get("PATH")
                if server.command and not server.cwd and shutil.which(server.command[0], path=path) is None:
                    missing = f"there is no command {server.command[0]!r}"
                    raise BadSource(f"cannot be started: {missing}; install it, or give its full path in the config")
                await self._connection(errors, refusals)
                return "ended", quoted(errors)
            except TimeoutError:
                return f"did not answer within {self._options.connect:g} s", quoted(errors)
            except Exception as error:
                cause = cause_of(error)
                told = str(cause) if isinstance(cause, ToolscoutError) else explained(cause, server, refusals, _ALIVE)
                return told, quoted(errors)

    async def _connection(self, errors: IO[str], refusals: list[int]) -> None:
        pages: list[list[Any]] = []
        gone, changed = anyio.Event(), Bell()
        limit = self._options.connect
        transport = stdio(self.server, errors) if self.server.command else http(self.server, limit, refusals, True)

        async def noted(message: Any) -> None:
            if isinstance(message, types.ToolListChangedNotification):
                changed.ring()

        with anyio.fail_after(limit) as scope:
            link = tapped(transport, _checked_tools(pages), gone.set)
            async with Client(link, cache=None, message_handler=noted) as client:
                scope.deadline = math.inf
                await self._list(client, pages)
                self._client, self.problem = client, ""
                self._up.set()
                self.tried.set()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._listen, client, changed, gone)
                    tasks.start_soon(self._follow, client, pages, changed, errors)
                    await gone.wait()
                    self._lost("ended and is being started again")
                    tasks.cancel_scope.cancel()

    async def _list(self, client: Client, pages: list[list[Any]]) -> None:
        with anyio.fail_after(self._options.connect) as scope:

            def each() -> None:
                scope.deadline = anyio.current_time() + self._options.connect

            listing = await listed(self.server, client, pages, each)
        options = ReadOptions(namespace=self.name, keep_going=True)
        tools = list(unique(importer.tools_of(self.server, listing, options), options))
        for problem in options.problems:
            _log.warning("%s: %s", self.name, problem)
        await self._publish(self, tools)

    async def _follow(self, client: Client, pages: list[list[Any]], changed: Bell, errors: IO[str]) -> None:
        """List again whenever the server says so, and now and then for servers that never say it."""
        while True:
            await changed.heard(self._options.relist)
            await anyio.sleep(_BURST)  # many changes at once are one
            await self._list(client, pages)
            if os.fstat(errors.fileno()).st_size > _MAX_ERRORS:  # the server writes on at the place that both share
                errors.seek(0)
                errors.truncate()

    async def _listen(self, client: Client, changed: Bell, gone: anyio.Event) -> None:
        """Notice that the server ends where the connection itself does not show it."""
        if client.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS:
            if self.server.url:
                await self._ping(client, gone)
            return
        try:
            while not gone.is_set():
                with suppress(SubscriptionLost):
                    async with client.listen(tools_list_changed=True) as events:
                        changed.ring()  # something may have changed while no one listened
                        async for _ in events:
                            changed.ring()
                # Streams are cut for many reasons; it is the end only where the server does not answer any more.
                if not await self._answers(client):
                    gone.set()
                await anyio.sleep(self._options.heartbeat)
        except MCPError:  # it keeps no one informed
            while True:
                await anyio.sleep(10 * self._options.heartbeat)
                changed.ring()

    async def _answers(self, client: Client) -> bool:
        try:
            with anyio.fail_after(self._options.connect):
                await client.list_tools()
        except (MCPError, TimeoutError) as error:
            _log.debug("%s: %s", self.name, error)
            return False
        return True

    async def _ping(self, client: Client, gone: anyio.Event) -> None:
        while True:
            await anyio.sleep(self._options.heartbeat)
            try:
                with anyio.fail_after(self._options.connect):
                    await client.session.send_ping()
            except MCPError as error:
                if error.code != types.METHOD_NOT_FOUND:
                    _log.debug("%s: ping: %s", self.name, error)
                    gone.set()
            except TimeoutError:
                gone.set()


class Bell:
    """Rings that come while no one listens are one ring."""

    def __init__(self) -> None:
        """Silent at first."""
        self._rung = anyio.Event()

    def ring(self) -> None:
        """Wake who listens, now or next."""
        self._rung.set()

    async def heard(self, longest: float) -> None:
        """Wait for a ring, or so many seconds."""
        with anyio.move_on_after(longest):
            await self._rung.wait()
        self._rung = anyio.Event()


def _checked_tools(pages: list[list[Any]]) -> Callable[[Any], Awaitable[Any]]:
    """Keeps each page of tools as the server sent it; the SDK gets those that it can read.

    It does not get output schemas: results are for the client to check, and it would ask for the list at every call.
    """

    def readable(tool: Any) -> bool:
        try:
            types.Tool.model_validate(tool)
        except ValueError:
            return False
        return True

    async def take(item: Any) -> Any:
        result = getattr(getattr(item, "message", None), "result", None)
        if isinstance(result, dict) and isinstance(result.get("tools"), list):
            pages.append(result["tools"])
            result["tools"] = [
                {key: value for key, value in tool.items() if key != "outputSchema"}
                for tool in result["tools"]
                if readable(tool)
            ]
        return item

    return take
