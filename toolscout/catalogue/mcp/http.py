"""Limits on what an MCP server answers over HTTP, set between the network and the SDK's client.

The SDK reads a response whole, however long, and parses it in the event loop. Here each message is bounded before the
SDK sees it; a large one is parsed beside the loop, and the SDK is handed a note in its place that `restore` makes good.
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
    loads_aside,
    message_of,
    reduced,
    refusal,
)

# A server that closes its stream of events at once is asked for it again no more often than this in a second.
STREAMS_PER_SECOND = 1.0
_TOKEN = "toolscout/large"
_KEPT = 64
_ENCODINGS = ("", "identity", "gzip", "deflate")
_LENGTHS = (b"content-length", b"content-encoding", b"transfer-encoding")


class BoundedTransport(httpx2.AsyncBaseTransport):
    """A transport of httpx2 whose responses are bounded; `restore` is for the messages that the SDK made of them."""

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
        """A message of the SDK with its result, where that was too large to be handed through."""
        message = item.message if isinstance(item, SessionMessage) else None
        if isinstance(message, types.JSONRPCResponse) and isinstance(meta := message.result.get("_meta"), dict):
            message.result = self._large.pop(str(meta.get(_TOKEN)), message.result)
        return item

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; what is compressed in ways that may grow without bound is refused."""
        if request.method == "GET":
            await self._streams.spend(messages=1)
        request.headers["accept-encoding"] = "gzip, deflate"
        response = await self._inner.handle_async_request(request)
        response.request = request
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Slowed(response.stream, self._throttle)
        if response.headers.get("content-encoding", "").strip().lower() not in _ENCODINGS:
            await response.aclose()
            raise httpx2.DecodingError("the response is compressed in a way that was not asked for", request=request)
        events = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        body = self._events(response) if events else self._whole(response)
        headers = [(key, value) for key, value in response.headers.raw if key.lower() not in _LENGTHS]
        return httpx2.Response(
            response.status_code, headers=headers, stream=_Stream(body, response), extensions=response.extensions
        )

    async def _whole(self, response: httpx2.Response) -> AsyncGenerator[bytes, None]:
        body = bytearray()
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > MAX_MESSAGE_BYTES:
                yield _refused(response, _TOO_LARGE)
                return
        if len(body) <= LARGE:
            yield bytes(body)
        elif (message := await self._small(bytes(body), response)) is not None:
            yield message

    async def _events(self, response: httpx2.Response) -> AsyncGenerator[bytes, None]:
        try:
            async for event in httpx2.EventSource(response, max_event_size=MAX_MESSAGE_BYTES):
                large = len(event.data) > LARGE
                # The others are parsed by the SDK, the longer the more time it takes.
                await self._throttle.spend(messages=1 if large else 1 + len(event.data) // 1024)
                data = await self._small(event.data, response) if large else event.data.encode()
                if data is not None:
                    yield _event(event, data)
        except httpx2.SSEError:
            if response.request.method == "POST":
                yield b"data: " + _refused(response, _TOO_LARGE) + b"\n\n"

    async def _small(self, data: bytes | str, response: httpx2.Response) -> bytes | None:
        """A message that stands for a large one; None where nothing needs to be handed on."""
        try:
            value = reduced(await loads_aside(data, self._throttle))
        except ValueError as error:
            return _refused(response, str(error)[:200])
        message = message_of(value)
        if isinstance(message, types.JSONRPCResponse):
            self._number += 1
            self._large[str(self._number)] = message.result
            while len(self._large) > _KEPT:  # whose request was given up meanwhile
                self._large.pop(next(iter(self._large)))
            message = message.model_copy(update={"result": {"_meta": {_TOKEN: str(self._number)}}})
        return None if message is None else message.model_dump_json(by_alias=True, exclude_unset=True).encode()


_TOO_LARGE = f"it has more than {MAX_MESSAGE_BYTES // 2**20} MiB"


class _Slowed(httpx2.AsyncByteStream):
    """The bytes of a stream, no more of them in a second than a server may send."""

    def __init__(self, stream: httpx2.AsyncByteStream, throttle: Throttle) -> None:
        self._stream = stream
        self._throttle = throttle

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            await self._throttle.spend(size=len(chunk))
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Stream(httpx2.AsyncByteStream):
    """The bytes of a generator, and the response that they are made of."""

    def __init__(self, body: AsyncGenerator[bytes, None], response: httpx2.Response) -> None:
        self._body = body
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async with aclosing(self._body) as body:
            async for chunk in body:
                yield chunk

    async def aclose(self) -> None:
        await self._response.aclose()


def _refused(response: httpx2.Response, problem: str) -> bytes:
    """The answer to the request of a response that cannot be taken."""
    try:
        known = json.loads(response.request.content)["id"]
    except (ValueError, LookupError, TypeError, httpx2.StreamError):
        known = None
    return refusal(known, problem).model_dump_json(by_alias=True).encode()


def _event(event: httpx2.ServerSentEvent, data: bytes) -> bytes:
    """An event as it is sent; `data` is its text."""
    lines = [b"event: " + event.event.encode()] if event.event != "message" else []
    lines += [b"id: " + event.id.encode()] if event.id else []
    lines += [b"retry: " + str(event.retry).encode()] if event.retry is not None else []
    return b"\n".join([*lines, *(b"data: " + line for line in data.split(b"\n"))]) + b"\n\n"
