"""Makes the vectors of documents on a cluster: the same bits as in one process, since each text is encoded alone."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np

from toolscout.core.arrays import Floats, Ints
from toolscout.distributed.cluster import Cluster
from toolscout.distributed.workers import Workers
from toolscout.errors import BadModel, BadRequest, MissingEncoder
from toolscout.models.encoders.base import TextEncoder
from toolscout.models.encoders.expanded import encode_documents
from toolscout.models.encoders.opening import open_encoder
from toolscout.models.encoders.settings import DEFAULT
from toolscout.search.embedding_claims import CLAIMED_AT_ONCE

# Texts that a worker encodes at a time: about a second of work, which is lost where it dies.
_TEXTS = 64
_BATCHES_A_WORKER = 16


class _Batch(NamedTuple):
    """Texts, and the place of the first among all."""

    start: int
    texts: Sequence[str]


class ClusterEncoding:
    """Encodes documents on the workers of a cluster; for `Scout.encode_documents`. Close it when done."""

    def __init__(self, cluster: Cluster, name: str | None, tell: Callable[[str], None] | None = None) -> None:
        """`name` opens the encoder on each worker; None: its folder does. Workers start when the first texts come."""
        self._cluster, self._name, self._tell = cluster, name, tell
        self._workers: Workers[_Batch, Floats] | None = None
        self._fingerprint = ""

    @property
    def claimed_at_once(self) -> int:
        """How many texts keep all workers busy for a while."""
        return max(CLAIMED_AT_ONCE, _BATCHES_A_WORKER * _TEXTS * self._cluster.cpus())

    def __call__(self, encoder: TextEncoder, texts: Sequence[str]) -> Iterator[tuple[Ints, Floats]]:
        """Yield unit vectors as models.encoders.expanded.encode_documents does, batch by batch as they are done.

        Raises BadRequest for an encoder that other processes cannot open, BadModel where a worker opens another one.
        """
        if not texts:
            return
        if self._workers is None or self._fingerprint != encoder.fingerprint:
            self.close()
            opening = partial(_opened, self._place(encoder), encoder.fingerprint)
            self._workers, self._fingerprint = Workers(self._cluster, opening, self._tell), encoder.fingerprint
        batches = (_Batch(start, texts[start : start + _TEXTS]) for start in range(0, len(texts), _TEXTS))
        for batch, vectors in self._workers.results(batches):
            yield np.arange(batch.start, batch.start + len(batch.texts), dtype=np.int64), vectors

    def close(self) -> None:
        """Stop the workers."""
        if self._workers is not None:
            self._workers.close()
            self._workers = None

    def __enter__(self) -> Self:
        """Return the encoding itself, closed at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def _place(self, encoder: TextEncoder) -> str:
        if encoder.remote:
            raise BadRequest("the encoder is an endpoint, which one process asks; leave --ray out")
        if self._name is not None:
            return self._name or DEFAULT
        if encoder.folder is None:
            raise BadRequest("this encoder has no folder that other processes could open; leave --ray out")
        return str(encoder.folder)


def _opened(place: str, fingerprint: str) -> Callable[[_Batch], Floats]:
    """Open the encoder on a worker, and return what makes the vectors of a batch with it."""
    host = socket.gethostname()
    try:
        encoder = open_encoder(place, threads=1)
    except (MissingEncoder, BadModel) as error:
        raise BadModel(f"the worker on {host} cannot open the encoder: {error}") from None
    if encoder.fingerprint != fingerprint:
        raise BadModel(
            f"the encoder {place} of the worker on {host} is another one than here; have all machines of the cluster "
            "read the same folder, and the same version of toolscout"
        )

    def vectors_of(batch: _Batch) -> Floats:
        found = np.empty((len(batch.texts), encoder.dimension), dtype=np.float32)
        for positions, vectors in encode_documents(encoder, batch.texts):
            found[positions] = vectors
        return found

    return vectors_of
