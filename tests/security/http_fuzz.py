"""HTTP requests that no client should send, and some that it may: drawn from a seed, most of them broken somewhere."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

ODD: list[Any] = [
    None, True, -1, 0, 2**63, 10**400, 1e308, "", " ", "x" * 10_000, "\u0000", "\u202e", "../../etc/passwd", "a/b",
    "%2F", "<script>alert(1)</script>", "\r\nSet-Cookie: a=b", [], {}, [[]], {"": ""}, {"$ref": "#"}, "auto", 1.5,
    {"kind": "mcp", "target": "sh -c 'touch owned'"}, "\ud800", "mail/*",
]  # fmt: skip
BODIES: list[tuple[str, Any]] = [
    ("/search", {"request": "send a letter", "k": 3}),
    ("/search", {"requests": ["send a letter", "open the vault"], "format": "openai", "budget": 500}),
    ("/search", {"request": "lion", "namespace": "vault"}),
    ("/need", {"request": "send a letter"}),
    ("/feedback", {"request": "send a letter", "used": ["mail/send_email"], "rejected": []}),
    ("/tools", {"tools": [{"namespace": "mail", "name": "made", "inputSchema": {"type": "object"}}], "source": "fuzz"}),
    ("/tools", {"tools": [{"namespace": "vault", "name": "made"}], "replace": True}),
    ("/tools", {"remove": ["vault/open_vault"]}),
    ("/tools", {"sync": True, "tools": []}),
    ("/page/search", {"request": "lion", "k": 2, "retrievers": ["bm25"], "namespace": "zoo"}),
    ("/page/feedback", {"request": "lion", "used": ["zoo/feed_lion"]}),
    ("/page/add", {"name": "tea.yaml", "text": "openapi: 3.0.0\npaths: {}"}),
    (
        "/page/add",
        {"name": "tea.jsonl", "text": '{"name": "x", "origin": {"kind": "function", "target": "os:system"}}'},
    ),
    ("/page/add", {"url": "file:///etc/passwd"}),
    ("/v1/chat/completions", {"model": "m", "messages": [], "tools": []}),
]
READS = [
    "/",
    "/health",
    "/ready",
    "/metrics",
    "/openapi.json",
    "/tools",
    "/tools?limit=2&offset=1",
    "/tools?namespace=vault",
    "/tools/mail/send_email",
    "/tools/vault/open_vault",
    "/tools/%2e%2e/%2e%2e",
    "/page/state",
    "/page/tokens",
    "/page/tools?namespace=vault&find=o",
    "/page/namespaces?find=v",
    "/page/sources",
    "/page/results",
    "/page/results/..%2f..%2fetc%2fpasswd",
    "/page/page.js",
    "/no/such",
    "//",
    "/%00",
    "/page/../../etc/passwd",
]
DEEP = "nested lists"  # stands for more of them than json.dumps would write
METHODS = ("GET", "POST", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS", "TRACE", "BREW")
TYPES = (
    "application/json",
    "application/x-ndjson",
    "text/plain",
    "application/x-www-form-urlencoded",
    "",
    "multipart/form-data",
)


def requests(count: int, seed: int, keys: Sequence[str]) -> Iterator[bytes]:
    """So many requests, each whole: the server can answer it and need not wait for more of it."""
    draw = random.Random(seed)
    for _ in range(count):
        path, body = draw.choice(BODIES) if draw.random() < 0.6 else (draw.choice(READS), None)
        for _ in range(draw.choice((0, 1, 1, 2)) if body is not None else 0):
            body = _broken(draw, body)
        yield _request(draw, path, body, keys)


def _request(draw: random.Random, path: str, body: Any, keys: Sequence[str]) -> bytes:
    method = "GET" if body is None else "POST"
    if draw.random() < 0.1:
        method = draw.choice(METHODS)
    if draw.random() < 0.1:
        path += quote(str(draw.choice(ODD)).encode(errors="replace"))[:2_000]
    depth = draw.choice((10, 99, 300, 2_000, 100_000))
    data = b"" if body is None else json.dumps(body).encode().replace(f'"{DEEP}"'.encode(), b"[" * depth + b"]" * depth)
    if data and draw.random() < 0.15:
        at = draw.randrange(len(data))
        data = draw.choice((data[:at], data[at:], data[:at] + bytes([draw.randrange(256)]) + data[at:], data * 3))
    kind = TYPES[0] if draw.random() < 0.85 else draw.choice(TYPES)
    headers = {"Host": "127.0.0.1", "Content-Type": kind, "Content-Length": str(len(data))}
    if draw.random() < 0.8:
        headers["Authorization"] = f"Bearer {draw.choice(keys)}"
    for _ in range(draw.choice((0, 0, 0, 1, 2))):
        name, value = draw.choice(ODD_HEADERS)
        headers[name] = value
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items() if value is not None)]
    head = "\r\n".join(lines).encode(errors="replace") + b"\r\n\r\n"
    if draw.random() < 0.03:  # a head that is none: it ends all the same
        at = draw.randrange(1, len(head) - 4)
        head = head[:at] + bytes(draw.choices(range(256), k=3)).replace(b"\n", b"x") + head[at:]
    return head + data


ODD_HEADERS: list[tuple[str, str | None]] = [
    ("Host", "evil.example"),
    ("Host", None),
    ("Host", "127.0.0.1:1:2"),
    ("Origin", "https://evil.example"),
    ("Origin", "null"),
    ("X-Toolscout-Key", "ts_guess"),
    ("X-API-Key", ""),
    ("Authorization", "Basic eDp5"),
    ("Authorization", "Bearer " + "x" * 3_000),
    ("Accept", "application/x-ndjson"),
    ("Content-Type", "application/json; x=" + "y" * 500),
    ("Transfer-Encoding", "gzip"),
    ("Expect", "100-continue"),
    ("Cookie", "a=b"),
    ("X" * 300, "y"),
    ("Content-Length", "-1"),
    ("Content-Length", "9" * 30),
    ("If-None-Match", "*"),
    ("Range", "bytes=0-1"),
    ("Upgrade", "websocket"),
]


def _broken(draw: random.Random, value: Any) -> Any:
    """The value with one place changed, removed or nested."""
    if isinstance(value, dict) and value and draw.random() < 0.85:
        key = draw.choice(list(value))
        changed = dict(value)
        turn = draw.random()
        if turn < 0.15:
            del changed[key]
        elif turn < 0.3:
            changed[draw.choice(("tools", "remove", "request", "k", "extra", ""))] = draw.choice(ODD)
        else:
            changed[key] = _broken(draw, value[key])
        return changed
    if isinstance(value, list) and value and draw.random() < 0.5:
        return [_broken(draw, value[0]), *value[1:]]
    return DEEP if draw.random() < 0.05 else draw.choice(ODD)
