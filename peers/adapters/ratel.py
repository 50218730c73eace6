"""Ratel's ToolCatalog with the method and, for vectors, the model folder that its options name."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ratel_ai import ExecutableTool, ToolCatalog

from peers.adapters.base import Adapter, Record


class Peer(Adapter):
    """A catalogue in memory; each process registers, and embeds, all tools again."""

    def __init__(self, tools: Sequence[Record], folder: Path, method: str = "bm25", **options: Any) -> None:
        self.method, self.loop = method, asyncio.new_event_loop()
        model = {"local": os.environ["PEERS_MODEL"], "pooling": "mean"} if method != "bm25" else None
        self.catalog = ToolCatalog(method=method, embedding=model)
        self.embedded = 0 if model else None
        self._register(tools)

    def _register(self, tools: Sequence[Record]) -> None:
        made = [
            ExecutableTool(t["name"], t["name"], t["description"], dict(t["parameters"]), execute=lambda arguments: {})
            for t in tools
        ]

        async def register() -> None:
            await self.catalog.register(made)

        self.loop.run_until_complete(register())
        if self.embedded is not None:
            self.embedded += len(tools)

    def search(self, request: str, k: int) -> list[str]:
        if self.method == "bm25":
            return [hit.tool_id for hit in self.catalog.search(request, k)]
        return [hit.tool_id for hit in self.loop.run_until_complete(self.catalog.search_async(request, k))]

    def add(self, tool: Record) -> None:
        self._register([tool])
