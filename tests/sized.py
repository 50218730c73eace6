"""A retriever that says how many tools a request needs, without any model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toolscout.retrievers.base import Pairs, Ranking
from toolscout.retrievers.bm25 import Bm25, Bm25Options


@dataclass(frozen=True, slots=True)
class SizedOptions(Bm25Options):
    """`sets`: as a model has it that was taught to tell."""

    sets: bool = True


class Sized(Bm25):
    """One tool for every three words of the request."""

    options: SizedOptions
    refused = ""
    batches: tuple[int, ...] = ()

    def __init__(self, options: Any = None) -> None:
        super().__init__(options or SizedOptions())

    def as_many(self, rankings: Sequence[Ranking]) -> list[Pairs] | None:
        if not self.options.sets:
            return None
        if rankings:
            self.batches += (len(rankings),)
        if self.refused in [ranking.request for ranking in rankings]:
            raise RuntimeError("too many to count")
        counts = [max(1, len(ranking.request.split()) // 3) for ranking in rankings]
        return [self.extend(one, count, one.scope) for one, count in zip(rankings, counts, strict=True)]
