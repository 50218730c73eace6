"""Graphs over one-byte copies of vectors (HNSW, by usearch): a search finds the neighbourhood of a query.

Each graph is over a range of rows, its shard. One is enough for a table; several can be built side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from toolscout.core.arrays import Bytes, Ints
from toolscout.index.builders import builders
from toolscout.index.tool_table import replace_file
from toolscout.index.worker_threads import WORKER_THREADS

_LINKS, _EFFORT_ADD = 16, 128
# The nodes that a search keeps, in all graphs together, and the least in each.
_EFFORT_SEARCH, _LEAST_EFFORT = 3_072, 256
_ADDED_AT_ONCE, _SEED = 10_000, 0
# A graph of fewer rows is not worth a search of its own.
_LEAST_ROWS = 100_000
_FILE = "graph.{}.usearch"
# A graph of an older version, whose rows were added in the order of the catalogue: it is not read but built anew.
_OLD_FILE = "graph.usearch"


class VectorGraph:
    """The graphs over the first rows of a table."""

    def __init__(self, shards: Sequence[Any]) -> None:
        """Take the engine's graphs, whose keys are the numbers of rows."""
        self._shards = list(shards)
        effort = max(_LEAST_EFFORT, _EFFORT_SEARCH // len(self._shards))
        for graph in self._shards:
            graph.expansion_search = effort

    @classmethod
    def over(
        cls, count: int, copies: Callable[[Ints], Bytes], stopped: Callable[[], bool] = lambda: False
    ) -> Self | None:
        """Build the graphs over so many rows; None once `stopped` is true. `copies`: gives those of some rows."""
        elsewhere = builders()
        if elsewhere is None:
            graph = _linked(0, count, copies, stopped)
            return None if graph is None else cls([graph])
        begun = [
            elsewhere.executor.submit(build_shard, first=rows.start, copies=copies(np.arange(rows.start, rows.stop)))
            for rows in elsewhere.shards(count, _LEAST_ROWS)
        ]
        return cls([_restored(one.result()) for one in begun])

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Map the graphs that `save` wrote. Raises ValueError, OSError or RuntimeError where they cannot be read."""
        return cls([_restored(folder / name, view=True) for name in files(folder)])

    def __len__(self) -> int:
        """How many rows it is over."""
        return sum(map(len, self._shards))

    @property
    def width(self) -> int:
        """How many numbers a vector has."""
        return int(self._shards[0].ndim)

    def save(self, folder: Path) -> None:
        """Write each graph into a file, and remove those of an earlier save."""
        for place, graph in enumerate(self._shards):
            replace_file(folder / _FILE.format(place), lambda path, graph=graph: graph.save(str(path)))  # type: ignore[misc]
        remove(folder, len(self._shards))

    def nearest(self, query: Bytes, wanted: int) -> Ints:
        """Return about as many rows as are wanted, which are most similar to a query."""
        if len(self._shards) == 1:
            return np.asarray(self._shards[0].search(query, wanted).keys, dtype=np.int64)
        beside = [WORKER_THREADS.submit(graph.search, query, wanted) for graph in self._shards[1:]]
        found = [self._shards[0].search(query, wanted), *(one.result() for one in beside)]
        rows = np.concatenate([one.keys for one in found]).astype(np.int64)
        distances = np.concatenate([one.distances for one in found])
        return rows[np.argsort(distances, kind="stable")[:wanted]]


def files(folder: Path) -> list[str]:
    """Return the names of the files of the graphs that are saved in a folder, in the order of their rows."""
    names: list[str] = []
    while (folder / (name := _FILE.format(len(names)))).exists():
        names.append(name)
    return names


def remove(folder: Path, first: int = 0) -> None:
    """Remove the graphs that are saved in a folder, from this one on, and one of an older version."""
    for name in [*files(folder)[first:], _OLD_FILE]:
        (folder / name).unlink(missing_ok=True)


def build_shard(first: int, copies: Bytes) -> bytes:
    """Build a graph over rows of which this is the first, and return its file; runs where shards are built."""
    return bytes(_linked(first, len(copies), lambda rows: copies[rows - first]).save())


def _linked(
    first: int, count: int, copies: Callable[[Ints], Bytes], stopped: Callable[[], bool] = lambda: False
) -> Any:
    """Build a graph over so many rows from the first one on; None once `stopped` is true.

    Rows are added in random order. In the order of the catalogue similar tools follow each other, and link to nothing
    else: searches then miss them, or take several times as long.
    """
    from usearch.index import Index

    order = first + np.random.default_rng(_SEED).permutation(count)
    graph: Any = None
    for start in range(0, count, _ADDED_AT_ONCE):
        if stopped():
            return None
        rows = order[start : start + _ADDED_AT_ONCE]
        vectors = copies(rows)
        if graph is None:
            graph = Index(
                ndim=vectors.shape[1], metric="ip", dtype="i8", connectivity=_LINKS, expansion_add=_EFFORT_ADD
            )
        graph.add(rows, vectors)
    return graph


def _restored(source: Path | bytes, view: bool = False) -> Any:
    from usearch.index import Index

    graph = Index.restore(str(source) if isinstance(source, Path) else source, view=view)
    if graph is None:
        raise ValueError("the graph is not one")
    return graph
