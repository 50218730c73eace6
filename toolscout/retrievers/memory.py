"""memory: ranks by document similarity plus the votes of the nearest past requests for the tools they used."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

import numpy as np

from toolscout.core.answer import Allowed, Example, Reason
from toolscout.core.arrays import Floats
from toolscout.core.scope import Scope
from toolscout.errors import BadModel
from toolscout.index.feedback_pool import Entry, votes
from toolscout.index.tenant_pools import RecalledRequests, TenantPools, with_past
from toolscout.models.encoders.base import TextEncoder
from toolscout.retrievers.base import FitProgress, FitReport, Pairs, Ranking
from toolscout.retrievers.document_index import DocumentIndex, EncoderOptions
from toolscout.retrievers.encoded_requests import (
    DEV_K,
    DevRequests,
    Encoding,
    dev_requests,
    encode_dev,
    finish_fit,
    train_examples,
    vectors_of,
    with_digests,
)
from toolscout.retrievers.model_folder import read_model, read_options, write_model
from toolscout.retrievers.provenance import TrainedOn, TrainingSet

# Neighbours with a smaller weight are ignored.
_LEAST_WEIGHT = 0.01
_TRIED_VOTES = (0.3, 0.6, 1.0, 1.5, 2.5)
_REQUESTS = "requests"


@dataclass(frozen=True, slots=True)
class MemoryOptions(EncoderOptions):
    """How past requests count.

    neighbours: how many past requests vote.
    power: the exponent of the cosine in a neighbour's weight.
    votes: the weight of the votes beside the cosine of a tool's document.
    share: the most of the neighbours that may come from one source, where other sources have some too.
    half_life: days after which the weight of a request is halved.
    keep: how many requests are stored, for everybody and for each tenant.
    share_feedback: whether tenants use each other's requests.
    """

    neighbours: int = 20
    power: float = 3.0
    votes: float = 1.0
    share: float = 0.5
    half_life: float = 180.0
    keep: int = 100_000
    share_feedback: bool = False

    def __post_init__(self) -> None:
        """Raise BadModel for values out of range."""
        positive = min(self.neighbours, self.keep) >= 1 and min(self.power, self.half_life) > 0
        if not positive or self.votes < 0 or not 0 < self.share <= 1:
            raise BadModel(
                f"neighbours and keep must be at least 1, power and half_life above 0, votes 0 or more, share above 0 "
                f"and at most 1, got {self}"
            )


class Memory(DocumentIndex):
    """A tool's score is the cosine of its document plus what the nearest past requests say of it (see `votes`).

    Distant neighbours have no weight: a request unlike all past ones is a plain search over documents, and a tool that
    was never used has its document's score. Feedback is stored and used at once, without training.

    Only tools in the index get votes, and a past request of removed tools alone is no neighbour; it counts again when
    a tool with the same id is added. The age of a request is measured from the newest request, not from now, so that
    the same search gives the same result tomorrow.
    """

    name: ClassVar[str] = "memory"
    trainable: ClassVar[bool] = True
    options: MemoryOptions

    def __init__(self, options: MemoryOptions | None = None, encoder: TextEncoder | None = None) -> None:
        """Start empty; the encoder is opened when it is first needed."""
        super().__init__(options or MemoryOptions(), encoder)
        self._pools = TenantPools(self.options.keep, self.options.share_feedback)

    @property
    def learns(self) -> bool:
        """Always true: feedback is stored and votes."""
        return True

    def learn(self, examples: Sequence[Example], vectors: Mapping[str, Floats] | None = None) -> None:
        """Store which tools requests used and rejected."""
        if examples:
            rows = vectors_of(examples, vectors, self.encoder)
            with self._lock:
                self._pools.add(examples, rows)

    def learned(self) -> int:
        """How many requests are stored."""
        return len(self._pools)

    def _evidence(self, vector: Floats, scope: Scope) -> RecalledRequests:
        options = self.options
        least = _LEAST_WEIGHT ** (1 / options.power)
        pool = self._pools.pools_for(scope.tenant)
        return RecalledRequests(
            pool.nearest(vector, options.neighbours, options.share, least, self._has_live_tool),
            pool.newest,
            scope.tenant,
        )

    def _has_live_tool(self, entry: Entry) -> bool:
        return any(tool_id in self._rows for tool_id in entry.tools)

    def _bonuses(
        self, vector: Floats, evidence: RecalledRequests, k: int, allowed: Allowed | None, named: Sequence[str]
    ) -> Mapping[str, float]:
        vote_of = votes(evidence.neighbours, evidence.newest, self.options.power, self.options.half_life)
        return {tool_id: self.options.votes * vote for tool_id, vote in vote_of.items()}

    def explain(self, ranking: Ranking, ids: Sequence[str]) -> list[tuple[Reason, ...]]:
        """Similarities, and the nearest past request that used each tool."""
        return with_past(super().explain(ranking, ids), ids, ranking.evidence)

    def fit(self, data: Sequence[TrainingSet], folder: Path, progress: FitProgress | None = None) -> FitReport:
        """Store the train splits, each dataset as a source, and choose the weight of votes on the dev splits."""
        started = time.perf_counter()
        examples = train_examples(data)
        if len(examples) > self.options.keep:
            raise BadModel(f"there are {len(examples):,} requests to remember; set keep to that many or more")
        encoding = Encoding(self.encoder, folder, progress)
        self.remove(self.ids())
        self._pools = TenantPools(self.options.keep, self.options.share_feedback)
        self.learn(examples, encoding.requests(examples))
        encoding.tools(self, data)
        dev_splits = dev_requests(data)
        dev = {"recall@5": self._choose(dev_splits, progress)} if dev_splits else {}
        return finish_fit(self, data, folder, encoding, started, len(self._pools), dev)

    def _choose(self, dev: Sequence[DevRequests], progress: FitProgress | None) -> float:
        """Set the weight of votes with the highest dev recall@5, and return that recall.

        Each request is ranked with all weights in turn, so that its neighbours are searched once.
        """
        encoded = encode_dev(self.encode, dev, progress)
        tried = [replace(self.options, votes=weight) for weight in _TRIED_VOTES]
        recalls: list[list[float]] = []
        done, total = 0, sum(len(one.texts) for one in dev)
        for one in dev:
            ranked: list[list[Pairs]] = [[] for _ in tried]
            for text in one.texts:
                recalled = self._evidence(encoded[text], one.scope)
                named = list(filter(one.scope.permits, self.names.find(text, one.scope.sees)))
                for options, found in zip(tried, ranked, strict=True):
                    self.options = options
                    vector, allowed = encoded[text][None], one.scope.allowed
                    found += self._nearest(vector, [recalled], DEV_K, allowed, [named])
                done += 1
                if progress:
                    progress("choosing", done, total)
            recalls.append([one.recall(found) for found in ranked])
        means = [float(np.mean(column)) for column in zip(*recalls, strict=True)]
        best = max(range(len(tried)), key=lambda place: (means[place], -tried[place].votes))
        self.options = tried[best]
        return means[best]

    def save(self, folder: Path) -> None:
        """Write the past requests, the tools, and what was seen in training."""
        with self._lock:
            self._save_documents(folder)
            self._pools.save(folder / _REQUESTS)
            with_digests(self.trained_on, self._pools.digests()).save(folder)
            write_model(folder, self, encoder=self._fingerprint())

    @classmethod
    def load(cls, folder: Path, encoder: TextEncoder | None = None) -> Self:
        """Open a saved memory; the encoder must be the one its vectors were made with."""
        model = read_model(folder)
        loaded = cls(read_options(MemoryOptions, model), encoder)
        loaded._load_documents(folder, model)
        loaded._pools = TenantPools.load(folder / _REQUESTS, loaded.options.keep, loaded.options.share_feedback)
        loaded.trained_on, loaded.fit_record = TrainedOn.load(folder), model.get("fit")
        return loaded
