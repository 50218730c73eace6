"""The contract of an encoder: texts in, unit vectors out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from toolscout.core.arrays import Floats, Ints


class TextEncoder(ABC):
    """Turns texts into unit vectors. Several threads may encode at once.

    `fingerprint` identifies the model, so that vectors of two models never mix; `dimension` is the length of a vector;
    `parameters` counts the model's numbers, 0 where that is not known; `folder` has its files, and beside them what
    belongs to it, None where there is none.
    """

    fingerprint: str
    dimension: int
    parameters: int = 0
    folder: Path | None = None

    @abstractmethod
    def encode_request(self, text: str) -> Floats:
        """The unit vector of one request."""

    def encode(self, texts: Sequence[str]) -> Floats:
        """Unit vectors of several requests, one a row."""
        return np.stack([self.encode_request(text) for text in texts])

    @abstractmethod
    def encode_documents(self, texts: Sequence[str]) -> Iterator[tuple[Ints, Floats]]:
        """Unit vectors of documents, batch by batch in any order: positions in `texts` and their vectors."""

    def use_threads(self, threads: int) -> None:
        """Run one text on so many threads from now on, where that can be chosen."""
