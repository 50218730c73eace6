"""The vectors of many tools are made in batches, and how many there are is told on the way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.toys import HashedWords, catalogue
from toolscout.evaluation.vector_cache import tool_vectors


class Lengths(HashedWords):
    """Vectors that take no time."""

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.array([[len(text), 1.0] for text in texts], dtype=np.float32)


def test_encoding_reports_how_far_it_is(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []

    def report(stage: str, done: int, total: int) -> None:
        told.append((stage, done, total))

    tools, encoder = catalogue(2_500), Lengths()
    first = tool_vectors(tools[:100], encoder, tmp_path / "v.db", report)
    assert told == [("encoding documents", 100, 100)]
    told.clear()
    rows = tool_vectors(tools, encoder, tmp_path / "v.db", report)
    assert told == [("encoding documents", done, 2_400) for done in (1_024, 2_048, 2_400)]
    assert np.array_equal(rows[:100], first)
    told.clear()
    assert np.array_equal(rows, tool_vectors(tools, encoder, tmp_path / "v.db", report))
    assert np.array_equal(rows, tool_vectors(tools, Lengths(), tmp_path / "other.db"))
    assert told == []
