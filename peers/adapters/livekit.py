"""LiveKit Agents: ToolSearchToolset with its default strategy, BM25, or the one that the options name."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from livekit.agents import function_tool
from livekit.agents.beta.toolsets import tool_search

from peers.adapters.base import Adapter, Record


class Peer(Adapter):
    """An index in memory, built when an agent's session begins."""

    def __init__(self, tools: Sequence[Record], folder: Path, strategy: str = "BM25", **options: Any) -> None:
        self.loop = asyncio.new_event_loop()
        chosen = getattr(tool_search, f"{strategy}SearchStrategy")()
        made = [self._tool(tool) for tool in tools]
        self.toolset = tool_search.ToolSearchToolset(id="all", tools=made, max_results=5, search_strategy=chosen)
        self.loop.run_until_complete(self.toolset.setup())

    def _tool(self, tool: Record) -> Any:
        async def call(raw_arguments: dict[str, object]) -> str:
            return ""

        schema = {name: tool[name] for name in ("name", "description", "parameters")}
        return function_tool(call, raw_schema=schema)

    def search(self, request: str, k: int) -> list[str]:
        found = self.loop.run_until_complete(self.toolset._search_tools(request))
        return [tool.info.name for tool in found][:k]
