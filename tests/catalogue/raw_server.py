"""A tiny MCP server without the SDK, which can misbehave in every way a real one might: raw_server.py MODE."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any


def tool(name: Any, description: str = "does it") -> dict[str, Any]:
    return {"name": name, "description": description, "inputSchema": {"type": "object", "properties": {}}}


PAGES: dict[str, list[tuple[list[Any], str | None]]] = {
    "one": [([tool("alpha")], None)],
    "pages": [([tool("a"), tool("b")], "p2"), ([tool("c")], "p3"), ([], "p4"), ([tool("d")], None)],
    "loop": [([tool("a")], "0"), ([tool("a")], "0")],
    "twice": [([tool("a"), tool("b"), tool("a", "something else")], None)],
    "same_twice": [([tool("a"), tool("b")], "p2"), ([tool("a")], None)],
    "bad_tool": [([tool("a"), {"name": 5}, "no tool", tool("\x1b[31mred\n name "), {"name": "bare"}], None)],
    "thief": [([tool("a") | {"namespace": "bank", "origin": {"kind": "http", "target": "x"}}], None)],
    "noisy": [([tool("a", "\x1b]0;title\x07 \x00 text")], None)],
    "empty": [([], None)],
    "no_list": [(None, None)],  # type: ignore[list-item]
}


def result(mode: str, request: dict[str, Any]) -> dict[str, Any] | None:
    method, params = request["method"], request.get("params") or {}
    if method == "initialize":
        info = {"name": f"{mode} server", "version": "1", "title": "A server for tests"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
    if method != "tools/list" or mode == "error":
        return None
    if mode == "env":
        return {"tools": [tool(os.environ.get("SECRET_TOKEN", "unset"), " ".join(sys.argv[2:]))]}
    number = [cursor for _, cursor in PAGES[mode]].index(params["cursor"]) + 1 if "cursor" in params else 0
    tools, cursor = PAGES[mode][min(number, len(PAGES[mode]) - 1)]
    return {"tools": tools} | ({"nextCursor": cursor} if cursor else {})


def main(mode: str) -> None:
    if mode == "die":
        sys.exit("\x1b[31mno API key\x1b[0m: set EXAMPLE_KEY")
    if mode == "stubborn":  # neither a closed stdin nor a polite signal ends it, and it has a child of its own
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen(["sleep", "600"])
        sys.stderr.write(f"pids {os.getpid()} {child.pid}\n")
        sys.stderr.flush()
        time.sleep(600)
    if mode == "noisy":
        sys.stdout.write("Welcome to the noisy server!\n")
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request or mode == "hang":
            continue
        answer = result(mode, request)
        error = {"code": -32601, "message": "the database is \x1b[31mdown"}
        reply = {"error": error} if answer is None else {"result": answer}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": request["id"], **reply}) + "\n")
        sys.stdout.flush()


main(sys.argv[1])
