"""Reads the messages of an MCP server in bounded time and memory, so that a hostile server slows down only itself.

Python parses JSON under its global lock, so a large message blocks every other task, even when another thread parses
it. Such a message is therefore parsed in pieces, between which other threads run. A message beyond the limits is
replaced by a JSON-RPC error that says so, and the connection goes on.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import anyio
import anyio.to_thread
import mcp_types as types
from mcp.shared.message import SessionMessage

from toolscout.core.garbage import collector_paused

# One message: its bytes, and the values in it (numbers, texts, lists, objects) without the tools of a list.
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
MAX_VALUES = 50_000
# The content parts in the result of a call. The SDK takes 20 µs for each.
MAX_PARTS = 5_000
# The values of one message with its tools. Each takes a hundred bytes, and time in every garbage collection.
MAX_PARSED_VALUES = 500_000
MAX_MESSAGE_DEPTH = 120
MAX_ERROR_CHARS = 10_000
# Messages and bytes read from one server in a second; after a pause it may send another second's worth at once.
MESSAGES_PER_SECOND = 1_000
BYTES_PER_SECOND = 64 * 1024 * 1024
# The code of the JSON-RPC error that replaces a refused answer.
REFUSED = -32019
# Unanswered requests of a server to its client; further ones are dropped.
MAX_SERVER_REQUESTS = 100

LARGE = 64 * 1024  # bytes; longer messages are parsed in pieces, in a thread
_PIECES = (256, 16 * 1024)  # characters tried for a list or object, short first: most are short
_SLOW = 0.002  # seconds
_MAX_FAILURES = 10_000
_SINGLE = 16  # members read one by one after reading many at once failed
_MAX_PAGES = 4
_TOKEN = "toolscout/page"
_HEADER = "x-mcp-header"
_MAX_HEADER_DEPTH = 10
_MAX_DIGITS = 1_000
_SPACE = re.compile(r"[ \t\r\n]*")


class TooLarge(ValueError):
    """Raised for a message with too many values or too deep nesting."""


def _integer(digits: str) -> int | float:
    """Parse an integer. One of too many digits becomes infinity, so that only the tool or result with it fails."""
    return int(digits) if len(digits) < _MAX_DIGITS else math.inf


# strict=False: raw control characters in strings are common; they are removed where text is shown.
_decoder = json.JSONDecoder(parse_int=_integer, strict=False)


def loads(data: bytes | str) -> Any:
    """Parse JSON. Raises ValueError where it is broken, nested too deeply or holds too many values.

    Each piece holds the global lock for about a millisecond, so call this in a thread for a large message.
    """
    text = data if isinstance(data, str) else data.decode("utf-8", "replace")
    try:
        if len(text) <= LARGE:
            return _decoder.decode(text)
        with collector_paused():  # one collection would stop other threads for longer than many pieces
            return _PieceParser(text).read()
    except RecursionError:
        raise ValueError("nested too deeply") from None


async def loads_in_thread(data: bytes | str, throttle: Throttle) -> Any:
    """Parse JSON like loads, a large message in a thread; what takes long to parse slows the server's throttle."""
    large = len(data) > LARGE
    began = anyio.current_time()
    try:
        return await anyio.to_thread.run_sync(loads, data) if large else loads(data)
    finally:
        took = anyio.current_time() - began
        if took > _SLOW:  # parsing in the loop costs more: it blocks every task, and the SDK takes as long again
            throttle.owe((3 if large else 10) * took)


