"""A retriever that says how many tools a request needs, without any model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toolscout.core.answer import Allowed, Hit
from toolscout.retrievers.bm25 import Bm25, Bm25Options


@dataclass(frozen=True, slots=True)
class SizedOptions(Bm25Options):
    """`sets`: as a model has it that was taught to tell."""

    sets: bool = True


class Sized(Bm25):
    """One tool for every three words of the request."""

    refused = ""
    batches: tuple[int, ...] = ()

    def __init__(self, options: Any = None) -> None:
        super().__init__(options or SizedOptions())

    def as_many(self, requests: Sequence[str], allowed: Allowed | None = None) -> list[list[Hit]]:
        self.batches += (len(requests),)
        if self.refused in requests:
            raise RuntimeError("too many to count")
        return [self.search([text], max(1, len(text.split()) // 3), allowed)[0] for text in requests]
