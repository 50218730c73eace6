"""What "no tool" is weighed against: the ids that a model was trained with, whatever the catalogue holds by now.

How likely a model finds "no tool" depends on what else it may write. The scale on which that is a probability was
fitted on the tools of its training, and holds for no others.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from toolscout.core.arrays import Floats, Ints
from toolscout.models.decoding.constrained import Table

_FILE = "weighed.npz"


class FirstTokenScores(NamedTuple):
    """The tokens that ids of training begin with, ascending, and what scores them."""

    table: Table
    tokens: Ints

    @classmethod
    def of(cls, table: Table, tokens: Iterable[int]) -> FirstTokenScores | None:
        """None where there is nothing to weigh."""
        found = np.array(sorted(set(tokens)), dtype=np.int64)
        return cls(table, found) if len(found) else None


class DocumentTools(NamedTuple):
    """Tools of a training whose ids are made of their documents, with their vectors."""

    ids: list[str]
    vectors: Floats

    def same(self, other: DocumentTools) -> bool:
        """Whether the other's are the same, in the same order."""
        return self.ids == other.ids and np.array_equal(self.vectors, other.vectors)

    def save(self, folder: Path) -> None:
        """Write them, where the index that lies there is of other tools."""
        np.savez(folder / _FILE, ids=np.array(self.ids, dtype=np.str_), vectors=self.vectors.astype(np.float16))

    @staticmethod
    def drop(folder: Path) -> None:
        """The index that lies there is of these tools itself."""
        (folder / _FILE).unlink(missing_ok=True)

    @classmethod
    def load(cls, folder: Path, dimension: int) -> DocumentTools | None:
        """What was written; None where nothing was."""
        if not (folder / _FILE).is_file():
            return None
        with (folder / _FILE).open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            ids, vectors = [str(one) for one in file["ids"].tolist()], file["vectors"].astype(np.float32)
        if vectors.shape != (len(ids), dimension) or not ids or not np.isfinite(vectors).all():
            raise ValueError(f"{_FILE} has vectors of shape {vectors.shape} for {len(ids)} tools")
        return cls(ids, vectors)
