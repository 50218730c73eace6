"""Asks one MCP server for all its tools, through the official SDK."""

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
from toolscout.core.tool import MAX_SERVICE_CHARS, clean_text, split_words
from toolscout.errors import BadSource, MissingExtra, ToolscoutError

if TYPE_CHECKING:
    from toolscout.catalogue.mcp.messages import Guard
    from toolscout.catalogue.mcp.stdio import Tail

# A server that lists more than this does not know how to end: pages, tools, characters of them as JSON, values in them
# (numbers, texts, lists, objects), and seconds in multiples of what one page may take.
MAX_PAGES = 1_000
MAX_TOOLS = 20_000
MAX_LIST_CHARS = 64 * 1024 * 1024
MAX_LIST_VALUES = 1_000_000
MAX_LIST_TIMEOUTS = 20
MAX_CURSOR_CHARS = 10_000
MAX_EVENT_BYTES = 16 * 1024 * 1024
# Of what a server writes to its standard error the last part is kept.
MAX_ERROR_BYTES = 64 * 1024
_QUOTED_LINES = 5
_SECRET_WORDS = frozenset(
    "key keys apikey token tokens secret secrets password passwd pwd credential credentials auth authorization".split()
)
_SECRET_VALUE = re.compile(r"^(sk-|pk_|gh[a-z]_|github_pat_|glpat-|xox[a-z]-|AKIA|AIza|eyJ|Bearer )")
_HIDDEN = "***"
_PHRASES = {int(status): status.phrase for status in HTTPStatus}
# The SDK logs each line that is no message with a traceback; without a handler that would reach the terminal.
for _logger in ("mcp", "client"):
    logging.getLogger(_logger).addHandler(logging.NullHandler())


_Answer = TypeVar("_Answer")


class Doing(NamedTuple):
    """What a server is asked for, as messages say it."""

    present: str
    past: str


class ServerListing(NamedTuple):
    """What a server answered: its own name, what it says it is, and its tools as it sent them."""

    server_name: str
    service: str
    tools: list[Any]


@dataclass(frozen=True, slots=True)
class McpServer:
    """How to reach one server; either a command or a URL."""

    command: tuple[str, ...] = ()
    url: str = ""
    name: str = ""
    cwd: str | None = None
    env: dict[str, str] = field(default_factory=dict, repr=False)
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    addresses: Addresses | None = None  # the hosts that may be at a private address; None: that of the URL

    @property
    def label(self) -> str:
        """The server as it may be shown and stored."""
        return safe_url(self.url) if self.url else shlex.join(_without_secrets(self.command))

    @property
    def fallback_name(self) -> str:
        """A name for a server that does not tell its own."""
        return (urlsplit(self.url).hostname if self.url else os.path.basename(self.command[0])) or "mcp"


def _without_secrets(command: tuple[str, ...]) -> list[str]:
    """The command with everything hidden that looks like a password, a key or a token."""
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
    """All tools of the server, page by page. Whatever goes wrong, the server's process is gone afterwards."""

    async def ask(transport: Any, scope: Any) -> ServerListing:
        return await _list(transport, timeout, scope)

    return await _asked(server, timeout, "reading MCP servers", Doing("list its tools", "listed its tools"), ask)


async def call_tool(server: McpServer, name: str, arguments: dict[str, Any], timeout: float) -> Any:
    """What the server answers to one call: the SDK's CallToolResult. Its process is gone afterwards."""

    async def ask(transport: Any, scope: Any) -> Any:
        from mcp import Client

        from toolscout.catalogue.mcp.messages import Guard

        async with Client(tapped(transport, Guard()), cache=None) as client:
            return await send_call(client, name, arguments)

    return await _asked(server, timeout, "calling MCP tools", Doing("answer the call", "answered the call"), ask)


