"""A proxy between an agent and its model: of the tools in a request, only those that fit it are forwarded.

For agents that do not call a search tool. Nothing else in the request changes, and the answer passes byte for byte.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import httpx2
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from toolscout.core.arrays import Floats
from toolscout.core.permissions import ANONYMOUS, KEY_PREFIX
from toolscout.core.tool import Tool
from toolscout.errors import BadRequest, BadTool, MissingEncoder
from toolscout.models.encoders.base import TextEncoder
from toolscout.retrievers.base import Retriever
from toolscout.retrievers.registry import method
from toolscout.scout import Scout, checked_request
from toolscout.serving import request_bodies
from toolscout.serving.access import Access, Caller
from toolscout.serving.limits import Gate, ServeOptions, descriptor_limit
from toolscout.serving.middleware import CALLER, KEY_HEADER, body_of, key_of
from toolscout.serving.problems import Problem

NAMESPACE = "request"
# So few tools are cheaper to send than to choose from.
FEW = 10
_SETS_KEPT, _VECTORS_KEPT = 32, 20_000
_READ_CHARS = 4_000
_UPSTREAM_SECONDS = 600.0
# Headers that are not forwarded: those of one connection, the length (it changes), the date (each server sets its own).
_HOP = frozenset(
    "connection keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding upgrade host "
    "content-length accept-encoding date".split()
) | {KEY_HEADER}
_KEYS = frozenset(["authorization", "x-api-key"])
# What looks like a key or token of this package's servers, and what may be one in base64.
_OURS = re.compile(rf"(?<![A-Za-z0-9_-]){KEY_PREFIX}[\w-]{{16,}}")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{16,}")
_ENCODED = 5  # how often a text may be percent-encoded
FORWARDS = 512
"""How many requests are at the model's server at a time; `in_flight` of ServeOptions says how many of one caller."""


class Proxy:
    """Forwards model requests of OpenAI's and Anthropic's kind."""

    def __init__(self, scout: Scout, access: Access, options: ServeOptions) -> None:
        """Forward to the upstream that the options name."""
        self._access = access
        self._chooser = Chooser(scout, options.keep, options.pinned)
        self._upstream, self._key = options.upstream.rstrip("/"), options.upstream_key
        # The `pool` limit: a caller gets an error where no connection is free, instead of waiting for others' streams.
        wait = httpx2.Timeout(_UPSTREAM_SECONDS, connect=10, pool=10)
        most = min(FORWARDS, descriptor_limit() // 4)
        self._client = httpx2.AsyncClient(timeout=wait, limits=httpx2.Limits(max_connections=most))

    async def forward(self, request: Request, gate: Gate) -> Response:
        """Forward a request with fewer tools, and stream the answer back."""
        body = await body_of(request, ("application/json",))
        sent = await gate.run(self._chooser.cut, body)
        key = _own_key(request)
        query = "&".join(part for part in request.url.query.split("&") if not holds_key(part, key))
        url = self._upstream.removesuffix("/v1") + request.url.path + (f"?{query}" if query else "")
        outgoing = self._client.build_request("POST", url, headers=self._headers(request, key), content=sent)
        try:
            answer = await self._client.send(outgoing, stream=True)
        except httpx2.TimeoutException:
            raise Problem(504, "the model's server did not answer in time; ask again") from None
        except httpx2.HTTPError as error:
            why = type(error).__name__
            raise Problem(502, f"the model's server cannot be reached ({why}); check --upstream") from None
        return _Passed(answer)

    def _headers(self, request: Request, key: str) -> list[tuple[str, str]]:
        """Return the headers to forward: the caller's without its toolscout key, and the upstream's key, if any."""
        theirs = KEY_HEADER in request.headers or not (self._key or self._access.has_keys())
        dropped = _HOP if theirs else _HOP | _KEYS
        passed = []
        for name, value in request.headers.items():
            if name.lower() == "cookie" and holds_key(value, key):
                value = ";".join(one for one in value.split(";") if not holds_key(one, key)).strip()
                if not value:
                    continue
            if name.lower() not in dropped and not holds_key(name, key) and not holds_key(value, key):
                passed.append((name, value))
        if self._key and not theirs:
            passed += [("authorization", f"Bearer {self._key}"), ("x-api-key", self._key)]
        return [*passed, ("accept-encoding", request.headers.get("accept-encoding", "identity"))]

    async def close(self) -> None:
        """Close all connections to the upstream."""
        await self._client.aclose()


def _own_key(request: Request) -> str:
    """Return the toolscout key or token that a request carries; "" where it has none."""
    caller = request.scope.get(CALLER)
    known = isinstance(caller, Caller) and (caller.name != ANONYMOUS or caller.admin)
    return (key_of(request.headers) or "") if known else ""


def holds_key(text: str, own: str = "") -> bool:
    """Return whether a text holds a toolscout key: `own` or any other, plain, percent-encoded or in base64."""
    forms = [text]
    while len(forms) < _ENCODED and (plain := unquote(forms[-1])) != forms[-1]:
        forms.append(plain)
    for found in _BASE64.findall(forms[-1]):
        whole = found[: len(found) - (len(found) % 4 == 1)].replace("-", "+").replace("_", "/")
        forms.append(base64.b64decode(whole + "=" * (-len(whole) % 4)).decode("latin-1"))
    return any(_OURS.search(form) or (own and own in form) for form in forms)


class _Passed(StreamingResponse):
    """Streams the upstream's answer, and closes its connection when the client has gone."""

    def __init__(self, answer: httpx2.Response) -> None:
        passed = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP}
        super().__init__(answer.aiter_raw(), answer.status_code, passed)
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._answer.aclose()


