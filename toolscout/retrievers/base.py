"""The base class of all retrievers: tools are added at any time, and requests get rankings of them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from toolscout.core.answer import Allowed, Cost, ExactName, Example, Hit, Reason, in_order
from toolscout.core.arrays import Floats
from toolscout.core.scope import EVERYTHING, Scope
from toolscout.core.tool import Searchable
from toolscout.errors import BadModel, BadRequest
from toolscout.index.exact_names import ExactNames, named_first
from toolscout.models.encoders.base import TextEncoder
from toolscout.retrievers.provenance import TrainedOn, TrainingSet

if TYPE_CHECKING:
    from toolscout.models.rerankers.base import Reranker

Pairs = list[tuple[str, float]]
"""Tool ids with their scores, best first."""
Vectors = Mapping[str, Floats]
"""Unit vectors of documents by text digest. A tool without one is pending until its vector is added."""
ReadDocuments = Callable[[Sequence[str]], list[str | None]]
"""Reads the documents of tools by their ids; None for a tool that is not there."""
FitProgress = Callable[[str, int, int], None]
"""Called with the current step (such as "epoch 2, loss 0.31, dev recall@5 0.87"), the amount done, and the total."""

_TRIFLE = 1e-6


@dataclass(frozen=True, slots=True)
class Options:
    """Base of each method's options: what the command line shows, and what is saved."""


@dataclass(slots=True)
class Ranking:
    """The result of the search for one request, complete, so that the request need not be processed again.

    pairs: tool ids and scores, best first.
    vector: of the request, where it was encoded.
    need: the probability that the request needs a tool, where the model predicts it.
    queries: what was searched besides the request.
    notes: messages for the user.
    cost: of language models; None where the method has none.
    named: the tools that the request names, with the words that name them; None until they were put first.
    evidence: private data of the method, for `explain` and `extend`.
    """

    request: str
    scope: Scope
    pairs: Pairs
    vector: Floats | None = None
    need: float | None = None
    queries: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    cost: Cost | None = None
    named: Mapping[str, str] | None = None
    evidence: Any = None

    def ids(self) -> list[str]:
        """The tools, best first."""
        return [tool_id for tool_id, _ in self.pairs]


@dataclass(frozen=True, slots=True)
class FitReport:
    """The report of a fit: seconds, device, how many parameters were learned, the best dev scores, and notes."""

    seconds: float
    device: str
    parameters: int
    dev: Mapping[str, float]
    notes: tuple[str, ...] = ()


