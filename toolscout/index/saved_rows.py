"""Saves which tool is in which row of an index: a table of most tools, and a list of those that changed since.

A small change thus writes only a few lines. The table is rewritten once the list is long.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from toolscout.core.answer import Allowed
from toolscout.core.tool import Listing, Searchable, name_of, namespace_of
from toolscout.index import tool_table
from toolscout.index.exact_names import ExactNames
from toolscout.index.row_ids import RowIds
from toolscout.index.tool_table import ToolTable

_RECORD = "rows.json"
_TABLE, _WAITING = "tools", "waiting"
# The most tools that are listed beside the table: a number, or a share of those in the table.
LISTED, _LISTED_SHARE = 2_000, 0.02


class PendingTools(MutableMapping[str, Searchable]):
    """Tools by id that have no vector yet: those of a saved table, and those added later.

    Tools of the table have a digest but no text, which is enough to find their vectors and halves the table.
    """

    def __init__(self, table: ToolTable | None = None, dead: Iterable[int] = ()) -> None:
        """Start with the tools of a table, without its dead rows."""
        self._saved = RowIds(table=table, dead=dead)
        self._later: dict[str, Searchable] = {}

    def __len__(self) -> int:
        """How many tools are pending."""
        return len(self._saved) + len(self._later)

    def __iter__(self) -> Iterator[str]:
        """The ids of the pending tools."""
        yield from filter(None, self._saved.ids)
        yield from list(self._later)

    def __contains__(self, tool_id: object) -> bool:
        """Whether a tool is pending."""
        return isinstance(tool_id, str) and (tool_id in self._later or tool_id in self._saved)

    def __getitem__(self, tool_id: str) -> Searchable:
        """A pending tool; raises KeyError if it is not pending."""
        if tool_id in self._later:
            return self._later[tool_id]
        row = self._saved.row(tool_id)
        if row is None or (table := self._saved.ids.table) is None:
            raise KeyError(tool_id)
        return Listing(tool_id, namespace_of(tool_id), name_of(tool_id), table.aliases(row), "", table.digest(row))

    def __setitem__(self, tool_id: str, tool: Searchable) -> None:
        """Add a pending tool."""
        self._saved.remove(tool_id)
        self._later[tool_id] = tool

    def __delitem__(self, tool_id: str) -> None:
        """Remove a pending tool; raises KeyError if it is not pending."""
        if tool_id in self._later:
            del self._later[tool_id]
        elif self._saved.remove(tool_id) is None:
            raise KeyError(tool_id)

    def count(self, allowed: Allowed) -> int:
        """How many pending tools a caller may see."""
        return len(self._saved.allowed(allowed)) + sum(map(allowed.permits, self._later))

    def with_digests(self, digests: Mapping[str, object]) -> list[Searchable]:
        """The pending tools whose digests are among these."""
        found: list[Searchable] = []
        if (table := self._saved.ids.table) is not None:
            for digest in table.known("digest", list(digests)):
                ids = (self._saved.ids[row] for row in table.rows("digest", digest).tolist())
                found += [self[tool_id] for tool_id in ids if tool_id]
        return found + [tool for tool in self._later.values() if tool.digest() in digests]

    def frozen(self) -> PendingTools:
        """The tools that are pending now, to be saved by one thread while others change these."""
        found = PendingTools(self._saved.ids.table, self._saved.ids.dead)
        found._later = self._later.copy()
        return found

    def save(self, folder: Path) -> dict[str, Any]:
        """Write or link the table; returns the other tools, as fields for the record."""
        table, dead = self._saved.ids.table, self._saved.ids.dead
        if _listed(len(self._later) + len(dead), table) and _linked(table, folder / _WAITING):
            later = [
                [t.id, t.namespace, t.name, list(t.aliases), t.document(), t.digest()] for t in self._later.values()
            ]
            return {"waiting": later, "waiting_dead": sorted(dead)}
        tools = list(self.values())
        tool_table.write(
            folder / _WAITING, [t.id for t in tools], [t.aliases for t in tools], [t.digest() for t in tools]
        )
        return {"waiting": [], "waiting_dead": []}

    @classmethod
    def load(cls, folder: Path, record: Mapping[str, Any]) -> PendingTools:
        """Read what `save` wrote."""
        table = _table(folder / _WAITING)
        waiting = cls(table, _dead(record.get("waiting_dead", ()), table))
        for tool_id, namespace, name, aliases, text, digest in record["waiting"]:
            waiting._later[tool_id] = Listing(tool_id, namespace, name, tuple(aliases), text, digest)
        return waiting


def save_rows(folder: Path, rows: RowIds, names: ExactNames, waiting: PendingTools | None = None) -> None:
    """Write the tools of an index, and the pending ones."""
    FrozenRows(rows, names, waiting).save(folder)


class FrozenRows:
    """The tools of an index as they are when this is made: one thread saves them while others change the index."""

    def __init__(self, rows: RowIds, names: ExactNames, waiting: PendingTools | None = None) -> None:
        """Copy what may change, which is quick: tables of saved tools do not. No other thread may change it now."""
        self._ids, self._later_aliases = rows.ids.frozen(), names.later_aliases()
        self._waiting = waiting.frozen() if waiting is not None else None

    def save(self, folder: Path) -> None:
        """Write the tools, and the pending ones."""
        folder.mkdir(parents=True, exist_ok=True)
        ids, record = self._ids, dict[str, Any]()
        if _listed(len(ids.later) + len(ids.dead), ids.table) and _linked(ids.table, folder / _TABLE):
            aliases = {i: own for i in filter(None, ids.later) if (own := self._later_aliases.get(i))}
            record = {"ids": ids.later, "aliases": aliases, "dead": sorted(ids.dead)}
        elif ids.table is not None and tool_table.extend(
            ids.table, folder / _TABLE, ids.later, [self._later_aliases.get(i, ()) for i in ids.later], ids.dead
        ):
            dead = [ids.first + place for place, tool_id in enumerate(ids.later) if not tool_id]
            record = {"ids": [], "aliases": {}, "dead": [*sorted(ids.dead), *dead]}
        else:
            every = list(ids)
            tool_table.write(
                folder / _TABLE, every, list(map(self._aliases, range(len(every)), every)), [""] * len(every)
            )
            record = {"ids": [], "aliases": {}, "dead": [row for row, tool_id in enumerate(every) if not tool_id]}
        record |= self._waiting.save(folder) if self._waiting is not None else {}
        tool_table.replace_file(folder / _RECORD, lambda path: path.write_text(json.dumps(record)))

    def _aliases(self, row: int, tool_id: str) -> tuple[str, ...]:
        """The aliases of the tool in a row; none for a dead row, which has no id."""
        table = self._ids.table
        if table is not None and row < self._ids.first:
            return table.aliases(row) if tool_id and table.has_aliases else ()
        return self._later_aliases.get(tool_id, ())


def load_rows(folder: Path) -> tuple[RowIds, ExactNames, Mapping[str, Any]]:
    """Read what `save_rows` wrote: the rows, the names of their tools, and the record, for PendingTools.load."""
    record = json.loads((folder / _RECORD).read_text())
    table = _table(folder / _TABLE)
    dead = _dead(record.get("dead", ()), table)
    rows, names = RowIds(record["ids"], table, dead), ExactNames(table, dead)
    for tool_id in filter(None, record["ids"]):
        names.add(tool_id, record["aliases"].get(tool_id, ()))
    return rows, names, record


def _listed(changed: int, table: ToolTable | None) -> bool:
    return changed <= max(LISTED, _LISTED_SHARE * (len(table) if table else 0))


def _linked(table: ToolTable | None, folder: Path) -> bool:
    """Link the same table, or remove it for None. Returns False if the table is gone from its old place."""
    if table is None:
        shutil.rmtree(folder, ignore_errors=True)
        return True
    with suppress(OSError):
        table.link(folder)
        return True
    return False


def _table(folder: Path) -> ToolTable | None:
    return ToolTable(folder) if folder.is_dir() else None


def _dead(rows: Sequence[int], table: ToolTable | None) -> set[int]:
    dead = set(map(int, rows))
    if dead and not 0 <= min(dead) <= max(dead) < (len(table) if table else 0):
        raise ValueError("a row is dead that is not there")
    return dead
