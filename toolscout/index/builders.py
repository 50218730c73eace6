"""Where the large parts of an index are built: in this process, or side by side in others."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Builders:
    """An executor that builds shards of an index. `count`: how many it builds at a time.

    The data of a shard is passed by name: what is passed by place, a cluster keeps for other calls.
    """

    executor: Executor
    count: int

    def shards(self, rows: int, least: int) -> list[range]:
        """Divide so many rows into ranges of about the same length: one for each builder, of `least` rows or more."""
        number = max(1, min(self.count, rows // least))
        ends = [rows * place // number for place in range(number + 1)]
        return [range(start, end) for start, end in pairwise(ends)]


_BUILDERS: ContextVar[Builders | None] = ContextVar("builders", default=None)


def builders() -> Builders | None:
    """Return what builds shards of an index for this thread; None: the thread itself builds the whole."""
    return _BUILDERS.get()


@contextmanager
def built_by(executor: Executor, count: int) -> Iterator[None]:
    """Have an executor build `count` shards at a time of every index that this thread builds in the block.

    What it runs are functions of modules, with arguments that can be pickled: its workers may be other machines.
    """
    token = _BUILDERS.set(Builders(executor, count))
    try:
        yield
    finally:
        _BUILDERS.reset(token)
