"""Limits the responses of an MCP server over HTTP, between the network and the SDK's client.

The SDK reads a whole response, however long, and parses it in the event loop. Here each message is bounded before the
SDK sees it. A large result is parsed in a thread; the SDK gets a small message with a token in its place, and `restore`
puts the result back.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import httpx2
import mcp_types as types
from mcp.shared.message import SessionMessage

from toolscout.catalogue.mcp.messages import (
    LARGE,
    MAX_MESSAGE_BYTES,
    Throttle,
    loads_in_thread,
    parse_message,
    refusal,
    trim_message,
)

# How often an event stream is opened again that the server closes at once.
STREAMS_PER_SECOND = 1.0
_TOKEN = "toolscout/large"
_MAX_LARGE = 64  # results that wait for `restore`
_ENCODINGS = ("", "identity", "gzip", "deflate")
_LENGTHS = (b"content-length", b"content-encoding", b"transfer-encoding")


class BoundedTransport(httpx2.AsyncBaseTransport):
    """A transport of httpx2 with bounded responses; pass every message that the SDK reads from it to `restore`."""

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        """Wrap another transport, which is closed with this one."""
        self._inner = inner
        self._throttle = Throttle()
        self._streams = Throttle(messages=STREAMS_PER_SECOND)
        self._large: dict[str, dict[str, Any]] = {}
        self._number = 0

    async def aclose(self) -> None:
        """Close the other transport."""
        await self._inner.aclose()

    async def restore(self, item: Any) -> Any:
        """Return a message of the SDK; a token in it is replaced by the large result that it stands for."""
        message = item.message if isinstance(item, SessionMessage) else None
        if isinstance(message, types.JSONRPCResponse) and isinstance(meta := message.result.get("_meta"), dict):
            message.result = self._large.pop(str(meta.get(_TOKEN)), message.result)
        return item

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request and return its bounded response; DecodingError for an encoding that was not requested."""
        if request.method == "GET":
            await self._streams.spend(messages=1)
        request.headers["accept-encoding"] = "gzip, deflate"
        response = await self._inner.handle_async_request(request)
        response.request = request
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _ThrottledStream(response.stream, self._throttle)
        if response.headers.get("content-encoding", "").strip().lower() not in _ENCODINGS:
            await response.aclose()
            raise httpx2.DecodingError("the response is compressed in a way that was not asked for", request=request)
        events = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        body = self._events(response) if events else self._whole(response)
        headers = [(key, value) for key, value in response.headers.raw if key.lower() not in _LENGTHS]
        return httpx2.Response(
            response.status_code, headers=headers, stream=_BodyStream(body, response), extensions=response.extensions
        )

    async def _whole(self, response: httpx2.Response) -> AsyncGenerator[bytes, None]:
        body = bytearray()
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > MAX_MESSAGE_BYTES:
                yield _refusal(response, _TOO_LARGE)
                return
        if len(body) <= LARGE:
            yield bytes(body)
        elif (message := await self._replaced(bytes(body), response)) is not None:
            yield message

    async def _events(self, response: httpx2.Response) -> AsyncGenerator[bytes, None]:
        try:
            async for event in httpx2.EventSource(response, max_event_size=MAX_MESSAGE_BYTES):
                large = len(event.data) > LARGE
                # The SDK parses the small ones, in a time that grows with their length.
                await self._throttle.spend(messages=1 if large else 1 + len(event.data) // 1024)
                data = await self._replaced(event.data, response) if large else event.data.encode()
                if data is not None:
                    yield _event(event, data)
        except httpx2.SSEError:
            if response.request.method == "POST":
                yield b"data: " + _refusal(response, _TOO_LARGE) + b"\n\n"

    async def _replaced(self, data: bytes | str, response: httpx2.Response) -> bytes | None:
        """Parse a large message and return a small one in its place; None for a message that can be dropped."""
        try:
            value = trim_message(await loads_in_thread(data, self._throttle))
        except ValueError as error:
            return _refusal(response, str(error)[:200])
        message = parse_message(value)
        if isinstance(message, types.JSONRPCResponse):
            self._number += 1
            self._large[str(self._number)] = message.result
            while len(self._large) > _MAX_LARGE:  # the oldest: its request was cancelled
                self._large.pop(next(iter(self._large)))
            message = message.model_copy(update={"result": {"_meta": {_TOKEN: str(self._number)}}})
        return None if message is None else message.model_dump_json(by_alias=True, exclude_unset=True).encode()


_TOO_LARGE = f"it has more than {MAX_MESSAGE_BYTES // 2**20} MiB"


class _ThrottledStream(httpx2.AsyncByteStream):
    """A stream that waits after each chunk as long as a throttle demands."""

    def __init__(self, stream: httpx2.AsyncByteStream, throttle: Throttle) -> None:
        self._stream = stream
        self._throttle = throttle

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            await self._throttle.spend(size=len(chunk))
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


class _BodyStream(httpx2.AsyncByteStream):
    """A stream of the bytes of a generator; closing it closes the response that the generator reads."""

    def __init__(self, body: AsyncGenerator[bytes, None], response: httpx2.Response) -> None:
        self._body = body
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async with aclosing(self._body) as body:
            async for chunk in body:
                yield chunk

    async def aclose(self) -> None:
        await self._response.aclose()


def _refusal(response: httpx2.Response, problem: str) -> bytes:
    """Return a JSON-RPC error as the answer to the request of a response that is refused."""
    try:
        request_id = json.loads(response.request.content)["id"]
    except (ValueError, LookupError, TypeError, httpx2.StreamError):
        request_id = None
    return refusal(request_id, problem).model_dump_json(by_alias=True).encode()


def _event(event: httpx2.ServerSentEvent, data: bytes) -> bytes:
    """Return a server-sent event as bytes, with `data` in place of its own."""
    lines = [b"event: " + event.event.encode()] if event.event != "message" else []
    lines += [b"id: " + event.id.encode()] if event.id else []
    lines += [b"retry: " + str(event.retry).encode()] if event.retry is not None else []
    return b"\n".join([*lines, *(b"data: " + line for line in data.split(b"\n"))]) + b"\n\n"
