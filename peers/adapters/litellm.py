"""LiteLLM's mcp_tool_search: by keywords, its default, or by meaning with an embedder of one's own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from litellm.proxy._experimental.mcp_server import tool_search
from litellm.proxy.common_utils.semantic_text_index import SemanticTextIndex
from litellm.types.mcp import MCPToolSearchSettings
from mcp.types import Tool

from peers.adapters.base import Adapter, Record


class Peer(Adapter):
    """No index of words; vectors are kept in memory, at most 5,000 of them unless one sets more."""

    def __init__(self, tools: Sequence[Record], folder: Path, semantic: bool = False, **options: Any) -> None:
        self.loop, self.settings, self.ranker = asyncio.new_event_loop(), MCPToolSearchSettings(), None
        if semantic:
            index = SemanticTextIndex(max_entries=max(5000, 2 * len(tools)))
            self.ranker, self.embedded = tool_search.SemanticToolRanker(self._embed, "minilm", index), 0
        self.tools: dict[str, Tool] = {}
        for tool in tools:
            self.add(tool)

    async def _embed(self, texts: Sequence[str]) -> list[tuple[float, ...]]:
        from peers.adapters.minilm import embed

        self.embedded += len(texts) - 1  # the first is the request
        return [tuple(vector) for vector in embed(texts).tolist()]

    def add(self, tool: Record) -> None:
        fields = {"name": tool["name"], "description": tool["description"], "inputSchema": tool["parameters"]}
        self.tools[tool["name"]] = Tool(**fields)

    def remove(self, name: str) -> None:
        del self.tools[name]

    def search(self, request: str, k: int) -> list[str]:
        listed = list(self.tools.values())
        ranked = tool_search.search_mcp_tools(request, listed, k, self.settings, self.ranker)
        return [found["name"] for found in self.loop.run_until_complete(ranked)]
