"""Messages that no client should send, and some that it may: drawn from a seed, most of them broken somewhere."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "fuzz", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
ODD: list[Any] = [
    None, True, -1, 0, 2**63, 1e308, "", " ", "x" * 10_000, "\u0000", "\u202e", "../../etc/passwd", "a/b", "%2F",
    "<script>alert(1)</script>", "\r\nSet-Cookie: a=b", [], {}, [[]], {"": ""}, {"$ref": "#"}, "search_tools", 1.5,
]  # fmt: skip


def opening(modern: bool) -> dict[str, Any]:
    """The message that decides which protocol is spoken."""
    if modern:
        return {"jsonrpc": "2.0", "id": "open", "method": "server/discover", "params": {"_meta": MODERN}}
    about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "fuzz", "version": "1"}}
    return {"jsonrpc": "2.0", "id": "open", "method": "initialize", "params": about}


def lines(count: int, seed: int, modern: bool) -> Iterator[str]:
    """So many lines; each is one message or what should have been one."""
    draw = random.Random(seed)
    for number in range(count):
        message = _message(draw, number, modern)
        for _ in range(draw.choice((0, 1, 1, 2))):
            message = _broken(draw, message)
        text = json.dumps(message)
        if draw.random() < 0.15:
            cut = draw.randrange(len(text) + 1)
            text = draw.choice((text[:cut], text[cut:], text[:cut] + draw.choice('{}[]",:\\\x00é') + text[cut:]))
        yield text.replace("\n", " ").replace("\r", " ")


def _message(draw: random.Random, number: int, modern: bool) -> dict[str, Any]:
    calls: list[dict[str, Any]] = [
        {"name": "search_tools", "arguments": {"query": "letters", "k": draw.choice((1, 5, 99, "2", None))}},
        {"name": "describe_tool", "arguments": {"name": draw.choice(("toys/double", "no/such", "x"))}},
        {"name": "call_tool", "arguments": {"name": "toys/double", "arguments": {"n": draw.choice((1, "x", None))}}},
        {"name": "toys__double", "arguments": {"n": 2}},
        {"name": "nobody", "arguments": {}},
    ]
    method, params = draw.choice(
        [("tools/call", call) for call in calls]
        + [("tools/list", {}), ("ping", {}), ("resources/list", {}), ("no/such/method", {}), ("initialize", {})]
        + [("notifications/cancelled", {"requestId": draw.randrange(number + 1)}), ("prompts/get", {"name": "x"})]
        + [("notifications/progress", {"progressToken": 1, "progress": 1}), ("logging/setLevel", {"level": "debug"})]
    )
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": {**params}}
    if modern:
        message["params"]["_meta"] = dict(MODERN)
    if not method.startswith("notifications/"):
        message["id"] = number if draw.random() < 0.7 else f"id-{number}"
    return message


def _broken(draw: random.Random, value: Any) -> Any:
    """The value with one place changed, removed or nested."""
    if isinstance(value, dict) and value and draw.random() < 0.85:
        key = draw.choice(list(value))
        changed = dict(value)
        turn = draw.random()
        if turn < 0.15:
            del changed[key]
        elif turn < 0.3:
            changed[draw.choice(("id", "name", "arguments", "extra", "_meta", ""))] = draw.choice(ODD)
        else:
            changed[key] = _broken(draw, value[key])
        return changed
    if draw.random() < 0.05:
        deep: Any = value
        for _ in range(draw.choice((10, 300))):
            deep = [deep]
        return deep
    return draw.choice(ODD)