class Retriever(ABC):
    """Holds tools, which may change at any time, and ranks them for batches of requests. Ties are broken by tool id.

    A subclass needs a `name`, `rank`, `save` and `load`; all else has a default. `add` and `remove` must call those of
    this class, which index the names of tools. Several threads may search while one changes the tools, so nothing
    about a request is stored in the retriever: `rank` puts it into the Ranking.
    """

    name: ClassVar[str]
    #: Whether `fit` trains it.
    trainable: ClassVar[bool] = False
    #: By the name of a preset that has a network of its own: the method that it opens instead, and its settings.
    preset_methods: ClassVar[Mapping[str, tuple[str, tuple[str, ...]]]] = MappingProxyType({})
    options: Options

    def __init__(self, options: Options | None = None) -> None:
        """Start without tools.

        `trained_on`: what this model, without its parts, has seen in training. `fit_record`: the report of the last
        `fit` as it is saved; None if the model was not trained. `outdated`: an older version wrote the folder that it
        was loaded from; saving it again saves time when it is next loaded.
        """
        self.options = options or Options()
        self.trained_on = TrainedOn()
        self.fit_record: dict[str, Any] | None = None
        self.outdated = False
        self._names = ExactNames()

    # Tools.

    @property
    def names(self) -> ExactNames:
        """The names of the tools."""
        return self._names

    def __len__(self) -> int:
        """How many tools can be searched."""
        return len(self.names)

    def ids(self) -> list[str]:
        """The ids of all tools that were added, those that are pending included."""
        return self.names.ids()

    def add(self, tools: Sequence[Searchable], vectors: Vectors | None = None) -> None:
        """Add tools, or replace them by new versions, without a rebuild.

        `vectors`: of their documents, for methods that use them; a tool whose vector is missing is pending. With None,
        such a method encodes the documents itself.
        """
        for tool in tools:
            self.names.remove(tool.id)
            self.names.add(tool.id, tool.aliases)

    def remove(self, ids: Sequence[str]) -> None:
        """Remove tools; unknown ids are ignored."""
        for tool_id in ids:
            self.names.remove(tool_id)

    # Search.

    @abstractmethod
    def rank(self, requests: Sequence[str], k: int, scope: Scope = EVERYTHING) -> list[Ranking]:
        """The best k allowed tools for each request: the full ranking without the tools that are not allowed."""

    @property
    def ranks_together(self) -> bool:
        """Whether `rank` is quick, and quicker for a few requests together than for one after the other.

        Servers then collect requests that arrive at the same time. All of them wait for the last, so a method that
        takes long for each request, or calls an endpoint, has them ranked alone.
        """
        return False

    def extend(self, ranking: Ranking, k: int, scope: Scope) -> Pairs:
        """The best k of the tools allowed by `scope`, for a request that was ranked; the same as ranking it again.

        For the same caller, a method does not encode the request or ask a language model a second time.
        """
        return self.rank([ranking.request], k, scope)[0].pairs

    def explain(self, ranking: Ranking, ids: Sequence[str]) -> list[tuple[Reason, ...]]:
        """The reasons for the rank of each of these tools. It may be slow: call it for tools that are shown."""
        return [() for _ in ids]

    def search(self, requests: Sequence[str], k: int, scope: Scope = EVERYTHING) -> list[list[Hit]]:
        """The best k tools for each request with their reasons; tools that a request names come first."""
        return [self.hits(ranking, k) for ranking in self.rank(requests, k, scope)]

    def hits(self, ranking: Ranking, k: int) -> list[Hit]:
        """The first k tools of a ranking as hits, with the scores that the caller gets."""
        self.put_named_first(ranking, k)
        return self.explained(ranking, self.shown(ranking.pairs[:k], ranking.scope))

    def put_named_first(self, ranking: Ranking, k: int) -> None:
        """Put the tools that the request names before all others, unless the method has done so."""
        if ranking.named is None:
            ranking.named = self.names.find(ranking.request, ranking.scope.sees)
            permitted = [tool_id for tool_id in ranking.named if ranking.scope.permits(tool_id)]
            if below := set(permitted) - set(ranking.ids()):  # rank them too: their order must not depend on k
                scope = replace(ranking.scope, allowed=Allowed.of(ids=below), visible=ranking.scope.sees)
                ranking.pairs = [*ranking.pairs, *self.extend(ranking, len(below), scope)]
            ranking.pairs = named_first(ranking.pairs, permitted, k)

    def explained(self, ranking: Ranking, pairs: Pairs) -> list[Hit]:
        """The tools as hits, with all reasons."""
        named, reasons = ranking.named or {}, self.explain(ranking, [tool_id for tool_id, _ in pairs])
        return [
            Hit(tool_id, score, in_order((ExactName(named[tool_id]), *why) if tool_id in named else why))
            for (tool_id, score), why in zip(pairs, reasons, strict=True)
        ]

    def shown(self, pairs: Pairs, scope: Scope) -> Pairs:
        """The same tools, with the scores that a caller in this scope gets."""
        return pairs

    def as_many(self, rankings: Sequence[Ranking]) -> list[Pairs] | None:
        """As many tools as each request needs (k="auto"); None where the model cannot tell how many it needs."""
        return None

    def corrected(self, request: str, scope: Scope) -> str:
        """The request with misspelt words corrected: words that no visible tool has, close to one that a tool has."""
        return request

    # Vectors.

    @property
    def encoder(self) -> TextEncoder | None:
        """The encoder whose vectors it uses, None for none. Raises MissingEncoder where it cannot be opened."""
        return None

    def use_encoder(self, encoder: TextEncoder) -> None:
        """Use this encoder for all vectors from now on; raises BadModel where the model is bound to another one."""
        for part in self.parts:
            part.use_encoder(encoder)

    def notes(self, scope: Scope = EVERYTHING) -> tuple[str, ...]:
        """Messages for the user that concern every search."""
        return tuple(dict.fromkeys(note for part in self.parts for note in part.notes(scope)))

    def pending(self, scope: Scope = EVERYTHING) -> int:
        """How many of the allowed tools have no vector or id yet, and so are not searched by meaning."""
        return 0

    def without_id(self, scope: Scope = EVERYTHING) -> int:
        """How many of the pending tools lack an id, not a vector: the model may have no ids left."""
        return 0

    def take_vectors(self, vectors: Vectors) -> None:
        """Add the pending tools whose vectors are among these."""

    def optimise(self, stopped: Callable[[], bool] = lambda: False) -> bool:
        """Prepare for fast search where there are many vectors; returns whether anything was prepared.

        Searches and changes go on meanwhile. `stopped` is asked now and then; once it is true this gives up.
        """
        return False

    def settle(self) -> None:
        """Make scores those of an index that is built now: as if no tool had ever been removed or replaced."""
        for part in self.parts:
            part.settle()

    def best_similarities(self, vectors: Floats, scope: Scope = EVERYTHING) -> Floats:
        """For each request vector, the cosine of the most similar allowed tool; empty where there is none."""
        return np.empty(0, dtype=np.float32)

    def changes(self) -> int:
        """How many tool vectors were added and removed so far, to tell when cached numbers are out of date."""
        return 0

    # Learning.

    @property
    def learns(self) -> bool:
        """Whether `learn` makes use of feedback."""
        return any(part.learns for part in self.parts)

    @property
    def trains_encoder(self) -> bool:
        """Whether `fit` trains an encoder, which other parts of a hybrid may then use."""
        return False

    def learn(self, examples: Sequence[Example], vectors: Mapping[str, Floats] | None = None) -> None:
        """Learn from feedback at once. `vectors`: of the requests, by text; those that are missing are encoded."""

    def learned(self) -> int:
        """How many learned requests it holds."""
        return 0

    def fit(self, data: Sequence[TrainingSet], folder: Path, progress: FitProgress | None = None) -> FitReport:
        """Train on the train splits, select on the dev splits, and save a complete model in the folder.

        Checkpoints in the folder let an interrupted training continue. No other split is read. Raises BadModel where
        the method cannot be trained.
        """
        raise BadModel(f"{self.name} has nothing to train; search with it as it is, or name another --retriever")

    # Ids that a model assigns to tools.

    @property
    def gives_ids(self) -> bool:
        """Whether it assigns ids of its own to tools, which must stay the same when the model is opened again."""
        return False

    @property
    def ids_version(self) -> int:
        """A number that changes whenever a tool gets such an id or loses it."""
        return 0

    def given_ids(self) -> dict[str, tuple[int, ...]]:
        """The ids assigned to tools after training, by tool id."""
        return {}

    def recall_ids(self, ids: Mapping[str, tuple[int, ...]]) -> None:
        """Reserve ids for tools that will be added again; an id that is invalid or taken is left out."""

    def codes(self) -> dict[str, tuple[int, ...]]:
        """The code of every tool, by tool id, for methods that represent tools as codes; empty for others."""
        return next(filter(None, (part.codes() for part in self.parts)), {})

    # Parts and files.

    @property
    def parts(self) -> Sequence[Retriever]:
        """The retrievers that it combines."""
        return ()

    @property
    def index_part(self) -> Retriever | None:
        """The retriever that holds the whole index: itself, or the part of one that has no index of its own.

        What it saves can be opened in its place (`with_index`). None where nothing that is saved can.
        """
        return self if all(part.index_part is part for part in self.parts) else None

    def with_index(self, index: Retriever) -> Retriever:
        """The same retriever with `index` as its `index_part`."""
        return index

    def read_documents(self, read: ReadDocuments) -> None:
        """Read documents that a search needs by this function from now on, instead of holding them."""
        for part in self.parts:
            part.read_documents(read)

    @property
    def rewrites(self) -> bool:
        """Whether it searches with queries that a language model or a rule makes of the request."""
        return any(part.rewrites for part in self.parts)

    @property
    def reranker(self) -> Reranker | None:
        """The reranker that reorders its rankings, or those of a part; None for none. Raises BadModel."""
        return next(filter(None, (part.reranker for part in self.parts)), None)

    @property
    def language_parameters(self) -> int:
        """How many parameters its language models have, where they run on this machine."""
        return sum(part.language_parameters for part in self.parts)

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write options and index: json, npy and the engine's own files, never pickle."""

    def begin_save(self, folder: Path) -> Callable[[], None]:
        """Begin to save the index as it is now, and return what does the rest, while tools come and go.

        A method whose index is large overrides this, so that neither searches nor changes wait until all is written.
        Its `save` calls it. A subclass of such a method that has more to save overrides this instead of `save`.
        """
        self.save(folder)
        return lambda: None

    @classmethod
    @abstractmethod
    def load(cls, folder: Path, encoder: TextEncoder | None = None) -> Self:
        """Open what `save` wrote. `encoder`: the one that its vectors were made with, where no name or folder says."""


def seen_by(retriever: Retriever) -> TrainedOn:
    """What a retriever and its parts have seen in training."""
    seen = retriever.trained_on
    for part in retriever.parts:
        seen |= seen_by(part)
    return seen


def falling(pairs: Iterable[tuple[str, float]]) -> Pairs:
    """The same tools in the same order; a score that contradicts the order is set slightly below the one before it."""
    shown, last, least = Pairs(), "", math.inf
    for tool_id, score in pairs:
        in_place = (-least, last) < (-score, tool_id)  # ties are in the order of ids
        last, least = tool_id, score if in_place else least - _TRIFLE
        shown.append((tool_id, least))
    return shown


def check_k(k: int) -> None:
    """Raise BadRequest if k is below 1."""
    if k < 1:
        raise BadRequest(f"k must be at least 1, got {k}")
