"""The messages of an MCP server, read in bounded time and memory: a hostile server slows itself, not its neighbours.

JSON is parsed under Python's global lock, so a large message holds up every other task, also from another thread. Such
a message is therefore parsed in pieces, between which other threads run. What is too much is refused with an answer
that says so, and the connection goes on.
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

# One message: its bytes, and the values in it (numbers, texts, lists, objects), the tools of a list apart.
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
MAX_VALUES = 50_000
# The parts of the answer to a call. The SDK takes 20 µs for each.
MAX_PARTS = 5_000
# The values of one message with its tools. Each takes a hundred bytes, and time whenever Python looks for garbage.
MAX_PARSED_VALUES = 500_000
MAX_MESSAGE_DEPTH = 120
MAX_ERROR_CHARS = 10_000
# Messages and bytes that are read of one server in a second; it may be ahead by a second's worth.
MESSAGES_PER_SECOND = 1_000
BYTES_PER_SECOND = 64 * 1024 * 1024
# The code of an error that stands for an answer that was refused here.
REFUSED = -32019
# Requests of a server to its client that wait for their answer to be sent; more are dropped.
MAX_ASKED = 100

LARGE = 64 * 1024
_PIECES = (256, 16 * 1024)  # characters: most lists and objects are short, and a long one is tried in vain
_SLOW = 0.002  # seconds
_MAX_TRIES = 10_000
_ALONE = 16  # members that are read one by one after several at once failed
_PAGES_KEPT = 4
_TOKEN = "toolscout/page"
_HEADER = "x-mcp-header"
_MAX_HEADER_DEPTH = 10
_MAX_DIGITS = 1_000
_SPACE = re.compile(r"[ \t\r\n]*")


class TooMuch(ValueError):
    """A message that is larger than this process reads."""


def _integer(digits: str) -> int | float:
    """A number. One of too many digits is infinite, which costs the tool or the place in an answer where it stands."""
    return int(digits) if len(digits) < _MAX_DIGITS else math.inf


# Raw control characters inside texts are common in the wild; they are cleaned where text is shown.
_decoder = json.JSONDecoder(parse_int=_integer, strict=False)


def loads(data: bytes | str) -> Any:
    """The JSON value; ValueError where it is none, is nested too deeply or holds too many values.

    Each piece holds the global lock for a millisecond or so: a large message belongs into a thread.
    """
    text = data if isinstance(data, str) else data.decode("utf-8", "replace")
    try:
        return _decoder.decode(text) if len(text) <= LARGE else _Pieces(text).read()
    except RecursionError:
        raise ValueError("nested too deeply") from None


async def loads_aside(data: bytes | str, throttle: Throttle) -> Any:
    """As loads, in a thread where it is large. A server whose messages take long is read the slower for it."""
    aside = len(data) > LARGE
    began = anyio.current_time()
    try:
        return await anyio.to_thread.run_sync(loads, data) if aside else loads(data)
    finally:
        took = anyio.current_time() - began
        if took > _SLOW:  # in the loop everyone waits meanwhile, and the SDK takes as long again
            throttle.owe((3 if aside else 10) * took)


class _Pieces:
    """Parses text piece by piece: what ends within a piece by the C scanner, what is longer member by member."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._room = MAX_PARSED_VALUES
        self._tries = _MAX_TRIES

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
        self._room -= count_values(value, self._room)
        if self._room < 0:
            raise TooMuch(f"it has more than {MAX_PARSED_VALUES:,} values")
        return value, end

    def _value(self, at: int, depth: int) -> tuple[Any, int]:
        first = self._text[at : at + 1]
        if first not in ("{", "["):
            return self._scan(self._text, at)
        for length in _PIECES:
            piece = self._text[at : at + length]
            try:
                value, end = self._scan(piece, 0)
            except TooMuch:
                raise
            except ValueError:
                if len(piece) < length:  # nothing is cut off: it is broken
                    raise
            else:
                return value, at + end
        self._fail(depth)
        return self._object(at, depth) if first == "{" else self._array(at, depth)

    def _object(self, at: int, depth: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        at = self._skip(at + 1)
        alone = 0
        while True:
            if alone == 0 and (batch := self._batch(at, "{", "}")):
                found |= batch[0]
                at = self._skip(batch[1])
                continue
            alone = (alone or _ALONE) - 1
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
        alone = 0
        while True:
            if alone == 0 and (batch := self._batch(at, "[", "]")):
                found += batch[0]
                at = self._skip(batch[1])
                continue
            alone = (alone or _ALONE) - 1
            value, at = self._value(at, depth + 1)
            found.append(value)
            at, more = self._next(at, "]")
            if not more:
                return found, at

    def _next(self, at: int, end: str) -> tuple[int, bool]:
        """Where the next member begins, or where it goes on after the last one."""
        at = self._skip(at)
        mark = self._text[at : at + 1]
        if mark not in (",", end) or not mark:
            raise ValueError("not JSON: a comma is missing")
        return (self._skip(at + 1), True) if mark == "," else (at + 1, False)

    def _batch(self, at: int, start: str, end: str) -> tuple[Any, int] | None:
        """Many short members at once: those before a comma near the end of a piece, if it stands between members."""
        limit = at + _PIECES[-1]
        cut = max(self._text.rfind("},", at, limit), self._text.rfind("],", at, limit)) + 1
        if cut == 0:
            cut = self._text.rfind(",", at, limit)
        if cut <= at:
            return None
        try:
            value, length = self._scan(start + self._text[at:cut] + end, 0)
        except TooMuch:
            raise
        except ValueError:
            self._fail(0)
            return None
        return (value, cut + 1) if length == cut - at + 2 else None

    def _fail(self, depth: int) -> None:
        """Count what was read in vain, so that no nesting takes long."""
        self._tries -= 1
        if depth >= MAX_MESSAGE_DEPTH or self._tries < 0:
            raise TooMuch("it is nested too deeply")


def count_values(value: Any, most: int) -> int:
    """How many values a JSON value is made of; `most` + 1 as soon as there are more."""
    count, waiting = 0, [value]
    while waiting:
        item = waiting.pop()
        count += 1
        if isinstance(item, dict):
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
        if count + len(waiting) > most:
            return most + 1
    return count


class Throttle:
    """Slows the reading of a server that sends more than its share; what it may be ahead by is a second's worth."""

    def __init__(self, messages: float = MESSAGES_PER_SECOND, size: float = BYTES_PER_SECOND) -> None:
        """Allow so many messages and bytes a second."""
        self._messages = messages
        self._size = size
        self._paid_until = 0.0

    def owe(self, seconds: float) -> None:
        """Have the next `spend` wait so much longer, beyond what may be ahead."""
        self._paid_until = max(self._paid_until, anyio.current_time()) + seconds

    async def spend(self, messages: int = 0, size: int = 0) -> None:
        """Wait as long as it takes for these to keep to the limit."""
        now = anyio.current_time()
        cost = messages / self._messages + size / self._size
        self._paid_until = max(self._paid_until, now - 1.0) + cost
        if self._paid_until > now:
            await anyio.sleep(self._paid_until - now)


def reduced(value: Any) -> Any:
    """A large message without what nobody reads: only results may be large. None where nothing is left of it."""
    if not isinstance(value, dict) or "result" in value:
        return value
    if "error" in value:
        error = value["error"] if isinstance(value["error"], dict) else {}
        message = error.get("message")
        kept = message[:MAX_ERROR_CHARS] if isinstance(message, str) else "an error of too many bytes"
        return {**value, "error": {"code": error.get("code", types.INTERNAL_ERROR), "message": kept}}
    if "id" not in value:
        return None  # a notification, which asks for nothing
    return {key: value[key] for key in ("jsonrpc", "id", "method") if key in value}


def message_of(value: Any) -> types.JSONRPCMessage | None:
    """The message that a JSON value is; where it is none but answers a request, that request fails."""
    try:
        return types.jsonrpc_message_adapter.validate_python(value, by_name=False)
    except ValueError:
        if not isinstance(value, dict) or value.get("jsonrpc") != "2.0" or "method" in value:
            return None
        known = isinstance(value.get("id"), int | str) and not isinstance(value["id"], bool)
        return refusal(value["id"], "it is not a JSON-RPC message") if known else None


def refusal(request_id: Any, problem: str) -> types.JSONRPCError:
    """The answer that a request gets instead of one that cannot be taken."""
    error = types.ErrorData(code=REFUSED, message=f"its answer was refused: {problem}")
    return types.JSONRPCError(jsonrpc="2.0", id=request_id, error=error)


class Guard:
    """Stands between a transport and the SDK's client, and hands on what the client can read in little time.

    The tools of a list are taken out of it before the SDK checks them, since one that it cannot read would spoil the
    whole page; `claim` gives them as they were sent. The SDK keeps the parameters that are sent as headers, no more.
    """

    def __init__(self) -> None:
        """Nothing has been seen yet."""
        self._pages: dict[str, list[Any]] = {}
        self._number = 0
        self._asked: set[Any] = set()

    def claim(self, result: types.ListToolsResult) -> list[Any]:
        """The tools of a page, as the server sent them."""
        return self._pages.pop(str((result.meta or {}).get(_TOKEN)), [])

    async def take(self, item: Any) -> Any:
        """The message to hand on; None to leave it out."""
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
            flooded = isinstance(message, types.JSONRPCRequest) and len(self._asked) >= MAX_ASKED
            if flooded or count_values(message.params, MAX_VALUES) > MAX_VALUES:
                return None
            message.params = _encodable(message.params)
            if isinstance(message, types.JSONRPCRequest):
                self._asked.add(message.id)
        return item

    def sent(self, item: Any) -> None:
        """Take note of a message that went out."""
        message = getattr(item, "message", None)
        if isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
            self._asked.discard(message.id)

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
        while len(self._pages) > _PAGES_KEPT:  # of lists that nobody claimed
            self._pages.pop(next(iter(self._pages)))
        meta = rest.get("_meta") if isinstance(rest.get("_meta"), dict) else {}
        sent = await anyio.to_thread.run_sync(_with_headers, tools)
        return {**rest, "tools": sent, "_meta": {**(meta or {}), _TOKEN: token}}


def _with_headers(tools: list[Any]) -> list[dict[str, Any]]:
    """The tools that have parameters sent as HTTP headers, and of these just that."""
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
    """The value itself unless it cannot be sent: halves of characters, as a cut emoji leaves, and NaN are replaced."""
    if _is_encodable(value):
        return value
    text = json.dumps(value, ensure_ascii=False).encode(errors="replace")
    return json.loads(text, parse_constant=lambda _: None)


def _is_encodable(value: Any) -> bool:
    waiting = [value]
    try:
        while waiting:
            item = waiting.pop()
            if isinstance(item, str):
                if not item.isascii():
                    item.encode()
            elif isinstance(item, float):
                if not math.isfinite(item):
                    return False
            elif isinstance(item, dict):
                waiting.extend(item)
                waiting.extend(item.values())
            elif isinstance(item, list):
                waiting.extend(item)
    except UnicodeEncodeError:
        return False
    return True
