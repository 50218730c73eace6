"""centroid: a tool's vector is its document's, mixed with the mean of the requests that used it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from toolscout.core.answer import Example
from toolscout.core.arrays import Floats
from toolscout.core.model_files import UNREADABLE
from toolscout.core.tool import Searchable
from toolscout.data.dataset import request_digest
from toolscout.errors import BadModel
from toolscout.models.encoders.base import TextEncoder
from toolscout.retrievers.base import FitProgress, FitReport
from toolscout.retrievers.document_index import DocumentIndex, EncoderOptions
from toolscout.retrievers.encoded_requests import (
    DevRequests,
    Encoding,
    dev_recall,
    dev_requests,
    encode_dev,
    finish_fit,
    train_examples,
    vectors_of,
    with_digests,
)
from toolscout.retrievers.model_folder import read_model, read_options, write_model
from toolscout.retrievers.provenance import TrainedOn, TrainingSet

_SUMS = "sums.json"
_ABSENT_KEPT = 100_000
_TRIED_ALPHA = (0.0, 0.1, 0.3)
_TRIED_TAU = (3.0, 10.0, 30.0, 100.0, 300.0)


@dataclass(frozen=True, slots=True)
class CentroidOptions(EncoderOptions):
    """How a tool's vector is mixed: the mean of n requests has the share (1 - alpha) n / (n + tau).

    `alpha`: the document's share when there are many requests. `tau`: the number of requests at which their mean has
    half of its share. `share_feedback`: use the requests of tenants too; the mean is the same for all callers.
    """

    alpha: float = 0.1
    tau: float = 30.0
    share_feedback: bool = False

    def __post_init__(self) -> None:
        """Raise BadModel for values out of range."""
        if not 0 <= self.alpha <= 1 or self.tau < 0:
            raise BadModel(f"alpha must lie between 0 and 1 and tau be 0 or more, got {self}")


class Centroid(DocumentIndex):
    """A tool's vector moves with every request that used the tool; without requests it is its document's vector.

    Each distinct request counts once for a tool. A rejection only takes the request out of the mean again. What was
    learned for a removed tool is kept, and used again when a tool with the same id is added; a tool whose document
    changes keeps the mean of its requests.
    """

    name: ClassVar[str] = "centroid"
    trainable: ClassVar[bool] = True
    options: CentroidOptions

    def __init__(self, options: CentroidOptions | None = None, encoder: TextEncoder | None = None) -> None:
        """Start empty; the encoder is opened when it is first needed."""
        super().__init__(options or CentroidOptions(), encoder)
        self._sums: dict[str, Floats] = {}
        self._requests: dict[str, set[str]] = {}
        # The document vectors of the tools whose vector in the index is a mixed one.
        self._document_vectors: dict[str, Floats] = {}

    @property
    def learns(self) -> bool:
        """Always true: feedback moves the vectors of tools."""
        return True

    def learn(self, examples: Sequence[Example], vectors: Mapping[str, Floats] | None = None) -> None:
        """Add requests to the means of the tools they used."""
        if not self.options.share_feedback:
            examples = [example for example in examples if not example.tenant]
        if not examples:
            return
        rows = vectors_of(examples, vectors, self.encoder)
        with self._lock:
            changed: set[str] = set()
            for example, vector in zip(examples, rows, strict=True):
                if example.request.strip():
                    digest = request_digest(example.request)
                    changed.update(i for i in example.used if self._count(i, digest, vector, 1))
                    rejected = set(example.rejected).difference(example.used)
                    changed.update(i for i in rejected if self._count(i, digest, vector, -1))
            self._mix(changed)
            self._forget_absent()

    def _count(self, tool_id: str, digest: str, vector: Floats, sign: int) -> bool:
        """Add a request to a tool's mean (sign 1) or remove it (-1). Returns whether that changed anything."""
        requests = self._requests.get(tool_id, set())
        if (digest in requests) == (sign > 0):
            return False
        if tool_id not in self._requests:
            row = self._rows.row(tool_id)
            if row is not None:  # so far its row was its document's vector
                self._document_vectors[tool_id] = self._table.rows(np.array([row]))[0]
            self._requests[tool_id] = requests
            self._sums[tool_id] = np.zeros_like(vector)
        self._sums[tool_id] += sign * vector
        requests.symmetric_difference_update([digest])
        return True

    def _mix(self, ids: Iterable[str]) -> None:
        here = sorted(tool_id for tool_id in ids if tool_id in self._document_vectors)
        self._place({tool_id: self._mixed(tool_id) for tool_id in here})

    def _mixed(self, tool_id: str) -> Floats:
        document, count = self._document_vectors[tool_id], len(self._requests[tool_id])
        if not count:
            return document
        share = (1 - self.options.alpha) * count / (count + self.options.tau)
        mixed: Floats = (1 - share) * document + (share / count) * self._sums[tool_id]
        length = float(np.linalg.norm(mixed))
        return (mixed / length).astype(np.float32) if length > 0 else document

    def _tool_vector(self, tool: Searchable, document: Floats) -> Floats:
        if tool.id not in self._requests:
            return document
        self._document_vectors[tool.id] = document.astype(np.float16).astype(np.float32)
        return self._mixed(tool.id)

    def _forget_absent(self) -> None:
        """Drop the older half of the means of absent tools if they are too many: feedback may name any tool."""
        if len(self._requests) - len(self._document_vectors) > _ABSENT_KEPT:
            absent = [tool_id for tool_id in self._requests if tool_id not in self._document_vectors]
            for tool_id in absent[: len(absent) // 2]:
                del self._requests[tool_id], self._sums[tool_id]

    def learned(self) -> int:
        """How many distinct requests are in the means."""
        return len(self._digests())

    def _digests(self) -> frozenset[str]:
        return frozenset[str]().union(*self._requests.values())

    def remove(self, ids: Sequence[str]) -> None:
        """Remove tools; the means of their requests are kept."""
        with self._lock:
            super().remove(ids)
            for tool_id in ids:
                self._document_vectors.pop(tool_id, None)

    def fit(self, data: Sequence[TrainingSet], folder: Path, progress: FitProgress | None = None) -> FitReport:
        """Learn the train splits, and choose `alpha` and `tau` on the dev splits."""
        started = time.perf_counter()
        examples = train_examples(data)
        encoding = Encoding(self.encoder, folder, progress)
        self.remove(self.ids())
        self._sums, self._requests = {}, {}
        encoding.tools(self, data)
        self.learn(examples, encoding.requests(examples))
        dev_splits = dev_requests(data)
        dev = {"recall@5": self._choose(dev_splits, progress)} if dev_splits else {}
        return finish_fit(self, data, folder, encoding, started, len(self._sums), dev)

    def _choose(self, dev: Sequence[DevRequests], progress: FitProgress | None) -> float:
        """Set the `alpha` and `tau` with the highest dev recall@5, and return that recall."""
        encoded = encode_dev(self.encode, dev, progress)
        recalls: dict[tuple[float, float], float] = {}
        pairs = list(product(_TRIED_ALPHA, _TRIED_TAU))
        for pair in pairs:
            self._mix_by(*pair)
            recalls[pair] = dev_recall(self, encoded, dev)
            if progress:
                progress("choosing", len(recalls), len(pairs))
        best = max(recalls, key=lambda pair: (recalls[pair], pair))  # of equals, the one with more weight on documents
        self._mix_by(*best)
        return recalls[best]

    def _mix_by(self, alpha: float, tau: float) -> None:
        self.options = replace(self.options, alpha=alpha, tau=tau)
        self._mix(self._document_vectors)

    def save(self, folder: Path) -> None:
        """Write the sums of requests, the tools, and what was seen in training."""
        with self._lock:
            self._save_documents(folder)
            record = {
                "requests": {i: sorted(digests) for i, digests in self._requests.items()},
                "own": [*self._document_vectors],
            }
            (folder / _SUMS).write_text(json.dumps(record))
            np.save(folder / "sums.npy", _stacked(self._sums, np.float32))
            np.save(folder / "own.npy", _stacked(self._document_vectors, np.float16))
            with_digests(self.trained_on, self._digests()).save(folder)
            write_model(folder, self, encoder=self._fingerprint())

    @classmethod
    def load(cls, folder: Path, encoder: TextEncoder | None = None) -> Self:
        """Open a saved index; the encoder must be the one its vectors were made with."""
        model = read_model(folder)
        loaded = cls(read_options(CentroidOptions, model), encoder)
        loaded._load_documents(folder, model)
        try:
            record = json.loads((folder / _SUMS).read_text())
            loaded._requests = {tool_id: set(digests) for tool_id, digests in record["requests"].items()}
            loaded._sums = dict(zip(loaded._requests, np.load(folder / "sums.npy"), strict=True))
            own = np.load(folder / "own.npy").astype(np.float32)
            loaded._document_vectors = dict(zip(record["own"], own, strict=True))
        except UNREADABLE as error:
            raise BadModel(f"the requests in {folder} cannot be read ({error}); train the model again") from None
        loaded.trained_on, loaded.fit_record = TrainedOn.load(folder), model.get("fit")
        return loaded


def _stacked(vectors: Mapping[str, Floats], kind: type[np.floating[Any]]) -> NDArray[Any]:
    return np.array(list(vectors.values()), dtype=kind)