class Chooser:
    """Reduces the tools of a model request to those that fit the user's last message."""

    def __init__(self, scout: Scout, keep: int, pinned: Sequence[str] = ()) -> None:
        """Keep at most `keep` tools, and besides them the tools whose names are `pinned`."""
        self._scout, self._keep, self._pinned = scout, keep, frozenset(pinned)
        self._sets: OrderedDict[str, Retriever] = OrderedDict()
        self._vectors: OrderedDict[str, Floats] = OrderedDict()
        self._lock = threading.Lock()

    def cut(self, body: bytes) -> bytes:
        """Return the body with fewer tools; the same bytes where there is nothing to cut."""
        given = request_bodies.record(body)
        tools = given.get("tools")
        if not isinstance(tools, list) or len(tools) <= max(FEW, self._keep):
            return body
        try:
            text = checked_request(last_words(given)[-_READ_CHARS:])
        except BadRequest:
            return body
        found: dict[str, Tool] = {}
        for tool in tools:
            read = read_tool(tool)
            if read is not None:
                found.setdefault(read.name, read)
        chosen = set(self._ranked(text, list(found.values()))) | self._pinned | set(named(given))
        left = [tool for tool in tools if (read := read_tool(tool)) is None or read.name in chosen]
        return json.dumps({**given, "tools": left}).encode() if len(left) < len(tools) else body

    def _ranked(self, text: str, tools: list[Tool]) -> list[str]:
        with self._lock:
            retriever = self._retriever(tools)
        names = {tool.id: tool.name for tool in tools}
        return [names[hit.tool_id] for hit in retriever.search([text], self._keep)[0]]

    def _retriever(self, tools: list[Tool]) -> Retriever:
        """Return an index of just these tools; it is cached, as agents send the same ones with every request."""
        digest = hashlib.blake2b("\n".join(f"{tool.id} {tool.digest()}" for tool in tools).encode()).hexdigest()
        cached = self._sets.pop(digest, None)
        if cached is None:
            encoder = self._encoder()
            cached = method("bm25")() if encoder is None else _dense(encoder)
            cached.add(tools, None if encoder is None else self._encoded(encoder, tools))
            while len(self._sets) >= _SETS_KEPT:
                self._sets.popitem(last=False)
        self._sets[digest] = cached
        return cached

    def _encoder(self) -> TextEncoder | None:
        try:
            encoder = self._scout.retriever.encoder
        except MissingEncoder:
            return None
        # One behind an endpoint would be sent the tools of every client, at a price: words do there.
        return None if encoder is None or encoder.remote else encoder

    def _encoded(self, encoder: TextEncoder, tools: list[Tool]) -> dict[str, Floats]:
        missing = {tool.digest(): tool.document() for tool in tools if tool.digest() not in self._vectors}
        digests = list(missing)
        for positions, vectors in encoder.encode_documents(list(missing.values())):
            self._vectors.update(zip((digests[i] for i in positions), vectors, strict=True))
        found = {tool.digest(): self._vectors[tool.digest()] for tool in tools}
        while len(self._vectors) > _VECTORS_KEPT:
            self._vectors.popitem(last=False)
        return found


def _dense(encoder: TextEncoder) -> Retriever:
    kind: Any = method("dense")
    made: Retriever = kind(None, encoder)
    return made


def read_tool(given: Any) -> Tool | None:
    """Return a function tool of a request as a Tool; None for hosted tools, which are never cut, and malformed ones."""
    inner = given.get("function", given) if isinstance(given, Mapping) else None
    if not isinstance(inner, Mapping) or given.get("type", "function") not in ("function", "custom"):
        return None
    schema = inner.get("parameters", inner.get("input_schema"))
    name, text = inner.get("name"), inner.get("description")
    if not isinstance(name, str) or not isinstance(text, str | None):
        return None
    try:
        return Tool(NAMESPACE, name, text or "", input_schema=schema if isinstance(schema, Mapping) else {})
    except BadTool:
        return None


def last_words(given: Mapping[str, Any]) -> str:
    """Return the text of the user's last message; "" where there is none."""
    messages = given.get("messages")
    for message in reversed(messages) if isinstance(messages, list) else ():
        if isinstance(message, Mapping) and message.get("role") == "user":
            text = " ".join(_texts(message.get("content"))).strip()
            if text:  # Anthropic sends tool results as user messages without text
                return text
    return ""


def named(given: Mapping[str, Any]) -> Iterator[str]:
    """Yield the tool names that a request itself uses: its tool_choice, and tools called in earlier turns."""
    choice = given.get("tool_choice")
    if isinstance(choice, Mapping):
        yield from _names([choice, choice.get("function")])
        allowed = choice.get("allowed_tools")
        for tool in _mappings(allowed.get("tools")) if isinstance(allowed, Mapping) else ():
            yield from _names([tool, tool.get("function")])
    messages = given.get("messages")
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, Mapping):
            calls, content = message.get("tool_calls"), message.get("content")
            yield from _names([call.get("function") for call in _mappings(calls)])
            yield from _names([block for block in _mappings(content) if block.get("type") == "tool_use"])


def _names(found: Sequence[Any]) -> Iterator[str]:
    yield from (one["name"] for one in found if isinstance(one, Mapping) and isinstance(one.get("name"), str))


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    texts = [part.get("text") for part in _mappings(content) if part.get("type") == "text"]
    return [text for text in texts if isinstance(text, str)]
