"""What every kind of store keeps to, besides tools: vectors, permissions, feedback, threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime

import numpy as np
import pytest

from tests.stores.store_helpers import follow, tool, tools
from toolscout.core.answer import Allowed, Example
from toolscout.core.tool import Tool
from toolscout.errors import StoreError
from toolscout.stores import Store


def unit(count: int, width: int = 8) -> np.ndarray:
    rows = np.random.default_rng(count).standard_normal((count, width)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_vectors(store: Store) -> None:
    same = [Tool("x", "y/z"), Tool("x", "y/z", meta={"a": 1})]
    assert same[0].digest() == same[1].digest()
    store.add([*tools(5), same[0]])
    missing = store.missing_vectors("m")
    assert dict(missing) == {each.digest(): each.document() for each in store.tools()}
    assert len(store.missing_vectors("m", limit=2)) == 2
    digests, vectors = [digest for digest, _ in missing], unit(6)
    store.put_vectors("m", digests[:4], vectors[:4])
    assert store.missing_vectors("m") == missing[4:]
    assert store.missing_vectors("other model") == missing
    found = store.vectors("m", digests)
    assert set(found) == set(digests[:4])
    for digest, vector in zip(digests, vectors[:4], strict=False):
        assert found[digest].dtype == np.float32
        np.testing.assert_allclose(found[digest], vector, atol=1e-3)
        np.testing.assert_array_equal(found[digest], vector.astype(np.float16).astype(np.float32))
    assert store.vectors("other model", digests) == {}
    store.put_vectors("m", digests[:1], -vectors[:1])  # the first stays
    np.testing.assert_array_equal(store.vectors("m", digests[:1])[digests[0]], found[digests[0]])
    assert store.version() == 1


def test_following_vectors(store: Store) -> None:
    digests, vectors = [f"digest {number}" for number in range(7)], unit(7)
    assert store.vectors_after("m").digests == ()
    assert store.last_vector("m") == 0
    store.put_vectors("m", digests[:3], vectors[:3])
    store.put_vectors("other", digests, unit(7, 4))
    store.put_vectors("m", digests[2:], vectors[2:])
    first = store.vectors_after("m", limit=2)
    rest = store.vectors_after("m", first.cursor)
    assert first.digests + rest.digests == tuple(digests)
    np.testing.assert_allclose(np.concatenate([first.vectors, rest.vectors]), vectors, atol=1e-3)
    assert store.last_vector("m") == rest.cursor
    assert store.vectors_after("other", store.last_vector("other")).digests == ()
    end = store.vectors_after("m", rest.cursor)
    assert (end.cursor, end.digests, len(end.vectors)) == (rest.cursor, (), 0)
    store.add(tools(1))
    assert store.prune_vectors() == 14  # none of the texts is a tool's
    store.put_vectors("m", digests, vectors)
    assert store.vectors_after("m", rest.cursor).digests == tuple(digests)  # numbers never come twice


def test_prune_keeps_what_is_used(store: Store) -> None:
    store.add(tools(4))
    digests = [digest for digest, _ in store.missing_vectors("m")]
    store.put_vectors("m", digests, unit(4))
    store.put_vectors("n", digests, unit(4))
    store.remove(["mail/tool_0000"])
    store.add([tool("tool_0001", "new")])
    store.put_vectors("m", ["request:0123"], unit(1))  # of a request, which is no tool's text and stays
    assert store.prune_vectors() == 4
    assert len(store.vectors("m", ["request:0123"])) == 1
    assert len(store.vectors("m", digests)) == len(store.vectors("n", digests)) == 2


@pytest.mark.parametrize(
    "wrong",
    [np.zeros((1, 4)), np.zeros(4), np.full((2, 4), np.nan), np.full((2, 4), 1e6)],
    ids=["too few", "one row", "nan", "too large"],
)
def test_wrong_vectors(store: Store, wrong: np.ndarray) -> None:
    with pytest.raises(StoreError):
        store.put_vectors("m", ["a", "b"], wrong)
    assert store.vectors("m", ["a", "b"]) == {}


def test_vectors_of_two_widths_never_mix(store: Store) -> None:
    store.put_vectors("m", ["a"], unit(1, 8))
    with pytest.raises(StoreError, match="8 numbers, got 4"):
        store.put_vectors("m", ["b"], unit(1, 4))


def test_permissions(store: Store) -> None:
    assert store.permissions("ann") == Allowed()
    store.grant("ann", Allowed.of(["mail", "code/hosting"], ["x/y"]))
    store.grant("ann", Allowed.of(["mail"], ["x/z"]))
    store.grant("bob", Allowed.of(["x"]))
    assert store.permissions("ann") == Allowed.of(["mail", "code/hosting"], ["x/y", "x/z"])
    assert store.principals() == ["ann", "bob"]
    store.revoke("ann", Allowed.of(["mail", "never"], ["x/z"]))
    assert store.permissions("ann") == Allowed.of(["code/hosting"], ["x/y"])
    store.revoke("ann", store.permissions("ann"))
    assert store.principals() == ["bob"]
    assert store.version() == 0


def test_feedback(store: Store) -> None:
    first = Example("send it", ("mail/send",), ("mail/read", "x/y"), "acme", "cli", datetime(2026, 1, 2, tzinfo=UTC))
    second = Example("nothing used \U0001f600")
    store.add_feedback([first])
    store.add_feedback([second, Example("half a pair \ud83d")])
    numbers, examples = zip(*store.feedback(), strict=True)
    assert examples[:2] == (first, second)
    assert examples[2].request == "half a pair ?"
    assert [example for _, example in store.feedback(numbers[0])] == list(examples[1:])
    assert store.version() == 0


def test_stamp_moves_with_every_commit(store: Store) -> None:
    seen = [store.stamp()]
    store.add(tools(1))
    seen.append(store.stamp())
    store.put_vectors("m", ["a"], unit(1))
    seen.append(store.stamp())
    store.grant("ann", Allowed.of(["mail"]))
    seen.append(store.stamp())
    assert len(set(seen)) == 4
    assert store.stamp() == seen[-1]


def test_reading_while_another_thread_is_in_the_middle_of_an_add(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolscout.stores.sqlite.tools.CHUNK", 10)
    store.add([tool("before")])
    inside, go_on = threading.Event(), threading.Event()

    def slow() -> Iterator[Tool]:
        yield from tools(25)
        inside.set()
        assert go_on.wait(20)
        yield from tools(25, namespace="late")

    adding = threading.Thread(target=lambda: store.add(slow(), "slow"))
    adding.start()
    assert inside.wait(20)
    assert store.ids() == ["mail/before"]
    assert store.version() == 1
    assert len(list(store.documents(0))) == 1
    store.stamp()
    go_on.set()
    adding.join(20)
    assert store.count() == 51
    assert store.version() == 2


def test_many_threads(store: Store) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(8):
                store.add(tools(5, f"turn {turn}", namespace=f"n{number}"), f"s{number}")
                assert {each.description for each in store.tools(f"n{number}")} == {f"turn {turn}"}
                known = follow({}, store.changes(0))
                assert len(known) % 5 == 0
                store.put_vectors("m", [f"{number} {turn}"], unit(1))
                store.stamp()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert store.version() == 64
    assert store.count() == 40
    store.check()


def test_an_iterator_sees_one_state(store: Store) -> None:
    store.add(tools(50, "old"))
    listing = store.tools()
    assert next(listing).description == "old"
    store.add(tools(50, "new"))
    assert {each.description for each in listing} == {"old"}
    assert {each.description for each in store.tools()} == {"new"}
    half = store.changes(0)
    next(half)
    half.close()
    store.remove(store.ids())
    assert list(store.tools()) == []


def test_closed(store: Store) -> None:
    store.add(tools(3))
    started = store.tools()
    next(started)
    store.close()
    store.close()
    assert len(list(started)) == 2  # what had begun may end
    for use in (store.version, store.stamp, lambda: store.add(tools(1)), lambda: list(store.tools())):
        with pytest.raises(StoreError, match="closed"):
            use()
