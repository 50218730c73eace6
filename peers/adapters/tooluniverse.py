"""ToolUniverse's keyword finder over a catalogue of one's own, which takes the place of its own tools."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tooluniverse import ToolUniverse
from tooluniverse.tool_finder_keyword import ToolFinderKeyword

from peers.adapters.base import Adapter, Record


class Peer(Adapter):
    """An index in memory, made by the first search, and again after a change."""

    def __init__(self, tools: Sequence[Record], folder: Path, **options: Any) -> None:
        logging.disable(logging.INFO)
        self.universe = ToolUniverse()
        self.universe.all_tools, self.universe.all_tool_dict = [], {}
        for tool in tools:
            self.add(tool)
        self.finder = ToolFinderKeyword({"name": "Tool_Finder_Keyword"}, self.universe)

    def add(self, tool: Record) -> None:
        made = {"name": tool["name"], "description": tool["description"], "type": "", "parameter": tool["parameters"]}
        self.universe.all_tools.append(made)
        self.universe.all_tool_dict[tool["name"]] = made

    def remove(self, name: str) -> None:
        self.universe.all_tools.remove(self.universe.all_tool_dict.pop(name))

    def search(self, request: str, k: int) -> list[str]:
        found = json.loads(self.finder._run_json_search({"description": request, "limit": k}))
        return [tool["name"] for tool in found["tools"]]
