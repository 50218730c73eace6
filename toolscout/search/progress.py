"""Iterators that report the progress of an add, and collect small batches for a commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from toolscout.core.arrays import Floats, Ints
from toolscout.core.tool import Tool
from toolscout.errors import EncoderUnavailable, StoreError

Progress = Callable[[str, int, int], None]
"""Called with a stage ("reading", "embedding", "linking"), how much is done, and of how much (0: not known)."""

Encoded = tuple[Ints, Floats]
_COMMITTED_AT_ONCE = 512


def counted(
    tools: Iterable[Tool], progress: Progress | None, stopped: Callable[[], bool] | None = None
) -> Iterator[Tool]:
    """The tools, with their number reported. Raises StoreError once `stopped` is true; then none is stored."""
    for number, tool in enumerate(tools, 1):
        _check(stopped)
        if progress and number % 500 == 0:
            progress("reading", number, 0)
        yield tool
    _check(stopped)


def _check(stopped: Callable[[], bool] | None) -> None:
    if stopped is not None and stopped():
        raise StoreError("the add was stopped before its tools were stored; none of them is")


def reported(encoded: Iterable[Encoded], total: int, progress: Progress | None, done: int = 0) -> Iterator[Encoded]:
    """The vectors, with their number reported, `done` before them included."""
    for positions, vectors in encoded:
        done += len(positions)
        if progress:
            progress("embedding", done, total)
        yield positions, vectors


def batches(encoded: Iterable[Encoded]) -> Iterator[tuple[list[int], Floats]]:
    """Gather small batches, so that each commit is worth its cost; where encoding fails, what came before is given."""
    positions: list[int] = []
    vectors: list[Floats] = []
    failure: EncoderUnavailable | None = None
    try:
        for where, batch in encoded:
            positions += where.tolist()
            vectors.append(batch)
            if len(positions) >= _COMMITTED_AT_ONCE:
                yield positions, np.concatenate(vectors)
                positions, vectors = [], []
    except EncoderUnavailable as error:
        failure = error
    if positions:
        yield positions, np.concatenate(vectors)
    if failure is not None:
        raise failure
