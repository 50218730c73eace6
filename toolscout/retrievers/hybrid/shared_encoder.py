"""A cache in front of an encoder that several parts of a hybrid share."""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import numpy as np

from toolscout.core.arrays import Floats, Ints
from toolscout.models.encoders.base import TextEncoder

# How many request vectors are cached: about a dev split, which several parts rank in turn.
_RECENT = 2048


class SharedEncoder(TextEncoder):
    """One encoder for several parts of a hybrid: the same request, even from several threads, is encoded once."""

    def __init__(self, encoder: TextEncoder) -> None:
        """Wrap an encoder."""
        self._encoder = encoder
        self.fingerprint, self.remote = encoder.fingerprint, encoder.remote
        self.parameters, self.folder = encoder.parameters, encoder.folder
        self._recent: OrderedDict[str, Floats] = OrderedDict()
        self._making: dict[str, Future[Floats]] = {}
        self._lock, self._encoding = threading.Lock(), threading.Lock()

    @property
    def dimension(self) -> int:
        """The length of a vector."""
        return self._encoder.dimension

    @dimension.setter
    def dimension(self, value: int) -> None:
        self._encoder.dimension = value

    def patient(self) -> SharedEncoder:
        """The same encoder and cache, for work that nobody waits for."""
        if not self.remote:
            return self
        waiting = copy.copy(self)
        waiting._encoder, waiting._making, waiting._encoding = self._encoder.patient(), {}, threading.Lock()
        return waiting

    def encode_request(self, text: str) -> Floats:
        """The unit vector of one request; other threads that need the same one wait for it."""
        with self._lock:
            if text in self._recent:
                return self._recent[text]
            making = self._making.get(text)
            if making is None:
                mine = self._making[text] = Future[Floats]()
        if making is not None:
            return making.result()
        try:
            mine.set_result(self._encoder.encode_request(text))
        except BaseException as error:
            mine.set_exception(error)
        with self._lock:
            del self._making[text]
            if mine.exception() is None:
                self._keep([text], mine.result()[None])
        return mine.result()

    def encode(self, texts: Sequence[str]) -> Floats:
        """Unit vectors of several requests."""
        with self._encoding:  # one thread at a time, so that the others find what it has made
            with self._lock:
                known = {text: self._recent[text] for text in texts if text in self._recent}
            missing = list(dict.fromkeys(text for text in texts if text not in known))
            if missing and len(missing) <= _RECENT:
                vectors = self._encoder.encode(missing)
                known |= dict(zip(missing, vectors, strict=True))
                with self._lock:
                    self._keep(missing, vectors)
        if len(missing) > _RECENT:
            return self._encoder.encode(texts)
        return np.stack([known[text] for text in texts])

    def clear(self) -> None:
        """Empty the cache: the next request is encoded, even one that was encoded before."""
        with self._lock:
            self._recent.clear()

    def use_threads(self, threads: int) -> None:
        """Set the number of threads of the encoder."""
        self._encoder.use_threads(threads)

    def encode_documents(self, texts: Sequence[str]) -> Iterator[tuple[Ints, Floats]]:
        """Unit vectors of documents."""
        return self._encoder.encode_documents(texts)

    def _keep(self, texts: Sequence[str], vectors: Floats) -> None:
        self._recent.update(zip(texts, vectors, strict=True))
        while len(self._recent) > _RECENT:
            self._recent.popitem(last=False)
