"""Vectors of documents with expansions: one vector a tool, mostly of its own text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from toolscout.core.arrays import Floats, Ints
from toolscout.core.expansion import split_expansion
from toolscout.models.encoders.base import TextEncoder

WEIGHT = 0.1
"""The share of the expansion in a tool's vector; chosen on dev (studies/expansion.py)."""
_AT_ONCE = 1_024  # documents whose expansions are held in memory


def encode_documents(encoder: TextEncoder, texts: Sequence[str]) -> Iterator[tuple[Ints, Floats]]:
    """Yield unit vectors as the encoder does; that of a text with an expansion is the mean of both, by WEIGHT.

    Both are read apart: an expansion behind a long document would be cut off. Without expansions nothing differs.
    """
    parts = [split_expansion(text) for text in texts]
    if not any(expansion for _, expansion in parts):
        yield from encoder.encode_documents(texts)
        return
    for start in range(0, len(parts), _AT_ONCE):
        chunk = parts[start : start + _AT_ONCE]
        places = [place for place, (_, expansion) in enumerate(chunk) if expansion]
        added: dict[int, Floats] = {}
        for positions, rows in encoder.encode_documents([chunk[place][1] for place in places]):
            added |= {places[at]: row for at, row in zip(positions.tolist(), rows, strict=True)}
        for positions, rows in encoder.encode_documents([document for document, _ in chunk]):
            mixed = [_mean(row, added.get(at)) for at, row in zip(positions.tolist(), rows, strict=True)]
            yield positions + start, np.stack(mixed)


def _mean(document: Floats, expansion: Floats | None) -> Floats:
    if expansion is None:
        return document
    mixed = (1 - WEIGHT) * document + WEIGHT * expansion
    return (mixed / max(float(np.linalg.norm(mixed)), 1e-12)).astype(document.dtype)
