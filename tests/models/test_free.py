"""Free decoding against brute force: over the whole vocabulary, every sequence that can be generated."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.toy_language import ToyReading, ToyTable, log_chances, scored
from toolscout.models.decoding.constrained import best, greedy
from toolscout.models.decoding.free import beam_search
from toolscout.models.decoding.trie import Trie

END = 0


def ends(tokens: tuple[int, ...]) -> bool:
    return tokens[-1] == END


def every(
    reading: ToyReading, table: ToyTable, most: int, path: tuple[int, ...] = ()
) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Every sequence after the path, with its log-probability."""
    if path and (ends(path) or len(path) == most):
        yield 0.0, path
        return
    for token, score in enumerate(log_chances(table.logits(reading.state(0, path)[None], None)[0])):
        for rest, whole in every(reading, table, most, (*path, token)):
            yield score + rest, whole


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), most=st.integers(1, 3))
def test_a_wide_beam_finds_the_likeliest_of_all_sequences(seed: int, most: int) -> None:
    reading, table = ToyReading(1, seed), ToyTable(seed, size=5)
    (found,) = beam_search(reading, table, 125, most, ends)
    wanted = sorted(every(reading, table, most), key=lambda one: -one[0])
    assert [one.tokens for one in found] == [tokens for _, tokens in wanted]
    np.testing.assert_allclose([one.score for one in found], [score for score, _ in wanted], atol=1e-4)
    assert sum(np.exp(one.score) for one in found) == pytest.approx(1, abs=1e-4)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_one_beam_is_greedy(seed: int) -> None:
    reading, table = ToyReading(3, seed), ToyTable(seed)
    written = greedy(reading, table, END, 4)
    for tokens, (one,) in zip(written, beam_search(reading, table, 1, 4, ends), strict=True):
        assert tuple(tokens) == tuple(token for token in one.tokens if token != END)


def test_the_constraint_only_adds_probability() -> None:
    """What the trie rules out is given to the ids: an id is never less likely under it than freely."""
    ids = {"a": (1, 2, END), "b": (1, 3, END), "c": (4, END)}
    reading, table, trie = ToyReading(1, 3), ToyTable(3, size=6), Trie()
    for key, tokens in ids.items():
        trie.insert(key, tokens)
    (free,) = beam_search(reading, table, 300, 3, ends)
    freely = {one.tokens: one.score for one in free}
    under = scored(reading, table, ids, 0)
    assert {key for key, _ in best(reading, table, trie, 3)[0]} == set(ids)
    assert all(freely[tokens] <= under[key] for key, tokens in ids.items())
