"""Tantivy: one field of English stems, an index on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import tantivy

from peers.adapters.base import Adapter, Record, text_of, words_of


class Peer(Adapter):
    """A folder that is read where it lies."""

    def __init__(self, tools: Sequence[Record], folder: Path, **options: Any) -> None:
        fields = tantivy.SchemaBuilder()
        fields.add_text_field("name", stored=True, tokenizer_name="raw")
        fields.add_text_field("text", tokenizer_name="en_stem")
        self.index = tantivy.Index(fields.build(), path=str(folder))
        self._write(tools, ())

    def _write(self, tools: Sequence[Record], removed: Sequence[str]) -> None:
        writer = self.index.writer(num_threads=1)
        for name in removed:
            writer.delete_documents_by_term("name", name)
        for tool in tools:
            writer.add_document(tantivy.Document(name=tool["name"], text=text_of(tool)))
        writer.commit()
        writer.wait_merging_threads()
        self.index.reload()

    def search(self, request: str, k: int) -> list[str]:
        searcher = self.index.searcher()
        query, _ = self.index.parse_query_lenient(" ".join(words_of(request)), ["text"])
        return [str(searcher.doc(address).get_first("name")) for _, address in searcher.search(query, k).hits]

    def add(self, tool: Record) -> None:
        self._write([tool], ())

    def remove(self, name: str) -> None:
        self._write((), [name])

    @classmethod
    def reopen(cls, tools: Sequence[Record], folder: Path, **options: Any) -> Self:
        peer = cls.__new__(cls)
        peer.index = tantivy.Index.open(str(folder))
        return peer
