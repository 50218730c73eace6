"""Embedding rows of one-token ids: computed from a tool's name and document, plus what training learned for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from toolscout.core.arrays import Floats, Ints
from toolscout.core.tool import name_of, namespace_of
from toolscout.models.decoding.constrained import Reading
from toolscout.models.decoding.row_buffer import RowBuffer
from toolscout.models.language.base import Base, TokenTable
from toolscout.models.tool_ids.token_ids import name_in_words


def name_words(tool_id: str) -> str:
    """A tool's namespace and name in plain words; names alone are seldom unique."""
    return name_in_words(name_of(tool_id), namespace_of(tool_id))


def name_rows(base: Base, table: TokenTable, ids: Sequence[str]) -> Floats:
    """For each tool, the mean embedding of its name's tokens: the initial row of its id."""
    tokens = [base.encode(name_words(tool_id)) or [base.end] for tool_id in ids]
    flat = table.embed(np.concatenate([np.array(few, dtype=np.int64) for few in tokens]))
    starts = np.cumsum([0, *map(len, tokens)])[:-1]
    counts = np.array([[len(few)] for few in tokens], dtype=np.float32)
    return np.asarray(np.add.reduceat(flat, starts, axis=0) / counts, dtype=np.float32)


@dataclass(slots=True)
class LearnedRows:
    """What training learned: a linear map from document vectors to token rows, and an offset (`own`) for some tools."""

    map: Floats
    bias: Floats
    own: Mapping[str, Floats] = field(default_factory=dict)

    def rows(self, start: Floats, ids: Sequence[str], vectors: Floats) -> Floats:
        """The rows of tools, given the rows of their names (`start`) and their document vectors."""
        rows = start + vectors @ self.map + self.bias
        for place, tool_id in enumerate(ids):
            if tool_id in self.own:
                rows[place] += self.own[tool_id]
        return np.asarray(rows, dtype=np.float32)


class WideRows:
    """Rows by token: the model's row, followed by the tool's document vector and a flag for new tools."""

    def __init__(self, first: int, rows: Floats) -> None:
        """Start with these rows; the first of them is that of token `first`."""
        self._first, self._rows = first, RowBuffer(rows)

    def put(self, tokens: Ints, rows: Floats) -> None:
        """Set the rows of tokens: new tokens are appended, tokens that were freed are overwritten."""
        places = tokens - self._first
        old = places < len(self._rows.rows)
        if old.any():
            self._rows.put(places[old], rows[old])
        if not old.all():
            self._rows.append(rows[~old])

    def of(self, tokens: Ints) -> Floats:
        """The rows of tokens."""
        return self._rows.rows[tokens - self._first]

    def logits(self, states: Floats, tokens: Ints | None) -> Floats:
        """The scores of tokens, of all where None. For most of the tokens, scoring all is cheaper than copying rows."""
        if tokens is None:
            return np.asarray(states @ self._rows.rows.T, dtype=np.float32)
        if 2 * len(tokens) > len(self._rows.rows):
            return np.asarray((states @ self._rows.rows.T)[:, tokens - self._first], dtype=np.float32)
        return np.asarray(states @ self.of(tokens).T, dtype=np.float32)


class ExtendedReading(Reading):
    """A reading whose states have further features of the requests appended."""

    def __init__(self, reading: Reading, more: Floats) -> None:
        """`more`: [n, features], appended to the state of each prompt."""
        self.language_model, self._more = reading, more
        self._ends = np.concatenate([reading.ends(), more], axis=1)

    def ends(self) -> Floats:
        """The state at the end of each prompt."""
        return self._ends

    def plain(self, states: Floats) -> Floats:
        """States with the appended features set to 0."""
        found = states.copy()
        found[:, -self._more.shape[1] :] = 0
        return found

    def after(self, owners: Sequence[int], paths: Sequence[Sequence[int]]) -> Floats:
        """The state at the end of each path, with the features of its request."""
        found: Floats = np.concatenate([self.language_model.after(owners, paths), self._more[list(owners)]], axis=1)
        return found
