"""An MCP client on the official SDK: lists all tools of a server, or calls one of them."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import shlex
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from toolscout.catalogue.base import first_paragraph, safe_url
from toolscout.core.addresses import Addresses
from toolscout.core.masking import Secrets, secret_variables
from toolscout.core.tool import MAX_SERVICE_CHARS, clean_text, split_words
from toolscout.errors import BadSource, MissingExtra, ToolscoutError

if TYPE_CHECKING:
    from toolscout.catalogue.mcp.messages import Guard
    from toolscout.catalogue.mcp.stdio import Guarding, Tail

# Limits of one list of tools, against servers that never end it: pages, tools, characters of the tools as JSON, values
# in them (numbers, texts, lists, objects), and time as a multiple of the timeout of one page.
MAX_PAGES = 1_000
MAX_TOOLS = 20_000
MAX_LIST_CHARS = 64 * 1024 * 1024
MAX_LIST_VALUES = 1_000_000
MAX_LIST_TIMEOUTS = 20
MAX_CURSOR_CHARS = 10_000
MAX_EVENT_BYTES = 16 * 1024 * 1024
# The last bytes of a server's standard error that are kept for error messages.
MAX_ERROR_BYTES = 64 * 1024
_QUOTED_LINES = 5
_SECRET_WORDS = frozenset(
    "key keys apikey token tokens secret secrets password passwd pwd credential credentials auth authorization".split()
)
_SECRET_VALUE = re.compile(r"^(sk-|pk_|gh[a-z]_|github_pat_|glpat-|xox[a-z]-|AKIA|AIza|eyJ|Bearer )")
_HIDDEN = "***"
_PHRASES = {int(status): status.phrase for status in HTTPStatus}
# The SDK logs each line that is not a message, with a traceback; without a handler the log goes to the terminal.
for _logger in ("mcp", "client"):
    logging.getLogger(_logger).addHandler(logging.NullHandler())


_Answer = TypeVar("_Answer")


class Action(NamedTuple):
    """What a server should do, in the words of error messages: "did not {infinitive}", "ended before it {past}"."""

    infinitive: str
    past: str


class ServerListing(NamedTuple):
    """A server's own name, its description of itself, and its tools as it sent them."""

    server_name: str
    service: str
    tools: list[Any]


@dataclass(frozen=True, slots=True)
class McpServer:
    """How to reach one server: by a command or by a URL."""

    command: tuple[str, ...] = ()
    url: str = ""
    name: str = ""
    cwd: str | None = None
    env: dict[str, str] = field(default_factory=dict, repr=False)
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    addresses: Addresses | None = None  # hosts that may have private addresses; None: the host of the URL
    auth: Any = field(default=None, repr=False, compare=False)  # an httpx2.Auth, which adds headers to each request

    @property
    def label(self) -> str:
        """Return the command line or URL without secrets, to be shown and stored."""
        return safe_url(self.url) if self.url else shlex.join(_without_secrets(self.command))

    @property
    def fallback_name(self) -> str:
        """Return a name for a server that does not send its own."""
        return (urlsplit(self.url).hostname if self.url else os.path.basename(self.command[0])) or "mcp"


def _without_secrets(command: tuple[str, ...]) -> list[str]:
    """Return the command with *** for everything that looks like a password, a key or a token."""
    words: list[str] = []
    hide = False
    for word in command:
        name, equals, _ = word.partition("=")
        if hide and not word.startswith("-"):
            words.append(_HIDDEN)
        elif "://" in word:
            words.append(_without_credentials(word))
        elif equals and _is_secret(name):
            words.append(f"{name}={_HIDDEN}")
        elif _SECRET_VALUE.match(word) or (":" in word and _is_secret(word.partition(":")[0])):
            words.append(_HIDDEN)
        else:
            words.append(word)
        hide = word.startswith("-") and not equals and _is_secret(word)
    return words


