"""The trie holds what was put in, live, and its pruned view leads to what is permitted and nowhere else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.toy_language import Ids, catalogues, trie_of
from toolscout.errors import BadModel, UnknownTool
from toolscout.models.decoding.trie import PrunedTrie, Trie

PATHS = st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple)
CHANGES = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.one_of(st.none(), PATHS)), max_size=40)


def walked(view: Trie | PrunedTrie, trie: Trie, node: int = Trie.ROOT) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every tool that can be reached, with the tokens on the way."""
    key = trie.key(node)
    if key is not None:
        assert not len(trie.children(node))
        yield key, ()
    tokens = view.children(node).tolist()
    assert tokens == sorted(set(tokens))
    for token in tokens:
        child = trie.step(node, token)
        assert child is not None
        yield from ((found, (token, *rest)) for found, rest in walked(view, trie, child))


def clashes(ids: Ids, key: str, path: tuple[int, ...]) -> bool:
    others = [tokens for other, tokens in ids.items() if other != key]
    return any(one[: len(path)] == path or path[: len(one)] == one for one in others)


@settings(max_examples=60, deadline=None)
@given(changes=CHANGES, look=st.integers(1, 4))
def test_any_changes_leave_what_a_fresh_trie_would_be(
    changes: list[tuple[str, tuple[int, ...] | None]], look: int
) -> None:
    trie, model = Trie(), dict[str, tuple[int, ...]]()
    view = trie.pruned(lambda key: key in "aceg")
    for count, (key, path) in enumerate(changes):
        before = trie.version
        if path is None:
            trie.remove(key)
            assert (trie.version == before) == (model.pop(key, None) is None)
        elif clashes(model, key, path):
            with pytest.raises(BadModel, match="another id"):
                trie.insert(key, path)
            assert trie.version == before
        else:
            trie.insert(key, path)
            assert (trie.version == before) == (model.get(key) == path)
            model[key] = path
        if count % look == 0:  # so that some looks find several changes at once
            assert dict(walked(trie, trie)) == model
            assert dict(walked(view, trie)) == {key: path for key, path in model.items() if key in "aceg"}
    fresh = trie_of(model)
    assert dict(walked(trie, trie)) == dict(walked(fresh, fresh)) == model
    assert set(trie.keys()) == set(model)
    assert len(trie) == len(model)
    assert all(trie.tokens_of(key) == path and key in trie for key, path in model.items())


@settings(max_examples=60, deadline=None)
@given(ids=catalogues(), data=st.data())
def test_a_pruned_view_leads_to_what_is_permitted_alone(ids: Ids, data: st.DataObject) -> None:
    permitted = data.draw(st.sets(st.sampled_from(sorted(ids))))
    trie = trie_of(ids)
    view = trie.pruned(permitted.__contains__)
    assert dict(walked(view, trie)) == {key: ids[key] for key in permitted}
    assert view.keeps(Trie.ROOT) == bool(permitted)


@settings(max_examples=60, deadline=None)
@given(ids=catalogues(), data=st.data())
def test_exhausted_are_the_ways_that_lead_to_nothing_else(ids: Ids, data: st.DataObject) -> None:
    written = data.draw(st.sets(st.sampled_from(sorted(ids))))
    trie = trie_of(ids)
    rest = trie.pruned(lambda key: key not in written)
    gone = trie.exhausted(sorted(written))
    nodes = [Trie.ROOT, *gone]
    for node in nodes:
        if rest.keeps(node):
            expected = set(trie.children(node).tolist()) - set(rest.children(node).tolist())
            assert set(gone.get(node, [])) == expected


