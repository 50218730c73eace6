"""Hands a store's feedback to the retrievers that learn from use: each example once, whichever process wrote it.

Vectors of the requests are cached in the store as those of documents are, so that a store that is opened again does not
encode all its feedback again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np

from toolscout.core.answer import Example
from toolscout.core.arrays import Floats
from toolscout.errors import MissingEncoder, StoreError
from toolscout.retrievers.base import Embedded, Learner, Retriever, TextEncoder
from toolscout.stores.base import REQUEST_PREFIX, Store

_AT_ONCE = 512


class Feedback:
    """What one retriever over one store has learned: everything up to `cursor`."""

    def __init__(self, store: Store, retriever: Retriever) -> None:
        """Find out who learns; nothing is read where nobody does."""
        self._store = store
        self._learners = learners(retriever)
        self.cursor = 0

    def record(self, example: Example) -> None:
        """Keep an example. The vector goes first, so that no other process that follows has to make its own."""
        with suppress(MissingEncoder):
            for encoder in self._encoders():
                request_vectors(self._store, encoder, [example.request])
        self._store.add_feedback([example])

    def follow(self) -> None:
        """Learn what has been recorded since the last time. Without an encoder it is left for when there is one."""
        if not self._learners:
            return
        try:
            self._encoders()
        except MissingEncoder:
            return
        recorded = self._store.feedback(self.cursor)
        while batch := list(islice(recorded, _AT_ONCE)):
            examples = [example for _, example in batch]
            for learner in self._learners:
                encoder = learner.open_encoder() if isinstance(learner, Embedded) else None
                requests = [example.request for example in examples]
                learner.learn(examples, request_vectors(self._store, encoder, requests) if encoder else None)
            self.cursor = batch[-1][0]

    def _encoders(self) -> list[TextEncoder]:
        return [learner.open_encoder() for learner in self._learners if isinstance(learner, Embedded)]


def learners(retriever: Any) -> list[Learner]:
    """The retriever, or those of its parts, that learn from feedback."""
    if isinstance(retriever, Learner):
        return [retriever]
    return [learner for part in getattr(retriever, "parts", ()) for learner in learners(part)]


def request_key(request: str) -> str:
    """What a request's vector is cached under: never the digest of a document, which is encoded otherwise."""
    return REQUEST_PREFIX + hashlib.blake2b(request.encode(errors="replace"), digest_size=16).hexdigest()


def request_vectors(store: Store, encoder: TextEncoder, requests: Sequence[str]) -> dict[str, Floats]:
    """The vectors of requests, by their text: those that the store has, and the others encoded and stored."""
    keys = {request_key(request): request for request in requests}
    cached = store.vectors(encoder.fingerprint, list(keys))
    missing = [key for key in keys if key not in cached]
    if missing:
        texts = [keys[key] for key in missing]
        made = encoder.encode(texts) if len(texts) > 1 else np.stack([encoder.encode_request(texts[0])])
        with suppress(StoreError):  # a store that may not be written is only slower
            store.put_vectors(encoder.fingerprint, missing, made)
        cached |= dict(zip(missing, made, strict=True))
    return {text: cached[key] for key, text in keys.items()}
