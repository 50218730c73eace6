"""memory: borrows the tools of the nearest past requests, besides ranking by what the tools' documents say."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
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
    train_examples,
    vectors_of,
    with_digests,
)
from toolscout.retrievers.model_folder import read_model, read_options, write_model
from toolscout.retrievers.provenance import TrainedOn, TrainingSet

# A neighbour that would weigh less than this says nothing.
_LEAST_WEIGHT = 0.01
_TRIED_VOTES = (0.3, 0.6, 1.0, 1.5, 2.5)
_REQUESTS = "requests"


@dataclass(frozen=True, slots=True)
class MemoryOptions(EncoderOptions):
    """What past requests are worth.

    `neighbours`: how many are asked; `power`: how fast their weight falls with their cosine; `votes`: what their votes
    weigh beside the cosine of a tool's document. `share`: of the neighbours at most so much is of one source, where
    others have some too; `half_life`: days after which a request weighs half; `keep`: how many are remembered, of
    everybody and of each tenant. `share_feedback`: tenants hear each other's requests, which otherwise only they do.
    """

    neighbours: int = 20
    power: float = 3.0
    votes: float = 1.0
    share: float = 0.5
    half_life: float = 180.0
    keep: int = 100_000
    share_feedback: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be counted."""
        positive = min(self.neighbours, self.keep) >= 1 and min(self.power, self.half_life) > 0
        if not positive or self.votes < 0 or not 0 < self.share <= 1:
            raise BadModel(
                f"neighbours and keep must be at least 1, power and half_life above 0, votes 0 or more, share above 0 "
                f"and at most 1, got {self}"
            )


class Memory(DocumentIndex):
    """A tool's score is the cosine of its document plus what the nearest past requests say of it (see `votes`).

    Neighbours that are far weigh nothing: a request like none before is a plain search over documents, and a tool that
    nobody has used yet has its document's score. Learning is remembering: at once, and without training.

    Votes count for tools that are in the index. What is remembered of a tool that was removed rests, invisible and
    without taking a neighbour's place; it counts again when a tool of the same id is added, and is forgotten with the
    oldest requests. How old a request is is counted from the newest one, not from now: a search says the same tomorrow.
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
        """Learning is remembering."""
        return True

    def learn(self, examples: Sequence[Example], vectors: Mapping[str, Floats] | None = None) -> None:
        """Remember what requests used and rejected."""
        if examples:
            rows = vectors_of(examples, vectors, self.encoder)
            with self._lock:
                self._pools.add(examples, rows)

    def learned(self) -> int:
        """How many requests are remembered."""
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
        said = votes(evidence.neighbours, evidence.newest, self.options.power, self.options.half_life)
        return {tool_id: self.options.votes * vote for tool_id, vote in said.items()}

    def explain(self, ranking: Ranking, ids: Sequence[str]) -> list[tuple[Reason, ...]]:
        """Similarities, and the nearest past request that used the tool."""
        return with_past(super().explain(ranking, ids), ids, ranking.evidence)

    def fit(self, data: Sequence[TrainingSet], folder: Path, progress: FitProgress | None = None) -> FitReport:
        """Remember the train splits, each dataset a source, and choose on the dev splits what votes weigh."""
        started = time.perf_counter()
        examples = train_examples(data)
        if len(examples) > self.options.keep:
            raise BadModel(f"there are {len(examples):,} requests to remember; set keep to that many or more")
        encoding = Encoding(self.encoder, folder, progress)
        self.remove(self.ids())
        self._pools = TenantPools(self.options.keep, self.options.share_feedback)
        self.learn(examples, encoding.requests(examples))
        encoding.tools(self, data)
        asked = dev_requests(data)
        dev = {"recall@5": self._choose(asked, progress)} if asked else {}
        numbers = len(self._pools) * self.encoder.dimension
        report = FitReport(time.perf_counter() - started, "cpu", numbers, dev)
        self.trained_on, self.fit_record = TrainedOn.of(data), asdict(report)
        self.save(folder)
        encoding.done()
        return report

    def _choose(self, dev: Sequence[DevRequests], progress: FitProgress | None) -> float:
        """Let votes weigh what finds most on dev, and say how much that is.

        A request is ranked by all weights before the next one is: so its neighbours are found once.
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
                    found.append(self._nearest(encoded[text], recalled, DEV_K, one.scope.allowed, named))
                done += 1
                if progress:
                    progress("choosing", done, total)
            recalls.append([one.recall(found) for found in ranked])
        means = [float(np.mean(column)) for column in zip(*recalls, strict=True)]
        best = max(range(len(tried)), key=lambda place: (means[place], -tried[place].votes))
        self.options = tried[best]
        return means[best]

    def save(self, folder: Path) -> None:
        """Write what is remembered, the tools, and what was seen in training."""
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
