"""FastMCP: the search tool of BM25SearchTransform, or of RegexSearchTransform, asked on the server without a network.

A regular expression has to be written by a model; here it is any of the request's words of four letters or more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastmcp import FastMCP
from fastmcp.server.transforms.search import BM25SearchTransform, RegexSearchTransform
from fastmcp.tools import Tool, ToolResult

from peers.adapters.base import Adapter, Record, words_of


class Proxy(Tool):
    """A tool that is described and never called."""

    async def run(self, arguments: dict[str, Any]) -> ToolResult:
        return ToolResult("")


class Peer(Adapter):
    """A server in memory; the index is made again by the first search after a change."""

    def __init__(self, tools: Sequence[Record], folder: Path, transform: str = "bm25", **options: Any) -> None:
        self.loop, self.server, self.transform = asyncio.new_event_loop(), FastMCP("tools"), transform
        self.server.add_transform(BM25SearchTransform() if transform == "bm25" else RegexSearchTransform())
        for tool in tools:
            self.add(tool)

    def add(self, tool: Record) -> None:
        fields = {name: tool[name] for name in ("name", "description", "parameters")}
        self.server.add_tool(Proxy(**fields))

    def remove(self, name: str) -> None:
        self.server.local_provider.remove_tool(name)

    def search(self, request: str, k: int) -> list[str]:
        pattern = "|".join(word for word in words_of(request) if len(word) > 3)
        asked = {"query": request} if self.transform == "bm25" else {"pattern": pattern or request}
        found = self.loop.run_until_complete(self.server.call_tool("search_tools", asked))
        return [tool["name"] for tool in found.structured_content["result"]][:k]
