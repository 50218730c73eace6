"""A small MCP server without the SDK that writes down what happens to it: counting_server.py FOLDER [stubborn].

`starts` gets a line with the process id at each start, `calls` the word of each call, `cancelled` that of each call
that was cancelled. A stubborn server goes on when its input is closed and when it gets SIGTERM.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

WORD = {"type": "object", "properties": {"word": {"type": "string"}, "seconds": {"type": "number"}}}
TOOLS = [
    {"name": "note", "description": "Write down a word", "inputSchema": WORD},
    {"name": "slow", "description": "Write down a word and tell the progress for some seconds", "inputSchema": WORD},
    {"name": "fail", "description": "Fail", "inputSchema": WORD},
    {"name": "ask", "description": "Ask the user for a word", "inputSchema": WORD},
]
LOCK = threading.Lock()
CANCELLED: set[Any] = set()
ANSWERS: dict[str, queue.Queue[Any]] = {}


def append(folder: Path, name: str, line: object) -> None:
    with LOCK, (folder / name).open("a") as file:
        file.write(f"{line}\n")


def send(**message: Any) -> None:
    with LOCK:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def call(folder: Path, request: dict[str, Any]) -> None:
    params = request["params"]
    name, arguments = params["name"], params.get("arguments", {})
    word, token = arguments.get("word", ""), params.get("_meta", {}).get("progressToken")
    append(folder, "calls", word)
    if name == "slow":
        for number in range(1, 4):
            if token is not None:
                progress = {"progressToken": token, "progress": number, "total": 3, "message": f"at {number}"}
                send(method="notifications/progress", params=progress)
            until = time.monotonic() + arguments.get("seconds", 0.3) / 3
            while time.monotonic() < until:
                if request["id"] in CANCELLED:
                    append(folder, "cancelled", word)
                    return
                time.sleep(0.01)
    if name == "ask":
        asked = f"ask-{request['id']}"
        ANSWERS[asked] = queue.Queue()
        schema = {"type": "object", "properties": {"word": {"type": "string"}}}
        send(id=asked, method="elicitation/create", params={"message": word, "requestedSchema": schema})
        word = ANSWERS[asked].get()["content"]["word"]
    if name == "fail":
        send(id=request["id"], error={"code": -32050, "message": f"no {word}", "data": {"why": "it fails"}})
        return
    answer = {"word": word, "pid": os.getpid()}
    content = [{"type": "text", "text": json.dumps(answer)}, {"type": "text", "text": "ünï \u2028 ✓"}]
    send(id=request["id"], result={"content": content, "structuredContent": answer, "isError": word == "bad"})


def main() -> None:
    folder, stubborn = Path(sys.argv[1]), sys.argv[2:] == ["stubborn"]
    if stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    append(folder, "starts", os.getpid())
    for line in sys.stdin:
        request = json.loads(line)
        method, params = request.get("method"), request.get("params") or {}
        if method == "notifications/cancelled":
            CANCELLED.add(params.get("requestId"))
        if method is None and request.get("id") in ANSWERS:
            ANSWERS[request["id"]].put(request.get("result"))
        if "id" not in request or method is None:
            continue
        if method == "initialize":
            info = {"name": "counting", "version": "1"}
            result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
            send(id=request["id"], result=result)
        elif method == "tools/list":
            send(id=request["id"], result={"tools": TOOLS})
        elif method == "tools/call":
            threading.Thread(target=call, args=(folder, request), daemon=True).start()
        else:
            send(id=request["id"], error={"code": -32601, "message": "Method not found"})
    if stubborn:
        time.sleep(600)


main()