def _is_secret(name: str) -> bool:
    return not _SECRET_WORDS.isdisjoint(word.lower() for word in split_words(name))


def _without_credentials(word: str) -> str:
    start, _, rest = word.partition("://")
    rest, question, _ = rest.partition("?")
    userinfo, at, place = rest.rpartition("@")
    return f"{start}://{_HIDDEN + at if userinfo else ''}{place}{question + _HIDDEN if question else ''}"


async def list_tools(server: McpServer, timeout: float) -> ServerListing:
    """Connect to the server, list all of its tools, and close the connection, which ends a server that was started.

    `timeout`: seconds for each page. Raises BadSource where the server cannot be reached or does not list its tools.
    """

    async def list_all(transport: Any, scope: Any) -> ServerListing:
        import anyio
        from mcp import Client

        from toolscout.catalogue.mcp.messages import Guard

        guard = Guard()
        last = anyio.current_time() + MAX_LIST_TIMEOUTS * timeout

        def before_page() -> None:
            scope.deadline = min(anyio.current_time() + timeout, last)

        # The client has no timeout of its own: the scope's deadline moves with each page.
        async with Client(guarded(transport, guard), cache=None) as client:
            listing = await list_pages(client, guard, before_page)
            scope.deadline = math.inf
        return listing

    action = Action("list its tools", "listed its tools")
    return await _with_connection(server, timeout, "reading MCP servers", action, list_all)


async def call_tool(server: McpServer, name: str, arguments: dict[str, Any], timeout: float) -> Any:
    """Connect to the server, call one tool, close the connection, and return the SDK's CallToolResult.

    Raises BadSource where the server cannot be reached or does not answer within `timeout` seconds.
    """

    async def call(client: Any, _: Any) -> Any:
        return await send_call(client, name, arguments)

    return await with_client(server, timeout, call)


async def with_client(
    server: McpServer, timeout: float, use: Callable[[Any, Any], Awaitable[_Answer]], **callbacks: Any
) -> _Answer:
    """Connect to the server for one call, and return what `use` returns for the client and its cancel scope.

    `callbacks` are those of the SDK's Client. Raises BadSource as call_tool does.
    """

    async def connected(transport: Any, scope: Any) -> _Answer:
        from mcp import Client

        from toolscout.catalogue.mcp.messages import Guard

        async with Client(guarded(transport, Guard()), cache=None, **callbacks) as client:
            return await use(client, scope)

    action = Action("answer the call", "answered the call")
    return await _with_connection(server, timeout, "calling MCP tools", action, connected)


async def send_call(client: Any, name: str, arguments: dict[str, Any]) -> Any:
    """Call a tool through a connected client and return the SDK's CallToolResult. Raises BadSource if it needs input.

    The client's own call_tool is not used: it checks the result against the tool's output schema, which may block the
    event loop for long, and lists the tools where it does not know that schema.
    """
    import mcp_types as types

    request = types.CallToolRequest(params=types.CallToolRequestParams(name=name, arguments=arguments))
    result = await client.session.send_request(request, _call_results())
    if isinstance(result, types.InputRequiredResult):
        raise BadSource("the tool asks for further input, which cannot be given here")
    return result


@cache
def _call_results() -> Any:
    import mcp_types as types
    from pydantic import TypeAdapter

    return TypeAdapter(types.CallToolResult | types.InputRequiredResult)


