"""An encoder with precomputed vectors: experiments that train and measure on the same texts encode them once."""

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
# Training truncates requests to this length too.
_CHARS = 4_000


class PrecomputedEncoder(TextEncoder):
    """Returns the precomputed vectors of known texts; other texts are encoded by the wrapped encoder."""

    def __init__(self, encoder: TextEncoder, requests: dict[str, Floats], documents: dict[str, Floats]) -> None:
        """Wrap `encoder`, with vectors of requests and documents by text; `of` computes these."""
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
        """Precompute the vectors of these requests and tools; those that the cache lacks are encoded and added."""
        distinct = list(dict.fromkeys(text[:_CHARS] for text in texts))
        requests: dict[str, Floats] = {}
        for start in range(0, len(distinct), _AT_ONCE):
            few = distinct[start : start + _AT_ONCE]
            requests.update(zip(few, request_vectors(few, encoder, cache), strict=True))
            if progress:
                progress("encoding requests", len(requests), len(distinct))
        precomputed = cls(encoder, requests, {})
        precomputed.add_documents(tools, cache)
        return precomputed

    def take_documents(self, tools: Sequence[Tool], vectors: Mapping[str, Floats]) -> list[Tool]:
        """Add vectors computed elsewhere, by document digest; return the tools without one."""
        known = [tool for tool in tools if tool.digest() in vectors]
        self._documents.update((tool.document(), vectors[tool.digest()]) for tool in known)
        return [tool for tool in tools if tool.digest() not in vectors]

    def add_documents(self, tools: Sequence[Tool], cache: Path) -> None:
        """Precompute the vectors of further tools, as `of` does."""
        if tools:
            texts = [tool.document() for tool in tools]
            self._documents.update(zip(texts, tool_vectors(tools, self._encoder, cache), strict=True))

    def use_threads(self, threads: int) -> None:
        """Set the number of threads of the wrapped encoder."""
        self._encoder.use_threads(threads)

    def encode_request(self, text: str) -> Floats:
        """Return the unit vector of one request."""
        known = self._requests.get(text[:_CHARS])
        return self._encoder.encode_request(text) if known is None else known

    def encode(self, texts: Sequence[str]) -> Floats:
        """Return the unit vectors of several requests."""
        if all(text[:_CHARS] in self._requests for text in texts):
            return np.stack([self._requests[text[:_CHARS]] for text in texts])
        return self._encoder.encode(texts)

    def encode_documents(self, texts: Sequence[str]) -> Iterator[tuple[Ints, Floats]]:
        """Yield the positions of some of the documents and their unit vectors, until all are encoded."""
        known = [at for at, text in enumerate(texts) if text in self._documents]
        if known:
            yield np.array(known, dtype=np.int64), np.stack([self._documents[texts[at]] for at in known])
        rest = [at for at, text in enumerate(texts) if text not in self._documents]
        if rest:
            for positions, rows in self._encoder.encode_documents([texts[at] for at in rest]):
                yield np.array(rest, dtype=np.int64)[positions], rows
