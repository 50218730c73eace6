"""toolscout through its Python API: `retriever` names the method, `published` takes MiniLM as it was published."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from peers.adapters.base import Adapter, Record
from toolscout import Scout, Tool
from toolscout.models.encoders.export import export


class Peer(Adapter):
    """A store with its index beside it. The verdict decides whether tools are handed out."""

    def __init__(self, tools: Sequence[Record], folder: Path, **options: Any) -> None:
        self._open(folder, **options)
        self._add(tools)

    def _open(self, folder: Path, retriever: str, published: bool = False) -> None:
        encoder = folder / "minilm" if published else None  # else the one that comes with the package
        if encoder and not encoder.exists():
            export(Path(os.environ["PEERS_MODEL"]), encoder)
        self.scout = Scout.open(folder / "tools.db", retriever, encoder=encoder)
        self.ids: dict[str, str] = {}
        self.embedded = 0

    def _add(self, tools: Sequence[Record]) -> None:
        made = [Tool(t["namespace"], t["title"], t["description"], input_schema=t["parameters"]) for t in tools]
        self.embedded += self.scout.add(made).embedded
        self.ids |= {tool.id: record["name"] for tool, record in zip(made, tools, strict=True)}

    def search(self, request: str, k: int) -> list[str]:
        return [self.ids[hit.tool_id] for hit in self.scout.search(request, k).hits]

    def rank(self, request: str, k: int) -> list[str]:
        return [self.ids[hit.tool_id] for hit in self.scout.search(request, k).considered[:k]]

    def add(self, tool: Record) -> None:
        self._add([tool])

    def remove(self, name: str) -> None:
        self.scout.remove([tool_id for tool_id, known in self.ids.items() if known == name])

    def save(self) -> None:
        self.scout.close()

    @classmethod
    def reopen(cls, tools: Sequence[Record], folder: Path, **options: Any) -> Self:
        peer = cls.__new__(cls)
        peer._open(folder, **options)
        peer.ids = {Tool(t["namespace"], t["title"]).id: t["name"] for t in tools}
        return peer
