"""Chroma: a persistent collection that embeds with MiniLM by sentence-transformers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import chromadb
from chromadb.utils.embedding_functions import SentenceTransformerEmbeddingFunction

from peers.adapters.base import Adapter, Record, text_of

BATCH = 1000


class Peer(Adapter):
    """A folder with a database and a graph of vectors."""

    def __init__(self, tools: Sequence[Record], folder: Path, **options: Any) -> None:
        self._open(folder)
        for start in range(0, len(tools), BATCH):
            self._add(tools[start : start + BATCH])

    def _open(self, folder: Path) -> None:
        embedder = SentenceTransformerEmbeddingFunction(os.environ["PEERS_MODEL"], normalize_embeddings=True)
        client, cosine = chromadb.PersistentClient(str(folder)), {"hnsw": {"space": "cosine"}}
        self.tools = client.get_or_create_collection("tools", embedding_function=embedder, configuration=cosine)
        self.embedded = 0

    def _add(self, tools: Sequence[Record]) -> None:
        self.tools.add([tool["name"] for tool in tools], documents=[text_of(tool) for tool in tools])
        self.embedded += len(tools)

    def search(self, request: str, k: int) -> list[str]:
        return self.tools.query(query_texts=[request], n_results=k)["ids"][0]

    def add(self, tool: Record) -> None:
        self._add([tool])

    def remove(self, name: str) -> None:
        self.tools.delete([name])

    @classmethod
    def reopen(cls, tools: Sequence[Record], folder: Path, **options: Any) -> Self:
        peer = cls.__new__(cls)
        peer._open(folder)
        return peer
