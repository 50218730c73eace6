"""Keeps the vectors of evaluated documents in the user's cache, so that nothing is embedded twice."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import numpy as np

from toolscout.core.arrays import Floats
from toolscout.core.tool import Tool
from toolscout.models.encoders.base import TextEncoder
from toolscout.models.encoders.onnx_encoder import encoders_folder
from toolscout.retrievers.base import Retriever
from toolscout.search.progress import Progress
from toolscout.stores.base import Store
from toolscout.stores.sqlite.store import SqliteStore

_AT_ONCE = 10_000
_ENCODED_AT_ONCE = 512
_REPORTED_AT_ONCE = 1_024


def cache_path() -> Path:
    """The cache: a store that holds vectors and no tools."""
    return encoders_folder().parent / "vectors.db"


def encoder_of(retriever: Retriever) -> TextEncoder | None:
    """The encoder a retriever needs, None for one without; MissingEncoder where it needs one that is not there."""
    return retriever.encoder


@contextmanager
def cached_vectors(store: Store, fingerprint: str, digests: Iterable[str], cache: Path | None = None) -> Iterator[int]:
    """Copy cached vectors into a store and give their number; at the end copy the store's vectors to the cache.

    This happens also when the block fails, so that nothing is embedded twice.
    """
    wanted = list(dict.fromkeys(digests))
    with _opened(cache) as known:
        lent = copy_vectors(known, store, fingerprint, wanted)
        try:
            yield lent
        finally:
            copy_vectors(store, known, fingerprint, wanted)


def copy_vectors(source: Store, target: Store, fingerprint: str, digests: Iterable[str]) -> int:
    """Copy the vectors that `target` lacks from `source`; return how many of these the target has now."""
    remaining, found = iter(digests), 0
    while batch := list(islice(remaining, _AT_ONCE)):
        there = target.vectors(fingerprint, batch).keys()
        new = source.vectors(fingerprint, [digest for digest in batch if digest not in there])
        if new:
            target.put_vectors(fingerprint, list(new), np.stack(list(new.values())))
        found += len(there) + len(new)
    return found


def request_vectors(texts: Sequence[str], encoder: TextEncoder, cache: Path | None = None) -> Floats:
    """The vectors of requests, one row each; the cache keeps them too, as they do not change."""

    def key(text: str) -> str:
        # Documents and requests are truncated differently, so the same text may have two vectors.
        return hashlib.blake2b(b"request\0" + text.encode(errors="replace"), digest_size=16).hexdigest()

    keys = {key(text): text for text in texts}
    with _opened(cache) as store:
        found = _known(store, encoder.fingerprint, list(keys))
        missing = [one for one in keys if one not in found]
        for start in range(0, len(missing), _ENCODED_AT_ONCE):
            batch = missing[start : start + _ENCODED_AT_ONCE]
            rows = encoder.encode([keys[one] for one in batch])
            store.put_vectors(encoder.fingerprint, batch, rows)
            found |= dict(zip(batch, rows, strict=True))
    # In half precision, as the cache keeps them, so that new and cached vectors are the same.
    return np.stack([found[key(text)] for text in texts]).astype(np.float16).astype(np.float32)


def tool_vectors(
    tools: Sequence[Tool], encoder: TextEncoder, cache: Path | None = None, progress: Progress | None = None
) -> Floats:
    """The vectors of the tools' documents, one row each, out of the cache where it has them."""
    documents = {tool.digest(): tool.document() for tool in tools}
    with _opened(cache) as store:
        found = _known(store, encoder.fingerprint, list(documents))
        missing = [digest for digest in documents if digest not in found]
        done, due = 0, _REPORTED_AT_ONCE
        for positions, rows in encoder.encode_documents([documents[digest] for digest in missing]):
            batch = [missing[at] for at in positions]
            store.put_vectors(encoder.fingerprint, batch, rows)
            found |= dict(zip(batch, rows, strict=True))
            done += len(batch)
            if progress and (done >= due or done == len(missing)):
                progress("encoding documents", done, len(missing))
                due = done + _REPORTED_AT_ONCE
    return np.stack([found[tool.digest()] for tool in tools]).astype(np.float16).astype(np.float32)


def _opened(cache: Path | None) -> SqliteStore:
    path = cache or cache_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    return SqliteStore(path)


def _known(store: Store, fingerprint: str, digests: Sequence[str]) -> dict[str, Floats]:
    found: dict[str, Floats] = {}
    for start in range(0, len(digests), _AT_ONCE):
        found |= store.vectors(fingerprint, digests[start : start + _AT_ONCE])
    return found
