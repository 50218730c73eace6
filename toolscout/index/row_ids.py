"""Numbers the tools of an index with rows, which engines and permission masks use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from toolscout.core.answer import Allowed
from toolscout.core.arrays import Ints
from toolscout.core.tool import namespace_of
from toolscout.index.recent import Recent, bytes_of
from toolscout.index.tool_table import ToolTable

_CACHED_MASKS, _MASK_BYTES = 4_096, 256 << 20


class IdList:
    """The id in each row, "" if the row is dead: first the rows of a saved table, then those added later."""

    def __init__(self, table: ToolTable | None, dead: Iterable[int]) -> None:
        """Start with the rows of a table, without the dead ones."""
        self.table, self.dead = table, set(dead)
        self.first = len(table) if table else 0
        self.later: list[str] = []

    def __len__(self) -> int:
        """How many rows there are, dead ones included."""
        return self.first + len(self.later)

    def __getitem__(self, row: int) -> str:
        """The id in a row."""
        if row >= self.first:
            return self.later[row - self.first]
        return "" if row in self.dead or self.table is None else self.table.id(row)

    def frozen(self) -> IdList:
        """The rows as they are now, to be saved by one thread while others change these; the table is not copied."""
        found = IdList(self.table, self.dead)
        found.later = self.later.copy()
        return found

    def some(self, rows: Sequence[int]) -> list[str]:
        """The ids in some rows, as single look-ups would give them."""
        if self.table is None:
            return [self.later[row] for row in rows]
        if rows and max(rows) < self.first and self.dead.isdisjoint(rows):
            return self.table.some_ids(rows)
        return [self[row] for row in rows]

    def __iter__(self) -> Iterator[str]:
        """Every id, row by row."""
        if self.table is not None:
            yield from ("" if row in self.dead else tool_id for row, tool_id in enumerate(self.table.ids()))
        yield from self.later


class RowIds:
    """Ids by row and rows by id. A removed tool's row is never used again, so a row means one version of one tool."""

    def __init__(self, ids: Iterable[str] = (), table: ToolTable | None = None, dead: Iterable[int] = ()) -> None:
        """Start with the rows of a table of which some are dead, then these ids, "" where a row is dead."""
        self.ids = IdList(table, dead)
        self._row: dict[str, int] = {}
        self._namespaces: dict[str, set[int]] = {}
        self._masks = _no_masks()  # replaced with each change
        for tool_id in ids:
            if tool_id:
                self.add(tool_id)
            else:
                self.ids.later.append("")

    def __len__(self) -> int:
        """How many tools are alive."""
        return len(self._row) + self.ids.first - len(self.ids.dead)

    def __contains__(self, tool_id: str) -> bool:
        """Whether the tool is here."""
        return self.row(tool_id) is not None

    def add(self, tool_id: str) -> int:
        """Give a tool its row."""
        row = len(self.ids)
        self.ids.later.append(tool_id)
        self._row[tool_id] = row
        self._namespaces.setdefault(namespace_of(tool_id), set()).add(row)
        self._masks = _no_masks()
        return row

    def remove(self, tool_id: str) -> int | None:
        """Take a tool's row away; None where the tool is not here."""
        row = self.row(tool_id)
        if row is None:
            return None
        if row < self.ids.first:
            self.ids.dead.add(row)
        else:
            del self._row[tool_id]
            self.ids.later[row - self.ids.first] = ""
            self._namespaces[namespace_of(tool_id)].discard(row)
        self._masks = _no_masks()
        return row

    def row(self, tool_id: str) -> int | None:
        """The row of a tool."""
        row = self._row.get(tool_id)
        if row is None and self.ids.table is not None:
            row = self.ids.table.row(tool_id)
            return None if row in self.ids.dead else row
        return row

    def alive(self) -> Ints:
        """Every row in use, ascending."""
        later = np.sort(np.fromiter(self._row.values(), dtype=np.int64, count=len(self._row)))
        return np.concatenate([self._living(np.arange(self.ids.first, dtype=np.int64)), later])

    def allowed(self, allowed: Allowed) -> Ints:
        """The rows that a caller may see, ascending; cached until a tool is added or removed."""
        masks = self._masks  # taken first: a result computed while another thread changes the tools must not be cached
        cached = masks.get(allowed)
        if cached is None:
            rows = {row for row in map(self._row.get, allowed.ids) if row is not None}
            for namespace in allowed.namespaces:
                rows |= self._namespaces.get(namespace, set())
            found = [np.fromiter(rows, dtype=np.int64, count=len(rows))]
            if (table := self.ids.table) is not None:
                saved = [table.rows_of_any("id", [*allowed.ids]), table.rows_of_any("namespace", [*allowed.namespaces])]
                found.append(self._living(np.concatenate(saved)))
            everything = np.sort(np.concatenate(found))
            # A tool may be allowed twice. Not np.unique: its first call takes 30 ms, for imports.
            cached = everything[np.diff(everything, prepend=-1) > 0]
            masks.keep(allowed, cached, cached.nbytes + bytes_of(allowed))
        return cached

    def _living(self, rows: Ints) -> Ints:
        """Those of a table's rows that are not dead."""
        dead = np.array(list(self.ids.dead), dtype=np.int64)  # a copy: another thread may add to it
        return rows[~np.isin(rows, dead)] if len(dead) else rows


def _no_masks() -> Recent[Allowed, Ints]:
    return Recent(_CACHED_MASKS, _MASK_BYTES)