class _PieceParser:
    """Parses JSON in pieces: the C scanner reads values that end within a piece; longer ones are read by members."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._values_left = MAX_PARSED_VALUES
        self._failures_left = _MAX_FAILURES

    def read(self) -> Any:
        value, end = self._value(self._skip(0), 0)
        if self._skip(end) != len(self._text):
            raise ValueError("more than one JSON value")
        return value

    def _skip(self, at: int) -> int:
        found = _SPACE.match(self._text, at)
        return found.end() if found else at

    def _scan(self, text: str, at: int) -> tuple[Any, int]:
        value, end = _decoder.raw_decode(text, at)
        self._values_left -= count_values(value, self._values_left)
        if self._values_left < 0:
            raise TooLarge(f"it has more than {MAX_PARSED_VALUES:,} values")
        return value, end

    def _value(self, at: int, depth: int) -> tuple[Any, int]:
        first = self._text[at : at + 1]
        if first not in ("{", "["):
            return self._scan(self._text, at)
        for length in _PIECES:
            piece = self._text[at : at + length]
            try:
                value, end = self._scan(piece, 0)
            except TooLarge:
                raise
            except ValueError:
                if len(piece) < length:  # the piece reaches the end of the text, so the JSON is broken
                    raise
            else:
                return value, at + end
        self._count_failure(depth)
        return self._object(at, depth) if first == "{" else self._array(at, depth)

    def _object(self, at: int, depth: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        at = self._skip(at + 1)
        single = 0
        while True:
            if single == 0 and (batch := self._batch(at, "{", "}")):
                found |= batch[0]
                at = self._skip(batch[1])
                continue
            single = (single or _SINGLE) - 1
            if self._text[at : at + 1] != '"':
                raise ValueError("not JSON: a key is missing")
            key, at = self._scan(self._text, at)
            at = self._skip(at)
            if self._text[at : at + 1] != ":":
                raise ValueError("not JSON: a colon is missing")
            found[key], at = self._value(self._skip(at + 1), depth + 1)
            at, more = self._next(at, "}")
            if not more:
                return found, at

    def _array(self, at: int, depth: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        at = self._skip(at + 1)
        single = 0
        while True:
            if single == 0 and (batch := self._batch(at, "[", "]")):
                found += batch[0]
                at = self._skip(batch[1])
                continue
            single = (single or _SINGLE) - 1
            value, at = self._value(at, depth + 1)
            found.append(value)
            at, more = self._next(at, "]")
            if not more:
                return found, at

    def _next(self, at: int, end: str) -> tuple[int, bool]:
        """Return where the next member begins and True, or the place behind the closing bracket and False."""
        at = self._skip(at)
        mark = self._text[at : at + 1]
        if mark not in (",", end) or not mark:
            raise ValueError("not JSON: a comma is missing")
        return (self._skip(at + 1), True) if mark == "," else (at + 1, False)

    def _batch(self, at: int, start: str, end: str) -> tuple[Any, int] | None:
        """Return many short members read at once, and the place behind them; None where that fails.

        They are read up to the last comma of a piece, on the chance that it stands between two members.
        """
        limit = at + _PIECES[-1]
        cut = max(self._text.rfind("},", at, limit), self._text.rfind("],", at, limit)) + 1
        if cut == 0:
            cut = self._text.rfind(",", at, limit)
        if cut <= at:
            return None
        try:
            value, length = self._scan(start + self._text[at:cut] + end, 0)
        except TooLarge:
            raise
        except ValueError:
            self._count_failure(0)
            return None
        return (value, cut + 1) if length == cut - at + 2 else None

    def _count_failure(self, depth: int) -> None:
        """Count a piece that was read without success; too many, as deep nesting causes, raise TooLarge."""
        self._failures_left -= 1
        if depth >= MAX_MESSAGE_DEPTH or self._failures_left < 0:
            raise TooLarge("it is nested too deeply")


def count_values(value: Any, most: int) -> int:
    """Return how many values a JSON value is made of; `most` + 1 as soon as there are more."""
    count, uncounted = 0, [value]
    while uncounted:
        item = uncounted.pop()
        count += 1
        if isinstance(item, dict):
            uncounted.extend(item.values())
        elif isinstance(item, list):
            uncounted.extend(item)
        if count + len(uncounted) > most:
            return most + 1
    return count


class Throttle:
    """Limits the rate at which a server is read; after a pause it may send up to a second's worth at once."""

    def __init__(self, messages: float = MESSAGES_PER_SECOND, size: float = BYTES_PER_SECOND) -> None:
        """Allow so many messages and bytes a second."""
        self._messages = messages
        self._size = size
        self._paid_until = 0.0

    def owe(self, seconds: float) -> None:
        """Make the next `spend` wait so many seconds more."""
        self._paid_until = max(self._paid_until, anyio.current_time()) + seconds

    async def spend(self, messages: int = 0, size: int = 0) -> None:
        """Count messages and bytes, and wait until they are within the limit."""
        now = anyio.current_time()
        cost = messages / self._messages + size / self._size
        self._paid_until = max(self._paid_until, now - 1.0) + cost
        if self._paid_until > now:
            await anyio.sleep(self._paid_until - now)


def trim_message(value: Any) -> Any:
    """Return a large message without the parts that nobody reads; None for a notification. Results stay whole."""
    if not isinstance(value, dict) or "result" in value:
        return value
    if "error" in value:
        error = value["error"] if isinstance(value["error"], dict) else {}
        message = error.get("message")
        text = message[:MAX_ERROR_CHARS] if isinstance(message, str) else "an error of too many bytes"
        return {**value, "error": {"code": error.get("code", types.INTERNAL_ERROR), "message": text}}
    if "id" not in value:
        return None  # a notification, which needs no answer
    return {key: value[key] for key in ("jsonrpc", "id", "method") if key in value}


def parse_message(value: Any) -> types.JSONRPCMessage | None:
    """Return the JSON-RPC message of a JSON value; an error where it is an invalid answer, else None."""
    try:
        return types.jsonrpc_message_adapter.validate_python(value, by_name=False)
    except ValueError:
        if not isinstance(value, dict) or value.get("jsonrpc") != "2.0" or "method" in value:
            return None
        has_id = isinstance(value.get("id"), int | str) and not isinstance(value["id"], bool)
        return refusal(value["id"], "it is not a JSON-RPC message") if has_id else None


def refusal(request_id: Any, problem: str) -> types.JSONRPCError:
    """Return the JSON-RPC error that a request gets where its answer is refused."""
    error = types.ErrorData(code=REFUSED, message=f"its answer was refused: {problem}")
    return types.JSONRPCError(jsonrpc="2.0", id=request_id, error=error)


