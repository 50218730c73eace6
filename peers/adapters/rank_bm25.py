"""rank_bm25's BM25Okapi over lower-case words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rank_bm25 import BM25Okapi

from peers.adapters.base import Adapter, Record, text_of, words_of


class Peer(Adapter):
    """An index in memory; it has no way to save it but pickle."""

    def __init__(self, tools: Sequence[Record], folder: Path, **options: Any) -> None:
        self.names = [tool["name"] for tool in tools]
        self.index = BM25Okapi([words_of(text_of(tool)) for tool in tools])

    def search(self, request: str, k: int) -> list[str]:
        scores = self.index.get_scores(words_of(request))
        return [self.names[i] for i in np.argsort(-scores, kind="stable")[:k] if scores[i] > 0]
