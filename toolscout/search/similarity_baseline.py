"""What a request about something else scores in a catalogue: the level above which similarity begins to mean a fit.

Some hundred requests about anything at all (background.txt) are compared with the catalogue. No labels are needed, and
it works for any catalogue and any encoder: among many tools something is always rather near, among few hardly anything.
"""

from __future__ import annotations

import hashlib
import threading
from functools import cache
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import numpy as np

from toolscout.core.answer import Allowed
from toolscout.core.arrays import Floats
from toolscout.core.scope import Scope
from toolscout.errors import MissingEncoder
from toolscout.index.recent import Recent, bytes_of
from toolscout.models.encoders.base import TextEncoder
from toolscout.retrievers.base import Retriever
from toolscout.search.feedback_sync import request_vectors
from toolscout.stores.base import Store

FILE = "background.npz"
# A catalogue may well serve some of these requests, so the null is what the least served of them score.
QUANTILE = 0.1
# The level moves slowly: it is found again when more than this share of what the caller sees has come or gone.
_SLACK = 0.05
# A level is one number, but a caller may be known by a large set of ids.
_CALLERS_KEPT, _CALLERS_BYTES = 4_096, 256 << 20
# Beyond so many tools fewer requests are compared, down to a fifth of them.
_ALL_UP_TO, _MOST_SKIPPED = 25_000, 5


class _Level(NamedTuple):
    moved: int
    level: float | None


class Background:
    """The levels of one retriever over one store, found when they are first asked for and kept for each caller."""

    def __init__(self, store: Store, retriever: Retriever) -> None:
        """Nothing is compared yet."""
        self._store = store
        self._retriever = retriever
        self._vectors: tuple[str, Floats] | None = None
        self._levels: Recent[Allowed | None, _Level] = Recent(_CALLERS_KEPT, _CALLERS_BYTES)
        self._lock = threading.Lock()

    def level(self, allowed: Allowed | None, count: int) -> float | None:
        """The level among the tools that a caller may see, `count` of them; None where no vectors are searched."""
        if not count:
            return None
        moved = self._retriever.changes()
        kept = self._levels.get(allowed)
        if kept is not None and moved - kept.moved <= _SLACK * count:
            return kept.level
        # While one thread looks, the others go on with what was true a moment ago.
        if not self._lock.acquire(blocking=kept is None):
            return kept.level if kept else None
        try:
            level = self._find(allowed, count)
            self._levels.keep(allowed, _Level(moved, level), bytes_of(allowed))
            return level
        finally:
            self._lock.release()

    def take_up(self, level: float | None) -> None:
        """Go on from the level of the whole catalogue that was found when the index was kept."""
        if level is not None:
            self._levels.keep(None, _Level(self._retriever.changes(), level))

    def prepare(self) -> None:
        """Encode the requests where that has not been done, so that no search has to wait for it."""
        with self._lock:
            if (encoder := self._retriever.encoder) is not None:
                self._encoded(encoder)

    def _find(self, allowed: Allowed | None, count: int) -> float | None:
        try:
            encoder = self._retriever.encoder
        except MissingEncoder:
            return None
        if encoder is None:
            return None
        vectors = self._encoded(encoder)
        skipped = min(-(-count // _ALL_UP_TO), _MOST_SKIPPED)
        cosines = self._retriever.best_similarities(vectors[::skipped], Scope(allowed))
        # Rounded: products added up in another order must not tell one caller from another.
        return round(float(np.quantile(cosines, QUANTILE)), 4) if len(cosines) else None

    def _encoded(self, encoder: TextEncoder) -> Floats:
        """The vectors of the requests: those that came with the encoder, else the store's, else made now."""
        fingerprint = encoder.fingerprint
        if self._vectors is None or self._vectors[0] != fingerprint:
            vectors = _shipped(encoder)
            if vectors is None:
                known = request_vectors(self._store, encoder, texts())
                rows = np.stack([known[text] for text in texts()])
                vectors = rows.astype(np.float16).astype(np.float32)  # as the store gives them back the next time
            self._vectors = (fingerprint, vectors)
        return self._vectors[1]


@cache
def texts() -> tuple[str, ...]:
    """The requests, all different."""
    found = (resources.files("toolscout.search") / "background.txt").read_text(encoding="utf-8").splitlines()
    return tuple(dict.fromkeys(filter(None, map(str.strip, found))))


def ship(encoder: TextEncoder, folder: Path) -> None:
    """Put the vectors of the requests beside an encoder's files, so that no store has to make them."""
    vectors = encoder.encode(texts()).astype(np.float16)
    np.savez(folder / FILE, fingerprint=np.array(encoder.fingerprint), texts=np.array(_digest()), vectors=vectors)


def _shipped(encoder: TextEncoder) -> Floats | None:
    """What ship left, if it is of this encoder and of these requests."""
    folder = encoder.folder
    if folder is None or not (folder / FILE).is_file():
        return None
    try:
        with np.load(folder / FILE) as file:
            if str(file["fingerprint"]) != encoder.fingerprint or str(file["texts"]) != _digest():
                return None
            vectors: Floats = file["vectors"].astype(np.float32)
    except (OSError, ValueError, KeyError):
        return None  # derived: it can be made again
    return vectors


def _digest() -> str:
    return hashlib.sha256("\n".join(texts()).encode()).hexdigest()
