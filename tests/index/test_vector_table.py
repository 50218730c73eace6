"""The vector table against a plain scan, and its graph against the table."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from toolscout.index import vector_table
from toolscout.index.vector_table import VectorTable


def unit(count: int, width: int = 48, seed: int = 0) -> NDArray[np.float32]:
    rows = np.random.default_rng(seed).standard_normal((count, width))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def scan(rows: NDArray[np.float32], query: NDArray[np.float32], k: int, skipped: set[int]) -> set[int]:
    """The k best rows and all that tie with the last, in double precision."""
    scores = rows.astype(np.float16).astype(np.float64) @ query.astype(np.float64)
    alive = [row for row in np.argsort(-scores).tolist() if row not in skipped]
    last = scores[alive[min(k, len(alive)) - 1]]
    return {row for row in alive if scores[row] >= last - 1e-9}


def recall(
    table: VectorTable, rows: NDArray[np.float32], queries: NDArray[np.float32], later: int, dead: Iterable[int] = ()
) -> float:
    """Return the share of the ten best rows found; of those from `later` on, which no graph has, all must be."""
    right = wanted = 0
    for query in queries:
        best = scan(rows, query, 10, set(dead))
        found, scores = table.search(query, 10)
        right += len(best & set(found[np.argsort(-scores)[:10]].tolist()))
        wanted += len(best)
        assert {row for row in best if row >= later} <= set(found.tolist())
    return right / wanted


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 900), st.integers(1, 60), st.integers(0, 9), st.integers(0, 40), st.booleans())
def test_a_search_misses_nothing(count: int, k: int, seed: int, dead: int, repeated: bool) -> None:
    rows = unit(count, seed=seed)
    if repeated:  # equal rows tie
        rows = rows[np.random.default_rng(seed).integers(0, max(1, count // 3), count)]
    table = VectorTable()
    table.append(rows)
    skipped = set(range(min(dead, count - 1)))
    for row in skipped:
        table.kill(row)
    query = unit(1, seed=seed + 100)[0]
    found, scores = table.search(query, k)
    assert scan(rows, query, k, skipped) <= set(found.tolist())
    assert not skipped & set(found.tolist())
    assert scores == pytest.approx(rows[found].astype(np.float16).astype(np.float64) @ query, abs=1e-6)


@pytest.mark.parametrize("queries", [2, 8, 19])
@pytest.mark.parametrize("restricted", [False, True])
@pytest.mark.parametrize("shared_from", [100, 1 << 62])
def test_queries_together_give_what_each_gives_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queries: int, restricted: bool, shared_from: int
) -> None:
    monkeypatch.setattr(vector_table, "_SHARED_FROM", shared_from)
    made = VectorTable()
    made.append(unit(1500, 384))
    made.save(tmp_path)
    table = VectorTable.load(tmp_path)
    table.append(unit(300, 384, seed=1))  # beside those of the file
    for row in (3, 700, 1600):
        table.kill(row)
    among = np.arange(0, 1800, 7, dtype=np.int64) if restricted else None
    asked = unit(queries, 384, seed=2)
    counts = [1 + 40 * number for number in range(queries)]
    together = table.search_each(asked, counts, among)
    for query, k, (rows, scores) in zip(asked, counts, together, strict=True):
        alone = table.search(query, k, among)
        assert np.array_equal(rows, alone[0])
        assert np.array_equal(scores, alone[1])


def test_a_table_is_saved_as_it_was_when_frozen(tmp_path: Path) -> None:
    table, rows = VectorTable(), unit(900)
    table.append(rows[:500])
    table.kill(7)
    frozen = table.frozen()
    table.append(rows[500:])
    table.kill(8)
    frozen.save(tmp_path)
    loaded = VectorTable.load(tmp_path)
    assert len(loaded) == 500
    assert loaded.skipped().tolist() == [7]
    assert np.array_equal(loaded.rows(np.arange(500)), table.rows(np.arange(500)))


def test_a_shared_scan_gives_what_one_thread_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    table, query = VectorTable(), unit(1, seed=5)[0]
    table.append(unit(3000))
    alone = table.search(query, 10)
    monkeypatch.setattr(vector_table, "_SHARED_FROM", 100)
    shared = table.search(query, 10)
    assert np.array_equal(alone[0], shared[0])
    assert np.array_equal(alone[1], shared[1])


def test_a_subset_is_searched_exactly_and_anew_when_it_changes() -> None:
    rows, query = unit(500), unit(1, seed=3)[0]
    table = VectorTable()
    table.append(rows)
    for start in (0, 7):
        among = np.arange(start, 500, 9, dtype=np.int64)
        found, _ = table.search(query, 5, among)
        others = set(range(500)) - set(among.tolist())
        assert scan(rows, query, 5, others) <= set(found.tolist()) <= set(among.tolist())


def test_a_graph_finds_nearly_all_and_what_comes_later_exactly(tmp_path: Path) -> None:
    rows = unit(4000)
    table = VectorTable()
    table.append(rows[:3500])
    table = table.linked()
    table.save(tmp_path)
    loaded = VectorTable.load(tmp_path)
    assert loaded.has_graph
    assert loaded.search(rows[7], 3)[0][0] >= 0  # nothing has come later yet
    table.append(rows[3500:3600])
    table.save(tmp_path / "later")
    later = VectorTable.load(tmp_path / "later")
    loaded.append(rows[3500:3600])
    for each in (table, loaded, later):
        each.append(rows[3600:])
        each.kill(3)
        assert recall(each, rows, unit(40, seed=9), later=3500, dead=[3]) >= 0.98
