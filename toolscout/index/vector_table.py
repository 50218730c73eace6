"""Rows of unit vectors: exact nearest-neighbour search, or a graph with exact rescoring for large tables."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numkong
import numpy as np
from numpy.typing import NDArray

from toolscout.core.arrays import Bytes, Doubles, Floats, Ints
from toolscout.core.model_files import UNREADABLE
from toolscout.errors import BadModel
from toolscout.index import vector_graph
from toolscout.index.tool_table import link_file, mapped_array, save_array
from toolscout.index.vector_graph import VectorGraph
from toolscout.index.worker_threads import WORKER_THREADS

# An upper bound of the rounding error of single-precision products.
_ROUNDING = 1e-5
# A vector is held in single precision, with a copy in bytes.
BYTES_PER_NUMBER = 5
# Numbers of a unit vector of some hundred dimensions hardly exceed 127 / 400; those that do are cut, and count as lost.
_SCALE = 400.0
# A graph of one-byte vectors finds the neighbourhood; the true order inside it comes from the vectors themselves.
_GRAPH_CANDIDATES = 100
_SUBSETS_KEPT = 8
_GROUP = 16
# Queries that are compared with the rows in one pass; more would take longer by as much as they are more.
_QUERIES_AT_ONCE = 8
_ROWS_AT_ONCE = 4096
# The most rows that are saved beside older saved ones: a number, or a share of the older ones.
_BESIDE, _BESIDE_SHARE = 2_000, 0.02
_LOWEST = -10.0  # below any product of unit vectors, above the score of a skipped row
_SHARED_FROM = 20_000 if (os.cpu_count() or 1) > 1 else 1 << 62


class _GrowingRows:
    """Appendable rows in single precision with one-byte copies, after the one-byte copies of saved rows.

    The copies are a quarter of the size, so a search reads them first and then only those rows in full that they cannot
    rule out: `most_lost` bounds what a copy may be off by. The result is exact, at less than half the time.
    """

    def __init__(self, saved: Bytes | None = None, most_lost: float = 0.0) -> None:
        self.count = 0
        self._saved = saved
        self._full: Floats = np.empty((0, 0), dtype=np.float32)
        self._bytes: Bytes = np.empty((0, 0), dtype=np.int8)
        self.most_lost = most_lost

    @property
    def rows(self) -> Floats:
        return self._full[: self.count]

    def copies(self) -> Bytes:
        """The one-byte copies of all rows."""
        later = self._bytes[: self.count]
        if self._saved is None:
            return later
        return np.concatenate([self._saved, later.reshape(self.count, self._saved.shape[1])])

    def frozen(self) -> _GrowingRows:
        """These rows alone, whatever is appended to them later; nothing is copied, since a row never changes."""
        found = _GrowingRows(self._saved, self.most_lost)
        found.count = self.count
        found._full, found._bytes = self._full[: self.count], self._bytes[: self.count]
        return found

    def append(self, vectors: Floats) -> None:
        needed = self.count + len(vectors)
        if needed > len(self._full):
            self._grow(max(needed, 2 * len(self._full), 256), vectors.shape[1])
        copies, lost = _quantized(vectors)
        self._full[self.count : needed] = vectors
        self._bytes[self.count : needed] = copies
        self.most_lost = max(self.most_lost, float(lost.max(initial=0.0)))
        self.count = needed

    def _grow(self, capacity: int, width: int) -> None:
        full, copies = np.empty((capacity, width), dtype=np.float32), np.empty((capacity, width), dtype=np.int8)
        if self.count:
            full[: self.count], copies[: self.count] = self.rows, self._bytes[: self.count]
        self._full, self._bytes = full, copies

    def best(self, queries: Floats, counts: Sequence[int], skipped: Ints) -> list[Ints]:
        """For each query, a few rows that contain the k best that are not skipped, with all ties of the last.

        `counts`: the k of each query. The rows are read once for a few queries, which takes no longer than for one.
        """
        count = self.count  # another thread may append meanwhile
        most = (0 if self._saved is None else len(self._saved)) + count - len(skipped)
        if most <= 0:
            return [np.empty(0, dtype=np.int64) for _ in counts]
        scales = 127 / np.maximum(np.abs(queries).max(axis=1), np.float32(1e-9)).astype(np.float64)
        copies = np.rint(queries * scales.astype(np.float32)[:, None])
        tables = [table for table in (self._saved, self._bytes[:count]) if table is not None and len(table)]
        found: list[Ints] = []
        for start in range(0, len(queries), _QUERIES_AT_ONCE):
            few = slice(start, start + _QUERIES_AT_ONCE)
            parts = [_products(copies[few].astype(np.int8), table) for table in tables]
            products = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
            products[:, skipped] = -np.inf
            for each in zip(products, queries[few], copies[few], scales[few].tolist(), counts[few], strict=True):
                found.append(self._reached(*each[:-1], min(each[-1], most)))
        return found

    def _reached(self, products: Floats, query: Floats, copy: Floats, scale: float, k: int) -> Ints:
        """The rows that may be among the k best of a query, by the products of its copy with the rows' copies."""
        if k <= 0:
            return np.empty(0, dtype=np.int64)
        # A row can be off by its own loss (the query is of length one) and by the query's (its copy is hardly longer).
        off = query - copy / np.float32(scale)
        lost = math.sqrt(float(np.einsum("i,i->", off, off)))
        least = _kth(products, k) / (_SCALE * scale) - 2 * (self.most_lost + 1.01 * lost) - _ROUNDING
        return np.flatnonzero(products >= max(least, _LOWEST) * _SCALE * scale)


