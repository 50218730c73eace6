"""The ids of the tools a model was trained with, which the probability of "no tool" is computed against.

The probability that a model gives to "no tool" depends on the ids it could write instead. It was calibrated with the
ids of training, so it is computed against those, whatever tools the catalogue holds now.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from toolscout.core.arrays import Floats, Ints
from toolscout.core.model_files import read_arrays
from toolscout.models.decoding.constrained import Table

_FILE = "weighed.npz"


class FirstTokenScores(NamedTuple):
    """The first tokens of the ids of training, ascending, and the table that scores them."""

    table: Table
    tokens: Ints

    @classmethod
    def of(cls, table: Table, tokens: Iterable[int]) -> FirstTokenScores | None:
        """Build it from a table and tokens; None where there are no tokens."""
        found = np.array(sorted(set(tokens)), dtype=np.int64)
        return cls(table, found) if len(found) else None


class DocumentTools(NamedTuple):
    """The tools of training, with the document vectors that their one-token ids are made of."""

    ids: list[str]
    vectors: Floats

    def same(self, other: DocumentTools) -> bool:
        """Whether the other has the same tools and vectors, in the same order."""
        return self.ids == other.ids and np.array_equal(self.vectors, other.vectors)

    def save(self, folder: Path) -> None:
        """Write the tools into a model folder, for a model whose saved index holds other tools."""
        np.savez(folder / _FILE, ids=np.array(self.ids, dtype=np.str_), vectors=self.vectors.astype(np.float16))

    @staticmethod
    def drop(folder: Path) -> None:
        """Remove what `save` wrote, for a model whose saved index holds these very tools."""
        (folder / _FILE).unlink(missing_ok=True)

    @classmethod
    def load(cls, folder: Path, dimension: int) -> DocumentTools | None:
        """Read what `save` wrote; None where there is no file. Raises ValueError where the file does not fit."""
        if not (folder / _FILE).is_file():
            return None
        arrays = read_arrays(folder / _FILE)
        ids, vectors = [str(one) for one in arrays["ids"].tolist()], arrays["vectors"].astype(np.float32)
        if vectors.shape != (len(ids), dimension) or not ids or not np.isfinite(vectors).all():
            raise ValueError(f"{_FILE} has vectors of shape {vectors.shape} for {len(ids)} tools")
        return cls(ids, vectors)
