"""The contract of an encoder: texts in, unit vectors out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from toolscout.core.arrays import Floats, Ints


class TextEncoder(ABC):
    """Turns texts into unit vectors. Several threads may encode at once.

    fingerprint: identifies the model, so that vectors of two models are never mixed.
    dimension: the length of a vector.
    parameters: the number of the model's parameters, 0 where it is not known.
    folder: where the model's files are, with those that belong to it, such as a need head; None without a folder.
    remote: whether texts are sent to another program, which may not answer: then the methods raise EncoderUnavailable.
    """

    fingerprint: str
    dimension: int
    parameters: int = 0
    folder: Path | None = None
    remote: bool = False

    @property
    def document_fingerprint(self) -> str:
        """Identifies what makes the vectors of documents; encoders that differ for requests alone have the same."""
        return self.fingerprint

    @abstractmethod
    def encode_request(self, text: str) -> Floats:
        """The unit vector of one request."""

    def encode(self, texts: Sequence[str]) -> Floats:
        """Unit vectors of several requests, one a row."""
        return np.stack([self.encode_request(text) for text in texts])

    @abstractmethod
    def encode_documents(self, texts: Sequence[str]) -> Iterator[tuple[Ints, Floats]]:
        """Yield unit vectors of documents, batch by batch in any order, as (positions in `texts`, vectors)."""

    def patient(self) -> TextEncoder:
        """The same encoder for work that nobody waits for: one that is remote takes the time and retries it needs."""
        return self

    def expect_dimension(self, dimension: int) -> None:
        """Take the length of vectors that it made before; a remote one refuses to give vectors of another length."""

    def details(self) -> dict[str, Any]:
        """What the encoder is, beyond its length and fingerprint, as `toolscout encoder check` shows it."""
        return {}

    def use_threads(self, threads: int) -> None:
        """Set how many threads encode from now on; encoders without such a choice ignore it."""
