"""A growable array of rows: appending seldom copies, and rows can be replaced."""

from __future__ import annotations

import numpy as np

from toolscout.core.arrays import Floats, Ints

_LEAST = 16


class RowBuffer:
    """`rows` is the current array: a view into a larger one with room for more. `version` counts the changes.

    An earlier view of `rows` stays valid; it sees replaced rows, but not appended ones.
    """

    def __init__(self, rows: Floats) -> None:
        """Begin with these rows, which are not copied."""
        self._room = self.rows = rows
        self.version = 0

    def append(self, rows: Floats) -> None:
        """Add rows at the end."""
        count = len(self.rows)
        if count + len(rows) > len(self._room) or self._room is self.rows:
            room = np.empty((max(_LEAST, 2 * (count + len(rows))), self.rows.shape[1]), np.float32)
            room[:count] = self.rows
            self._room = room
        self._room[count : count + len(rows)] = rows
        self.rows = self._room[: count + len(rows)]
        self.version += 1

    def put(self, places: Ints, rows: Floats) -> None:
        """Replace the rows at these positions; nothing may use the old ones any more."""
        self.rows[places] = rows
        self.version += 1
