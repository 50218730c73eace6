"""Brute force: MiniLM by sentence-transformers, and one product of matrices for each request."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np
from sentence_transformers import SentenceTransformer

from peers.adapters.base import Adapter, Record, text_of


@cache
def model() -> SentenceTransformer:
    """Return the published MiniLM, from the folder that the harness names."""
    return SentenceTransformer(os.environ["PEERS_MODEL"], device="cpu")


def embed(texts: Sequence[str]) -> np.ndarray[Any, Any]:
    """Return the vectors of texts, of length 1, as the libraries that take an embedder are given them."""
    return model().encode(list(texts), normalize_embeddings=True, show_progress_bar=False)


class Peer(Adapter):
    """A matrix, saved as a file."""

    def __init__(self, tools: Sequence[Record], folder: Path, **options: Any) -> None:
        self.file, self.names = folder / "vectors.npy", [tool["name"] for tool in tools]
        self.vectors, self.embedded = embed([text_of(tool) for tool in tools]), len(tools)

    def search(self, request: str, k: int) -> list[str]:
        scores = self.vectors @ embed([request])[0]
        return [self.names[i] for i in np.argsort(-scores, kind="stable")[:k]]

    def add(self, tool: Record) -> None:
        self.vectors = np.vstack([self.vectors, embed([text_of(tool)])])
        self.names.append(tool["name"])
        self.embedded += 1

    def remove(self, name: str) -> None:
        self.vectors = np.delete(self.vectors, self.names.index(name), axis=0)
        self.names.remove(name)

    def save(self) -> None:
        np.save(self.file, self.vectors)

    @classmethod
    def reopen(cls, tools: Sequence[Record], folder: Path, **options: Any) -> Self:
        peer = cls.__new__(cls)
        peer.file, peer.names, peer.embedded = folder / "vectors.npy", [tool["name"] for tool in tools], 0
        peer.vectors = np.load(peer.file)
        return peer
