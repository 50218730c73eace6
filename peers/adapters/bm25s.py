"""bm25s with its own tokeniser: English stop words, and the stemmer that its documentation uses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import bm25s
import Stemmer

from peers.adapters.base import Adapter, Record, text_of


class Peer(Adapter):
    """An index in memory, saved as a folder."""

    def __init__(self, tools: Sequence[Record], folder: Path, **options: Any) -> None:
        self.folder, self.stemmer, self.names = folder, Stemmer.Stemmer("english"), [tool["name"] for tool in tools]
        self.index = bm25s.BM25()
        self.index.index(self._tokens([text_of(tool) for tool in tools]), show_progress=False)

    def _tokens(self, texts: list[str]) -> Any:
        return bm25s.tokenize(texts, stopwords="en", stemmer=self.stemmer, show_progress=False)

    def search(self, request: str, k: int) -> list[str]:
        found, scores = self.index.retrieve(self._tokens([request]), k=min(k, len(self.names)), show_progress=False)
        return [self.names[i] for i, score in zip(found[0], scores[0], strict=True) if score > 0]

    def save(self) -> None:
        self.index.save(self.folder)

    @classmethod
    def reopen(cls, tools: Sequence[Record], folder: Path, **options: Any) -> Self:
        peer = cls.__new__(cls)
        peer.folder, peer.stemmer, peer.names = folder, Stemmer.Stemmer("english"), [tool["name"] for tool in tools]
        peer.index = bm25s.BM25.load(folder, mmap=True)
        return peer
