"""Numbers the tools of one index, so that engines and masks can speak of rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from toolscout.core.answer import Allowed
from toolscout.core.tool import namespace_of
from toolscout.index.recent import Recent, bytes_of

_CACHED_MASKS, _MASK_BYTES = 4_096, 256 << 20


class RowIds:
    """Ids by row and rows by id. A removed tool's row is never used again, so a row means one version of one tool."""

    def __init__(self, ids: list[str] | None = None) -> None:
        """Start empty, or with the ids of a saved index, "" where a row is dead."""
        self.ids: list[str] = []
        self._row: dict[str, int] = {}
        self._namespaces: dict[str, set[int]] = {}
        self._masks = _no_masks()  # others with each change
        for tool_id in ids or ():
            if tool_id:
                self.add(tool_id)
            else:
                self.ids.append("")

    def __len__(self) -> int:
        """How many tools are alive."""
        return len(self._row)

    def __contains__(self, tool_id: str) -> bool:
        """Whether the tool is here."""
        return tool_id in self._row

    def add(self, tool_id: str) -> int:
        """Give a tool its row."""
        row = len(self.ids)
        self.ids.append(tool_id)
        self._row[tool_id] = row
        self._namespaces.setdefault(namespace_of(tool_id), set()).add(row)
        self._masks = _no_masks()
        return row

    def remove(self, tool_id: str) -> int | None:
        """Take a tool's row away; None where the tool is not here."""
        row = self._row.pop(tool_id, None)
        if row is not None:
            self.ids[row] = ""
            self._namespaces[namespace_of(tool_id)].discard(row)
            self._masks = _no_masks()
        return row

    def row(self, tool_id: str) -> int | None:
        """The row of a tool."""
        return self._row.get(tool_id)

    def alive(self) -> NDArray[np.int64]:
        """Every row in use, ascending."""
        return np.sort(np.fromiter(self._row.values(), dtype=np.int64, count=len(self._row)))

    def allowed(self, allowed: Allowed) -> NDArray[np.int64]:
        """The rows a caller may see, ascending; remembered until a tool comes or goes."""
        masks = self._masks  # taken first: what is worked out while another thread changes something is not kept
        cached = masks.get(allowed)
        if cached is None:
            known = map(self._row.get, allowed.ids)
            rows = {row for row in known if row is not None}
            for namespace in allowed.namespaces:
                rows |= self._namespaces.get(namespace, set())
            cached = np.sort(np.fromiter(rows, dtype=np.int64, count=len(rows)))
            masks.keep(allowed, cached, cached.nbytes + bytes_of(allowed))
        return cached


def _no_masks() -> Recent[Allowed, NDArray[np.int64]]:
    return Recent(_CACHED_MASKS, _MASK_BYTES)
