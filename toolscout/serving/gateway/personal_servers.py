"""MCP servers that each caller uses in its own name: what one may list, nobody else sees because of that.

A server whose tools are no secret (`"list": "public"`) lists them without credentials, for everybody.

Each list and each call is a connection of its own with the credentials of one caller, so no session is ever shared.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import anyio
import anyio.to_thread
import mcp_types as types

from toolscout.catalogue.base import ReadOptions, unique
from toolscout.catalogue.importers import mcp as importer
from toolscout.catalogue.mcp.client import McpServer, ServerListing, list_tools
from toolscout.core.masking import Secrets
from toolscout.core.tool import Tool, clean_text
from toolscout.errors import BadSource, ToolscoutError, UnknownTool
from toolscout.serving.access import Caller
from toolscout.serving.gateway.client_calls import ClientCall
from toolscout.serving.gateway.masking import masked
from toolscout.serving.gateway.server_connection import BackendDown, BackendOptions
from toolscout.serving.gateway.server_requests import send_alone, tool_call
from toolscout.serving.gateway.upstream_auth import Credentials, NoCredentials

WANTS_SIGN_IN = "wants a sign-in before it lists its tools"
_FIRST_S = 5.0  # that a caller waits for its first list
_AGAIN_S = 30.0  # before a list that failed is asked for again
_STALE_LISTS = 10  # a list this many times older than `relist` is not used any more
_MAX_CALLERS = 1_000
_log = logging.getLogger("toolscout.gateway")


@dataclass(frozen=True, slots=True)
class _List:
    """What a server listed for one caller, and when; nothing where it refused."""

    tools: Mapping[str, Tool]
    at: float
    failed: bool = False


class PersonalServer:
    """One such server. `listed`: the tools of all callers' lists; `problem`: why there is none, "" where there is."""

    def __init__(
        self,
        server: McpServer,
        credentials: Credentials,
        options: BackendOptions,
        publish: Callable[[PersonalServer], Awaitable[None]],
    ) -> None:
        """Take a server; `publish` is called when `listed` has changed."""
        self.name = clean_text(server.name)
        self.listed: dict[str, Tool] = {}
        self._server, self._credentials, self._options, self._publish = server, credentials, options, publish
        self.public = credentials.auth.lists_publicly
        self._lists: OrderedDict[str, _List] = OrderedDict()
        self._asking: dict[str, anyio.Event] = {}
        self._admitted: frozenset[str] = frozenset()

    @property
    def problem(self) -> str:
        """Why no tool of this server is known."""
        if self.listed:
            return ""
        return "has not listed its tools" if self.public else WANTS_SIGN_IN

    def admit(self, tools: Iterable[Tool]) -> None:
        """Let callers see and call these tools of `listed` and no others."""
        self._admitted = frozenset(tool.id for tool in tools)

    def visible(self, caller: Caller) -> frozenset[str]:
        """Return the ids of the tools that the server listed for this caller, each with the very text in `listed`."""
        known = self._lists.get(self._reader(caller))
        if known is None or self._is_older(known, _STALE_LISTS * self._options.relist):
            return frozenset()
        same = (tool_id for tool_id, tool in known.tools.items() if self.listed.get(tool_id) == tool)
        return frozenset(same) & self._admitted

    def wants_list(self, caller: Caller) -> str:
        """Return whether the server should be asked what this caller may list: "now", "soon" or ""."""
        known = self._lists.get(self._reader(caller))
        if known is None or self._is_older(known, _STALE_LISTS * self._options.relist):
            return "now"
        return "soon" if self._is_older(known, _AGAIN_S if known.failed else self._options.relist) else ""

    async def list_for(self, caller: Caller, token: str | None) -> None:
        """Ask the server what this caller may list. Where it does not answer, the caller sees none of its tools."""
        who = self._reader(caller)
        if (asking := self._asking.get(who)) is not None:
            await asking.wait()
            return
        done = self._asking[who] = anyio.Event()
        try:
            found = await self._ask(caller, token)
            if self.public and found.failed and who in self._lists:  # it takes nobody's right to see them
                found = replace(self._lists[who], at=found.at, failed=True)
            self._lists[who] = found
            self._lists.move_to_end(who)
            while len(self._lists) > _MAX_CALLERS:
                self._lists.popitem(last=False)
            together: dict[str, Tool] = {}
            for one in self._lists.values():
                for tool_id, tool in one.tools.items():
                    # Of texts that differ by caller the one in use stays; whoever is listed another does not see it.
                    together.setdefault(tool_id, tool)
            kept = {tool_id: tool for tool_id, tool in self.listed.items() if self._is_listed(tool)}
            together |= kept
            if together != self.listed:
                self.listed = together
                await self._publish(self)
        finally:
            del self._asking[who]
            done.set()

    async def call(
        self, tool: Tool, arguments: Mapping[str, Any], caller: Caller, token: str | None, call: ClientCall
    ) -> types.CallToolResult:
        """Call a tool in the caller's name. Raises UnknownTool, NoCredentials or BackendDown."""
        listed = self.listed.get(tool.id)
        if tool.id not in self.visible(caller) or listed is None or listed.origin is None:
            raise UnknownTool(f"{tool.id} is not, or not any more, a tool of its server; search again")
        server = await self._server_for(caller, token)
        try:
            own = Secrets(headers=server.headers)
            call.secrets = call.secrets.joined(own)
            request = tool_call(str(listed.origin.details["tool"]), arguments)
            result: types.CallToolResult = await send_alone(server, request, call, self._options.timeout)
            return masked(result, own)
        except ToolscoutError as error:
            self._note(error, server)
            raise BackendDown(
                f"the server {self.name} did not take the call; the log of the gateway says why"
            ) from None

    async def _ask(self, caller: Caller, token: str | None) -> _List:
        try:
            server = self._server if self.public else await self._server_for(caller, token)
        except NoCredentials:
            return _List({}, time.monotonic(), True)
        try:
            with anyio.fail_after(_FIRST_S):
                listing = await list_tools(server, _FIRST_S)
            tools = await anyio.to_thread.run_sync(self._tools, listing, Secrets(headers=server.headers))
        except (ToolscoutError, TimeoutError) as error:
            self._note(error, server)
            return _List({}, time.monotonic(), True)
        return _List(tools, time.monotonic())

    async def _server_for(self, caller: Caller, token: str | None) -> McpServer:
        own = await anyio.to_thread.run_sync(self._credentials.headers, caller, token)
        taken = {name.lower() for name in own}
        static = {name: value for name, value in self._server.headers.items() if name.lower() not in taken}
        return replace(self._server, headers=static | own)

    def _tools(self, listing: ServerListing, secrets: Secrets) -> Mapping[str, Tool]:
        options = ReadOptions(namespace=self.name, keep_going=True)
        listing = ServerListing(*secrets.mask_json(listing))  # others may be listed a tool of the very same text
        found = importer.tools_of(self._server, listing, options, most=self._options.max_tool_chars)
        return {tool.id: tool for tool in unique(found, options)}

    def _reader(self, caller: Caller) -> str:
        """Return for whom a list is kept: for this caller, or for all where they get the same."""
        return "" if self.public else caller.identity

    def _is_listed(self, tool: Tool) -> bool:
        return any(one.tools.get(tool.id) == tool for one in self._lists.values())

    def _is_older(self, known: _List, seconds: float) -> bool:
        return time.monotonic() - known.at > seconds

    def _note(self, error: Exception, server: McpServer) -> None:
        """Log an error, without the credentials that a server may quote in it."""
        text = Secrets(headers=server.headers).mask(str(error) or "did not answer in time")
        text = clean_text(text)[:300]
        if isinstance(error, BadSource) and "answered 401" in text:
            self._credentials.forget()  # such as a token that was revoked before its time
        _log.warning("%s, in a caller's name: %s", self.name, text)
