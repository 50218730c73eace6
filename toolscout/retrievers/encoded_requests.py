"""Helpers for methods that learn from labelled requests: encode them once, and measure recall on dev."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from toolscout.core.answer import Allowed, Example
from toolscout.core.arrays import Floats
from toolscout.core.scope import Scope
from toolscout.core.tool import Searchable
from toolscout.data import metrics
from toolscout.data.dataset import Split
from toolscout.index.feedback_pool import MAX_REQUEST_CHARS
from toolscout.models.encoders.base import TextEncoder
from toolscout.retrievers.base import FitProgress, FitReport, Pairs, Retriever
from toolscout.retrievers.document_index import DocumentIndex
from toolscout.retrievers.provenance import SeenSplit, TrainedOn, TrainingSet

_FOLDER = "encoded"
_CHUNK = 512
DEV_K = 5
_DEV_MOST = 2_000  # most requests of a dev split that a number is chosen on


def vectors_of(examples: Sequence[Example], given: Mapping[str, Floats] | None, encoder: TextEncoder) -> Floats:
    """A vector for each example's request, rounded to half precision as in a store; missing ones are encoded."""
    known = dict(given or {})
    missing = list({example.request: None for example in examples if example.request not in known})
    if missing:
        texts = [text[:MAX_REQUEST_CHARS] for text in missing]
        encoded = encoder.encode(texts) if len(texts) > 1 else [encoder.encode_request(texts[0])]
        known.update(zip(missing, encoded, strict=True))
    return np.stack([known[example.request] for example in examples]).astype(np.float16).astype(np.float32)


def train_examples(data: Sequence[TrainingSet]) -> list[Example]:
    """The requests of the train splits with their gold tools, their dataset as source, all with the same time."""
    examples, now = [], datetime.now(UTC)
    for one in data:
        split = one.dataset.split(one.train)
        for (_, text), gold in zip(split.requests, split.gold, strict=True):
            examples.append(Example(text, used=gold, source=one.dataset.name, time=now))
    return examples


@dataclass(frozen=True, slots=True)
class DevRequests:
    """Requests of a dev split, their gold tools, and a scope of the tools of their dataset."""

    texts: list[str]
    gold: list[tuple[str, ...]]
    scope: Scope

    def recall(self, ranked: Sequence[Pairs]) -> float:
        """The recall@5 of rankings of these requests."""
        rankings = [[tool_id for tool_id, _ in pairs] for pairs in ranked]
        return metrics.evaluate(rankings, self.gold, [f"recall@{DEV_K}"])[f"recall@{DEV_K}"]


