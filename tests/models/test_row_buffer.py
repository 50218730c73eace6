"""Rows that grow and are replaced, against a plain array."""

from __future__ import annotations

import numpy as np

from toolscout.models.decoding.row_buffer import RowBuffer
from toolscout.models.language.base import TokenTable


def rows(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 3)).astype(np.float32)


def test_rows_grow_and_are_replaced_as_in_a_plain_array() -> None:
    growing, plain = RowBuffer(rows(2, 0)), rows(2, 0)
    for step in range(1, 60):
        more = rows(step % 4, step)
        growing.append(more)
        plain = np.concatenate([plain, more])
        places = np.array([step % len(plain)])
        growing.put(places, rows(1, 1000 + step))
        plain[places] = rows(1, 1000 + step)
        np.testing.assert_array_equal(growing.rows, plain)
    assert growing.version == 2 * 59


def test_the_rows_it_began_with_are_never_written_to_by_growing() -> None:
    first = rows(3, 0)
    growing = RowBuffer(first)
    held = growing.rows
    growing.append(rows(5, 1))
    growing.append(rows(5, 2))
    np.testing.assert_array_equal(held, rows(3, 0))


def test_a_table_scores_and_reads_a_replaced_row() -> None:
    for head in (None, rows(4, 9)):
        table = TokenTable(rows(4, 1), head=head)
        ids = table.grow(rows(2, 2))
        version = table.version
        table.put(ids[:1], rows(1, 3))
        assert table.version > version
        np.testing.assert_array_equal(table.embed(ids), np.concatenate([rows(1, 3), rows(2, 2)[1:]]))
        np.testing.assert_allclose(table.logits(rows(1, 4), ids), rows(1, 4) @ table.embed(ids).T, rtol=1e-5)
