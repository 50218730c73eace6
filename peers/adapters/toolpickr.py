"""toolpickr with its defaults: MiniLM in FAISS and BM25, added up."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolpickr import ToolPickr
from toolpickr.core.tool import Parameters, Property, ToolDefinition

from peers.adapters.base import Adapter, Record


class Peer(Adapter):
    """Vectors are cached in the folder where the process runs; BM25 is indexed again by each process."""

    def __init__(self, tools: Sequence[Record], folder: Path, **options: Any) -> None:
        os.chdir(folder)
        kept = list(folder.rglob("*.faiss"))
        self.pickr = ToolPickr(f"sentence_transformers/{os.environ['PEERS_MODEL']}")
        self.pickr.register_tools([self._tool(tool) for tool in tools])
        self.pickr.build()
        self.embedded = 0 if kept else len(tools)

    def _tool(self, tool: Record) -> ToolDefinition:
        known = (tool["parameters"].get("properties") or {}).items()
        made = {name: Property(type=str(one.get("type")), description=one.get("description")) for name, one in known}
        return ToolDefinition(
            name=tool["name"], description=tool["description"], parameters=Parameters(properties=made)
        )

    def search(self, request: str, k: int) -> list[str]:
        return [found.tool_name for found in self.pickr.retrieve(request, top_k=k)]
