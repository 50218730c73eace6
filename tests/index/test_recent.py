"""What is remembered of callers: who asks often is not worked out again, however many others ask; nothing is stale."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.toys import catalogue
from toolscout.core.answer import Allowed
from toolscout.index import recent as recent_module
from toolscout.index import row_ids
from toolscout.index.recent import Recent, bytes_of
from toolscout.index.row_ids import RowIds
from toolscout.models.decoding.trie import PrunedTrie, Trie
from toolscout.retrievers.generative import reading
from toolscout.retrievers.generative.reading import CallerTries
from toolscout.retrievers.rewrite import rewriter as rewriting
from toolscout.retrievers.rewrite.rewriter import RewriteOptions, Rewriter

OTHERS = [Allowed.of([f"space{number % 7}"], [f"nowhere/{number}"]) for number in range(20)]
TOOLS = catalogue(70)
IDS = [tool.id for tool in TOOLS]
FREQUENT = Allowed.of(["space1"], IDS[2:4])


def between() -> Iterator[Allowed]:
    """Many callers, and the frequent one after each."""
    for other in OTHERS:
        yield other
        yield FREQUENT


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str], list[object]]:
    """Lists the calls of a function."""

    def count(owner: Any, name: str) -> list[object]:
        calls: list[object] = []
        real = getattr(owner, name)

        def counting(*args: Any, **named: Any) -> Any:
            calls.append(args)
            return real(*args, **named)

        monkeypatch.setattr(owner, name, counting)
        return calls

    return count


def test_what_nobody_asked_for_the_longest_goes_first() -> None:
    recent: Recent[str, int] = Recent(2)
    recent.keep("a", 1)
    recent.keep("b", 2)
    assert recent.get("a") == 1
    recent.keep("c", 3)
    assert [recent.get(key) for key in "abc"] == [1, None, 3]
    recent.keep("a", 4)
    recent.keep("d", 5)
    assert [recent.get(key) for key in "acd"] == [4, None, 5]


def test_large_ones_leave_when_there_is_no_room_and_a_few_stay_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_module, "_LEAST_KEPT", 2)
    recent: Recent[int, int] = Recent(100, room=10)
    for key in range(10):
        recent.keep(key, key, size=1)
    recent.keep(9, 9, size=3)
    assert [recent.get(key) for key in range(4)] == [None, None, 2, 3]
    for key in (20, 21, 22):
        recent.keep(key, key, size=99)
    assert [recent.get(key) for key in (9, 20, 21, 22)] == [None, None, 21, 22]
    for key in range(30, 40):
        recent.keep(key, key, size=1)
    assert [recent.get(key) for key in (22, *range(30, 40))] == [None, *range(30, 40)]


def test_a_caller_that_comes_as_another_object_is_compared_once(counted: Callable[[Any, str], list[object]]) -> None:
    compared = counted(Allowed, "__eq__")
    recent: Recent[Allowed, int] = Recent(4)
    recent.keep(Allowed.of(ids=IDS), 1)
    again = Allowed.of(ids=IDS)
    assert [recent.get(again) for _ in range(5)] == [1] * 5
    assert len(compared) == 1


def test_a_caller_weighs_what_its_sets_take() -> None:
    assert bytes_of(None) == 0
    assert bytes_of(Allowed.of(ids=map(str, range(10_000)))) > 10_000 * 8


def test_threads_that_ask_at_once_get_their_own() -> None:
    recent: Recent[int, int] = Recent(5, room=60)
    wrong: list[tuple[int, int]] = []

    def ask(seed: int) -> None:
        for step in range(3000):
            key = (seed + step * 7) % 11
            found = recent.get(key)
            if found is None:
                recent.keep(key, -key, size=key)
            elif found != -key:
                wrong.append((key, found))

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(recent._kept) <= 5
    assert recent._used == sum(size for _, size in recent._kept.values())


@pytest.mark.parametrize("limits", [(4, 1 << 20), (4_096, 1)])
def test_the_rows_of_a_frequent_caller_are_found_once(
    limits: tuple[int, int], monkeypatch: pytest.MonkeyPatch, counted: Callable[[Any, str], list[object]]
) -> None:
    monkeypatch.setattr(recent_module, "_LEAST_KEPT", 4)
    monkeypatch.setattr(row_ids, "_CACHED_MASKS", limits[0])
    monkeypatch.setattr(row_ids, "_MASK_BYTES", limits[1])
    rows, fresh = RowIds(IDS), RowIds(IDS)
    sorts = counted(row_ids.np, "sort")
    found = {caller: rows.allowed(caller).tolist() for caller in between()}
    assert len(sorts) == len(OTHERS) + 1
    rows.allowed(OTHERS[0])
    assert len(sorts) == len(OTHERS) + 2
    assert found == {caller: fresh.allowed(caller).tolist() for caller in found}


def test_more_callers_than_once_fitted_keep_their_rows(counted: Callable[[Any, str], list[object]]) -> None:
    rows, callers = RowIds(IDS), [Allowed.of(["space1"], [f"nowhere/{number}"]) for number in range(500)]
    sorts = counted(row_ids.np, "sort")
    for caller in callers * 2:
        rows.allowed(caller)
    assert len(sorts) == len(callers)


def test_rows_are_found_anew_once_a_tool_came_or_went() -> None:
    rows = RowIds(IDS)
    before = rows.allowed(FREQUENT).tolist()
    added = rows.add("space1/new")
    assert rows.allowed(FREQUENT).tolist() == [*before, added]
    rows.remove("space1/new")
    assert rows.allowed(FREQUENT).tolist() == before


def test_a_frequent_caller_keeps_its_view_of_a_trie(
    monkeypatch: pytest.MonkeyPatch, counted: Callable[[Any, str], list[object]]
) -> None:
    monkeypatch.setattr(reading, "_CALLERS_KEPT", 3)
    trie = Trie()
    for number, tool_id in enumerate(IDS):
        trie.insert(tool_id, (number % 5, number))
    views = CallerTries(trie, ())
    made = counted(Trie, "pruned")
    first = views.of(FREQUENT)
    for caller in between():
        assert tokens(views.of(caller)) == tokens(PrunedTrie(trie, caller.permits))
    assert views.of(FREQUENT) is first
    assert len(made) == len(OTHERS) + 1
    trie.insert("space1/new", (6, 0))
    assert tokens(views.of(FREQUENT)) == tokens(PrunedTrie(trie, FREQUENT.permits))
    assert 6 in tokens(first)[0]


def tokens(view: PrunedTrie) -> list[list[int]]:
    """What may follow at the root and below it."""
    root = view.branch(Trie.ROOT)
    return [view.children(Trie.ROOT).tolist(), *(view.children(node).tolist() for node in root.nodes[root.inner])]


def test_a_frequent_caller_keeps_its_examples(
    monkeypatch: pytest.MonkeyPatch, counted: Callable[[Any, str], list[object]]
) -> None:
    monkeypatch.setattr(rewriting, "_CALLERS_KEPT", 3)
    rewriter = Rewriter(RewriteOptions(llm="rules"))
    rewriter.add(TOOLS)
    draws = counted(rewriting, "nsmallest")
    found = {caller: rewriter._drawn(caller) for caller in between()}
    assert len(draws) == len(OTHERS) + 1
    for caller, examples in found.items():
        fresh = Rewriter(RewriteOptions(llm="rules"))
        fresh.add(TOOLS)
        assert fresh._drawn(caller) == examples
    rewriter.remove([tool_id for tool_id in IDS if FREQUENT.permits(tool_id)])
    assert rewriter._drawn(FREQUENT) == []
    rewriter.add(TOOLS)
    assert rewriter._drawn(FREQUENT) == found[FREQUENT]
