"""Pydantic AI: the search of its own that ToolSearch uses, which counts the words that a request and a tool share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets._tool_search import keywords_search_fn

from peers.adapters.base import Adapter, Record


class Peer(Adapter):
    """No index: each search reads every tool."""

    def __init__(self, tools: Sequence[Record], folder: Path, **options: Any) -> None:
        self.tools: dict[str, Any] = {}
        for tool in tools:
            self.add(tool)

    def add(self, tool: Record) -> None:
        made = ToolDefinition(
            name=tool["name"], parameters_json_schema=tool["parameters"], description=tool["description"]
        )
        self.tools[tool["name"]] = made

    def remove(self, name: str) -> None:
        del self.tools[name]

    def search(self, request: str, k: int) -> list[str]:
        return keywords_search_fn(None, [request], list(self.tools.values()))[:k]
