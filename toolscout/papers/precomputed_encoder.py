"""An encoder whose vectors were made before: texts are encoded once, whatever is trained and measured on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

import numpy as np

from toolscout.core.arrays import Floats, Ints
from toolscout.core.tool import Tool
from toolscout.evaluation.vector_cache import request_vectors, tool_vectors
from toolscout.models.encoders.base import TextEncoder
from toolscout.retrievers.base import FitProgress

_AT_ONCE = 2048
# As training cuts them.
_CHARS = 4_000


class PrecomputedEncoder(TextEncoder):
    """Stands in front of an encoder with the vectors of known texts; others are encoded when they are asked for."""

    def __init__(self, encoder: TextEncoder, requests: dict[str, Floats], documents: dict[str, Floats]) -> None:
        """Use `of`."""
        self._encoder = encoder
        self.fingerprint, self.dimension = encoder.fingerprint, encoder.dimension
        self.parameters, self.folder = encoder.parameters, encoder.folder
        self._requests, self._documents = requests, documents

    @classmethod
    def of(
        cls,
        encoder: TextEncoder,
        texts: Iterable[str],
        tools: Sequence[Tool],
        cache: Path,
        progress: FitProgress | None = None,
    ) -> Self:
        """Of these requests and tools; what the cache, a store of vectors, does not have is encoded and put there."""
        distinct = list(dict.fromkeys(text[:_CHARS] for text in texts))
        requests: dict[str, Floats] = {}
        for start in range(0, len(distinct), _AT_ONCE):
            few = distinct[start : start + _AT_ONCE]
            requests.update(zip(few, request_vectors(few, encoder, cache), strict=True))
            if progress:
                progress("encoding requests", len(requests), len(distinct))
        made = cls(encoder, requests, {})
        made.add_documents(tools, cache)
        return made

    def take_documents(self, tools: Sequence[Tool], vectors: Mapping[str, Floats]) -> list[Tool]:
        """Take vectors that were made elsewhere, by the digests of their documents; the tools that have none."""
        known = [tool for tool in tools if tool.digest() in vectors]
        self._documents.update((tool.document(), vectors[tool.digest()]) for tool in known)
        return [tool for tool in tools if tool.digest() not in vectors]

    def add_documents(self, tools: Sequence[Tool], cache: Path) -> None:
        """Take the vectors of further tools in."""
        if tools:
            texts = [tool.document() for tool in tools]
            self._documents.update(zip(texts, tool_vectors(tools, self._encoder, cache), strict=True))

    def use_threads(self, threads: int) -> None:
        """As the encoder."""
        self._encoder.use_threads(threads)

    def encode_request(self, text: str) -> Floats:
        """The unit vector of one request."""
        known = self._requests.get(text[:_CHARS])
        return self._encoder.encode_request(text) if known is None else known

    def encode(self, texts: Sequence[str]) -> Floats:
        """Unit vectors of several requests."""
        if all(text[:_CHARS] in self._requests for text in texts):
            return np.stack([self._requests[text[:_CHARS]] for text in texts])
        return self._encoder.encode(texts)

    def encode_documents(self, texts: Sequence[str]) -> Iterator[tuple[Ints, Floats]]:
        """Unit vectors of documents."""
        known = [at for at, text in enumerate(texts) if text in self._documents]
        if known:
            yield np.array(known, dtype=np.int64), np.stack([self._documents[texts[at]] for at in known])
        rest = [at for at, text in enumerate(texts) if text not in self._documents]
        if rest:
            for positions, rows in self._encoder.encode_documents([texts[at] for at in rest]):
                yield np.array(rest, dtype=np.int64)[positions], rows
