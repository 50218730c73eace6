"""toolregistry: ToolDiscoveryTool over a ToolRegistry, as its `discover_tools` searches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolregistry import Tool, ToolRegistry
from toolregistry.llm.discovery import ToolDiscoveryTool

from peers.adapters.base import Adapter, Record


class Peer(Adapter):
    """A registry in memory, whose index is made again before the search that follows a change."""

    def __init__(self, tools: Sequence[Record], folder: Path, **options: Any) -> None:
        self.registry, self.names = ToolRegistry(), dict[str, str]()  # it writes names its own way
        for tool in tools:
            self.add(tool)
        self.discovery = ToolDiscoveryTool(self.registry)

    def add(self, tool: Record) -> None:
        made = Tool.from_function(lambda: None, name=tool["name"], description=tool["description"])
        object.__setattr__(made, "parameters", dict(tool["parameters"]))
        self.registry.register(made)
        self.names[made.name] = tool["name"]

    def remove(self, name: str) -> None:
        self.registry.disable(next(own for own, known in self.names.items() if known == name))

    def search(self, request: str, k: int) -> list[str]:
        return [self.names[found["name"]] for found in self.discovery.discover(request, top_k=k)]
