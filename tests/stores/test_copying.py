"""Copying a store: all of it arrives, an interrupted copy goes on, and a difference is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.stores.contract import FULL, unit
from tests.stores.store_helpers import tool, tools
from toolscout.core.answer import Allowed, Example
from toolscout.core.expansion import Expansion
from toolscout.core.permissions import Principal, new_key
from toolscout.core.tool import text_digest
from toolscout.errors import BadRequest, StoreError
from toolscout.stores import Store, copying, open_store
from toolscout.stores.base import UsedEncoder
from toolscout.stores.copying import CopyReport, copy
from toolscout.stores.sqlite.store import SqliteStore

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def filled(store: Store) -> Store:
    store.add(tools(5), "mail server")
    store.add([FULL], "https://example.org")
    store.add([tool("gone")], "mail server")
    store.remove(["mail/gone"])
    store.set_alias("mail/tool_0001", "letterbox")
    own = next(store.tools("mail")).document()
    store.set_expansions({"mail/tool_0000": Expansion(purpose="writes letters", digest=text_digest(own))})
    store.put_vectors("one", ["a", "b", "request:c"], unit(3))
    store.put_vectors("two", ["a"], unit(1, 4))
    store.use_encoder(UsedEncoder("one", ""))
    store.use_encoder(UsedEncoder("two", "raw"))
    store.put_principal(Principal("agent", allow=("mail/*",), deny=("mail/tool_0002",), tenant="team"))
    store.add_key(new_key("agent")[1])
    store.grant("guest", Allowed.of(namespaces=["mail", "later"], ids=["code/none"]))
    store.add_feedback(
        [Example(f"request {number}", ("mail/tool_0001",), (), "team", "cli", NOW) for number in range(7)]
    )
    return store


Way = Callable[[str], Store]


@pytest.fixture(params=["sqlite to sqlite", "sqlite to postgres", "postgres to sqlite"])
def way(request: pytest.FixtureRequest, tmp_path: Path) -> Way:
    """Opens the store that is copied "from", and the one that it is copied "to"."""
    first, _, second = request.param.split()

    def opened(end: str) -> Store:
        if (first if end == "from" else second) == "sqlite":
            return SqliteStore(tmp_path / f"{end}.db")
        schema = blake2b(f"{tmp_path} {end}".encode(), digest_size=12).hexdigest()
        return open_store(request.getfixturevalue("postgres").url(f"c_{schema}"))

    return opened


@pytest.fixture
def source(way: Way) -> Iterator[Store]:
    with filled(way("from")) as store:
        yield store


@pytest.fixture
def target(way: Way) -> Iterator[Store]:
    with way("to") as store:
        yield store


def held(store: Store) -> list[object]:
    """All that a copy brings along, read through other methods than a copy reads it by."""
    names = store.principals()
    return [
        list(store.tools()),
        [(one.source, one.tools) for one in store.sources()],
        [listing for _, listing in sorted(store.documents(0), key=lambda one: one[0].tool_id) if listing],
        {name: store.vectors(name, ["a", "b", "request:c"]).keys() for name in ("one", "two")},
        store.encoders(),
        [(store.principal(name), store.permissions(name)) for name in names],
        store.api_keys(),
        [example for _, example in store.feedback()],
    ]


def test_everything_arrives(source: Store, target: Store) -> None:
    told: list[str] = []
    report = copy(source, target, lambda stage, done, total: told.append(stage))
    assert report == CopyReport(tools=6, vectors=4, principals=2, keys=1, feedback=7)
    assert held(target) == held(source)
    for model in ("one", "two"):
        first, second = (store.vectors(model, ["a", "b"]) for store in (source, target))
        assert all(np.array_equal(first[digest], second[digest]) for digest in first)
    assert {"copying tools", "copying vectors"} <= set(told)
    # An import into the copy sees that nothing changed, and keeps what users added.
    assert target.add(tools(5), "mail server").unchanged == 5
    assert "letterbox" in target.get(["mail/tool_0001"])[0].aliases


def test_what_a_gateway_holds_back_arrives(source: Store, target: Store) -> None:
    with closing(source.approvals()) as record, record.changing() as rows:
        rows.accept("mail/send", "1", "sends")
        rows.accept("mail/read", "2", "reads")
        rows.hold("mail/read", "3", "reads and deletes")
    assert not target.has_approvals()
    copy(source, target)
    copy(source, target)
    with closing(source.approvals()) as first, closing(target.approvals()) as second:
        assert first.key == second.key
        with second.changing(approving=True) as rows:
            assert rows.state("mail/send") == ("1", None)
            assert rows.held() == [("mail/read", "reads", "reads and deletes", "3")]
            assert rows.size("mail") == (2, 27)
            assert not rows.approve("mail/read", "2")
            assert rows.approve("mail/read", "3")
            rows.hold("mail/read", "4", "x")
            rows.forget_waiting("mail/read")
            assert rows.state("mail/read") == ("3", None)
        before = second.stamp()
        with second.changing(approving=True) as rows:
            rows.accept("mail/more", "5", "more")
        assert second.stamp() > before


def test_a_second_copy_writes_nothing(source: Store, target: Store) -> None:
    copy(source, target)
    version, access = target.version(), target.access()
    assert copy(source, target).tools == 6
    assert (target.version(), target.access()) == (version, access)


@pytest.mark.parametrize("at", range(9))
def test_an_interrupted_copy_goes_on(source: Store, target: Store, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    monkeypatch.setattr(copying, "_AT_ONCE", 2)
    writes = 0

    def breaking(name: str) -> None:
        whole = getattr(type(target), name)

        def write(self: Store, *given: object, **named: object) -> object:
            nonlocal writes
            writes += 1
            if self is target and writes == at + 1:
                raise KeyboardInterrupt
            return whole(self, *given, **named)

        monkeypatch.setattr(type(target), name, write)

    for name in ("add", "set_alias", "put_vectors", "put_principal", "grant", "add_key", "add_feedback"):
        breaking(name)
    with pytest.raises(KeyboardInterrupt):
        copy(source, target)
    copy(source, target)
    assert held(target) == held(source)


def test_a_store_with_other_things_is_refused(source: Store, target: Store) -> None:
    target.add([tool("other")])
    with pytest.raises(BadRequest, match=r"has tools that the other has not, such as 'mail/other'; name an empty one"):
        copy(source, target)
    target.remove(["mail/other"])
    target.grant("stranger", Allowed.of(namespaces=["mail"]))
    with pytest.raises(BadRequest, match="has principals that the other has not, such as 'stranger'"):
        copy(source, target)
    target.revoke("stranger", Allowed.of(namespaces=["mail"]))
    target.add_feedback([Example("mine", (), (), "", "", NOW)])
    with pytest.raises(BadRequest, match="has feedback that the other has not"):
        copy(source, target)
    with pytest.raises(BadRequest, match="both names are of one store"):
        copy(source, source)
    assert target.count() == 0


@pytest.mark.parametrize("what", ["tools", "principals", "feedback", "expansions"])
def test_what_changes_meanwhile_is_told(
    source: Store, target: Store, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    changes: dict[str, Callable[[], object]] = {
        "tools": lambda: source.add([tool("new")]),
        "principals": lambda: source.put_principal(Principal("late", allow=("*",))),
        "feedback": lambda: source.add_feedback([Example("late", (), (), "", "", NOW)]),
        "expansions": lambda: source.set_expansions({"mail/tool_0000": Expansion()}),
    }
    checked = copying._checked

    def change_first(*given: Any) -> CopyReport:
        changes[what]()
        return checked(*given)

    monkeypatch.setattr(copying, "_checked", change_first)
    with pytest.raises(StoreError, match=f"the {what} of the two stores differ after copying"):
        copy(source, target)