def test_what_is_kept_between_looks_is_the_same_object_and_cannot_be_written() -> None:
    trie = trie_of({"a": (5,), "b": (2, 1), "c": (2, 3)})
    assert trie.children(Trie.ROOT) is trie.children(Trie.ROOT)
    assert trie.children(Trie.ROOT).tolist() == [2, 5]
    with pytest.raises(ValueError, match="read-only"):
        trie.children(Trie.ROOT)[0] = 1
    trie.insert("d", (3,))
    assert trie.children(Trie.ROOT).tolist() == [2, 3, 5]


def test_a_view_follows_the_trie() -> None:
    trie = trie_of({"a": (1,), "b": (2,)})
    view = trie.pruned(lambda key: key != "b")
    assert view.version == trie.version
    trie.insert("c", (3,))
    assert view.version < trie.version
    assert view.children(Trie.ROOT).tolist() == [1, 3]
    assert view.version == trie.version


def test_going_on_where_there_is_one_way() -> None:
    trie = trie_of({"a": (1, 2, 3), "b": (1, 4)})
    node, tokens = trie.settle(Trie.ROOT)
    assert tokens == (1,)
    assert trie.children(node).tolist() == [2, 4]
    child = trie.step(node, 2)
    assert child is not None
    leaf, tokens = trie.settle(child)
    assert (trie.key(leaf), tokens) == ("a", (3,))


@pytest.mark.parametrize(
    ("path", "message"), [((1, 2), "'b' is also that of 'a'"), ((1,), "beginning of that of 'a'"), ((), "one token")]
)
def test_ids_that_clash_are_refused_by_name(path: tuple[int, ...], message: str) -> None:
    trie = trie_of({"a": (1, 2), "b": (4,)})
    with pytest.raises(BadModel, match=message):
        trie.insert("b", path)
    assert trie.tokens_of("b") == (4,)
    with pytest.raises(BadModel, match="'a' is the beginning of that of 'b'"):
        trie.insert("b", (1, 2, 3))
    with pytest.raises(BadModel, match="below 0"):
        trie.insert("b", (-1,))


def test_an_id_may_give_way_to_one_that_it_begins() -> None:
    trie = trie_of({"a": (1, 2)})
    trie.insert("a", (1, 2, 3))
    assert trie.tokens_of("a") == (1, 2, 3)
    with pytest.raises(UnknownTool, match="'b' has no id"):
        trie.tokens_of("b")


def test_node_numbers_are_used_again() -> None:
    trie = trie_of({str(number): (number, 1, 2) for number in range(20)})
    for turn in range(50):
        trie.remove(str(turn % 20))
        trie.insert(str(turn % 20), (100 + turn, 1, 2))
    assert len(trie.leading_to(lambda key: True)) == 1 + 20 * 3


def seconds_of(work: Callable[[], object]) -> float:
    """The fastest of three goes, so that a busy machine does not fail the test."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def flat(number: int) -> tuple[int, ...]:
    return (50_000 + number,)


def codes(number: int) -> tuple[int, ...]:
    return (number // 46, 1024 + number % 46)


def text(number: int) -> tuple[int, ...]:
    return (number % 3000, number % 7, number, 1, 2, 3, 4, 5)


@pytest.mark.timing
@pytest.mark.parametrize("path", [flat, codes, text])
def test_forty_seven_thousand_tools(path: Callable[[int], tuple[int, ...]]) -> None:
    trie = trie_of({f"tool{number}": path(number) for number in range(47_000)})
    trie.children(Trie.ROOT)
    assert seconds_of(lambda: trie.pruned(lambda key: key.endswith("7"))) < 0.2

    def changes() -> None:
        for number in range(20):
            trie.insert("new", (200_000 + number,))
            assert trie.children(Trie.ROOT)[-1] == 200_000 + number

    assert seconds_of(changes) < 20 * 0.01
    walks = [path(number) for number in range(0, 47_000, 47)]

    def steps() -> None:
        for walk in walks:
            node: int | None = Trie.ROOT
            for token in walk:
                assert node is not None
                assert len(trie.children(node))
                node = trie.step(node, token)

    assert seconds_of(steps) < 0.2
