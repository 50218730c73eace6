"""Rows of ids that are one token each: made of a tool's name and document, plus what training taught of the tool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from toolscout.nn.decoding import Reading
from toolscout.nn.language import Base, TokenTable
from toolscout.retrievers.base import Floats
from toolscout.tool import name_of, split_words

Ints = NDArray[np.int64]


def words_of(tool_id: str) -> str:
    """A tool's name as words."""
    name = name_of(tool_id)
    return " ".join(split_words(name)) or name


def name_rows(base: Base, table: TokenTable, ids: Sequence[str]) -> Floats:
    """For each tool the mean row of its name's tokens: where the row of its id begins."""
    tokens = [base.encode(words_of(tool_id)) or [base.end] for tool_id in ids]
    flat = table.embed(np.concatenate([np.array(few, dtype=np.int64) for few in tokens]))
    starts = np.cumsum([0, *map(len, tokens)])[:-1]
    counts = np.array([[len(few)] for few in tokens], dtype=np.float32)
    return np.asarray(np.add.reduceat(flat, starts, axis=0) / counts, dtype=np.float32)


@dataclass(slots=True)
class Taught:
    """What training left: how documents' vectors become rows, and the parts of rows that are the tools' own."""

    map: Floats
    bias: Floats
    own: Mapping[str, Floats] = field(default_factory=dict)

    def rows(self, start: Floats, ids: Sequence[str], vectors: Floats) -> Floats:
        """The rows of tools whose names begin at `start`."""
        rows = start + vectors @ self.map + self.bias
        for place, tool_id in enumerate(ids):
            if tool_id in self.own:
                rows[place] += self.own[tool_id]
        return np.asarray(rows, dtype=np.float32)


class WideRows:
    """Rows by token, longer than the model's state by what else is known of a tool: its vector, whether it is new."""

    def __init__(self, first: int, rows: Floats) -> None:
        """Begin with these rows; the first of them has token `first`."""
        self._first, self._rows = first, rows
        self._last: tuple[Ints, Floats] | None = None

    def grow(self, rows: Floats) -> None:
        """Add rows at the end."""
        self._rows = np.concatenate([self._rows, rows])
        self._last = None

    def of(self, tokens: Ints) -> Floats:
        """The rows of tokens."""
        return self._rows[tokens - self._first]

    def logits(self, states: Floats, tokens: Ints | None) -> Floats:
        """The scores of tokens; those of all children of a trie's root are gathered once, as long as they stay."""
        if tokens is None:
            chosen = self._rows
        elif self._last is not None and self._last[0] is tokens:
            chosen = self._last[1]
        else:
            chosen = self._rows[tokens - self._first]
            if 2 * len(tokens) > len(self._rows):
                self._last = (tokens, chosen)
        return np.asarray(states @ chosen.T, dtype=np.float32)


class Aware:
    """A reading whose states are longer by what else is known of the requests."""

    def __init__(self, reading: Reading, more: Floats) -> None:
        """`more`: [n, extra], for each prompt what comes behind its state."""
        self._reading, self._more = reading, more
        self._ends = np.concatenate([reading.ends(), more], axis=1)

    def ends(self) -> Floats:
        """The state at the end of each prompt."""
        return self._ends

    def after(self, owners: Sequence[int], paths: Sequence[Sequence[int]]) -> Floats:
        """The states at the ends of paths."""
        found: Floats = np.concatenate([self._reading.after(owners, paths), self._more[list(owners)]], axis=1)
        return found