async def _with_connection(
    server: McpServer, timeout: float, feature: str, action: Action, use: Callable[[Any, Any], Awaitable[_Answer]]
) -> _Answer:
    """Return what `use` returns for a new transport and its cancel scope; any failure raises a ToolscoutError."""
    try:
        import anyio
        import mcp  # noqa: F401
    except ImportError:
        raise MissingExtra(feature, "serve") from None
    if server.command and not server.cwd and shutil.which(server.command[0]) is None:
        raise BadSource(f"{server.label}: there is no command {server.command[0]!r}; install it or give its full path")
    from toolscout.catalogue.mcp.stdio import Tail

    refusals: list[int] = []
    errors = Tail(MAX_ERROR_BYTES)
    try:
        with anyio.fail_after(timeout) as scope:
            transport = stdio(server, errors) if server.command else http(server, timeout, refusals)
            return await use(transport, scope)
    except Exception as error:
        cause = cause_of(error)
        if isinstance(cause, ListTooLong):
            raise BadSource(f"{server.label} {cause}") from None
        if isinstance(cause, ToolscoutError):
            raise cause from None
        problem = explain(cause, server, refusals, action)
        if isinstance(cause, TimeoutError):
            problem = f"did not answer within {timeout:g} s; check that it is an MCP server, or allow a longer timeout"
    raise BadSource(f"{server.label} {problem}{last_lines(errors)}")


class ListTooLong(BadSource):
    """Raised for a list of tools that is too long. The message does not begin with the server's name."""


async def list_pages(client: Any, guard: Guard, before_page: Callable[[], None]) -> ServerListing:
    """List all tools through a connected client, page by page, and return them as the server sent them.

    `before_page` is called before each page is requested. Raises ListTooLong for a list beyond the limits.
    """
    import anyio.to_thread

    cursors: set[str] = set()
    cursor: str | None = None
    tools: list[Any] = []
    chars = values = 0
    while True:
        before_page()
        result = await client.list_tools(cursor=cursor)
        page = guard.tools_of(result)
        tools += page
        page_chars, page_values = await anyio.to_thread.run_sync(_size, page)
        chars, values, cursor = chars + page_chars, values + page_values, result.next_cursor
        if len(tools) > MAX_TOOLS or chars > MAX_LIST_CHARS or values > MAX_LIST_VALUES:
            raise ListTooLong(
                f"lists more than {MAX_TOOLS:,} tools, or these say more than {MAX_LIST_CHARS // 2**20} MiB or "
                f"{MAX_LIST_VALUES:,} values; have it offer less"
            )
        if not cursor:
            break
        if cursor in cursors or len(cursors) >= MAX_PAGES or len(cursor) > MAX_CURSOR_CHARS:
            reason = "it repeats the cursor" if cursor in cursors else "it goes on with the cursor"
            raise ListTooLong(f"never ends its list of tools: {reason} {cursor!r:.80}")
        cursors.add(cursor)
    info = client.server_info
    if info is None:
        return ServerListing("", "", tools)
    service = first_paragraph((info.description or info.title or "")[: 10 * MAX_SERVICE_CHARS])
    return ServerListing(clean_text(info.name), service[:MAX_SERVICE_CHARS], tools)


def _size(tools: list[Any]) -> tuple[int, int]:
    """Return the characters of tools as JSON and the values in them. One tool at a time, so that other threads run."""
    from toolscout.catalogue.mcp.messages import count_values

    return sum(len(json.dumps(tool)) for tool in tools), sum(count_values(tool, MAX_LIST_VALUES) for tool in tools)


def stdio(server: McpServer, errors: Tail, guard: Guarding | None = None) -> Any:
    """Return the transport to a command. `errors` collects the end of its standard error; `guard`: as for connect."""
    from toolscout.catalogue.mcp.stdio import connect

    return connect(server.command, server.env, server.cwd, errors, guard)


@asynccontextmanager
async def http(server: McpServer, timeout: float, refusals: list[int], patient: bool = False) -> AsyncIterator[Any]:
    """Yield the transport to a URL.

    `refusals` holds the HTTP status of the last response where it was an error. `patient`: wait for answers without a
    time limit; `timeout` then holds for connecting and sending alone.
    """
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    from toolscout.catalogue.mcp.http import BoundedTransport
    from toolscout.catalogue.mcp.network import transport_to

    async def note(response: httpx2.Response) -> None:
        refusals[:] = [response.status_code] if response.status_code >= 400 else []

    limits = httpx2.Timeout(timeout, read=None if patient else timeout)
    bounded, hooks = BoundedTransport(transport_to(server.url, server.addresses)), {"response": [note]}
    async with (
        httpx2.AsyncClient(
            headers=server.headers, auth=server.auth, timeout=limits, event_hooks=hooks, transport=bounded
        ) as web,
        streamable_http_client(server.url, http_client=web, max_sse_event_size=MAX_EVENT_BYTES) as streams,
    ):
        incoming, outgoing = streams
        yield FilteredStream(incoming, bounded.restore), outgoing