def _products(queries: Bytes, rows: Bytes) -> Floats:
    """The products of a few queries with each of many rows; a helper thread takes half of a large table."""
    half = len(rows) // 2 if len(rows) >= _SHARED_FROM and WORKER_THREADS.free() else 0
    other = WORKER_THREADS.submit(_scan, queries, rows[:half]) if half else None
    mine = _scan(queries, rows[half:])
    return mine if other is None else np.concatenate([other.result(), mine], axis=1)


def _scan(queries: Bytes, rows: Bytes) -> Floats:
    if len(queries) == 1:
        return np.asarray(numkong.cdist(queries, rows, "dot", out_dtype="float32"), dtype=np.float32).reshape(1, -1)
    # The queries are the packed side: packing the rows would need a second copy of them.
    products = np.asarray(numkong.dots_packed(rows, numkong.dots_pack(queries, "int8")))
    return np.ascontiguousarray(products.T, dtype=np.float32)


def _quantized(vectors: Floats) -> tuple[Bytes, Floats]:
    """One byte for each number of unit vectors, and how far from the vector that lies."""
    copies = np.clip(np.rint(vectors * _SCALE), -127, 127).astype(np.int8)
    return copies, np.linalg.norm(vectors - copies.astype(np.float32) / np.float32(_SCALE), axis=1).astype(np.float32)


