"""semantic-tool-router: ToolRouter with its default embedder, hashed words, or MiniLM; either mixed with BM25."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from semantic_tool_router.embeddings import SentenceTransformerEmbeddingProvider
from semantic_tool_router.models import ToolSpec
from semantic_tool_router.registry import ToolRegistry
from semantic_tool_router.router import ToolRouter

from peers.adapters.base import Adapter, Record


class Peer(Adapter):
    """An index in memory of tools that cannot change."""

    def __init__(self, tools: Sequence[Record], folder: Path, model: bool = False, **options: Any) -> None:
        schemas = [dict(tool["parameters"].get("properties") or {}) for tool in tools]
        specs = [ToolSpec(t["name"], t["description"], schema) for t, schema in zip(tools, schemas, strict=True)]
        embedder = SentenceTransformerEmbeddingProvider(os.environ["PEERS_MODEL"]) if model else None
        self.router, self.embedded = ToolRouter(ToolRegistry(specs), embedder), len(tools) if model else None

    def search(self, request: str, k: int) -> list[str]:
        return [found.tool.name for found in self.router.discover(request, top_k=k)]
