"""Residual quantisation: a small encoder and codebooks turn a document's vector into a short sequence of codes.

numpy alone; training/code_learning.py trains it. Each code is the nearest codebook vector to what the codes before it
left over. No two tools have the same sequence: tools that share all codes but the last are assigned different last
codes, as near to their vectors as possible.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from toolscout.core.arrays import Floats, Ints
from toolscout.core.model_files import UNREADABLE, read_arrays
from toolscout.errors import BadModel
from toolscout.models.tool_ids.assignment import linear_assignment, stable_matching

Code = tuple[int, ...]
QUANTIZER_FILE = "quantizer.npz"
_VERSION = 1
# How many sequences there are per tool: leaves room for new tools, and the nearest sequence is seldom taken.
_ROOM = 16
_LEAST_CODES = 8
# Two levels up to this many codes each, three beyond.
_MOST_CODES = 4096
# With more tools than this under one prefix, a stable matching is made: the cheapest one would take too long.
_EXACT = 400
_CHUNK = 4096


@dataclass(frozen=True)  # no slots: it is mixed into the options of methods, and two layouts do not mix
class CodeOptions:
    """How codes are learned.

    levels: the number of codes in a sequence; 0 picks it by the number of tools.
    codes: the number of different codes per level; 0 picks it by the number of tools.
    collaborative: weight of the loss that draws tools which are used together to each other.
    collaborative_on: what that loss acts on. "assignments": the probability that two tools share their first codes, so
        that a tool can move to another code. "vectors", as published: the squared distance of their summed code
        vectors, which moves code vectors only.
    code_source: "documents", or "random" to draw the learned codes anew among the tools, so that they mean nothing.
    beta: weight of the commitment loss, which draws vectors to their codes.
    sinkhorn: the epsilon of Sinkhorn-Knopp; a smaller one uses the codes more evenly in training, 0 turns it off.
    latent: the length of a code's vector.
    code_steps, code_rate: the number of training steps and the learning rate.
    """

    levels: int = 0
    codes: int = 0
    collaborative: float = 0.5
    collaborative_on: Literal["assignments", "vectors"] = "assignments"
    code_source: Literal["documents", "random"] = "documents"
    beta: float = 0.25
    sinkhorn: float = 0.01
    latent: int = 64
    code_steps: int = 300
    code_rate: float = 1e-3
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise BadModel for values out of range."""
        if min(self.levels, self.codes, self.seed) < 0 or min(self.latent, self.code_steps) < 1:
            raise BadModel(f"levels, codes, seed must be 0 or more, latent and code_steps 1 or more, got {self}")
        if not (self.collaborative >= 0 and self.beta >= 0 and self.sinkhorn >= 0 and self.code_rate > 0):
            raise BadModel(f"collaborative, beta, sinkhorn must be 0 or more, code_rate above 0, got {self}")
        if self.collaborative_on not in ("assignments", "vectors"):
            raise BadModel(f"collaborative_on must be assignments or vectors, got {self.collaborative_on!r}")
        if self.code_source not in ("documents", "random"):
            raise BadModel(f"code_source must be documents or random, got {self.code_source!r}")

    def shape(self, tools: int) -> tuple[int, int]:
        """The number of levels and of codes per level for this many tools.

        Raises BadModel where the options give too few sequences.
        """
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
    """A trained encoder with its codebooks. The codes of a tool never change: new tools take free sequences."""

    def __init__(self, layers: Collection[tuple[Floats, Floats]], codebooks: Floats, encoder: str = "") -> None:
        """Take the layers as (weight [out, in], bias), and the codebooks [levels, codes, latent].

        `encoder` is the fingerprint of the text encoder that the vectors come from.
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
        """Latent vectors [n, latent] of document vectors; raises BadModel where these do not fit."""
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
        """The nearest code at each level [n, levels]; several vectors may get the same sequence."""
        left = self.encode(vectors)
        found = np.empty((len(left), self.levels), dtype=np.int64)
        for level, book in enumerate(self.codebooks):
            found[:, level] = _nearest(left, book)
            left = left - book[found[:, level]]
        return found

    def vector(self, codes: Collection[Code]) -> Floats:
        """The latent vectors [n, latent] of code sequences: the sums of their codes' vectors. Raises BadModel."""
        numbers = self._numbers(codes)
        total: Floats = sum(
            (book[numbers[:, level]] for level, book in enumerate(self.codebooks)),
            start=np.zeros((len(numbers), self.codebooks.shape[2]), dtype=np.float32),
        )
        return total

    def assign(self, vectors: Floats, taken: Collection[Code] | Ints = ()) -> list[Code]:
        """A code sequence for each vector, all different, and none of those in `taken`.

        A tool gets the nearest codes level by level. Where a prefix has no room for all tools that are nearest to it,
        the nearest of them stay and the others get their next nearest code. `taken` as an array must not repeat a
        sequence. Raises BadModel where there are fewer free sequences than tools.
        """
        if not len(vectors):
            return []
        numbers = taken if isinstance(taken, np.ndarray) else self._numbers(set(taken))
        left = self.encode(vectors)
        _check_room(self.levels, self.codes, len(left) + len(numbers))
        found = np.zeros((len(left), self.levels), dtype=np.int64)
        groups = [(np.arange(len(left)), numbers)]  # for each prefix: the tools to assign, the sequences taken
        for level, book in enumerate(self.codebooks):
            below = self.codes ** (self.levels - level - 1)
            deeper: list[tuple[Ints, Ints]] = []
            all_costs = _group_distances(left, book, [rows for rows, _ in groups])
            for (rows, used), costs in zip(groups, all_costs, strict=True):
                room = below - np.bincount(used[:, level], minlength=self.codes)
                chosen = _assign_level(left[rows], book, room, costs)
                found[rows, level] = chosen
                deeper += [(rows[chosen == code], used[used[:, level] == code]) for code in np.unique(chosen)]
            left = left - book[found[:, level]]
            groups = deeper
        return [tuple(codes) for codes in found.tolist()]

    def place(self, vector: Floats, taken: Collection[Code]) -> Code:
        """A free code sequence near the vector of a new tool; raises BadModel where none is free."""
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
        """Read what `save` wrote; raises BadModel where it cannot be read."""
        path = folder / QUANTIZER_FILE
        try:
            arrays = read_arrays(path)
            version = int(arrays["version"])
            count = sum(name.startswith("weight_") for name in arrays)
            layers = [(_floats(arrays, f"weight_{i}", 2), _floats(arrays, f"bias_{i}", 1)) for i in range(count)]
            made = cls(layers, _floats(arrays, "codebooks", 3), str(arrays["encoder"]))
            made.nearest(np.zeros((1, layers[0][0].shape[1]), dtype=np.float32))
        except BadModel:
            raise
        except UNREADABLE as error:
            raise BadModel(f"the codebooks in {path} cannot be read ({error}); train the model again") from None
        if version != _VERSION:
            raise BadModel(f"{path} was written by another version of toolscout; train the model again")
        return made


