"""Tools that need an id each, of which there may be too few: who gets none waits, and is tried again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from toolscout.core.arrays import Floats
from toolscout.core.scope import EVERYTHING, Scope
from toolscout.core.tool import Searchable
from toolscout.models.encoders.base import TextEncoder
from toolscout.retrievers.base import Vectors
from toolscout.retrievers.document_index import DocumentIndex, EncoderOptions


class IdPoolIndex(DocumentIndex):
    """A tool without an id is one of those that wait (see `pending`); a request that names it finds it.

    A tool that had an id before it changed comes before those that never had one: an id is kept free for it.
    """

    def __init__(self, options: EncoderOptions, encoder: TextEncoder | None) -> None:
        """Start empty."""
        super().__init__(options, encoder)
        self._unplaced: dict[str, Floats] = {}  # those without an id, first come first, with their vectors
        self._held: set[str] = set()  # those that had an id, changed, and wait for their vectors

    def _room(self) -> float:
        """How many ids are free."""
        return math.inf

    def _keeps_id(self, tool_id: str) -> bool:
        """Whether there is an id which no other tool may get."""
        return False

    def _forget(self, tool_id: str, tokens: tuple[int, ...]) -> None:
        """The tool is gone: its id may be given to another."""

    def _full(self) -> str:
        """Why there is no id left, for whoever has to do something about it."""
        return "all ids are taken"

    def without_id(self, scope: Scope = EVERYTHING) -> int:
        """How many of the pending tools wait for an id, among those allowed; to embed them again is of no use."""
        if scope.allowed is None:
            return len(self._unplaced)
        with self._lock:
            return sum(map(scope.permits, self._unplaced))

    def no_id_left(self, scope: Scope = EVERYTHING) -> str:
        """What to say of the tools without an id; nothing where all have one."""
        count = self.without_id(scope)
        if not count:
            return ""
        have = "1 tool has" if count == 1 else f"{count:,} tools have"
        return f"{have} no id, since {self._full()}: found by name or by words at most; train the model again"

    def notes(self, scope: Scope = EVERYTHING) -> tuple[str, ...]:
        """What whoever asks should know: whether tools have no id."""
        note = self.no_id_left(scope)
        return (note,) if note else ()

    def add(self, tools: Sequence[Searchable], vectors: Vectors | None = None) -> None:
        """Take tools; those for which there is no id wait."""
        super().add(tools, vectors)
        self._try_again()

    def remove(self, ids: Sequence[str]) -> None:
        """Forget tools; their ids are free for those that wait for one."""
        with self._lock:
            for tool_id in ids:
                if tool_id in self._waiting:  # it may have had one, and have come back without a vector
                    self._forget(tool_id, ())
            self._drop(ids)
            self._held.difference_update(ids)
            self._try_again()

    def _replace(self, ids: Sequence[str]) -> None:
        had = [tool_id for tool_id in ids if tool_id in self._rows]
        self._drop(ids)
        self._held.update(tool_id for tool_id in had if not self._keeps_id(tool_id))

    def _drop(self, ids: Sequence[str]) -> None:
        for tool_id in ids:
            if self._unplaced.pop(tool_id, None) is not None:
                self.names.remove(tool_id)
        super().remove(ids)

    def _fitting(self, vectors: Mapping[str, Floats]) -> Mapping[str, Floats]:
        if not vectors:
            return vectors
        room = self._room() - len(self._held - vectors.keys())
        new = [tool_id for tool_id in vectors if not self._keeps_id(tool_id)]
        if len(new) <= room:
            return vectors
        new.sort(key=lambda tool_id: tool_id not in self._held)
        late = set(new[max(0, int(room)) :])
        self._unplaced.update({tool_id: vector for tool_id, vector in vectors.items() if tool_id in late})
        return {tool_id: vector for tool_id, vector in vectors.items() if tool_id not in late}

    def _place(self, vectors: Mapping[str, Floats]) -> None:
        super()._place(vectors)
        self._held -= vectors.keys()

    def _try_again(self) -> None:
        """Give ids to those that wait for one, where some are free."""
        with self._lock:
            free = self._room() - len(self._held - self._unplaced.keys()) if self._unplaced else 0
            fitting = self._fitting(dict(self._unplaced)) if free > 0 else {}
            self._place(fitting)
            for tool_id in fitting:
                del self._unplaced[tool_id], self._waiting[tool_id]
