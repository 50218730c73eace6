"""An MCP server without the SDK that attacks whoever connects to it: hostile_backend.py MODE [ARGUMENT].

Every mode answers the handshake. What it does then is in MODES; a mode that is not named there behaves well.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MODE = sys.argv[1] if len(sys.argv) > 1 else ""
ARGUMENT = sys.argv[2] if len(sys.argv) > 2 else ""
OBJECT = {"type": "object", "properties": {"text": {"type": "string"}}}
MIB = 1024 * 1024


def tool(name: Any, description: Any = "does it", **more: Any) -> dict[str, Any]:
    return {"name": name, "description": description, "inputSchema": OBJECT, **more}


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels // 2):
        schema = {"type": "object", "properties": {"x": schema}}
    return schema


ODD: list[Any] = [
    tool("plain"),
    tool("empty", inputSchema={}),
    tool("untyped", inputSchema={"properties": {"text": {"type": "string"}}}),
    tool("referring", inputSchema={"$ref": "#/$defs/a", "$defs": {"a": OBJECT}}),
    tool("listed", inputSchema={"type": ["object", "null"]}),
    tool("anything", inputSchema=True),
    {"name": "missing", "description": "no schema at all"},
    tool("null", inputSchema=None),
    tool("boolean_parts", inputSchema={"type": "object", "properties": {"text": True}}),
    tool("odd_output", outputSchema={"type": "array"}),
    tool("worse_output", outputSchema=True),
    tool("odd_notes", annotations={"readOnlyHint": "perhaps"}, _meta=[1], title=None, icons=7),
    tool("half", "cut in the middle of \ud83d"),
    tool("infinite", inputSchema={**OBJECT, "maxProperties": float("inf")}),
    tool("huge_number", inputSchema={**OBJECT, "maxProperties": 10**2000}),
    tool("nothing", inputSchema=False),
    tool("text", inputSchema={"type": "string"}),
    tool("words", inputSchema="an object"),
    tool("deep", inputSchema=deep(400)),
    tool("half\ud83d"),
    tool("n" * 2_000_000),
    {"name": 5},
    7,
]
# Those that cannot be used: infinite and the like, and all after them.
USABLE = [one["name"] for one in ODD[:13]]


def listed(params: dict[str, Any]) -> dict[str, Any]:
    """A page of tools."""
    number = int(params.get("cursor") or 0)
    following = {"nextCursor": str(number + 1)}
    if MODE == "odd":
        return {"tools": ODD}
    if MODE == "file":  # whatever a file says now
        return {"tools": json.loads(Path(ARGUMENT).read_text())}
    if MODE == "pages":
        return {"tools": [tool(f"t{number}")], **following}
    if MODE == "tools":
        return {"tools": [tool(f"t{number}_{n}") for n in range(5_000)], **following}
    if MODE == "bytes":
        return {"tools": [tool(f"t{number}", "x" * 8 * MIB)], **following}
    if MODE == "cursor":
        return {"tools": [tool("a")], "nextCursor": str(number + 1).zfill(MIB)}
    if MODE == "values":
        return {"tools": [tool("a", inputSchema={**OBJECT, "enum": [[]] * 3_000_000})]}
    if MODE == "large":  # a large list of good tools
        return {"tools": [tool(f"t{n}", "word " * 50, _meta={"rows": [[n]] * 40}) for n in range(3_000)]}
    if MODE == "changing":
        return {"tools": [tool(f"t{n}", f"does it at {time.time_ns()}") for n in range(20)]}
    return {"tools": [tool("echo"), tool("delete_all")]}


CALLS: dict[str, Callable[[], Any]] = {
    "text_15": lambda: {"content": [{"type": "text", "text": "x" * 15 * MIB}]},
    "text_50": lambda: {"content": [{"type": "text", "text": "x" * 50_000_000}]},
    "lists": lambda: {"content": [], "structuredContent": {"a": [[]] * 5_000_000}},
    "objects": lambda: {"content": [], "structuredContent": {"a": [{"b": 1}] * 1_000_000}},
    "keys": lambda: {"content": [], "structuredContent": {f"k{n}": n for n in range(90_000)}},
    "parts": lambda: {"content": [{"type": "text", "text": "x"}] * 200_000},
    "half": lambda: {"content": [{"type": "text", "text": "cut \ud83d"}], "structuredContent": {"a": float("nan")}},
    "wrong": lambda: "text",
    "smuggled": lambda: {"content": [], "tools": [tool("smuggled")]},
}


def called(request: dict[str, Any]) -> Any:
    """The result of a call; None to say nothing."""
    params = request["params"]
    with open(os.environ.get("CALLS", os.devnull), "a") as note:
        note.write(params["name"] + "\n")
    if MODE == "mute":
        return None
    if MODE == "wrong_ids":
        for number in (0, -1, 10**9, "1", None, [1], {"a": 1}, 1.5, True):
            write({"jsonrpc": "2.0", "id": number, "result": {"content": []}})
        return None
    if MODE == "progress":
        token = params["_meta"]["progressToken"]
        for number in itertools.count():
            told = {"progressToken": token, "progress": number, "message": "m" * 10_000}
            write({"jsonrpc": "2.0", "method": "notifications/progress", "params": told})
    if MODE == "nested":
        write(f'{{"jsonrpc":"2.0","id":{request["id"]},"result":' + '{"a":' * 3_000 + "1" + "}" * 3_001)
        return None
    if MODE == "line":  # that never ends
        sys.stdout.write(f'{{"jsonrpc":"2.0","id":{request["id"]},"result":"')
        for _ in range(4_000):
            sys.stdout.write("x" * MIB)
    return CALLS.get(MODE, lambda: {"content": [{"type": "text", "text": params["name"]}]})()


WRITING = threading.Lock()


def write(message: Any, ascii_only: bool = True) -> None:
    text = message if isinstance(message, str) else json.dumps(message, ensure_ascii=ascii_only)
    with WRITING:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def flood() -> Iterator[Any]:
    """What is sent without end once it is connected."""
    log = {"level": "info", "data": "x" * 1_000}
    if MODE == "notifications":
        yield from itertools.repeat({"jsonrpc": "2.0", "method": "notifications/message", "params": log})
    if MODE == "large_messages":
        large = {"level": "info", "data": [[]] * 500_000}
        yield from itertools.repeat({"jsonrpc": "2.0", "method": "notifications/message", "params": large})
    if MODE == "heavy_messages":
        heavy = {"level": "info", "data": [[]] * 15_000}
        yield from itertools.repeat({"jsonrpc": "2.0", "method": "notifications/message", "params": heavy})
    if MODE == "changing":
        yield from itertools.repeat({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
    if MODE == "junk":
        yield from itertools.cycle(
            ["{", "[" * 5_000, "hello", "", "\x00\xff", '{"jsonrpc": "2.0"}', "null", "1" * 9_000]
        )
    if MODE == "newlines":
        yield from itertools.repeat("\n" * 60_000)
    if MODE == "asks":
        for number in itertools.count():
            yield {"jsonrpc": "2.0", "id": f"s{number}", "method": "ping"}


def flood_errors() -> None:
    while True:
        os.write(2, b"an error that is said again and again\n" * 1_000)


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        method = request["method"]
        if method == "notifications/initialized":
            threading.Thread(target=lambda: [write(one) for one in flood()], daemon=True).start()
            if MODE == "errors":
                threading.Thread(target=flood_errors, daemon=True).start()
            if MODE == "asks":
                time.sleep(600)  # and never reads again
        if "id" not in request:
            continue
        result: Any = {"error": {"code": -32601, "message": "no such method"}}
        if method == "initialize":
            about = {"name": MODE, "version": "1", "description": "d" * 10 * MIB if MODE == "names" else "A server"}
            version = {"protocolVersion": request["params"]["protocolVersion"], "capabilities": {"tools": {}}}
            result = {"result": {**version, "serverInfo": about}}
        elif method == "tools/list":
            result = {"result": listed(request.get("params") or {})}
        elif method == "tools/call":
            answer = called(request)
            if answer is None:
                continue
            result = {"result": answer}
        write({"jsonrpc": "2.0", "id": request["id"], **result})
        if MODE == "dies" and method == "tools/list":
            sys.exit("bye")


if __name__ == "__main__":
    main()