@asynccontextmanager
async def guarded(transport: Any, guard: Guard, on_end: Callable[[], None] | None = None) -> AsyncIterator[Any]:
    """Yield a transport whose messages pass through a guard; `on_end` is called when the incoming stream ends."""
    async with transport as (incoming, outgoing):
        yield FilteredStream(incoming, guard.incoming, on_end), _ObservedStream(outgoing, guard.sent)


class FilteredStream:
    """A stream of incoming messages that gives what `convert` returns for each; None drops the message."""

    def __init__(
        self, stream: Any, convert: Callable[[Any], Awaitable[Any]], on_end: Callable[[], None] | None = None
    ) -> None:
        """Wrap a stream. `on_end` is called when it ends or fails."""
        self._stream = stream
        self._convert = convert
        self._on_end = on_end

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the wrapped stream."""
        return getattr(self._stream, name)

    def __aiter__(self) -> FilteredStream:
        """Return the stream itself."""
        return self

    async def __anext__(self) -> Any:
        """Return the next message that is not dropped."""
        return await self._next(self._stream.__anext__)

    async def receive(self) -> Any:
        """Return the next message that is not dropped."""
        return await self._next(self._stream.receive)

    async def __aenter__(self) -> FilteredStream:
        """Open the stream."""
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        """Close the stream."""
        return await self._stream.__aexit__(*error)

    async def _next(self, receive: Callable[[], Awaitable[Any]]) -> Any:
        try:
            while (item := await self._convert(await receive())) is None:
                pass
        except BaseException:
            if self._on_end is not None:
                self._on_end()
            raise
        return item


class _ObservedStream:
    """A stream of outgoing messages; `on_sent` is called with each message after it was sent."""

    def __init__(self, stream: Any, on_sent: Callable[[Any], None]) -> None:
        self._stream = stream
        self._on_sent = on_sent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def send(self, item: Any) -> None:
        await self._stream.send(item)
        self._on_sent(item)

    async def __aenter__(self) -> _ObservedStream:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._stream.__aexit__(*error)


def cause_of(error: BaseException) -> BaseException:
    """Return the first error inside exception groups: every task group wraps what it raises in one."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def explain(error: BaseException, server: McpServer, refusals: list[int], action: Action) -> str:
    """Return what went wrong and what to do about it, to follow the server's name; `refusals` is that of `http`."""
    # Secrets first: one that is cut in two would not be found.
    text = Secrets(secret_variables(server.env), server.headers).mask(str(error))
    text = clean_text(text)[:300] or type(error).__name__
    if refusals:
        status = refusals[-1]
        hint = "give the headers it asks for" if status in (401, 403) else "check the address"
        return f"answered {status} {_PHRASES.get(status, '')}; {hint}"
    if server.url:
        return f"could not be read: {text}; check the address"
    if isinstance(error, OSError):
        return f"could not be started: {text}"
    if "closed" in text.lower():
        return f"ended before it {action.past}; run it by hand to see why, and give the environment it needs"
    return f"did not {action.infinitive}: {text}; check that it is an MCP server"


def last_lines(errors: Tail) -> str:
    """Return ". It wrote: " and the last lines of the server's standard error; "" where there are none."""
    lines = [clean_text(line) for line in errors.text()[-20_000:].splitlines()]
    last = [line[:300] for line in lines if line][-_QUOTED_LINES:]
    return ". It wrote: " + " | ".join(last) if last else ""
