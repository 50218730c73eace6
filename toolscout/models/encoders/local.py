"""What all encoders of this process share: a text is cut, tokenised and run alone, several texts in several threads."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from toolscout.core.arrays import Ints
from toolscout.errors import BadModel, BadVector
from toolscout.models.encoders.base import TextEncoder
from toolscout.models.encoders.short_documents import without_repeats

# Text has more than one token per this many characters; the rest of a long text is cut off before it is tokenised.
CHARS_PER_TOKEN = 12
# More threads than this do not make one short request faster.
REQUEST_THREADS = 4
# Texts in one unit of work, which take less than a second, so that a caller can commit often.
_CHUNK = 32

Vectors = NDArray[np.float32]
Batch = tuple[Ints, Vectors]


class LocalEncoder(TextEncoder):
    """An encoder that runs in this process. Safe to use from several threads at once.

    Every text is run alone: int8 activations are scaled by the largest value in a batch, so in a batch a vector would
    depend on the other texts. Several texts run in parallel threads instead. A subclass sets the attributes below in
    its constructor and writes `_vector_of`, and `_request_vector_of` where requests have a network of their own.
    """

    name: str
    kind: str
    file: str
    pooling: str
    request_tokens: int
    document_tokens: int
    request_prompt: str = ""
    document_prompt: str = ""
    short_documents: bool = False
    threads: int
    _tokenizer: Tokenizer

    @abstractmethod
    def _vector_of(self, ids: list[int], threads: int) -> Vectors:
        """The unit vector of a text's tokens, computed on this many threads."""

    def _request_vector_of(self, ids: list[int], threads: int) -> Vectors:
        """The unit vector of a request's tokens: by the network of documents, unless a subclass has another."""
        return self._vector_of(ids, threads)

    def use_threads(self, threads: int) -> None:
        """Set how many threads encode from now on; 1 is best where several requests are encoded at once."""
        if threads < 1:
            raise ValueError(f"threads must be 1 or more, got {threads}")
        self.threads = threads

    def encode_request(self, text: str) -> Vectors:
        """The unit vector of one request."""
        ids = self._tokens(self.request_prompt + text, self.request_tokens)
        return self._request_vector_of(ids, min(self.threads, REQUEST_THREADS))

    def encode(self, texts: Sequence[str]) -> Vectors:
        """The unit vectors of requests, one row each."""
        if len(texts) == 1:
            return self.encode_request(texts[0])[np.newaxis]
        vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        for positions, rows in self._stream(texts, self._encode_request):
            vectors[positions] = rows
        return vectors

    def encode_documents(self, texts: Sequence[str]) -> Iterator[Batch]:
        """Yield the unit vectors of documents in batches, as (positions in `texts`, vectors)."""
        return self._stream(texts, self._encode_document)

    def details(self) -> dict[str, Any]:
        """What the encoder is, beyond its length and fingerprint."""
        return {
            "name": self.name,
            "kind": self.kind,
            "file": self.file,
            "pooling": self.pooling,
            "request_prompt": self.request_prompt,
            "document_prompt": self.document_prompt,
            "request_tokens": self.request_tokens,
            "document_tokens": self.document_tokens,
        }

    def _check_prompts(self) -> None:
        """Raise BadModel where a prompt leaves no room for a text."""
        for kind in ("request", "document"):
            prompt, limit = getattr(self, f"{kind}_prompt"), getattr(self, f"{kind}_tokens")
            if prompt and len(self._tokens(prompt, limit)) >= limit:
                raise BadModel(f"the {kind}_prompt of {self.name} has {limit} tokens or more; raise {kind}_tokens")

    # With one thread a text is computed in the calling thread, so several that are encoded at once do not compete.

    def _encode_request(self, text: str) -> Vectors:
        return self._request_vector_of(self._tokens(self.request_prompt + text, self.request_tokens), 1)

    def _encode_document(self, text: str) -> Vectors:
        shown = without_repeats(text) if self.short_documents else text
        return self._vector_of(self._tokens(self.document_prompt + shown, self.document_tokens), 1)

    def _stream(self, texts: Sequence[str], encode: Callable[[str], Vectors]) -> Iterator[Batch]:
        def work(start: int) -> Batch:
            chunk = texts[start : start + _CHUNK]
            rows = np.stack([encode(text) for text in chunk])
            return np.arange(start, start + len(chunk), dtype=np.int64), rows

        if len(texts) <= _CHUNK:  # one unit of work needs no other thread
            if texts:
                yield work(0)
            return
        pool = ThreadPoolExecutor(self.threads, thread_name_prefix="toolscout-encoder")
        pending: deque[Future[Batch]] = deque()
        try:
            for start in range(0, len(texts), _CHUNK):
                pending.append(pool.submit(work, start))
                if len(pending) > 2 * self.threads:  # bounds the vectors that wait for the caller
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _tokens(self, text: str, limit: int) -> list[int]:
        """Token ids cut to the limit; the tokens that close every text, such as [SEP], are kept."""
        return cut(self._tokenizer.encode(readable(text, limit)), limit)


def cut(found: Encoding, limit: int) -> list[int]:
    """The token ids of a text cut to the limit; the tokens that close every text, such as [SEP], are kept."""
    ids: list[int] = found.ids
    if len(ids) <= limit:
        return ids
    closing = 0
    for added in reversed(found.special_tokens_mask):
        if not added or closing + 1 == limit:
            break
        closing += 1
    return [*ids[: limit - closing], *ids[len(ids) - closing :]]


def unit(vector: Vectors, whose: Path) -> Vectors:
    """The vector at length 1; raises BadVector where it has no direction."""
    length = float(np.linalg.norm(vector))
    if not 0 < length < math.inf:  # false for NaN
        raise BadVector(
            f"the encoder {whose.name} gave a vector that is zero or not finite: it is damaged, or overflows; get its "
            "folder again, or name another encoder"
        )
    scaled: Vectors = (vector / length).astype(np.float32, copy=False)
    return scaled


def readable(text: str, limit: int) -> str:
    """The part of a text that has its first `limit` tokens, as the tokeniser takes it."""
    # Lone surrogates are replaced, because the tokeniser would refuse the whole text.
    return text[: limit * CHARS_PER_TOKEN].encode(errors="replace").decode()
