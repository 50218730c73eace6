"""A cache of the vectors of tools and requests, in the user's cache folder, so that no text is encoded twice."""

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
from toolscout.models.encoders.settings import encoders_folder
from toolscout.retrievers.base import Retriever
from toolscout.search.progress import Progress
from toolscout.stores.base import Store
from toolscout.stores.sqlite.store import SqliteStore

_COPY_BATCH = 10_000
_ENCODE_BATCH = 512
_REPORT_EVERY = 1_024


def cache_path() -> Path:
    """Return the path of the cache, a store with vectors and without tools."""
    return encoders_folder().parent / "vectors.db"


def encoder_of(retriever: Retriever) -> TextEncoder | None:
    """Return a retriever's encoder, None where it needs none; raises MissingEncoder where it is not installed."""
    return retriever.encoder


@contextmanager
def cached_vectors(store: Store, fingerprint: str, digests: Iterable[str], cache: Path | None = None) -> Iterator[int]:
    """Copy cached vectors into a store and yield their number; at the end copy the store's vectors to the cache.

    They are copied to the cache even where the block fails.
    """
    wanted = list(dict.fromkeys(digests))
    with _open_cache(cache) as known:
        copied = copy_vectors(known, store, fingerprint, wanted)
        try:
            yield copied
        finally:
            copy_vectors(store, known, fingerprint, wanted)


def copy_vectors(source: Store, target: Store, fingerprint: str, digests: Iterable[str]) -> int:
    """Copy the vectors of `digests` that `target` lacks from `source`; return how many of them `target` has then."""
    remaining, found = iter(digests), 0
    while batch := list(islice(remaining, _COPY_BATCH)):
        there = target.vectors(fingerprint, batch).keys()
        new = source.vectors(fingerprint, [digest for digest in batch if digest not in there])
        if new:
            target.put_vectors(fingerprint, list(new), np.stack(list(new.values())))
        found += len(there) + len(new)
    return found


def request_vectors(texts: Sequence[str], encoder: TextEncoder, cache: Path | None = None) -> Floats:
    """Return the vectors of requests, a row for each; those that the cache lacks are encoded and added to it."""

    def key(text: str) -> str:
        # Documents and requests are truncated differently, so the same text may have two vectors.
        return hashlib.blake2b(b"request\0" + text.encode(errors="replace"), digest_size=16).hexdigest()

    keys = {key(text): text for text in texts}
    with _open_cache(cache) as store:
        found = _read_vectors(store, encoder.fingerprint, list(keys))
        missing = [one for one in keys if one not in found]
        for start in range(0, len(missing), _ENCODE_BATCH):
            batch = missing[start : start + _ENCODE_BATCH]
            rows = encoder.encode([keys[one] for one in batch])
            store.put_vectors(encoder.fingerprint, batch, rows)
            found |= dict(zip(batch, rows, strict=True))
    # The cache stores half precision; rounding here makes new vectors equal to cached ones.
    return np.stack([found[key(text)] for text in texts]).astype(np.float16).astype(np.float32)


def tool_vectors(
    tools: Sequence[Tool], encoder: TextEncoder, cache: Path | None = None, progress: Progress | None = None
) -> Floats:
    """Return the vectors of the tools' documents, a row for each; those that the cache lacks are encoded and added."""
    documents = {tool.digest(): tool.document() for tool in tools}
    with _open_cache(cache) as store:
        found = _read_vectors(store, encoder.fingerprint, list(documents))
        missing = [digest for digest in documents if digest not in found]
        done, due = 0, _REPORT_EVERY
        for positions, rows in encoder.encode_documents([documents[digest] for digest in missing]):
            batch = [missing[at] for at in positions]
            store.put_vectors(encoder.fingerprint, batch, rows)
            found |= dict(zip(batch, rows, strict=True))
            done += len(batch)
            if progress and (done >= due or done == len(missing)):
                progress("encoding documents", done, len(missing))
                due = done + _REPORT_EVERY
    return np.stack([found[tool.digest()] for tool in tools]).astype(np.float16).astype(np.float32)


def _open_cache(cache: Path | None) -> SqliteStore:
    path = cache or cache_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    return SqliteStore(path)


def _read_vectors(store: Store, fingerprint: str, digests: Sequence[str]) -> dict[str, Floats]:
    found: dict[str, Floats] = {}
    for start in range(0, len(digests), _COPY_BATCH):
        found |= store.vectors(fingerprint, digests[start : start + _COPY_BATCH])
    return found
