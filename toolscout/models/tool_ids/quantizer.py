"""Codes of tools: an encoder and its codebooks turn a document's vector into a short sequence of numbers.

numpy alone; training/code_learning.py learns them. The first code says roughly what a tool is, each further one what
the codes before it left out. No two tools have the same sequence: at the last level the tools that share all codes
before it are matched with different ones, as near to their meaning as possible.
"""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from toolscout.core.arrays import Floats, Ints
from toolscout.errors import BadModel
from toolscout.models.tool_ids.assignment import one_each, with_room

Code = tuple[int, ...]
QUANTIZER_FILE = "quantizer.npz"
_VERSION = 1
# Codes for so many times the tools there are: room for those to come, and near ones are seldom taken.
_ROOM = 16
_LEAST_CODES = 8
# Two levels up to this many codes each, three beyond.
_MOST_CODES = 4096
# Beyond this many tools under one prefix the cheapest matching takes too long; a stable one is made.
_EXACT = 400
_CHUNK = 4096


@dataclass(frozen=True)  # no slots: it is mixed into the options of methods, and two layouts do not mix
class CodeOptions:
    """How codes are learned.

    `levels` codes make a sequence, each one of `codes`; 0 picks them by the number of tools. `collaborative`: how
    strongly tools that are used together are drawn to the same first code, 0 not at all. `beta`: how strongly vectors
    are drawn to their code. `sinkhorn`: the smaller, the more evenly codes are used in training; 0 does not even them
    out. `latent`: the length of a code's vector. `code_steps` and `code_rate`: how long and how fast they are learned.
    """

    levels: int = 0
    codes: int = 0
    collaborative: float = 0.5
    beta: float = 0.25
    sinkhorn: float = 0.01
    latent: int = 64
    code_steps: int = 300
    code_rate: float = 1e-3
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be learned with."""
        if min(self.levels, self.codes, self.seed) < 0 or min(self.latent, self.code_steps) < 1:
            raise BadModel(f"levels, codes, seed must be 0 or more, latent and code_steps 1 or more, got {self}")
        if not (self.collaborative >= 0 and self.beta >= 0 and self.sinkhorn >= 0 and self.code_rate > 0):
            raise BadModel(f"collaborative, beta, sinkhorn must be 0 or more, code_rate above 0, got {self}")

    def shape(self, tools: int) -> tuple[int, int]:
        """Levels and codes a level for this many tools; BadModel where those given cannot hold them."""
        levels, codes = self.levels, self.codes
        if not levels:
            levels = 2
            while (codes or _MOST_CODES) ** levels < (tools if codes else _ROOM * tools) and codes != 1:
                levels += 1
        if not codes:
            codes = _LEAST_CODES
            while codes**levels < _ROOM * tools:
                codes *= 2
        _check_room(levels, codes, tools)
        return levels, codes


class Quantizer:
    """A frozen encoder and its codebooks. Codes that were given never change: new tools take free ones."""

    def __init__(self, layers: Collection[tuple[Floats, Floats]], codebooks: Floats, encoder: str = "") -> None:
        """`layers`: weights [out, in] and biases; `codebooks` [levels, codes, latent].

        `encoder`: the fingerprint of the encoder that the vectors come from.
        """
        self._layers = list(layers)
        self.codebooks = codebooks
        self.encoder = encoder

    @property
    def levels(self) -> int:
        """How many codes a tool has."""
        return int(self.codebooks.shape[0])

    @property
    def codes(self) -> int:
        """How many different codes each level has."""
        return int(self.codebooks.shape[1])

    def encode(self, vectors: Floats) -> Floats:
        """What codes stand for: [n, latent]."""
        states: Floats = np.atleast_2d(vectors).astype(np.float32)
        length = self._layers[0][0].shape[1]
        if states.shape[1] != length or not np.isfinite(states).all():
            raise BadModel(f"codes need vectors of {length} finite numbers, got {states.shape}; embed the tools again")
        for position, (weight, bias) in enumerate(self._layers):
            states = states @ weight.T + bias
            if position < len(self._layers) - 1:
                states = np.maximum(states, 0.0)
        return states

    def nearest(self, vectors: Floats) -> Ints:
        """The nearest code at each level, [n, levels]: several tools may share a sequence."""
        left = self.encode(vectors)
        found = np.empty((len(left), self.levels), dtype=np.int64)
        for level, book in enumerate(self.codebooks):
            found[:, level] = _nearest(left, book)
            left = left - book[found[:, level]]
        return found

    def vector(self, codes: Collection[Code]) -> Floats:
        """What sequences of codes stand for: the sums of their vectors, [n, latent]."""
        numbers = self._numbers(codes)
        total: Floats = sum(
            (book[numbers[:, level]] for level, book in enumerate(self.codebooks)),
            start=np.zeros((len(numbers), self.codebooks.shape[2]), dtype=np.float32),
        )
        return total

    def assign(self, vectors: Floats, taken: Collection[Code] | Ints = ()) -> list[Code]:
        """A sequence for each vector, all different and none among those taken (as an array: each of them once).

        A tool gets the nearest codes level by level. Where a prefix has no room for all that are nearest to it, the
        nearest stay and the others go to their next nearest. BadModel where there are fewer free sequences than tools.
        """
        if not len(vectors):
            return []
        numbers = taken if isinstance(taken, np.ndarray) else self._numbers(set(taken))
        left = self.encode(vectors)
        _check_room(self.levels, self.codes, len(left) + len(numbers))
        found = np.zeros((len(left), self.levels), dtype=np.int64)
        groups = [(np.arange(len(left)), numbers)]  # under each prefix: the tools to place, the sequences taken
        for level, book in enumerate(self.codebooks):
            below = self.codes ** (self.levels - level - 1)
            deeper: list[tuple[Ints, Ints]] = []
            for (rows, held), far in zip(groups, _far(left, book, [rows for rows, _ in groups]), strict=True):
                chosen = _chosen(left[rows], book, below - np.bincount(held[:, level], minlength=self.codes), far)
                found[rows, level] = chosen
                deeper += [(rows[chosen == code], held[held[:, level] == code]) for code in np.unique(chosen)]
            left = left - book[found[:, level]]
            groups = deeper
        return [tuple(codes) for codes in found.tolist()]

    def place(self, vector: Floats, taken: Collection[Code]) -> Code:
        """A free sequence near the meaning of a new tool."""
        return self.assign(np.atleast_2d(vector), taken)[0]

    def _numbers(self, codes: Collection[Code]) -> Ints:
        try:
            numbers = np.array(list(codes), dtype=np.int64).reshape(len(codes), self.levels)
        except (ValueError, TypeError):
            raise BadModel(f"a sequence has {self.levels} codes here; the codes are those of another model") from None
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < self.codes:
            raise BadModel(f"codes go from 0 to {self.codes - 1} here; the codes are those of another model")
        return numbers

    def save(self, folder: Path) -> None:
        """Write quantizer.npz."""
        folder.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, Any] = {"version": np.array(_VERSION), "encoder": np.array(self.encoder)}
        for position, (weight, bias) in enumerate(self._layers):
            arrays |= {f"weight_{position}": weight, f"bias_{position}": bias}
        np.savez(folder / QUANTIZER_FILE, allow_pickle=False, codebooks=self.codebooks, **arrays)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Open what save wrote."""
        path = folder / QUANTIZER_FILE
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
                arrays = {name: found[name] for name in found.files}
            version = int(arrays["version"])
            count = sum(name.startswith("weight_") for name in arrays)
            layers = [(_floats(arrays, f"weight_{i}", 2), _floats(arrays, f"bias_{i}", 1)) for i in range(count)]
            made = cls(layers, _floats(arrays, "codebooks", 3), str(arrays["encoder"]))
            made.nearest(np.zeros((1, layers[0][0].shape[1]), dtype=np.float32))
        except BadModel:
            raise
        except (OSError, ValueError, KeyError, IndexError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise BadModel(f"the codebooks in {path} cannot be read ({error}); train the model again") from None
        if version != _VERSION:
            raise BadModel(f"{path} was written by another version of toolscout; train the model again")
        return made


def distances(vectors: Floats, book: Floats) -> Floats:
    """Squared distances of vectors to codes, [n, codes]."""
    found: Floats = (vectors**2).sum(axis=1)[:, None] + (book**2).sum(axis=1) - 2 * vectors @ book.T
    return found


def _nearest(left: Floats, book: Floats) -> Ints:
    found = np.empty(len(left), dtype=np.int64)
    for start in range(0, len(left), _CHUNK):  # not all distances at once: there may be many tools
        found[start : start + _CHUNK] = distances(left[start : start + _CHUNK], book).argmin(axis=1)
    return found


def _far(left: Floats, book: Floats, groups: Sequence[Ints]) -> Iterator[Floats | None]:
    """The distances of each group's rows to all codes, of many small groups by one product; None of a large group."""
    batch: list[Ints] = []
    for number, rows in enumerate(groups):
        batch.append(rows)
        more = len(groups[number + 1]) if number + 1 < len(groups) else _CHUNK
        if sum(map(len, batch)) + more > _CHUNK:
            sizes = np.cumsum([len(one) for one in batch])
            if sizes[-1] > _CHUNK:
                yield None
            else:
                yield from np.split(distances(left[np.concatenate(batch)], book), sizes[:-1])
            batch = []


def _chosen(left: Floats, book: Floats, room: Ints, far: Floats | None) -> Ints:
    """The code of each row at one level under one prefix; `room`: how many rows each code can take."""
    if room.max() == 1:
        free = np.flatnonzero(room)
        costs = (distances(left, book[free]) if far is None else far[:, free]).astype(np.float64)
        few = len(left) <= _EXACT
        return free[one_each(costs) if few else with_room(costs, room[free])]
    chosen = _nearest(left, book) if far is None else far.argmin(axis=1)
    if (np.bincount(chosen, minlength=len(room)) <= room).all():
        return chosen
    return with_room(distances(left, book) if far is None else far, room)


def _check_room(levels: int, codes: int, tools: int) -> None:
    if codes**levels < tools:
        raise BadModel(
            f"{levels} levels of {codes} codes hold {codes**levels:,} tools, there are {tools:,}; train with more, "
            f"as --option codes={2 * codes}, or leave levels and codes at 0"
        )


def _floats(arrays: Mapping[str, NDArray[Any]], name: str, dimensions: int) -> Floats:
    found: Floats = arrays[name].astype(np.float32)
    if found.ndim != dimensions or not np.isfinite(found).all():
        raise ValueError(f"{name} has shape {found.shape} or numbers that are not finite")
    return found
