"""Hands the feedback in a store to a retriever that learns from it: each example once, whichever process wrote it.

Vectors of the requests are cached in the store as those of documents are, so that a store that is opened again does not
encode all its feedback again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice

import numpy as np

from toolscout.core.answer import Example
from toolscout.core.arrays import Floats
from toolscout.errors import MissingEncoder, StoreError
from toolscout.models.encoders.base import TextEncoder
from toolscout.retrievers.base import Retriever
from toolscout.stores.base import REQUEST_PREFIX, Store

_AT_ONCE = 512


class Feedback:
    """What one retriever over one store has learned: everything up to `cursor`."""

    def __init__(self, store: Store, retriever: Retriever) -> None:
        """Nothing is read where the retriever does not learn."""
        self._store, self._retriever = store, retriever
        self.cursor = 0

    def record(self, example: Example) -> None:
        """Store an example; its vector first, so that no other process has to encode it."""
        with suppress(MissingEncoder):
            if self._retriever.learns and (encoder := self._retriever.encoder) is not None:
                request_vectors(self._store, encoder, [example.request])
        self._store.add_feedback([example])

    def follow(self) -> None:
        """Learn what was recorded since the last call. Without an encoder, that is put off until there is one."""
        if not self._retriever.learns:
            return
        try:
            encoder = self._retriever.encoder
        except MissingEncoder:
            return
        recorded = self._store.feedback(self.cursor)
        while batch := list(islice(recorded, _AT_ONCE)):
            examples = [example for _, example in batch]
            requests = [example.request for example in examples]
            try:
                vectors = request_vectors(self._store, encoder, requests) if encoder else None
            except MissingEncoder:  # its endpoint does not answer
                return
            self._retriever.learn(examples, vectors)
            self.cursor = batch[-1][0]


def request_key(request: str) -> str:
    """The cache key of a request's vector; it differs from the digest of a document with the same text."""
    return REQUEST_PREFIX + hashlib.blake2b(request.encode(errors="replace"), digest_size=16).hexdigest()


def request_vectors(store: Store, encoder: TextEncoder, requests: Sequence[str]) -> dict[str, Floats]:
    """The vectors of requests, by their text: those that the store has, and the others encoded and stored."""
    keys = {request_key(request): request for request in requests}
    cached = store.vectors(encoder.fingerprint, list(keys))
    missing = [key for key in keys if key not in cached]
    if missing:
        texts = [keys[key] for key in missing]
        made = encoder.encode(texts) if len(texts) > 1 else np.stack([encoder.encode_request(texts[0])])
        with suppress(StoreError):  # with a read-only store it is only slower
            store.put_vectors(encoder.fingerprint, missing, made)
        cached |= dict(zip(missing, made, strict=True))
    return {text: cached[key] for key, text in keys.items()}