async def send_call(client: Any, name: str, arguments: dict[str, Any], progress: Any = None) -> Any:
    """Have a connected client's server run a tool: the SDK's CallToolResult.

    Not by the client's own call_tool: that checks the result against the tool's output schema in the event loop, for as
    long as it takes, and asks for the list of tools where it does not know that schema. Whoever called may check it.
    """
    import mcp_types as types

    request = types.CallToolRequest(params=types.CallToolRequestParams(name=name, arguments=arguments))
    result = await client.session.send_request(request, _call_results(), progress_callback=progress)
    if isinstance(result, types.InputRequiredResult):
        raise BadSource("the tool asks for further input, which cannot be given here")
    return result


@cache
def _call_results() -> Any:
    import mcp_types as types
    from pydantic import TypeAdapter

    return TypeAdapter(types.CallToolResult | types.InputRequiredResult)


async def _asked(
    server: McpServer, timeout: float, feature: str, doing: Doing, ask: Callable[[Any, Any], Awaitable[_Answer]]
) -> _Answer:
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
            return await ask(transport, scope)
    except Exception as error:
        cause = cause_of(error)
        if isinstance(cause, ListTooLong):
            raise BadSource(f"{server.label} {cause}") from None
        if isinstance(cause, ToolscoutError):
            raise cause from None
        problem = explained(cause, server, refusals, doing)
        if isinstance(cause, TimeoutError):
            problem = f"did not answer within {timeout:g} s; check that it is an MCP server, or allow a longer timeout"
    raise BadSource(f"{server.label} {problem}{quoted(errors)}")


async def _list(transport: Any, timeout: float, scope: Any) -> ServerListing:
    import anyio
    from mcp import Client

    from toolscout.catalogue.mcp.messages import Guard

    guard = Guard()
    last = anyio.current_time() + MAX_LIST_TIMEOUTS * timeout

    def each() -> None:
        scope.deadline = min(anyio.current_time() + timeout, last)

    # The client is told to wait for ever: the one clock is the scope's, which each page winds up again.
    async with Client(tapped(transport, guard), cache=None) as client:
        listing = await listed(client, guard, each)
        scope.deadline = math.inf
    return listing


class ListTooLong(BadSource):
    """A list of tools that is too long, said without the server's name."""


async def listed(client: Any, guard: Guard, each: Callable[[], None]) -> ServerListing:
    """Ask a connected client for all tools, as the server sends them. `each` is told before every page."""
    import anyio.to_thread

    cursors: set[str] = set()
    cursor: str | None = None
    tools: list[Any] = []
    chars = values = 0
    while True:
        each()
        result = await client.list_tools(cursor=cursor)
        page = guard.claim(result)
        tools += page
        more = await anyio.to_thread.run_sync(_size, page)
        chars, values, cursor = chars + more[0], values + more[1], result.next_cursor
        if len(tools) > MAX_TOOLS or chars > MAX_LIST_CHARS or values > MAX_LIST_VALUES:
            raise ListTooLong(
                f"lists more than {MAX_TOOLS:,} tools, or these say more than {MAX_LIST_CHARS // 2**20} MiB or "
                f"{MAX_LIST_VALUES:,} values; have it offer less"
            )
        if not cursor:
            break
        if cursor in cursors or len(cursors) >= MAX_PAGES or len(cursor) > MAX_CURSOR_CHARS:
            told = "it repeats the cursor" if cursor in cursors else "it goes on with the cursor"
            raise ListTooLong(f"never ends its list of tools: {told} {cursor!r:.80}")
        cursors.add(cursor)
    about = client.server_info
    if about is None:
        return ServerListing("", "", tools)
    service = first_paragraph((about.description or about.title or "")[: 10 * MAX_SERVICE_CHARS])
    return ServerListing(clean_text(about.name), service[:MAX_SERVICE_CHARS], tools)


def _size(tools: list[Any]) -> tuple[int, int]:
    """The characters of tools as JSON and the values in them. Tool by tool: other threads run between them."""
    from toolscout.catalogue.mcp.messages import count_values

    return sum(len(json.dumps(tool)) for tool in tools), sum(count_values(tool, MAX_LIST_VALUES) for tool in tools)


def stdio(server: McpServer, errors: Tail) -> Any:
    """The transport to a command; of what it writes to its standard error the last part is kept in `errors`."""
    from toolscout.catalogue.mcp.stdio import connected

    return connected(server.command, server.env, server.cwd, errors)


