"""A tree of clusters over vectors, ten ways at each: every vector has a place of its own, and new ones find one.

Vectors are compared by their direction. A place is named by the digits that lead to it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from toolscout.core.arrays import Bytes, Floats, Ints
from toolscout.errors import BadModel

WAYS = 10
_ROUNDS = 12
# Centres are learned on so many vectors.
_SAMPLE = 4096
# From this depth on clusters are filled evenly instead of by meaning: no path becomes long, whatever the vectors.
_DEEPEST = 12
# Similarities that differ by less are equal.
_SAME = 1e-6


class _Cluster:
    """A place, clusters below it, or (once vectors came after the first) both. A freed place stays."""

    __slots__ = ("below", "centre", "count", "taken")

    def __init__(self, centre: Bytes) -> None:
        self.centre = centre
        self.below: dict[int, _Cluster] = {}
        self.taken = False
        self.count = 0  # taken places, this one and those below

    def nearest(self, unit: Floats, depth: int) -> int:
        """The way to what is most alike; of equals the one with the fewest places taken."""
        digits = sorted(self.below)
        if depth < _DEEPEST:
            centres = np.stack([self.below[digit].centre for digit in digits]).astype(np.float32)
            alike = _unit(centres) @ unit
            digits = [digits[place] for place in np.flatnonzero(alike >= alike.max() - _SAME)]
        return min(digits, key=lambda digit: self.below[digit].count)


class Tree:
    """Clusters of clusters of vectors. Places that were given never change; freed ones are given again."""

    def __init__(self) -> None:
        """Begin without vectors; the first ones say how long they are."""
        self.dimension = 0
        self._root = _Cluster(np.zeros(0, np.int8))

    @classmethod
    def of(cls, vectors: Floats, seed: int) -> tuple[Self, list[str]]:
        """Clusters of these vectors [n, d] until each is alone, and the place of each."""
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
            own, centres = _parts(units[rows], [seed, *map(int, path)])
            for digit, centre in enumerate(_packed(centres)):
                node.below[digit] = _Cluster(centre)
                to_split.append((f"{path}{digit}", node.below[digit], rows[own == digit]))
        return tree, places

    def add(self, vector: Floats) -> str:
        """A free place near the meaning of a vector.

        The nearest cluster is entered for as long as there is one. There a place that was freed is taken, a free digit,
        or, where there is neither, a digit behind the nearest place.
        """
        units = self._units(np.atleast_2d(vector))
        path = self._free(units[0])
        centre = _packed(units)[0]
        *above, last = map(int, path)
        passed = self._passed(above)
        passed.append(passed[-1].below.setdefault(last, _Cluster(centre)))
        passed[-1].taken, passed[-1].centre = True, centre
        for node in passed:
            node.count += 1
        return path

    def free(self, path: str) -> None:
        """Give a place back."""
        passed = self._passed(map(int, path))
        passed[-1].taken = False
        for node in passed:
            node.count -= 1

    def take(self, path: str) -> bool:
        """Give a place, which was given before, again; whether it was free. What is there is told later (`meet`)."""
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

    def meet(self, path: str, vector: Floats) -> None:
        """Say what is at a place that was taken before that was known."""
        node = self._passed(map(int, path))[-1]
        if not node.centre.any():
            node.centre = _packed(self._units(np.atleast_2d(vector)))[0]

    def save(self, file: Path) -> None:
        """Write all clusters with their centres, a byte a number."""
        found = list(self._clusters())
        arrays: dict[str, Any] = {
            "paths": np.array([path.encode() for path, _ in found], dtype=np.bytes_),
            "centres": np.array([node.centre for _, node in found], np.int8).reshape(len(found), self.dimension),
        }
        np.savez(file, allow_pickle=False, **arrays)

    @classmethod
    def load(cls, file: Path, taken: Collection[str]) -> Self:
        """Open what save wrote; `taken` are the places given. ValueError or LookupError where they do not fit."""
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
            paths, centres = arrays["paths"].tolist(), arrays["centres"]
        if centres.dtype != np.int8 or centres.ndim != 2 or len(centres) != len(paths):
            raise ValueError("clusters and centres do not fit together")
        tree = cls()
        tree.dimension = centres.shape[1]
        for path, centre in zip(paths, centres, strict=True):  # what is above comes first
            *above, last = map(int, path.decode())
            tree._passed(above)[-1].below[last] = _Cluster(centre)
        for place in taken:
            passed = tree._passed(map(int, place))
            passed[-1].taken = True
            for node in passed:
                node.count += 1
        return tree

    def _free(self, unit: Floats) -> str:
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

    def _passed(self, path: Iterator[int] | Sequence[int]) -> list[_Cluster]:
        """The clusters from the root to a place."""
        passed = [self._root]
        for digit in path:
            passed.append(passed[-1].below[digit])
        return passed

    def _clusters(self) -> Iterator[tuple[str, _Cluster]]:
        """All but the root with their paths, each after what is above it."""
        to_see = [("", self._root)]
        while to_see:
            path, node = to_see.pop()
            if path:
                yield path, node
            to_see += [(f"{path}{digit}", child) for digit, child in node.below.items()]

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
    """Of length 1; zero stays zero."""
    # First to a size whose square is a number.
    scaled = vectors / _or_one(np.abs(vectors).max(axis=1, keepdims=True))
    found: Floats = scaled / _or_one(np.sqrt((scaled**2).sum(axis=1, keepdims=True)))
    return found


def _packed(units: Floats) -> Bytes:
    """A byte a number: the direction is all that is compared."""
    packed: Bytes = np.rint(127 * units / _or_one(np.abs(units).max(axis=1, keepdims=True))).astype(np.int8)
    return packed


def _or_one(sizes: Floats) -> Floats:
    return np.where(sizes > 0, sizes, np.float32(1))


def _parts(units: Floats, seed: Sequence[int]) -> tuple[Ints, Floats]:
    """In which part each vector is, none of them empty, and their centres; `seed` ends with the path so far.

    Few vectors are a part each. Vectors that cannot be told apart, or that clustering peels off one by one, are split
    by their order.
    """
    count, depth = len(units), len(seed) - 1
    if count <= WAYS:
        return np.arange(count), units
    if depth < _DEEPEST:
        own, centres = _clustered(units, np.random.default_rng(seed))
        if len(centres) > 1:
            return own, centres
    same = _unit(units.sum(axis=0, keepdims=True))
    return np.arange(count) * WAYS // count, np.repeat(same, WAYS, axis=0)


def _clustered(units: Floats, rng: np.random.Generator) -> tuple[Ints, Floats]:
    """k-means by direction, up to ten ways, learned on some of many; empty clusters are left out."""
    sample = units if len(units) <= _SAMPLE else units[rng.choice(len(units), _SAMPLE, replace=False)]
    centres = _first_centres(sample, rng)
    own: Ints = np.full(len(sample), -1)
    for _ in range(_ROUNDS):
        before, own = own, (sample @ centres.T).argmax(axis=1)
        if (own == before).all():
            break
        members = own[:, None] == np.arange(len(centres))
        moved = _unit((sample.T @ members.astype(np.float32)).T)
        centres = np.where(members.any(axis=0)[:, None], moved, centres)
    used, own = np.unique((units @ centres.T).argmax(axis=1), return_inverse=True)
    return own, centres[used]


def _first_centres(units: Floats, rng: np.random.Generator) -> Floats:
    """Some of the vectors, rather far from each other (k-means++)."""
    chosen = [int(rng.integers(len(units)))]
    far = np.full(len(units), np.inf)
    while len(chosen) < WAYS:
        far = np.minimum(far, 1.0 - (units @ units[chosen[-1]]).astype(np.float64))
        far[far < _SAME] = 0.0
        far[chosen] = 0.0
        if not far.any():
            break
        chosen.append(int(rng.choice(len(units), p=far / far.sum())))
    return units[chosen]
