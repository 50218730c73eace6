"""Rows of unit vectors: exact nearest rows, and beyond some size a graph of them with exact rescoring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolscout.errors import BadModel

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

# Scores of single precision, added up in another order, differ by less than this.
_ROUNDING = 1e-5
# A graph of one-byte vectors finds the neighbourhood; the true order inside it comes from the vectors themselves.
_GRAPH_LINKS, _GRAPH_EFFORT_ADD, _GRAPH_EFFORT_SEARCH = 16, 128, 1024
_GRAPH_CANDIDATES = 100
_SUBSETS_KEPT = 8


class VectorTable:
    """Appendable rows. A row never changes; a dead one is skipped. `base` rows come from a file, the rest are live."""

    def __init__(self, base: NDArray[Any] | None = None, graph: Any = None) -> None:
        """Start empty, or on saved rows with the graph over them."""
        self._base = base
        self._graph = graph
        self._tail = np.empty((0, 0), dtype=np.float32)
        self._count = 0
        self._dead: set[int] = set()
        self._dead_rows: Ints | None = None
        self._subsets: dict[int, tuple[Ints, Floats]] = {}

    def __len__(self) -> int:
        """How many rows there are, dead ones included."""
        return self._first + self._count

    @property
    def _first(self) -> int:
        return 0 if self._base is None else len(self._base)

    @property
    def has_graph(self) -> bool:
        """Whether searches go through a graph."""
        return self._graph is not None

    def append(self, vectors: Floats) -> None:
        """Add rows, rounded to half precision as stores keep them, so that a reopened index ranks the same."""
        rounded = vectors.astype(np.float16).astype(np.float32)
        needed = self._count + len(rounded)
        if needed > len(self._tail):
            grown = np.empty((max(needed, 2 * len(self._tail), 256), vectors.shape[1]), dtype=np.float32)
            if self._count:
                grown[: self._count] = self._tail[: self._count]
            self._tail = grown
        self._tail[self._count : needed] = rounded
        self._count = needed

    def kill(self, row: int) -> None:
        """Skip a row from now on."""
        self._dead.add(row)
        self._dead_rows = None

    def rows(self, rows: Ints) -> Floats:
        """The vectors of some rows."""
        if self._base is None:
            return self._tail[rows]
        vectors = np.empty((len(rows), self._base.shape[1]), dtype=np.float32)
        saved = rows < self._first
        vectors[saved] = self._base[rows[saved]]
        vectors[~saved] = self._tail[rows[~saved] - self._first]
        return vectors

    def scores(self, query: Floats, rows: Ints) -> NDArray[np.float64]:
        """Exact scores: the same for a row whichever rows are asked with it, so that equal vectors really tie."""
        products: NDArray[np.float64] = self.rows(rows).astype(np.float64) * query
        return np.asarray(products.sum(axis=1))

    def search(self, query: Floats, k: int, among: Ints | None = None) -> tuple[Ints, NDArray[np.float64]]:
        """At least the k best live rows, with all ties of the last, and their exact scores, in no order."""
        if among is not None:
            candidates = self._best_among(query, k, among)
        elif self._graph is not None:
            candidates = self._graph_candidates(query, k)
        else:
            candidates = self._best_of_all(query, k)
        return candidates, self.scores(query, candidates)

    def build_graph(self) -> None:
        """Link all rows into a graph; the rows that come later are searched exactly beside it."""
        from usearch.index import Index

        graph = Index(
            ndim=self._width(),
            metric="ip",
            dtype="i8",
            connectivity=_GRAPH_LINKS,
            expansion_add=_GRAPH_EFFORT_ADD,
            expansion_search=_GRAPH_EFFORT_SEARCH,
        )
        step = 50_000
        for start in range(0, len(self), step):
            rows = np.arange(start, min(start + step, len(self)), dtype=np.int64)
            graph.add(rows, self.rows(rows))
        self._base, self._graph = self._half(), graph
        self._tail, self._count = np.empty((0, 0), dtype=np.float32), 0

    def _half(self) -> NDArray[np.float16]:
        """All rows in half precision."""
        parts = [] if self._base is None else [np.asarray(self._base, dtype=np.float16)]
        parts.append(self._tail[: self._count].reshape(self._count, self._width()).astype(np.float16))
        return np.concatenate(parts)

    def save(self, folder: Path) -> None:
        """Write the rows in half precision, and the graph."""
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / "vectors.npy", self._half())
        np.save(folder / "dead.npy", np.array(sorted(self._dead), dtype=np.int64))
        if self._graph is not None:
            self._graph.save(str(folder / "graph.usearch"))

    @classmethod
    def load(cls, folder: Path) -> VectorTable:
        """Open what save wrote; large tables stay on disk until they are read."""
        try:
            path = folder / "graph.usearch"
            if path.exists():
                from usearch.index import Index

                table = cls(np.load(folder / "vectors.npy", mmap_mode="r"), Index.restore(str(path), view=True))
                table._graph.expansion_search = _GRAPH_EFFORT_SEARCH
            else:
                table = cls()
                vectors = np.load(folder / "vectors.npy")
                if len(vectors):
                    table.append(vectors.astype(np.float32))
            table._dead.update(np.load(folder / "dead.npy").tolist())
        except (OSError, ValueError) as error:
            raise BadModel(f"the vectors in {folder} cannot be read ({error}); build the index again") from None
        return table

    def _width(self) -> int:
        return int(self._tail.shape[1] if self._base is None else self._base.shape[1])

    def _skipped(self) -> Ints:
        if self._dead_rows is None:
            self._dead_rows = np.fromiter(self._dead, dtype=np.int64, count=len(self._dead))
        return self._dead_rows

    def _best_of_all(self, query: Floats, k: int) -> Ints:
        scores = self._tail[: self._count] @ query
        if self._base is not None:
            scores = np.concatenate([np.asarray(self._base, dtype=np.float32) @ query, scores])
        scores[self._skipped()] = -np.inf
        return _top(scores, min(k, len(scores) - len(self._dead)))

    def _best_among(self, query: Floats, k: int, among: Ints) -> Ints:
        key = among.ctypes.data  # Rows hands out the same array until a tool comes or goes
        kept = self._subsets.get(key)
        if kept is None or kept[0] is not among:
            if len(self._subsets) >= _SUBSETS_KEPT:
                self._subsets.pop(next(iter(self._subsets)))
            kept = self._subsets[key] = (among, self.rows(among))
        return among[_top(kept[1] @ query, min(k, len(among)))]

    def _graph_candidates(self, query: Floats, k: int) -> Ints:
        wanted = max(_GRAPH_CANDIDATES, 2 * k) + min(len(self._dead), 1_000)
        found = np.asarray(self._graph.search(query, wanted).keys, dtype=np.int64)
        live = np.arange(self._first, len(self), dtype=np.int64)
        rows = np.concatenate([found, live])
        return rows[~np.isin(rows, self._skipped())] if self._dead else rows


def _top(scores: Floats, k: int) -> Ints:
    """Positions of the k best scores and of all that rounding could tie with the last of them."""
    if k <= 0:
        return np.empty(0, dtype=np.int64)
    if k >= len(scores):
        return np.flatnonzero(scores > -np.inf)
    last = np.partition(scores, len(scores) - k)[len(scores) - k]
    return np.flatnonzero(scores >= last - _ROUNDING)