def dev_sample(split: Split) -> Split:
    """A dev split, or a sample of it if it is large."""
    few = slice(None, None, max(1, -(-len(split) // _DEV_MOST)))
    return Split(split.name, split.requests[few], split.gold[few])


def dev_requests(data: Sequence[TrainingSet]) -> list[DevRequests]:
    """The requests of the dev splits. Datasets with the same tools share one Scope, which an index caches."""
    found, shared = [], dict[frozenset[str], Scope]()
    for one in data:
        if one.dev:
            split = dev_sample(one.dataset.split(one.dev))
            ids = frozenset(tool.id for tool in one.dataset.tools)
            scope = shared.setdefault(ids, Scope(Allowed(ids=ids)))
            found.append(DevRequests([text for _, text in split.requests], split.gold, scope))
    return found


def encode_dev(
    encode: Callable[[Sequence[str]], Floats], dev: Sequence[DevRequests], progress: FitProgress | None
) -> dict[str, Floats]:
    """The vectors of all dev requests, by text."""
    texts = list(dict.fromkeys(text for one in dev for text in one.texts))
    encoded: dict[str, Floats] = {}
    for start in range(0, len(texts), _CHUNK):
        few = texts[start : start + _CHUNK]
        encoded |= dict(zip(few, encode(few), strict=True))
        if progress:
            progress("encoding dev requests", len(encoded), len(texts))
    return encoded


def dev_recall(retriever: DocumentIndex, encoded: Mapping[str, Floats], dev: Sequence[DevRequests]) -> float:
    """Mean recall@5 over the dev splits, each among the tools of its own dataset."""
    recalls = []
    for one in dev:
        vectors = np.stack([encoded[text] for text in one.texts])
        rankings = retriever.rank_encoded(one.texts, vectors, DEV_K, one.scope)
        recalls.append(one.recall([ranking.pairs for ranking in rankings]))
    return float(np.mean(recalls))


class Encoding:
    """Encodes the texts of a fit, and caches the vectors in the model's folder until the fit is complete."""

    def __init__(self, encoder: TextEncoder, folder: Path, progress: FitProgress | None) -> None:
        """Create the cache in the model folder."""
        self._encoder = encoder
        self._folder = folder / _FOLDER
        self._progress = progress
        self._folder.mkdir(parents=True, exist_ok=True)

    def requests(self, examples: Sequence[Example]) -> dict[str, Floats]:
        """The vectors of the examples' requests, by their text."""
        texts = list({example.request: None for example in examples})
        cut = [text[:MAX_REQUEST_CHARS] for text in texts]
        return dict(zip(texts, self._encoded("requests", cut, self._encoder.encode), strict=True))

    def tools(self, retriever: Retriever, data: Sequence[TrainingSet]) -> None:
        """Add the tools of all sets to a retriever."""
        tools = {tool.id: tool for one in data for tool in one.dataset.tools}
        retriever.add(list(tools.values()), self.documents(list(tools.values())))

    def documents(self, tools: Sequence[Searchable]) -> dict[str, Floats]:
        """The vectors of the tools' documents, by their digest."""
        texts = {tool.digest(): tool.document() for tool in tools}
        return dict(zip(texts, self._encoded("documents", list(texts.values()), self._documents), strict=True))

    def done(self) -> None:
        """Remove the cache: the model is complete."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _documents(self, texts: Sequence[str]) -> Floats:
        vectors = np.empty((len(texts), self._encoder.dimension), dtype=np.float32)
        for positions, rows in self._encoder.encode_documents(texts):
            vectors[positions] = rows
        return vectors

    def _encoded(self, what: str, texts: Sequence[str], encode: Callable[[Sequence[str]], Floats]) -> list[Floats]:
        found: list[Floats] = []
        for start in range(0, len(texts), _CHUNK):
            chunk = texts[start : start + _CHUNK]
            key = hashlib.blake2b("\0".join([what, self._encoder.fingerprint, *chunk]).encode(errors="replace"))
            path = self._folder / f"{key.hexdigest()[:32]}.npy"
            if not path.exists():
                partial = path.with_suffix(f".{os.getpid()}")
                with partial.open("wb") as stream:
                    np.save(stream, encode(chunk).astype(np.float16))
                partial.replace(path)
            found.extend(np.load(path).astype(np.float32))
            if self._progress:
                self._progress(f"encoding {what}", len(found), len(texts))
        return found


def finish_fit(
    index: DocumentIndex,
    data: Sequence[TrainingSet],
    folder: Path,
    encoding: Encoding,
    started: float,
    vectors: int,
    dev: Mapping[str, float],
) -> FitReport:
    """Save an index that learned so many vectors on the CPU since `started`, and remove the cache of its fit."""
    report = FitReport(time.perf_counter() - started, "cpu", vectors * index.encoder.dimension, dev)
    index.trained_on, index.fit_record = TrainedOn.of(data), asdict(report)
    index.save(folder)
    encoding.done()
    return report


def with_digests(seen: TrainedOn, digests: Collection[str]) -> TrainedOn:
    """`seen` plus requests learned as feedback: a split that holds one of them may not evaluate the model."""
    known = frozenset[str]().union(*(split.requests for split in seen.splits))
    learned = frozenset(digests) - known
    return seen | TrainedOn((SeenSplit("feedback", "", "feedback", "train", learned),)) if learned else seen