class VectorTable:
    """Appendable rows. A row never changes; a dead one is skipped. `base` rows come from a file, the rest are live."""

    def __init__(
        self, base: NDArray[Any] | None = None, graph: VectorGraph | None = None, live: _GrowingRows | None = None
    ) -> None:
        """Start empty, or on saved rows, with the graph over them or with their one-byte copies in `live`."""
        self._base = base
        self._graph = graph
        self._live = live or _GrowingRows()
        self._folder: Path | None = None  # what the base was saved in
        self._dead: set[int] = set()
        self._dead_rows: Ints | None = None
        self._subsets: dict[int, tuple[Ints, _GrowingRows]] = {}
        self._keeping = threading.Lock()

    def __len__(self) -> int:
        """How many rows there are, dead ones included."""
        return self._first + self._live.count

    @property
    def _first(self) -> int:
        return 0 if self._base is None else len(self._base)

    @property
    def has_graph(self) -> bool:
        """Whether searches go through a graph."""
        return self._graph is not None

    def append(self, vectors: Floats) -> None:
        """Add rows, rounded to half precision as stores keep them, so that a reopened index ranks the same."""
        if len(self) and vectors.shape[1] != self._width():
            raise BadModel(
                f"vectors of {vectors.shape[1]} numbers do not go with an index of {self._width()}; another encoder "
                "made them: build the index again, or use the encoder that it was made with"
            )
        self._live.append(vectors.astype(np.float16).astype(np.float32))

    def frozen(self) -> VectorTable:
        """The table as it is now, to be saved by one thread while others change this one; quick for any size."""
        found = VectorTable(self._base, self._graph, self._live.frozen())
        found._folder, found._dead = self._folder, set(self._dead)
        return found

    def kill(self, row: int) -> None:
        """Mark a row as dead; searches skip it."""
        self._dead.add(row)
        self._dead_rows = None

    def rows(self, rows: Ints) -> Floats:
        """The vectors of some rows."""
        if self._base is None:
            return self._live.rows[rows]
        saved = rows < self._first
        if saved.all():
            return np.take(self._base, rows, axis=0).astype(np.float32)
        vectors = np.empty((len(rows), self._base.shape[1]), dtype=np.float32)
        vectors[saved] = self._base[rows[saved]]
        vectors[~saved] = self._live.rows[rows[~saved] - self._first]
        return vectors

    def scores(self, query: Floats, rows: Ints) -> Doubles:
        """Exact scores: the same for a row whichever rows are asked with it, so that equal vectors really tie."""
        if self._base is not None and (rows < self._first).all():  # most often: from half precision at once
            products: Doubles = np.take(self._base, rows, axis=0).astype(np.float64)
        else:
            products = self.rows(rows).astype(np.float64)
        products *= query
        return np.asarray(products.sum(axis=1))

    def search(
        self, query: Floats, k: int, among: Ints | None = None, skipped: Ints | None = None
    ) -> tuple[Ints, Doubles]:
        """At least the k best live rows, with all ties of the last, and their exact scores, in no order.

        Rows may come and go meanwhile where `skipped` is given.
        """
        return self.search_each(query[None], [k], among, skipped)[0]

    def search_each(
        self, queries: Floats, counts: Sequence[int], among: Ints | None = None, skipped: Ints | None = None
    ) -> list[tuple[Ints, Doubles]]:
        """As `search`, for several queries and the k of each; faster than one query after the other."""
        skipped = self.skipped() if skipped is None else skipped
        if among is not None:
            candidates = self._best_among(queries, counts, among)
        elif self._graph is not None:
            pairs = zip(queries, counts, strict=True)
            candidates = [self._graph_candidates(self._graph, query, k, skipped) for query, k in pairs]
        else:
            candidates = self._live.best(queries, counts, skipped)
        return [self._best_of(*each) for each in zip(candidates, queries, counts, strict=True)]

    def _best_of(self, candidates: Ints, query: Floats, k: int) -> tuple[Ints, Doubles]:
        """At least the k best of the candidates, with all ties of the last, and their exact scores."""
        # Not a matrix product: that would wake the threads of BLAS, which spin beside the encoder afterwards.
        scores = self.scores(query, candidates)
        if k >= len(scores):
            return candidates, scores
        best = np.flatnonzero(scores >= np.partition(scores, len(scores) - k)[len(scores) - k])
        return candidates[best], scores[best]

    def best_scores(self, queries: Floats, rows: Ints) -> Floats:
        """The best score of each of many queries among some rows, in single precision."""
        # A matrix product here: this is asked for so seldom that the threads of BLAS may wake.
        best = np.full(len(queries), -1.0, dtype=np.float32)
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            scores = queries @ self.rows(rows[start : start + _ROWS_AT_ONCE]).T
            np.maximum(best, scores.max(axis=1), out=best)
        return best

    def linked(self, stopped: Callable[[], bool] = lambda: False) -> VectorTable | None:
        """The same rows with a graph over them; the rows that come later are searched exactly beside it.

        None once `stopped` is true.
        """
        # The engine's own rounding would keep three bits of each number.
        graph = VectorGraph.over(len(self), lambda rows: _quantized(self.rows(rows))[0], stopped)
        if graph is None:
            return None
        table = VectorTable(self._half(), graph)
        table._dead.update(self._dead)
        return table

    def follow(self, other: VectorTable) -> None:
        """Take over what has changed in a table since this one was made of it."""
        if len(other) > len(self):
            self.append(other.rows(np.arange(len(self), len(other), dtype=np.int64)))
        self._dead, self._dead_rows = set(other._dead), None

    def _half(self) -> NDArray[np.float16]:
        """All rows in half precision."""
        parts = [] if self._base is None else [np.asarray(self._base, dtype=np.float16)]
        parts.append(self._later())
        return np.concatenate(parts)

    def _later(self) -> NDArray[np.float16]:
        """The rows that are not of the base, in half precision."""
        return self._live.rows.reshape(self._live.count, self._width()).astype(np.float16)

    def save(self, folder: Path) -> None:
        """Write the rows in half precision, their one-byte copies or the graph; few rows go beside those of a file."""
        folder.mkdir(parents=True, exist_ok=True)
        if self._base is None or not self._linked(folder):
            if self._graph is not None and self._base is not None:
                save_array(folder / "vectors.npy", np.asarray(self._base, dtype=np.float16))
                save_array(folder / "later.npy", self._later())
                self._graph.save(folder)
            else:
                save_array(folder / "vectors.npy", self._half())
                save_array(folder / "later.npy", self._later()[:0])
                vector_graph.remove(folder)
                save_array(folder / "copies.npy", self._live.copies())
                save_array(folder / "lost.npy", np.array([self._live.most_lost]))
        save_array(folder / "dead.npy", np.array(sorted(self._dead), dtype=np.int64))

    def _linked(self, folder: Path) -> bool:
        """Have the files of the base in a folder, and the later rows beside them; False where that cannot be done."""
        if self._folder is None or self._live.count > max(_BESIDE, _BESIDE_SHARE * self._first):
            return False
        with suppress(OSError):
            for name in ["vectors.npy", *(vector_graph.files(self._folder) or ["copies.npy", "lost.npy"])]:
                link_file(self._folder / name, folder / name)
            save_array(folder / "later.npy", self._later())
            return True
        return False

    @classmethod
    def load(cls, folder: Path) -> VectorTable:
        """Open what save wrote; tables stay on disk until they are read."""
        try:
            vectors = mapped_array(folder / "vectors.npy")
            if vectors.ndim != 2 or vectors.dtype != np.float16:
                raise ValueError(f"there are numbers {vectors.dtype} of shape {vectors.shape}")
            if vector_graph.files(folder):
                table = cls._with_graph(vectors, folder)
            elif (folder / "copies.npy").exists():
                table = cls._with_copies(vectors, folder)
            else:  # saved before there were copies
                table = cls()
                if len(vectors):
                    table.append(vectors.astype(np.float32))
            table._folder = folder.resolve() if len(table) == len(vectors) == table._first else None
            if (folder / "later.npy").exists() and len(later := np.load(folder / "later.npy")):
                table.append(later.astype(np.float32))
            table._dead.update(map(int, np.load(folder / "dead.npy").tolist()))
            table._check()
        except (*UNREADABLE, RuntimeError) as error:  # the graph's engine knows no narrower one
            raise BadModel(f"the vectors in {folder} cannot be read ({error}); build the index again") from None
        return table

    @classmethod
    def _with_graph(cls, vectors: NDArray[Any], folder: Path) -> VectorTable:
        graph = VectorGraph.load(folder)
        table = cls(vectors[: len(graph)], graph)
        if len(vectors) > len(graph):  # those that came after it was linked
            table.append(vectors[len(graph) :].astype(np.float32))
        return table

    @classmethod
    def _with_copies(cls, vectors: NDArray[Any], folder: Path) -> VectorTable:
        copies, lost = mapped_array(folder / "copies.npy"), np.load(folder / "lost.npy")
        if copies.shape != vectors.shape or copies.dtype != np.int8 or lost.shape != (1,) or not 0 <= lost[0] < 2:
            raise ValueError("the copies are not those of the vectors")
        return cls(vectors, live=_GrowingRows(copies, float(lost[0]))) if len(vectors) else cls()

    def _check(self) -> None:
        """ValueError where what was read does not fit together."""
        if self._graph is not None and (self._graph.width, len(self._graph)) != (self._width(), self._first):
            raise ValueError(f"the graph is over {len(self._graph)} vectors, and there are {self._first}")
        if self._dead and not 0 <= min(self._dead) <= max(self._dead) < len(self):
            raise ValueError("a row is dead that is not there")

    def _width(self) -> int:
        return int(self._live.rows.shape[1] if self._base is None else self._base.shape[1])

    def skipped(self) -> Ints:
        """The dead rows."""
        if self._dead_rows is None:
            self._dead_rows = np.fromiter(self._dead, dtype=np.int64, count=len(self._dead))
        return self._dead_rows

    def _best_among(self, queries: Floats, counts: Sequence[int], among: Ints) -> list[Ints]:
        key = among.ctypes.data  # RowIds returns the same array until a tool is added or removed
        with self._keeping:
            kept = self._subsets.get(key)
            if kept is None or kept[0] is not among:
                if len(self._subsets) >= _SUBSETS_KEPT:
                    self._subsets.pop(next(iter(self._subsets)))
                kept = self._subsets[key] = (among, _GrowingRows())
                if len(among):
                    kept[1].append(self.rows(among))
        return [among[rows] for rows in kept[1].best(queries, counts, np.empty(0, dtype=np.int64))]

    def _graph_candidates(self, graph: VectorGraph, query: Floats, k: int, skipped: Ints) -> Ints:
        wanted = max(_GRAPH_CANDIDATES, 2 * k) + min(len(skipped), 1_000)
        found = graph.nearest(_quantized(query[None])[0][0], wanted)
        live = np.arange(self._first, len(self), dtype=np.int64)
        rows = np.concatenate([found, live])
        return rows[~np.isin(rows, skipped)] if len(skipped) else rows


def _kth(scores: Floats, k: int) -> float:
    """A score that at least k rows reach, and hardly more than k.

    It is the k-th best of the best scores of small groups: k different rows reach it, and finding it costs a tenth of
    finding the k-th best of all.
    """
    groups = len(scores) // _GROUP
    if groups >= 4 * k:
        best = scores[: groups * _GROUP].reshape(_GROUP, groups).max(axis=0)
        return float(np.partition(best, groups - k)[groups - k])
    return float(np.partition(scores, len(scores) - k)[len(scores) - k])
