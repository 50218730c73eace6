"""An MCP server without the SDK that writes the _meta of a call to a file: meta_server.py FILE."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}


def result(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "initialize":
        info = {"name": "echo", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": [{"name": "say", "description": "Say something back", "inputSchema": SCHEMA}]}
    if method == "tools/call":
        Path(sys.argv[1]).write_text(json.dumps(params.get("_meta") or {}))
        return {"content": [{"type": "text", "text": params["arguments"]["text"]}]}
    return {} if method == "ping" else None


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": request["id"]}
        found = result(request["method"], request.get("params") or {})
        missing = {"code": -32601, "message": "Method not found"}
        sys.stdout.write(json.dumps(answer | ({"error": missing} if found is None else {"result": found})) + "\n")
        sys.stdout.flush()
