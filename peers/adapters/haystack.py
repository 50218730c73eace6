"""Haystack: the search tool of SearchableToolset, which asks a model for keywords and here gets the request."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from haystack.tools import SearchableToolset, Tool

from peers.adapters.base import Adapter, Record


class Peer(Adapter):
    """An index in memory of names and descriptions."""

    def __init__(self, tools: Sequence[Record], folder: Path, **options: Any) -> None:
        self.toolset = SearchableToolset([self._tool(tool) for tool in tools])
        self.toolset.warm_up()

    def _tool(self, tool: Record) -> Tool:
        return Tool(tool["name"], tool["description"], dict(tool["parameters"]), function=lambda: None)

    def search(self, request: str, k: int) -> list[str]:
        self.toolset.clear()
        next(iter(self.toolset)).invoke(tool_keywords=request, k=k)
        return list(self.toolset._discovered_tools)