def distances(vectors: Floats, book: Floats) -> Floats:
    """Squared Euclidean distances of vectors to codes, [n, codes]."""
    found: Floats = (vectors**2).sum(axis=1)[:, None] + (book**2).sum(axis=1) - 2 * vectors @ book.T
    return found


def _nearest(left: Floats, book: Floats) -> Ints:
    found = np.empty(len(left), dtype=np.int64)
    for start in range(0, len(left), _CHUNK):  # in chunks, to bound the memory that the distances take
        found[start : start + _CHUNK] = distances(left[start : start + _CHUNK], book).argmin(axis=1)
    return found


def _group_distances(left: Floats, book: Floats, groups: Sequence[Ints]) -> Iterator[Floats | None]:
    """For each group, the distances of its rows to all codes, or None for a group larger than a chunk.

    Small groups are computed together by one matrix product.
    """
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


def _assign_level(left: Floats, book: Floats, room: Ints, costs: Floats | None) -> Ints:
    """The code of each row at one level under one prefix.

    `room` says how many rows each code can take; `costs` are the distances to all codes, None to compute them here.
    """
    if room.max() == 1:
        free = np.flatnonzero(room)
        free_costs = (distances(left, book[free]) if costs is None else costs[:, free]).astype(np.float64)
        return free[linear_assignment(free_costs) if len(left) <= _EXACT else stable_matching(free_costs, room[free])]
    chosen = _nearest(left, book) if costs is None else costs.argmin(axis=1)
    if (np.bincount(chosen, minlength=len(room)) <= room).all():
        return chosen
    return stable_matching(distances(left, book) if costs is None else costs, room)


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
