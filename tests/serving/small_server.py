"""A real MCP server written with the SDK: small_server.py NAME runs it over stdio.

Its list of tools can be changed while it runs, by calling a tool of its own.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

SUBJECTS = {
    "weather": "the weather forecast of a city",
    "music": "songs of a playlist",
    "mail": "letters in the mailbox",
    "files": "documents in a folder",
    "bank": "transfers of a bank account",
}


def make_server(name: str) -> MCPServer[Any]:
    subject = SUBJECTS[name]
    server = MCPServer(name, version="1")

    @server.tool(name=f"get_{name}", description=f"Get {subject}")
    async def get(city: str, days: int = 1) -> dict[str, Any]:
        return {"subject": subject, "city": city, "days": days, "secret": os.environ.get("SECRET")}

    @server.tool(name=f"delete_{name}", description=f"Delete {subject} for ever")
    async def delete(number: int) -> dict[str, Any]:
        raise ValueError(f"there is no {number}")

    @server.tool(description=f"Count slowly through {subject}, telling the progress")
    async def count(to: int, ctx: Context, pause: float = 0.0, note: str = "") -> dict[str, Any]:
        try:
            for number in range(1, to + 1):
                await ctx.report_progress(number, to, f"at {number}")
                await anyio.sleep(pause)
        except anyio.get_cancelled_exc_class():
            if note:
                with open(note, "w") as file:
                    file.write("cancelled")
            raise
        return {"counted": to}

    @server.tool(description="Sleep without a word")
    async def sleep(seconds: float) -> dict[str, Any]:
        await anyio.sleep(seconds)
        return {"slept": seconds}

    @server.tool(description="Change the list of tools of this server")
    async def change(ctx: Context, add: str = "", remove: str = "", description: str = "") -> dict[str, Any]:
        async def extra() -> dict[str, Any]:
            return {"extra": add}

        if remove:
            server.remove_tool(remove)
        if add:
            server.add_tool(extra, name=add, description=description)
        await ctx.notify_tools_changed()
        if ctx.protocol_version != "2026-07-28":
            await ctx.session.send_tool_list_changed()
        return {"tools": len(await server.list_tools())}

    return server


if __name__ == "__main__":
    made = make_server(sys.argv[1])

    @made.tool(description="End the process of this server at once")
    async def die() -> dict[str, Any]:
        os._exit(3)

    made.run("stdio")
