"""An index that gives each tool an id from a limited pool. Tools that got no id are queued and retried."""

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
    """A document index with a limited pool of ids. A tool without an id is pending, but found by its name.

    A tool that had an id before its document changed has priority: an id is reserved for it.
    """

    def __init__(self, options: EncoderOptions, encoder: TextEncoder | None) -> None:
        """Start empty."""
        super().__init__(options, encoder)
        self._unplaced: dict[str, Floats] = {}  # queued for an id, oldest first, with their vectors
        self._reserved: set[str] = set()  # had an id, changed, and have no new vector yet

    def _room(self) -> float:
        """How many ids are free."""
        return math.inf

    def _keeps_id(self, tool_id: str) -> bool:
        """Whether the tool still has an id that no other tool may get."""
        return False

    def _forget(self, tool_id: str, tokens: tuple[int, ...]) -> None:
        """Free the id of a tool that was removed."""

    def _full(self) -> str:
        """Why there is no id left, as the note for the operator says it."""
        return "all ids are taken"

    def without_id(self, scope: Scope = EVERYTHING) -> int:
        """How many of the allowed tools are queued for an id. They have vectors already."""
        if scope.allowed is None:
            return len(self._unplaced)
        with self._lock:
            return sum(map(scope.permits, self._unplaced))

    def no_id_left(self, scope: Scope = EVERYTHING) -> str:
        """A note about the tools without an id; "" where all have one."""
        count = self.without_id(scope)
        if not count:
            return ""
        have = "1 tool has" if count == 1 else f"{count:,} tools have"
        return f"{have} no id, since {self._full()}: found by name or by words at most; train the model again"

    def notes(self, scope: Scope = EVERYTHING) -> tuple[str, ...]:
        """The note about tools without an id, if there are any."""
        note = self.no_id_left(scope)
        return (note,) if note else ()

    def add(self, tools: Sequence[Searchable], vectors: Vectors | None = None) -> None:
        """Add tools; those for which no id is free are queued."""
        super().add(tools, vectors)
        self._try_again()

    def remove(self, ids: Sequence[str]) -> None:
        """Remove tools; their ids go to queued tools."""
        with self._lock:
            for tool_id in ids:
                if tool_id in self._pending:  # its document may have changed: then its old id is still reserved
                    self._forget(tool_id, ())
            self._drop(ids)
            self._reserved.difference_update(ids)
            self._try_again()

    def _replace(self, ids: Sequence[str]) -> None:
        with_id = [tool_id for tool_id in ids if tool_id in self._rows]
        self._drop(ids)
        self._reserved.update(tool_id for tool_id in with_id if not self._keeps_id(tool_id))

    def _drop(self, ids: Sequence[str]) -> None:
        for tool_id in ids:
            if self._unplaced.pop(tool_id, None) is not None:
                self.names.remove(tool_id)
        super().remove(ids)

    def _insertable(self, vectors: Mapping[str, Floats]) -> Mapping[str, Floats]:
        if not vectors:
            return vectors
        room = self._room() - len(self._reserved - vectors.keys())
        new = [tool_id for tool_id in vectors if not self._keeps_id(tool_id)]
        if len(new) <= room:
            return vectors
        new.sort(key=lambda tool_id: tool_id not in self._reserved)
        late = set(new[max(0, int(room)) :])
        self._unplaced.update({tool_id: vector for tool_id, vector in vectors.items() if tool_id in late})
        return {tool_id: vector for tool_id, vector in vectors.items() if tool_id not in late}

    def _place(self, vectors: Mapping[str, Floats]) -> None:
        super()._place(vectors)
        self._reserved -= vectors.keys()

    def _try_again(self) -> None:
        """Give free ids to queued tools."""
        with self._lock:
            free = self._room() - len(self._reserved - self._unplaced.keys()) if self._unplaced else 0
            insertable = self._insertable(dict(self._unplaced)) if free > 0 else {}
            self._place(insertable)
            for tool_id in insertable:
                del self._unplaced[tool_id], self._pending[tool_id]
