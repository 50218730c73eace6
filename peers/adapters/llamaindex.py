"""LlamaIndex: ObjectIndex over a VectorStoreIndex that embeds with MiniLM."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llama_index.core import VectorStoreIndex
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.objects import ObjectIndex
from llama_index.core.tools import FunctionTool

from peers.adapters.base import Adapter, Record
from peers.adapters.minilm import embed


class MiniLM(BaseEmbedding):
    """Vectors as the brute force makes them."""

    def _get_text_embedding(self, text: str) -> list[float]:
        return embed([text])[0].tolist()

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return embed(texts).tolist()

    _get_query_embedding = _get_text_embedding

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


class Peer(Adapter):
    """An index in memory."""

    def __init__(self, tools: Sequence[Record], folder: Path, **options: Any) -> None:
        made, self.embedded = [self._tool(tool) for tool in tools], len(tools)
        self.index = ObjectIndex.from_objects(made, index_cls=VectorStoreIndex, embed_model=MiniLM())

    def _tool(self, tool: Record) -> FunctionTool:
        return FunctionTool.from_defaults(lambda: None, name=tool["name"], description=tool["description"])

    def add(self, tool: Record) -> None:
        self.index.insert_object(self._tool(tool))

    def search(self, request: str, k: int) -> list[str]:
        found = self.index.as_retriever(similarity_top_k=k).retrieve(request)
        return [tool.metadata.name for tool in found]
