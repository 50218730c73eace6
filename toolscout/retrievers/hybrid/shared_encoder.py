"""A cache in front of an encoder that several parts of a hybrid share."""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
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
        self._lock = threading.Lock()

    @property
    def document_fingerprint(self) -> str:
        """What makes the vectors of documents."""
        return self._encoder.document_fingerprint

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
        waiting._encoder, waiting._making = self._encoder.patient(), {}
        return waiting

    def encode_request(self, text: str) -> Floats:
        """The unit vector of one request; other threads that need the same one wait for it."""
        vector: Floats = self._encoded([text], lambda texts: self._encoder.encode_request(texts[0])[None])[0]
        return vector

    def encode(self, texts: Sequence[str]) -> Floats:
        """Unit vectors of several requests; those that another thread is encoding are waited for."""
        if len(texts) > _RECENT:
            return self._encoder.encode(texts)
        return self._encoded(texts, self._encoder.encode)

    def _encoded(self, texts: Sequence[str], encode: Callable[[Sequence[str]], Floats]) -> Floats:
        """The vectors of texts, of which `encode` makes those that are neither cached nor being made."""
        known: dict[str, Floats] = {}
        mine, others = dict[str, Future[Floats]](), dict[str, Future[Floats]]()
        with self._lock:
            for text in dict.fromkeys(texts):
                if text in self._recent:
                    known[text] = self._recent[text]
                elif text in self._making:
                    others[text] = self._making[text]
                else:
                    mine[text] = self._making[text] = Future[Floats]()
        if mine:
            known |= self._make(mine, encode)
        known |= {text: making.result() for text, making in others.items()}
        return np.stack([known[text] for text in texts])

    def _make(
        self, making: Mapping[str, Future[Floats]], encode: Callable[[Sequence[str]], Floats]
    ) -> dict[str, Floats]:
        """Encode texts that no other thread is encoding, and hand the vectors, or the error, to those that wait."""
        try:
            made = dict(zip(making, encode(list(making)), strict=True))
        except BaseException as error:
            with self._lock:
                for text in making:
                    del self._making[text]
            for waited in making.values():
                waited.set_exception(error)
            raise
        with self._lock:
            for text in making:
                del self._making[text]
            self._keep(made)
        for text, waited in making.items():
            waited.set_result(made[text])
        return made

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

    def _keep(self, vectors: Mapping[str, Floats]) -> None:
        self._recent.update(vectors)
        while len(self._recent) > _RECENT:
            self._recent.popitem(last=False)
