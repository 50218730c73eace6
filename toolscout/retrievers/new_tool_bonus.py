"""A document index with a bonus for new tools, which training has not moved towards their requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from toolscout.core.answer import Allowed
from toolscout.core.arrays import Floats, Ints
from toolscout.core.tool import Searchable
from toolscout.index.recent import Recent
from toolscout.models.encoders.base import TextEncoder
from toolscout.retrievers.base import Vectors
from toolscout.retrievers.document_index import DocumentIndex, EncoderOptions

_CALLERS_KEPT = 64


class NewToolBonusIndex(DocumentIndex):
    """A document index that adds a bonus to the scores of tools that training has not seen.

    Where all tools are new, or none is, scores stay as they are.
    """

    def __init__(self, options: EncoderOptions, encoder: TextEncoder | None) -> None:
        """Start empty."""
        super().__init__(options, encoder)
        self._new: set[str] = set()
        self._new_rows: Recent[Allowed | None, Ints] = Recent(_CALLERS_KEPT)

    def _new_bonus(self) -> float:
        """What is added to the score of a new tool."""
        return 0.0

    def _is_new(self, tool: Searchable) -> bool:
        """Whether training has not seen the tool."""
        return tool.digest() not in self.trained_on.tools

    def add(self, tools: Sequence[Searchable], vectors: Vectors | None = None) -> None:
        """Add tools with the vectors given, or encode them (None). A tool whose vector is missing is pending."""
        with self._lock:
            super().add(tools, vectors)
            if self._new_bonus():
                self._new |= {tool.id for tool in tools if self._is_new(tool)}
                self._new_rows = Recent(_CALLERS_KEPT)

    def remove(self, ids: Sequence[str]) -> None:
        """Remove tools."""
        with self._lock:
            super().remove(ids)
            self._new.difference_update(ids)
            self._new_rows = Recent(_CALLERS_KEPT)

    def _bonuses(
        self, vector: Floats, evidence: Any, k: int, allowed: Allowed | None, named: Sequence[str]
    ) -> Mapping[str, float]:
        """The bonuses of the k best new tools, and of new tools that the request names."""
        if not self._new or len(self._new_among(None)) == len(self._rows):
            return {}
        rows, _ = self._table.search(vector, k, self._new_among(allowed))
        best = [self._rows.ids[row] for row in rows.tolist()]
        return dict.fromkeys([*best, *self._new.intersection(named)], self._new_bonus())

    def _new_among(self, allowed: Allowed | None) -> Ints:
        rows = self._new_rows.get(allowed)
        if rows is None:
            permitted = [i for i in self._new if i in self._rows and (allowed is None or allowed.permits(i))]
            rows = np.sort(np.array([self._rows.row(tool_id) for tool_id in permitted], dtype=np.int64))
            self._new_rows.keep(allowed, rows)
        return rows