class Guard:
    """Filters messages between a transport and the SDK's client, so that the client reads each in little time.

    It takes the tools out of a page before the SDK validates them, since one invalid tool would fail the whole page;
    `tools_of` returns them as they were sent. The SDK gets only the parameters that are sent as HTTP headers.
    """

    def __init__(self) -> None:
        """Start a new connection."""
        self._pages: dict[str, list[Any]] = {}
        self._number = 0
        self._unanswered: set[Any] = set()  # ids of the server's requests

    def tools_of(self, result: types.ListToolsResult) -> list[Any]:
        """Return the tools of a page as the server sent them; [] when called again for the same page."""
        return self._pages.pop(str((result.meta or {}).get(_TOKEN)), [])

    async def incoming(self, item: Any) -> Any:
        """Return the message that the client gets for a message of the server; None to drop it."""
        if not isinstance(item, SessionMessage):
            return item
        message = item.message
        if isinstance(message, types.JSONRPCResponse):
            item.message = await self._response(message)
        elif isinstance(message, types.JSONRPCError):
            if count_values(message.error.data, MAX_VALUES) > MAX_VALUES:
                message.error.data = None
            message.error.message = _encodable(message.error.message[:MAX_ERROR_CHARS])
            message.error.data = _encodable(message.error.data)
        else:
            flooded = isinstance(message, types.JSONRPCRequest) and len(self._unanswered) >= MAX_SERVER_REQUESTS
            if flooded or count_values(message.params, MAX_VALUES) > MAX_VALUES:
                return None
            message.params = _encodable(message.params)
            if isinstance(message, types.JSONRPCRequest):
                self._unanswered.add(message.id)
        return item

    def sent(self, item: Any) -> None:
        """Record that a message was sent; an answer makes room for another request of the server."""
        message = getattr(item, "message", None)
        if isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
            self._unanswered.discard(message.id)

    async def _response(self, message: types.JSONRPCResponse) -> types.JSONRPCResponse | types.JSONRPCError:
        result = message.result
        tools = result.get("tools")
        rest = {key: value for key, value in result.items() if key != "tools"} if isinstance(tools, list) else result
        if count_values(rest, MAX_VALUES) > MAX_VALUES:
            return refusal(message.id, f"it has more than {MAX_VALUES:,} values")
        parts = rest.get("content")
        if isinstance(parts, list) and len(parts) > MAX_PARTS:
            return refusal(message.id, f"it has more than {MAX_PARTS:,} parts")
        rest = dict(_encodable(rest))
        meta = rest.get("_meta")
        if isinstance(meta, dict):
            rest["_meta"] = {key: value for key, value in meta.items() if key != _TOKEN}
        message.result = rest if not isinstance(tools, list) else await self._page(rest, tools)
        return message

    async def _page(self, rest: dict[str, Any], tools: list[Any]) -> dict[str, Any]:
        self._number += 1
        token = str(self._number)
        self._pages[token] = tools
        while len(self._pages) > _MAX_PAGES:  # the oldest, whose tools nobody asked for
            self._pages.pop(next(iter(self._pages)))
        meta = rest.get("_meta") if isinstance(rest.get("_meta"), dict) else {}
        for_sdk = await anyio.to_thread.run_sync(_tools_with_headers, tools)
        return {**rest, "tools": for_sdk, "_meta": {**(meta or {}), _TOKEN: token}}


def _tools_with_headers(tools: list[Any]) -> list[dict[str, Any]]:
    """Return the tools that have parameters sent as HTTP headers, with these parameters alone."""
    found = []
    for tool in tools:
        name, schema = (tool.get("name"), tool.get("inputSchema")) if isinstance(tool, dict) else (None, None)
        properties = _header_properties(schema, 0) if isinstance(name, str) else {}
        if properties:
            found.append({"name": name, "inputSchema": {"type": "object", "properties": properties}})
    return found


def _header_properties(schema: Any, depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    properties = schema.get("properties") if isinstance(schema, dict) else None
    for key, value in properties.items() if isinstance(properties, dict) and depth < _MAX_HEADER_DEPTH else ():
        if not isinstance(value, dict):
            continue
        if isinstance(value.get(_HEADER), str) and isinstance(value.get("type"), str):
            found[key] = {"type": value["type"], _HEADER: value[_HEADER]}
        elif inner := _header_properties(value, depth + 1):
            found[key] = {"type": "object", "properties": inner}
    return found


def _encodable(value: Any) -> Any:
    """Return a JSON value in which lone surrogates (half of a cut emoji) are "?", and NaN and infinity are None."""
    if _is_encodable(value):
        return value
    text = json.dumps(value, ensure_ascii=False).encode(errors="replace")
    return json.loads(text, parse_constant=lambda _: None)


def _is_encodable(value: Any) -> bool:
    unchecked = [value]
    try:
        while unchecked:
            item = unchecked.pop()
            if isinstance(item, str):
                if not item.isascii():
                    item.encode()
            elif isinstance(item, float):
                if not math.isfinite(item):
                    return False
            elif isinstance(item, dict):
                unchecked.extend(item)
                unchecked.extend(item.values())
            elif isinstance(item, list):
                unchecked.extend(item)
    except UnicodeEncodeError:
        return False
    return True
