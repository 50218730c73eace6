"""The base of retrievers that work on the rankings of one other: the part holds the tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from toolscout.core.answer import Example
from toolscout.core.arrays import Floats
from toolscout.core.scope import EVERYTHING, Scope
from toolscout.errors import BadModel
from toolscout.index.exact_names import ExactNames
from toolscout.models.encoders.base import TextEncoder
from toolscout.retrievers.base import Options, Retriever, Vectors
from toolscout.retrievers.registry import method


class OverOnePart(Retriever):
    """A retriever over one part, which answers all that is asked about tools, vectors and learned requests."""

    def __init__(self, options: Options, parts: Sequence[Retriever] | None) -> None:
        """Work on this part, a hybrid by default; raises BadModel where there are several."""
        super().__init__(options)
        self._parts = list(parts) if parts is not None else [method("hybrid")()]
        if len(self._parts) != 1:
            raise BadModel(f"{self.name} works on one part, got {len(self._parts)}; hand it one, such as a hybrid")

    @property
    def parts(self) -> Sequence[Retriever]:
        """The one part, in a list."""
        return self._parts

    @property
    def part(self) -> Retriever:
        """The retriever whose rankings it works on."""
        return self._parts[0]

    @property
    def names(self) -> ExactNames:
        """The names that the part knows."""
        return self.part.names

    def __len__(self) -> int:
        """How many tools its part can find."""
        return len(self.part)

    def ids(self) -> list[str]:
        """The ids of all tools."""
        return self.part.ids()

    def learn(self, examples: Sequence[Example], vectors: Mapping[str, Floats] | None = None) -> None:
        """Hand feedback to the part."""
        self.part.learn(examples, vectors)

    @property
    def encoder(self) -> TextEncoder | None:
        """The encoder of its part."""
        return self.part.encoder

    def pending(self, scope: Scope = EVERYTHING) -> int:
        """How many tools its part cannot find yet."""
        return self.part.pending(scope)

    def without_id(self, scope: Scope = EVERYTHING) -> int:
        """How many tools its part has no id for."""
        return self.part.without_id(scope)

    def take_vectors(self, vectors: Vectors) -> None:
        """Hand vectors to its part."""
        self.part.take_vectors(vectors)

    def optimise(self, stopped: Callable[[], bool] = lambda: False) -> bool:
        """Prepare its part."""
        return self.part.optimise(stopped)

    def best_similarities(self, vectors: Floats, scope: Scope = EVERYTHING) -> Floats:
        """The similarities of its part."""
        return self.part.best_similarities(vectors, scope)

    def changes(self) -> int:
        """What has changed in its part."""
        return self.part.changes()

    def corrected(self, request: str, scope: Scope) -> str:
        """The request as its part would spell it."""
        return self.part.corrected(request, scope)
