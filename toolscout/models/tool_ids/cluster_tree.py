"""Hierarchical k-means over vectors, with up to ten clusters at each node; every vector gets a leaf of its own.

Vectors are compared by cosine similarity. A leaf is named by its path, the digits of the clusters from the root to it.
New vectors get a free path near similar vectors without changing the paths of the others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from toolscout.core.arrays import Bytes, Floats, Ints
from toolscout.core.model_files import read_arrays
from toolscout.errors import BadModel

WAYS = 10
_ROUNDS = 12
# The most vectors that k-means learns its centres from.
_SAMPLE = 4096
# From this depth on, clusters are filled evenly instead of by similarity, which bounds the length of a path.
_DEEPEST = 12
# Similarities that differ by less than this count as equal.
_SAME = 1e-6


class _Cluster:
    """A node of the tree: it may be the leaf of a vector (`taken`), have clusters below it, or both.

    A node whose vector was removed stays in the tree, to be used again.
    """

    __slots__ = ("below", "centre", "count", "taken")

    def __init__(self, centre: Bytes) -> None:
        self.centre = centre
        self.below: dict[int, _Cluster] = {}
        self.taken = False
        self.count = 0  # taken nodes, this one and those below

    def nearest(self, unit: Floats, depth: int) -> int:
        """The digit of the child most similar to a unit vector; among equals, the one with the fewest taken nodes."""
        digits = sorted(self.below)
        if depth < _DEEPEST:
            centres = np.stack([self.below[digit].centre for digit in digits]).astype(np.float32)
            similarity = _unit(centres) @ unit
            digits = [digits[place] for place in np.flatnonzero(similarity >= similarity.max() - _SAME)]
        return min(digits, key=lambda digit: self.below[digit].count)


class Tree:
    """A tree of clusters of vectors. The path of a vector never changes; the path of a removed one can be reused."""

    def __init__(self) -> None:
        """Make an empty tree; the first vectors set its dimension."""
        self.dimension = 0
        self._root = _Cluster(np.zeros(0, np.int8))

    @classmethod
    def of(cls, vectors: Floats, seed: int) -> tuple[Self, list[str]]:
        """Cluster vectors [n, d] until each has a leaf of its own; gives back the tree and the path of each vector."""
        tree, places = cls(), [""] * len(vectors)
        if not places:
            return tree, places
        units = tree._units(vectors)
        to_split = [("", tree._root, np.arange(len(vectors)))]
        while to_split:
            path, node, rows = to_split.pop()
            node.count = len(rows)
            if path and len(rows) == 1:
                node.taken, places[rows[0]] = True, path
                continue
            cluster_of, centres = _split(units[rows], [seed, *map(int, path)])
            for digit, centre in enumerate(_to_int8(centres)):
                node.below[digit] = _Cluster(centre)
                to_split.append((f"{path}{digit}", node.below[digit], rows[cluster_of == digit]))
        return tree, places

    def add(self, vector: Floats) -> str:
        """Give a new vector a free path near similar vectors, and return the path.

        Descends into the most similar cluster as long as there is one. There it takes the path of a removed vector,
        else a free digit, else a digit below the most similar leaf.
        """
        units = self._units(np.atleast_2d(vector))
        path = self._free_path(units[0])
        centre = _to_int8(units)[0]
        *above, last = map(int, path)
        passed = self._nodes_along(above)
        passed.append(passed[-1].below.setdefault(last, _Cluster(centre)))
        passed[-1].taken, passed[-1].centre = True, centre
        for node in passed:
            node.count += 1
        return path

    def release(self, path: str) -> None:
        """Free the path of a vector that was removed."""
        passed = self._nodes_along(map(int, path))
        passed[-1].taken = False
        for node in passed:
            node.count -= 1

    def reserve(self, path: str) -> bool:
        """Mark a path as used, without a vector, which `set_vector` adds later; gives back False if it was in use."""
        node, passed = self._root, [self._root]
        for digit in map(int, path):
            node = node.below.setdefault(digit, _Cluster(np.zeros(self.dimension, np.int8)))
            passed.append(node)
        if node.taken:
            return False
        node.taken = True
        for one in passed:
            one.count += 1
        return True

    def set_vector(self, path: str, vector: Floats) -> None:
        """Set the vector of a path that `reserve` marked; a path that has a vector keeps it."""
        node = self._nodes_along(map(int, path))[-1]
        if not node.centre.any():
            node.centre = _to_int8(self._units(np.atleast_2d(vector)))[0]

    def save(self, file: Path) -> None:
        """Write the paths of all clusters, and their centres as int8, to an .npz file."""
        clusters = list(self._clusters())
        arrays: dict[str, Any] = {
            "paths": np.array([path.encode() for path, _ in clusters], dtype=np.bytes_),
            "centres": np.array([node.centre for _, node in clusters], np.int8).reshape(len(clusters), self.dimension),
        }
        np.savez(file, allow_pickle=False, **arrays)

    @classmethod
    def load(cls, file: Path, taken: Collection[str]) -> Self:
        """Read a tree that `save` wrote. `taken` has the paths in use.

        Raises ValueError or LookupError where the file or the paths do not fit together.
        """
        arrays = read_arrays(file)
        paths, centres = arrays["paths"].tolist(), arrays["centres"]
        if centres.dtype != np.int8 or centres.ndim != 2 or len(centres) != len(paths):
            raise ValueError("clusters and centres do not fit together")
        tree = cls()
        tree.dimension = centres.shape[1]
        for path, centre in zip(paths, centres, strict=True):  # a parent comes before its children
            *above, last = map(int, path.decode())
            tree._nodes_along(above)[-1].below[last] = _Cluster(centre)
        for place in taken:
            passed = tree._nodes_along(map(int, place))
            passed[-1].taken = True
            for node in passed:
                node.count += 1
        return tree

    def _free_path(self, unit: Floats) -> str:
        node, path = self._root, ""
        while node.below:
            digit = node.nearest(unit, len(path))
            child = node.below[digit]
            if not child.below and not child.taken:
                return f"{path}{digit}"
            if not child.below and len(node.below) < WAYS:
                break
            node, path = child, f"{path}{digit}"
        return f"{path}{min(set(range(WAYS)) - node.below.keys())}"

    def _nodes_along(self, path: Iterator[int] | Sequence[int]) -> list[_Cluster]:
        """The clusters along a path, from the root on."""
        passed = [self._root]
        for digit in path:
            passed.append(passed[-1].below[digit])
        return passed

    def _clusters(self) -> Iterator[tuple[str, _Cluster]]:
        """All clusters but the root with their paths, each after its parent."""
        to_visit = [("", self._root)]
        while to_visit:
            path, node = to_visit.pop()
            if path:
                yield path, node
            to_visit += [(f"{path}{digit}", child) for digit, child in node.below.items()]

    def _units(self, vectors: Floats) -> Floats:
        found = np.asarray(vectors, dtype=np.float32)
        length = self.dimension or (found.shape[1] if found.ndim == 2 else 0)
        if found.ndim != 2 or found.shape[1] != length or not length or not np.isfinite(found).all():
            raise BadModel(
                f"clusters need vectors of {length or 'so many'} finite numbers, got {found.shape}; embed again"
            )
        self.dimension = length
        return _unit(found)


def _unit(vectors: Floats) -> Floats:
    """Rows scaled to length 1; a row of zeros stays zero."""
    # Divided by the largest number first, so that squares do not overflow.
    scaled = vectors / _or_one(np.abs(vectors).max(axis=1, keepdims=True))
    found: Floats = scaled / _or_one(np.sqrt((scaled**2).sum(axis=1, keepdims=True)))
    return found


def _to_int8(units: Floats) -> Bytes:
    """Vectors as int8: only their direction is compared."""
    packed: Bytes = np.rint(127 * units / _or_one(np.abs(units).max(axis=1, keepdims=True))).astype(np.int8)
    return packed


def _or_one(sizes: Floats) -> Floats:
    return np.where(sizes > 0, sizes, np.float32(1))


def _split(units: Floats, seed: Sequence[int]) -> tuple[Ints, Floats]:
    """Split vectors into clusters, none of them empty: the cluster of each vector, and the centres.

    `seed` ends with the path of the node that is split. Up to ten vectors get a cluster each. Vectors that k-means
    cannot separate, or that are at the greatest depth, are split by their order.
    """
    count, depth = len(units), len(seed) - 1
    if count <= WAYS:
        return np.arange(count), units
    if depth < _DEEPEST:
        cluster_of, centres = _k_means(units, np.random.default_rng(seed))
        if len(centres) > 1:
            return cluster_of, centres
    same = _unit(units.sum(axis=0, keepdims=True))
    return np.arange(count) * WAYS // count, np.repeat(same, WAYS, axis=0)


def _k_means(units: Floats, rng: np.random.Generator) -> tuple[Ints, Floats]:
    """Spherical k-means with up to ten clusters, learned on a sample; empty clusters are left out."""
    sample = units if len(units) <= _SAMPLE else units[rng.choice(len(units), _SAMPLE, replace=False)]
    centres = _first_centres(sample, rng)
    cluster_of: Ints = np.full(len(sample), -1)
    for _ in range(_ROUNDS):
        before, cluster_of = cluster_of, (sample @ centres.T).argmax(axis=1)
        if (cluster_of == before).all():
            break
        members = cluster_of[:, None] == np.arange(len(centres))
        moved = _unit((sample.T @ members.astype(np.float32)).T)
        centres = np.where(members.any(axis=0)[:, None], moved, centres)
    used, cluster_of = np.unique((units @ centres.T).argmax(axis=1), return_inverse=True)
    return cluster_of, centres[used]


def _first_centres(units: Floats, rng: np.random.Generator) -> Floats:
    """The initial centres by k-means++: up to ten of the vectors, likely far from each other."""
    chosen = [int(rng.integers(len(units)))]
    distance = np.full(len(units), np.inf)
    while len(chosen) < WAYS:
        distance = np.minimum(distance, 1.0 - (units @ units[chosen[-1]]).astype(np.float64))
        distance[distance < _SAME] = 0.0
        distance[chosen] = 0.0
        if not distance.any():
            break
        chosen.append(int(rng.choice(len(units), p=distance / distance.sum())))
    return units[chosen]
