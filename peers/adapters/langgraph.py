"""langgraph-bigtool: its retrieval over an InMemoryStore that embeds with MiniLM."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from langgraph.store.memory import InMemoryStore
from langgraph_bigtool.tools import get_default_retrieval_tool

from peers.adapters.base import Adapter, Record
from peers.adapters.minilm import embed


class Peer(Adapter):
    """A store in memory; texts are a tool's name and description, as its documentation puts them."""

    def __init__(self, tools: Sequence[Record], folder: Path, **options: Any) -> None:
        index = {"embed": lambda texts: embed(texts).tolist(), "dims": 384, "fields": ["description"]}
        self.store, self.embedded = InMemoryStore(index=index), 0
        for tool in tools:
            self.add(tool)

    def add(self, tool: Record) -> None:
        self.store.put(("tools",), tool["name"], {"description": f"{tool['name']}: {tool['description']}"})
        self.embedded += 1

    def remove(self, name: str) -> None:
        self.store.delete(("tools",), name)

    def search(self, request: str, k: int) -> list[str]:
        retrieve, _ = get_default_retrieval_tool(("tools",), limit=k)
        return retrieve(request, store=self.store)
