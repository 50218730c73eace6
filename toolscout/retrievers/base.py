"""The contract of a retriever: tools in, live; a ranking out for each request, with all that was found out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from toolscout.core.answer import Allowed, Cost, ExactName, Example, Hit, Reason, in_order
from toolscout.core.arrays import Floats
from toolscout.core.scope import EVERYTHING, Scope
from toolscout.core.tool import Searchable
from toolscout.errors import BadModel, BadRequest
from toolscout.index.exact_names import ExactNames, named_first
from toolscout.models.encoders.base import TextEncoder
from toolscout.retrievers.provenance import TrainedOn, TrainingSet

Pairs = list[tuple[str, float]]
"""Tool ids with their scores, best first."""
Vectors = Mapping[str, Floats]
"""Unit vectors of documents by text digest. A tool whose digest is not among them is pending until its vector comes."""
FitProgress = Callable[[str, int, int], None]
"""Called with what is going on (as "epoch 2, loss 0.31, dev recall@5 0.87"), how much is done, and of how much."""


@dataclass(frozen=True, slots=True)
class Options:
    """Base of each method's options: what the command line shows, and what is saved."""


@dataclass(slots=True)
class Ranking:
    """All that the search for one request found out; nothing is asked of the retriever again.

    `pairs`: tool ids and scores, best first. `vector`: of the request, where it was encoded. `need`: how likely the
    request is to need a tool, where the model can tell. `queries`: what was searched besides the request. `notes`: what
    whoever asks should know. `cost`: of language models, None where the method has none. `named`: the tools that the
    request names, with the words that name them, where they stand first already. `evidence`: the method's own, for
    `explain`.
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
    """What a fit took and what it reached: seconds, the device, numbers learned, the best scores on dev; and notes."""

    seconds: float
    device: str
    parameters: int
    dev: Mapping[str, float]
    notes: tuple[str, ...] = ()


class Retriever(ABC):
    """Takes tools live and ranks them for requests: batch in, batch out, ties broken by tool id.

    A method needs a `name`, `rank`, `save` and `load`; everything else has a harmless default. What is kept about tools
    is kept in `add` and dropped in `remove`; both call this class, which knows tools by their names. Several threads
    may search while one changes the tools. Nothing is kept about a request: `rank` puts all of it into the Ranking.
    """

    name: ClassVar[str]
    #: Whether `fit` trains it.
    trainable: ClassVar[bool] = False
    options: Options

    def __init__(self, options: Options | None = None) -> None:
        """Start without tools.

        `trained_on` is what a trained model has seen, without its parts; `fit_record` what the last `fit` reported, as
        it is saved, None of a model that was not trained.
        """
        self.options = options or Options()
        self.trained_on = TrainedOn()
        self.fit_record: dict[str, Any] | None = None
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
        """Take tools in, or their new versions, without a rebuild.

        `vectors`: of their documents, for methods that use them; a tool whose vector is not among them is pending. None
        lets such a method encode the documents itself.
        """
        for tool in tools:
            self.names.remove(tool.id)
            self.names.add(tool.id, tool.aliases)

    def remove(self, ids: Sequence[str]) -> None:
        """Forget tools; ids that are not there are ignored."""
        for tool_id in ids:
            self.names.remove(tool_id)

    # Search.

    @abstractmethod
    def rank(self, requests: Sequence[str], k: int, scope: Scope = EVERYTHING) -> list[Ranking]:
        """The best k tools for each request among those allowed: as in the full ranking without the others."""

    def extend(self, ranking: Ranking, k: int, scope: Scope) -> Pairs:
        """The best k of the tools allowed by `scope`, for a request that was ranked: as a ranking of it would be.

        A method that has encoded a request, or had a language model write for it, does not do so again for the caller
        that it was ranked for.
        """
        return self.rank([ranking.request], k, scope)[0].pairs

    def explain(self, ranking: Ranking, ids: Sequence[str]) -> list[tuple[Reason, ...]]:
        """Why each of these tools was ranked so. Asked of the few that are shown alone, since it may take time."""
        return [() for _ in ids]

    def search(self, requests: Sequence[str], k: int, scope: Scope = EVERYTHING) -> list[list[Hit]]:
        """The best k tools for each request with their reasons; tools that a request names come first."""
        return [self.hits(ranking, k) for ranking in self.rank(requests, k, scope)]

    def hits(self, ranking: Ranking, k: int) -> list[Hit]:
        """The first k tools of a ranking as they are shown."""
        self.put_named_first(ranking, k)
        return self.explained(ranking, self.shown(ranking.pairs[:k], ranking.scope))

    def put_named_first(self, ranking: Ranking, k: int) -> None:
        """Put the tools that the request names before all others, unless the method has done so."""
        if ranking.named is None:
            ranking.named = self.names.find(ranking.request, ranking.scope.sees)
            permitted = [tool_id for tool_id in ranking.named if ranking.scope.permits(tool_id)]
            if below := set(permitted) - set(ranking.ids()):  # their scores order them, whatever k is
                scope = replace(ranking.scope, allowed=Allowed.of(ids=below), visible=ranking.scope.sees)
                ranking.pairs = [*ranking.pairs, *self.extend(ranking, len(below), scope)]
            ranking.pairs = named_first(ranking.pairs, permitted, k)

    def explained(self, ranking: Ranking, pairs: Pairs) -> list[Hit]:
        """Tools with their scores and all reasons."""
        named, reasons = ranking.named or {}, self.explain(ranking, [tool_id for tool_id, _ in pairs])
        return [
            Hit(tool_id, score, in_order((ExactName(named[tool_id]), *why) if tool_id in named else why))
            for (tool_id, score), why in zip(pairs, reasons, strict=True)
        ]

    def shown(self, pairs: Pairs, scope: Scope) -> Pairs:
        """The same tools with scores as a caller gets them."""
        return pairs

    def as_many(self, rankings: Sequence[Ranking]) -> list[Pairs] | None:
        """As many tools as each request needs (k="auto"); None where the model cannot tell how many that are."""
        return None

    def corrected(self, request: str, scope: Scope) -> str:
        """The request with words that no visible tool has replaced by the one that was surely meant."""
        return request

    # Vectors.

    @property
    def encoder(self) -> TextEncoder | None:
        """The encoder whose vectors it takes; None where it takes none. MissingEncoder where it cannot be opened."""
        return None

    def notes(self, scope: Scope = EVERYTHING) -> tuple[str, ...]:
        """What whoever searches should know, whatever is asked."""
        return tuple(dict.fromkeys(note for part in self.parts for note in part.notes(scope)))

    def pending(self, scope: Scope = EVERYTHING) -> int:
        """How many of the tools allowed cannot be found by their meaning yet."""
        return 0

    def without_id(self, scope: Scope = EVERYTHING) -> int:
        """How many of the pending tools wait for an id, which a model may have none left for, not for a vector."""
        return 0

    def take_vectors(self, vectors: Vectors) -> None:
        """Take in the pending tools whose vectors are among these."""

    def optimise(self) -> None:
        """Prepare for fast search where there are many vectors."""

    def best_similarities(self, vectors: Floats, scope: Scope = EVERYTHING) -> Floats:
        """For requests with these vectors, the cosine of the most similar tool allowed; empty where there is none."""
        return np.empty(0, dtype=np.float32)

    def changes(self) -> int:
        """How many vectors of tools have come and gone until now: how far it has moved says how stale a number is."""
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
        """Take feedback at once; `vectors` of the requests, by their text, spare encoding them."""

    def learned(self) -> int:
        """How many requests it has learned from and still holds."""
        return 0

    def fit(self, data: Sequence[TrainingSet], folder: Path, progress: FitProgress | None = None) -> FitReport:
        """Train on the train splits, select on the dev splits, and leave a complete model in the folder.

        The folder keeps what is needed to go on after an interruption. No other split is ever read. BadModel where the
        method cannot be trained.
        """
        raise BadModel(f"{self.name} has nothing to train; search with it as it is, or name another --retriever")

    # Ids of a method's own.

    @property
    def gives_ids(self) -> bool:
        """Whether it gives tools ids of its own, which a model that is opened again should give them again."""
        return False

    @property
    def ids_version(self) -> int:
        """Another number whenever a tool got such an id or lost it."""
        return 0

    def given_ids(self) -> dict[str, tuple[int, ...]]:
        """The ids of tools that came after its training."""
        return {}

    def recall_ids(self, ids: Mapping[str, tuple[int, ...]]) -> None:
        """Keep these for tools that will come again; what does not fit, or is taken, is left out."""

    def codes(self) -> dict[str, tuple[int, ...]]:
        """The code of every tool, by its id, for methods that write tools as codes; empty for others."""
        return next(filter(None, (part.codes() for part in self.parts)), {})

    # Parts and files.

    @property
    def parts(self) -> Sequence[Retriever]:
        """The retrievers that it is made of."""
        return ()

    @property
    def rewrites(self) -> bool:
        """Whether it searches queries that a language model, or a rule, makes of the request."""
        return any(part.rewrites for part in self.parts)

    @property
    def language_parameters(self) -> int:
        """How many numbers its language models have, where they run on this machine."""
        return sum(part.language_parameters for part in self.parts)

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write options and index: json, npy and the engine's own files, never pickle."""

    @classmethod
    @abstractmethod
    def load(cls, folder: Path) -> Self:
        """Open what `save` wrote."""


def seen_by(retriever: Retriever) -> TrainedOn:
    """All that a retriever and its parts have seen in training."""
    seen = retriever.trained_on
    for part in retriever.parts:
        seen |= seen_by(part)
    return seen


def check_k(k: int) -> None:
    """Refuse a k that asks for nothing."""
    if k < 1:
        raise BadRequest(f"k must be at least 1, got {k}")
