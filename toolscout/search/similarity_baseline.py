"""The similarity baseline of a catalogue: the cosine that a request about something else reaches in it.

A similarity above the baseline begins to mean that a tool fits. It is measured by comparing some hundred requests about
anything at all (background.txt) with the catalogue, so it needs no labels and works for any catalogue and encoder:
among many tools something is always rather near, among few hardly anything.
"""

from __future__ import annotations

import hashlib
import threading
from contextlib import suppress
from functools import cache
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import numpy as np

from toolscout.core.answer import Allowed
from toolscout.core.arrays import Floats
from toolscout.core.scope import Scope
from toolscout.errors import EncoderUnavailable, MissingEncoder
from toolscout.index.recent import Recent, bytes_of
from toolscout.models.encoders.base import TextEncoder
from toolscout.models.encoders.settings import fitted_folder
from toolscout.retrievers.base import Retriever
from toolscout.search.feedback_sync import request_vectors
from toolscout.stores.base import Store

FILE = "background.npz"
# A catalogue may serve some of these requests, so a low quantile of their cosines is used.
QUANTILE = 0.1
# The baseline moves slowly: it is measured again when more than this share of what the caller sees has come or gone.
_SLACK = 0.05
# A baseline is one number, but a caller may be known by a large set of ids.
_CALLERS_KEPT, _CALLERS_BYTES = 4_096, 256 << 20
# Beyond so many tools fewer requests are compared, down to a fifth of them.
_ALL_UP_TO, _MOST_SKIPPED = 25_000, 5


class _Baseline(NamedTuple):
    changes: int  # of the retriever, when it was measured
    value: float | None


class SimilarityBaseline:
    """The baselines of one retriever over one store, each measured at its first use and kept for its caller."""

    def __init__(self, store: Store, retriever: Retriever) -> None:
        """Nothing is measured yet."""
        self._store = store
        self._retriever = retriever
        self._vectors: tuple[str, Floats] | None = None
        self._baselines: Recent[Allowed | None, _Baseline] = Recent(_CALLERS_KEPT, _CALLERS_BYTES)
        self._lock = threading.Lock()

    def baseline(self, allowed: Allowed | None, count: int) -> float | None:
        """The baseline among the `count` tools that a caller may see; None where no vectors are searched."""
        if not count:
            return None
        changes = self._retriever.changes()
        kept = self._baselines.get(allowed)
        if kept is not None and changes - kept.changes <= _SLACK * count:
            return kept.value
        # While one thread measures, the others use the previous value.
        if not self._lock.acquire(blocking=kept is None):
            return kept.value if kept else None
        try:
            measured = self._measure(allowed, count)
        except EncoderUnavailable:  # not kept: it may answer the next time
            return kept.value if kept else None
        else:
            self._baselines.keep(allowed, _Baseline(changes, measured), bytes_of(allowed))
            return measured
        finally:
            self._lock.release()

    def restore(self, baseline: float | None) -> None:
        """Use the baseline of the whole catalogue that was saved with an index snapshot."""
        if baseline is not None:
            self._baselines.keep(None, _Baseline(self._retriever.changes(), baseline))

    def forget(self) -> None:
        """Measure again where anybody asks: what is kept may be of an earlier state."""
        self._baselines.drop(lambda _: True)

    def prepare(self) -> None:
        """Encode the requests if that has not been done, so that no search has to wait for it."""
        with self._lock, suppress(EncoderUnavailable):
            if (encoder := self._retriever.encoder) is not None:
                self._encoded(encoder.patient())

    def _measure(self, allowed: Allowed | None, count: int) -> float | None:
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
    save(folder, encoder.fingerprint, encoder.encode(texts()))


def save(folder: Path, fingerprint: str, vectors: Floats) -> None:
    """Write the vectors of the requests by the encoder of this fingerprint."""
    halves = vectors.astype(np.float16)
    np.savez(folder / FILE, fingerprint=np.array(fingerprint), texts=np.array(_digest()), vectors=halves)


def _shipped(encoder: TextEncoder) -> Floats | None:
    """The vectors that `save` wrote, if they are of this encoder and of these requests; None otherwise."""
    for folder in (encoder.folder, fitted_folder(encoder.fingerprint)):
        if folder is None or not (folder / FILE).is_file():
            continue
        try:
            with np.load(folder / FILE) as file:
                if str(file["fingerprint"]) == encoder.fingerprint and str(file["texts"]) == _digest():
                    vectors: Floats = file["vectors"].astype(np.float32)
                    return vectors
        except (OSError, ValueError, KeyError):
            continue  # derived: it can be made again
    return None


def _digest() -> str:
    return hashlib.sha256("\n".join(texts()).encode()).hexdigest()