@asynccontextmanager
async def http(server: McpServer, timeout: float, refusals: list[int], patient: bool = False) -> AsyncIterator[Any]:
    """The transport to a URL; the last refusal is kept in `refusals`. A patient one waits for ever for an answer."""
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    from toolscout.catalogue.mcp.http import BoundedTransport
    from toolscout.catalogue.mcp.network import transport_to

    async def note(response: httpx2.Response) -> None:
        refusals[:] = [response.status_code] if response.status_code >= 400 else []

    limits = httpx2.Timeout(timeout, read=None if patient else timeout)
    bounded, hooks = BoundedTransport(transport_to(server.url, server.addresses)), {"response": [note]}
    async with (
        httpx2.AsyncClient(headers=server.headers, timeout=limits, event_hooks=hooks, transport=bounded) as web,
        streamable_http_client(server.url, http_client=web, max_sse_event_size=MAX_EVENT_BYTES) as streams,
    ):
        incoming, outgoing = streams
        yield Tap(incoming, bounded.restore), outgoing


@asynccontextmanager
async def tapped(transport: Any, guard: Guard, ended: Callable[[], None] | None = None) -> AsyncIterator[Any]:
    """A transport whose messages pass through a guard; `ended` is told when no more come."""
    async with transport as (incoming, outgoing):
        yield Tap(incoming, guard.take, ended), _Sending(outgoing, guard.sent)


class Tap:
    """A stream of incoming messages, each of which passes through `take`; one that it makes None is left out."""

    def __init__(
        self, stream: Any, take: Callable[[Any], Awaitable[Any]], ended: Callable[[], None] | None = None
    ) -> None:
        """Wrap the stream."""
        self._stream = stream
        self._take = take
        self._ended = ended

    def __getattr__(self, name: str) -> Any:
        """Whatever else a stream has."""
        return getattr(self._stream, name)

    def __aiter__(self) -> Tap:
        """The stream itself."""
        return self

    async def __anext__(self) -> Any:
        """The next message."""
        return await self._next(self._stream.__anext__)

    async def receive(self) -> Any:
        """The next message."""
        return await self._next(self._stream.receive)

    async def __aenter__(self) -> Tap:
        """Open the stream."""
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        """Close the stream."""
        return await self._stream.__aexit__(*error)

    async def _next(self, following: Callable[[], Awaitable[Any]]) -> Any:
        try:
            while (item := await self._take(await following())) is None:
                pass
        except BaseException:
            if self._ended is not None:
                self._ended()
            raise
        return item


class _Sending:
    """A stream of outgoing messages; `note` is told of each that was taken."""

    def __init__(self, stream: Any, note: Callable[[Any], None]) -> None:
        self._stream = stream
        self._note = note

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def send(self, item: Any) -> None:
        await self._stream.send(item)
        self._note(item)

    async def __aenter__(self) -> _Sending:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._stream.__aexit__(*error)


def cause_of(error: BaseException) -> BaseException:
    """The error inside: every task group on the way out adds a shell."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def explained(error: BaseException, server: McpServer, refusals: list[int], doing: Doing) -> str:
    """What happened, in words that say what to do."""
    text = clean_text(str(error))[:300] or type(error).__name__
    if refusals:
        status = refusals[-1]
        hint = "give the headers it asks for" if status in (401, 403) else "check the address"
        return f"answered {status} {_PHRASES.get(status, '')}; {hint}"
    if server.url:
        return f"could not be read: {text}; check the address"
    if isinstance(error, OSError):
        return f"could not be started: {text}"
    if "closed" in text.lower():
        return f"ended before it {doing.past}; run it by hand to see why, and give the environment it needs"
    return f"did not {doing.present}: {text}; check that it is an MCP server"


def quoted(errors: Tail) -> str:
    """The last lines that the server wrote to its standard error."""
    lines = [clean_text(line) for line in errors.text()[-20_000:].splitlines()]
    last = [line[:300] for line in lines if line][-_QUOTED_LINES:]
    return ". It wrote: " + " | ".join(last) if last else ""
