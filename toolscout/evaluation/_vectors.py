"""Keeps the vectors of evaluated documents in the user's cache, so that nothing is embedded twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import numpy as np

from toolscout.nn.encoder import encoders_folder
from toolscout.retrievers.base import Embedded, Retriever, TextEncoder
from toolscout.stores.base import Store
from toolscout.stores.sqlite import SqliteStore

_AT_ONCE = 10_000


def cache_path() -> Path:
    """The cache: a store that holds vectors and no tools."""
    return encoders_folder().parent / "vectors.db"


def encoder_of(retriever: Retriever) -> TextEncoder | None:
    """The encoder a retriever needs, None for one without; MissingEncoder where it needs one that is not there."""
    return retriever.open_encoder() if isinstance(retriever, Embedded) else None


@contextmanager
def cached_vectors(store: Store, fingerprint: str, digests: Iterable[str], cache: Path | None = None) -> Iterator[int]:
    """Lend a store the vectors that are known; how many they were. At the end of the block the cache has all of them.

    That is so too when the block fails: what was embedded until then is kept.
    """
    path = cache or cache_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    wanted = list(dict.fromkeys(digests))
    with SqliteStore(path) as known:
        lent = copy_vectors(known, store, fingerprint, wanted)
        try:
            yield lent
        finally:
            copy_vectors(store, known, fingerprint, wanted)


def copy_vectors(source: Store, target: Store, fingerprint: str, digests: Iterable[str]) -> int:
    """Copy those of these vectors that one store has and the other has not; how many the target has now."""
    remaining, found = iter(digests), 0
    while batch := list(islice(remaining, _AT_ONCE)):
        there = target.vectors(fingerprint, batch).keys()
        new = source.vectors(fingerprint, [digest for digest in batch if digest not in there])
        if new:
            target.put_vectors(fingerprint, list(new), np.stack(list(new.values())))
        found += len(there) + len(new)
    return found
