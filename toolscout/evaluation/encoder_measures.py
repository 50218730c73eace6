"""What an encoder costs on this machine, and how well it alone finds the tools of the bundled benchmark."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from toolscout.core.arrays import Floats
from toolscout.data import metrics
from toolscout.data.dataset import Dataset
from toolscout.data.locate import find_dataset
from toolscout.evaluation import leakage
from toolscout.models.encoders.base import TextEncoder
from toolscout.search.progress import Progress

SPLIT = "test"
# What `cost` encodes: enough for a figure within seconds, also of a large model.
_REQUESTS, _DOCUMENTS = 20, 64
# A vector of the index: each number in single precision, and a copy in one byte.
_BYTES_A_NUMBER = 5


class EncoderCost(NamedTuple):
    """The median of milliseconds a request, and seconds for 1,000 documents."""

    request_ms: float
    documents_s: float


class EncoderScores(NamedTuple):
    """The cost, and the recall among the first and the first five tools, with vectors alone."""

    cost: EncoderCost
    recall_1: float
    recall_5: float


def benchmark() -> Dataset:
    """The bundled benchmark with the split that is measured."""
    return Dataset.load(find_dataset("bundled"), [SPLIT])


def vector_bytes(dimension: int, tools: int) -> int:
    """The memory that an index takes for the vectors of so many tools."""
    return _BYTES_A_NUMBER * dimension * tools


def cost(encoder: TextEncoder) -> EncoderCost:
    """Encode some requests and documents of the bundled benchmark, and return what one took."""
    data = benchmark()
    encoder = encoder.patient()
    _, request_ms = _requests(encoder, [text for _, text in data.split(SPLIT).requests[:_REQUESTS]])
    _, documents_s = _documents(encoder, [tool.document() for tool in data.tools[:_DOCUMENTS]])
    return EncoderCost(request_ms, documents_s)


def score(encoder: TextEncoder, progress: Progress | None = None) -> EncoderScores:
    """Rank all tools of the bundled benchmark for each of its test requests, by vectors alone.

    Raises Leak where the encoder was trained on those requests.
    """
    data = benchmark()
    leakage.refuse_seen(data, SPLIT, leakage.encoder_history(encoder))
    split, ids = data.split(SPLIT), [tool.id for tool in data.tools]
    encoder = encoder.patient()
    requests, request_ms = _requests(encoder, [text for _, text in split.requests])
    documents, documents_s = _documents(encoder, [tool.document() for tool in data.tools], progress)
    best = np.argsort(-(requests @ documents.T), axis=1, kind="stable")[:, :5]
    found = metrics.evaluate([[ids[at] for at in row] for row in best], split.gold, ["recall@1", "recall@5"])
    return EncoderScores(EncoderCost(request_ms, documents_s), found["recall@1"], found["recall@5"])


def _requests(encoder: TextEncoder, texts: Sequence[str]) -> tuple[Floats, float]:
    """The vectors of requests, encoded one after the other, and the median of milliseconds."""
    encoder.encode_request(texts[0])  # the first one opens the model
    vectors, times = [], []
    for text in texts:
        started = time.perf_counter()
        vectors.append(encoder.encode_request(text))
        times.append(time.perf_counter() - started)
    return np.stack(vectors), 1000 * float(np.median(times))


def _documents(encoder: TextEncoder, texts: Sequence[str], progress: Progress | None = None) -> tuple[Floats, float]:
    """The vectors of documents, and the seconds for 1,000 of them."""
    for _ in encoder.encode_documents(texts[:1]):
        pass
    vectors, done, started = np.empty((len(texts), encoder.dimension), np.float32), 0, time.perf_counter()
    for positions, rows in encoder.encode_documents(texts):
        vectors[positions] = rows
        done += len(positions)
        if progress:
            progress("encoding documents", done, len(texts))
    return vectors, 1000 * (time.perf_counter() - started) / len(texts)
