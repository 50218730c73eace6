"""Constrained decoding against brute force: the same scores, every tool within reach, and nothing but tools ever."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.toy_language import (
    DIMENSION,
    Ids,
    ToyReading,
    ToyTable,
    all_sets,
    catalogues,
    log_chances,
    scored,
    trie_of,
)
from toolscout.core.arrays import Floats, Ints
from toolscout.errors import BadModel, BadRequest
from toolscout.models.decoding.best_first import smallest
from toolscout.models.decoding.constrained import best, greedy, sample, sets
from toolscout.models.decoding.trie import Trie

SEEDS = st.integers(0, 10**6)
FINISH = 39
UNEVEN = {"a": (1, 2, 3), "b": (1, 2, 4), "c": (5,), "d": (6, 9), "e": (6, 7, 8)}


def ranked(scores: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(scores.items(), key=lambda one: (-one[1], one[0]))


def assert_same(found: list[tuple[str, float]], expected: list[tuple[str, float]]) -> None:
    np.testing.assert_allclose([score for _, score in found], [score for _, score in expected], atol=1e-5, rtol=1e-5)
    for (key, score), (other, _) in zip(found, expected, strict=True):
        if key != other:  # two scores that rounding alone tells apart
            assert abs(dict(expected)[key] - score) < 1e-5


@settings(max_examples=60, deadline=None)
@given(
    ids=catalogues(),
    seed=SEEDS,
    k=st.integers(1, 16),
    width=st.integers(1, 5),
    temperature=st.sampled_from([1.0, 0.5, 3.0]),
)
def test_the_ranking_is_that_of_brute_force(ids: Ids, seed: int, k: int, width: int, temperature: float) -> None:
    reading, table = ToyReading(3, seed), ToyTable(seed)
    rankings = best(reading, table, trie_of(ids), k, width=width, temperature=temperature)
    assert len(rankings) == 3
    for owner, ranking in enumerate(rankings):
        expected = scored(reading, table, ids, owner, temperature)
        assert_same(ranking, ranked(expected)[:k])
        assert len({key for key, _ in ranking}) == len(ranking) == min(k, len(ids))
        assert abs(sum(np.exp(score) for score in expected.values()) - 1) < 1e-6


@settings(max_examples=60, deadline=None)
@given(ids=catalogues(), seed=SEEDS, k=st.integers(1, 16), data=st.data())
def test_a_restricted_ranking_is_the_whole_one_filtered(ids: Ids, seed: int, k: int, data: st.DataObject) -> None:
    permitted = data.draw(st.sets(st.sampled_from(sorted(ids))))
    reading, table, trie = ToyReading(2, seed), ToyTable(seed), trie_of(ids)
    whole = best(reading, table, trie, len(ids))
    restricted = best(reading, table, trie, k, pruned=trie.pruned(permitted.__contains__))
    for all_tools, some in zip(whole, restricted, strict=True):
        assert some == [one for one in all_tools if one[0] in permitted][:k]


@settings(max_examples=60, deadline=None)
@given(
    ids=catalogues(),
    seed=SEEDS,
    scale=st.sampled_from([0.0, 1.0, 50.0, 1e6, 1e30, 1e37]),
    temperature=st.sampled_from([1e-300, 1e-9, 0.7, 1e9, 1e300, np.inf]),
    budget=st.integers(1, 4),
    data=st.data(),
)
def test_nothing_but_permitted_tools_at_any_temperature(
    ids: Ids, seed: int, scale: float, temperature: float, budget: int, data: st.DataObject
) -> None:
    permitted = data.draw(st.sets(st.sampled_from(sorted(ids)), min_size=1))
    reading, table, trie = ToyReading(2, seed), ToyTable(seed, scale), trie_of(ids)
    pruned = trie.pruned(permitted.__contains__)
    for k in (1, len(permitted), 50):
        for ranking in best(reading, table, trie, k, pruned=pruned, budget=budget, temperature=temperature):
            keys = [key for key, _ in ranking]
            assert set(keys) <= permitted
            assert len(set(keys)) == len(keys) == min(k, len(permitted))
            assert all(np.isfinite(score) and score <= 0 for _, score in ranking)
            assert ranking == sorted(ranking, key=lambda one: (-one[1], one[0]))
    rng = np.random.default_rng(seed)
    for warmth in (temperature, 0.0):
        assert set(sample(reading, table, trie, temperature=warmth, rng=rng, pruned=pruned)) <= permitted
    for ranking_of_sets in sets(reading, table, trie, FINISH, pruned=pruned, width=3):
        for tools, _ in ranking_of_sets:
            assert len(set(tools)) == len(tools)
            assert set(tools) <= permitted


class OneRow:
    """Every state is the same; the logits are those given, however hostile."""

    def __init__(self, logits: dict[int, float]) -> None:
        self.values = np.zeros(40, np.float32)
        for token, value in logits.items():
            self.values[token] = value

    def logits(self, states: Floats, tokens: Ints | None) -> Floats:
        return np.tile(self.values if tokens is None else self.values[tokens], (len(states), 1))


@pytest.mark.parametrize("key", UNEVEN)
def test_every_tool_can_be_generated(key: str) -> None:
    wanted = OneRow(dict.fromkeys(UNEVEN[key], 1e30))
    reading, trie = ToyReading(2), trie_of(UNEVEN)
    assert [ranking[0] for ranking in best(reading, wanted, trie, 1)] == [(key, 0.0)] * 2
    rng = np.random.default_rng(0)
    assert sample(reading, wanted, trie, temperature=1.0, rng=rng) == [key, key]
    even = sample(ToyReading(200), ToyTable(scale=0), trie, temperature=1.0, rng=rng)
    assert key in even
    assert ((key,), 0.0) in sets(reading, wanted, trie, FINISH, most=1)[0]


def test_all_the_mass_on_forbidden_tokens_leaves_tools() -> None:
    hostile = OneRow({0: 3e38, 10: 3e38, 38: 3e38, 5: -3e38, 1: -3e38, 6: -3e38})
    trie = trie_of(UNEVEN)
    assert {key for key, _ in best(ToyReading(1), hostile, trie, 9)[0]} == set(UNEVEN)
    assert sample(ToyReading(1), hostile, trie, temperature=1e-9, rng=np.random.default_rng(0))[0] in UNEVEN
    assert greedy(ToyReading(1), hostile, 9, 3) == [[0, 0, 0]]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_scores_that_are_no_numbers_are_the_models_fault(value: float) -> None:
    broken, reading, trie = OneRow({5: value, FINISH: value}), ToyReading(1), trie_of(UNEVEN)
    with pytest.raises(BadModel, match="no finite numbers"):
        best(reading, broken, trie, 1)
    with pytest.raises(BadModel, match="no finite numbers"):
        sample(reading, broken, trie, temperature=1, rng=np.random.default_rng(0))
    with pytest.raises(BadModel, match="no finite numbers"):
        sets(reading, broken, trie, FINISH)
    with pytest.raises(BadModel, match="no finite numbers"):
        greedy(reading, broken, 0, 1)


def test_ties_break_by_id() -> None:
    names = [f"t{number}" for number in np.random.default_rng(1).permutation(30)]
    flat = trie_of({name: (place,) for place, name in enumerate(names)})
    assert [key for key, _ in best(ToyReading(1), OneRow({3: 1.0}), flat, 5)[0]] == [
        names[3],
        *sorted(set(names) - {names[3]})[:4],
    ]
    deep = trie_of({name: (place % 5, place) for place, name in enumerate(names)})
    assert [key for key, _ in best(ToyReading(1), OneRow({}), deep, 7, width=1)[0]] == sorted(names)[:7]


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, size=st.integers(0, 2000), k=st.integers(1, 12), values=st.sampled_from([1, 5, 10**6]))
def test_the_smallest_come_with_their_ties(seed: int, size: int, k: int, values: int) -> None:
    costs = np.random.default_rng(seed).integers(0, values, size).astype(np.float64)
    last = np.sort(costs)[min(k, size) - 1] if size else 0
    assert sorted(smallest(costs, k).tolist()) == [place for place, cost in enumerate(costs) if cost <= last]


def test_a_flat_trie_is_answered_from_the_ends_alone() -> None:
    reading, table = ToyReading(4), ToyTable()
    best(reading, table, trie_of({str(token): (token,) for token in range(30)}), 5)
    assert reading.calls == 0
    best(reading, table, trie_of(UNEVEN), 5)
    assert reading.calls == 1  # all prompts, and both places with a choice, at once; tails without one cost nothing


def test_a_budget_that_is_spent_still_fills_k() -> None:
    ids = {f"{first}{second}": (first, 10 + second) for first in range(8) for second in range(3)}
    reading, table, trie = ToyReading(1), ToyTable(), trie_of(ids)
    hurried = best(reading, table, trie, 3, width=1, budget=2)[0]
    assert len(hurried) == 3
    assert reading.calls == 1
    assert set(hurried) <= set(best(reading, table, trie, 24)[0])
    assert len(best(reading, table, trie, 20, width=1, budget=2)[0]) == 20


def test_extra_ids_are_ranked_but_do_not_count() -> None:
    reading, table = ToyReading(3), ToyTable()
    ids = {**UNEVEN, "no tool": (9,)}
    whole = best(reading, table, trie_of(ids), 6)
    for k in (1, 2, 5):
        for ranking, everything in zip(best(reading, table, trie_of(ids), k, extra=["no tool"]), whole, strict=True):
            assert len([key for key, _ in ranking if key != "no tool"]) == k
            assert ranking == everything[: len(ranking)]
            assert ranking[-1][0] != "no tool"


def test_an_empty_trie_has_nothing_to_say() -> None:
    reading, table, trie = ToyReading(2), ToyTable(), Trie()
    assert best(reading, table, trie, 3) == [[], []]
    assert sets(reading, table, trie, FINISH) == [[((), 0.0)]] * 2
    with pytest.raises(BadRequest, match="no tool to draw"):
        sample(reading, table, trie, temperature=1, rng=np.random.default_rng(0))
    full = trie_of(UNEVEN)
    assert best(reading, table, full, 3, pruned=full.pruned(lambda key: False)) == [[], []]


def test_a_single_tool_needs_no_model() -> None:
    reading, trie = ToyReading(2), trie_of({"only": (3, 1, 4)})
    assert best(reading, OneRow({3: np.nan}), trie, 3) == [[("only", 0.0)]] * 2
    assert sample(reading, OneRow({}), trie, temperature=1, rng=np.random.default_rng(0)) == ["only", "only"]


def test_requests_that_make_no_sense() -> None:
    reading, table, trie = ToyReading(1), ToyTable(), trie_of(UNEVEN)
    with pytest.raises(BadRequest, match="k is 0"):
        best(reading, table, trie, 0)
    with pytest.raises(BadRequest, match="temperature"):
        best(reading, table, trie, 1, temperature=0)
    with pytest.raises(BadRequest, match="temperature"):
        sample(reading, table, trie, temperature=-1, rng=np.random.default_rng(0))
    with pytest.raises(BadModel, match="token 6 both"):
        sets(reading, table, trie, 6)


def test_draws_follow_the_probabilities() -> None:
    class Same(ToyReading):
        def state(self, owner: int, path: tuple[int, ...]) -> Floats:  # type: ignore[override]
            return super().state(0, path)

    reading, table = Same(4000), ToyTable(scale=0.3)
    drawn = sample(reading, table, trie_of(UNEVEN), temperature=1.0, rng=np.random.default_rng(5))
    for key, score in scored(reading, table, UNEVEN, 0).items():
        assert abs(drawn.count(key) / 4000 - np.exp(score)) < 0.03


def test_free_writing_is_greedy_over_the_whole_vocabulary() -> None:
    reading, table = ToyReading(5, seed=3), ToyTable(3)
    for owner, written in enumerate(greedy(reading, table, FINISH, 6)):
        path: list[int] = []
        while len(path) < 6:
            token = int(np.argmax(table.rows @ reading.state(owner, path)))
            if token == FINISH:
                break
            path.append(token)
        assert written == path
    end = greedy(reading, table, FINISH, 1)[0][0]
    assert greedy(reading, table, end, 6)[0] == []


@settings(max_examples=40, deadline=None)
@given(ids=catalogues(most=4, deepest=3), seed=SEEDS, most=st.integers(1, 5))
def test_sets_are_those_of_brute_force(ids: Ids, seed: int, most: int) -> None:
    reading, table, trie = ToyReading(1, seed), ToyTable(seed), trie_of(ids)
    expected: dict[frozenset[str], float] = {}
    for tools, score in all_sets(reading, table, ids, FINISH, most):
        expected[frozenset(tools)] = expected.get(frozenset(tools), 0.0) + float(np.exp(score))
    found = sets(reading, table, trie, FINISH, most=most, width=400)[0]
    assert abs(sum(np.exp(score) for _, score in found) - 1) < 1e-5
    assert len(found) == len(expected)
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
    for tools, score in found:
        assert len(set(tools)) == len(tools) <= most
        assert abs(np.exp(score) - expected[frozenset(tools)]) < 1e-5
    narrow = sets(reading, table, trie, FINISH, most=most, width=2)[0]
    assert 1 <= len(narrow) <= 2
    assert {frozenset(tools) for tools, _ in narrow} <= set(expected)


def test_when_to_finish_is_what_the_model_alone_says() -> None:
    ids = {"a": (1,), "b": (2,), "c": (3,)}
    table, trie = ToyTable(5), trie_of(ids)
    reading, alone = ToyReading(1, 5), ToyReading(1, 6)
    states = {reading.ends().tobytes(): alone.ends()}
    found = sets(reading, table, trie, FINISH, most=1, width=9, plain=lambda one: states[one.tobytes()])[0]
    tokens = np.array([1, 2, 3, FINISH])
    said, other = (np.array(log_chances(table.logits(one.ends(), tokens)[0])) for one in (alone, reading))
    tools = other[:3] - np.log(np.exp(other[:3]).sum()) + np.log1p(-np.exp(said[3]))
    assert dict(found) == pytest.approx({(): said[3], ("a",): tools[0], ("b",): tools[1], ("c",): tools[2]}, abs=1e-5)


def test_a_pruned_set_keeps_its_score_and_its_best_order() -> None:
    reading, table, trie = ToyReading(2), ToyTable(), trie_of(UNEVEN)
    whole = [dict(row) for row in sets(reading, table, trie, FINISH, most=2, width=100)]
    some = sets(reading, table, trie, FINISH, most=2, width=100, pruned=trie.pruned("ace".__contains__))
    for everything, row in zip(whole, some, strict=True):
        assert len(row) == 1 + 3 + 3
        for tools, score in row:
            assert everything[tools] == pytest.approx(score)
            assert set(tools) <= set("ace")


class FlatTable:
    """Forty-seven thousand rows, looked up without a copy where all are asked for."""

    def __init__(self) -> None:
        self.rows = np.random.default_rng(0).normal(size=(47_000, DIMENSION)).astype(np.float32)

    def logits(self, states: Floats, tokens: Ints | None) -> Floats:
        assert tokens is not None
        return states @ (self.rows if len(tokens) == len(self.rows) else self.rows[tokens]).T


def test_forty_seven_thousand_flat_ids() -> None:
    reading, table = ToyReading(100), FlatTable()
    trie = trie_of({f"tool{token}": (token,) for token in range(47_000)})
    rankings = best(reading, table, trie, 10)  # more prompts than one look at the table may take
    pruned = trie.pruned(lambda key: key.endswith("77"))
    restricted = best(reading, table, trie, 10, pruned=pruned)
    for owner in range(0, 100, 9):
        logits = table.rows @ reading.state(owner, ())
        order = np.argsort(-logits)
        assert [key for key, _ in rankings[owner]] == [f"tool{token}" for token in order[:10]]
        kept = [f"tool{token}" for token in order if token % 100 == 77]
        assert [key for key, _ in restricted[owner]] == kept[:10]
    assert reading.calls == 0
