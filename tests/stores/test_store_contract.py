"""What every kind of store keeps to: tools come, change, go, and are followed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from tests.stores.store_helpers import tool, tools
from toolscout.core.tool import Listing, Origin, Tool, text_digest
from toolscout.errors import BadRequest, BadTool, DuplicateTool, StoreError, UnknownTool
from toolscout.stores import AddReport, Change, Store

FULL = Tool(
    namespace="code/hosting",
    name="get/issue 50%",
    description="Gets an issue. Ж 漢 \U0001f600 \x00 \x1b[31m",
    title="Get issue",
    input_schema={"type": "object", "properties": {"zeta": {"type": "string"}, "alpha": {"enum": [1, "b"]}}},
    output_schema={"type": "object"},
    annotations={"readOnlyHint": True},
    tags=("a", "b"),
    aliases=("issue",),
    examples=("show me issue 5",),
    origin=Origin("http", "https://example.org", {"method": "GET"}),
    meta={"x": [1, None]},
)


def test_is_a_store(store: Store) -> None:
    assert isinstance(store, Store)


def test_empty(store: Store) -> None:
    assert (store.version(), store.count(), store.ids(), store.namespaces()) == (0, 0, [], {})
    assert list(store.tools()) == list(store.changes(0)) == list(store.documents(0)) == list(store.feedback()) == []
    assert store.missing_vectors("m") == []
    assert store.vectors("m", ["x"]) == {}
    store.put_vectors("m", [], np.zeros((0, 0), dtype=np.float32))
    assert store.prune_vectors() == store.remove([]) == 0
    assert store.get([]) == []
    assert store.add([]) == AddReport(0, 0, 0, 0, 0)
    store.check()


def test_gives_back_what_was_added(store: Store) -> None:
    assert store.add([FULL, tool("send")], "a.json") == AddReport(2, 0, 0, 0, 1)
    assert store.get(["mail/send", FULL.id, FULL.id]) == [tool("send"), FULL, FULL]
    # the order of a schema's properties is what a caller sees, and is kept
    assert list(store.get([FULL.id])[0].input_schema["properties"]) == ["zeta", "alpha"]
    assert list(store.tools()) == sorted([FULL, tool("send")], key=lambda each: each.id)
    assert store.ids() == sorted([FULL.id, "mail/send"])
    assert store.ids("code/hosting") == [FULL.id]
    assert store.ids("code") == store.ids("no\ud800where") == []
    assert store.namespaces() == {"code/hosting": 1, "mail": 1}
    assert store.count() == 2


def test_pages(store: Store) -> None:
    store.add(tools(10) + tools(5, namespace="other"))
    every = list(store.tools())
    assert list(store.tools(offset=3, limit=4)) == every[3:7]
    assert list(store.tools("other", offset=4)) == every[14:]
    assert list(store.tools(limit=0)) == list(store.tools("none")) == []
    with pytest.raises(BadRequest):
        store.tools(offset=-1)
    with pytest.raises(BadRequest):
        store.tools(limit=-1)


def test_add_again_changes_nothing(store: Store) -> None:
    store.add([FULL, *tools(5)], "a")
    stamp = store.stamp()
    assert store.add([FULL, *tools(5)], "a") == AddReport(0, 0, 6, 0, 1)
    assert store.add([FULL, FULL], "another source, same content") == AddReport(0, 0, 1, 0, 1)
    assert list(store.changes(1)) == []
    assert store.stamp() == stamp


def test_sources(store: Store) -> None:
    assert store.sources() == []
    before = datetime.now(UTC).replace(microsecond=0)
    store.add(tools(3), "b")
    store.add(tools(2, namespace="other"), "a")
    first, second = store.sources()
    assert (first.source, first.tools, first.version) == ("a", 2, 2)
    assert (second.source, second.tools, second.version) == ("b", 3, 1)
    assert second.changed is not None
    assert before <= second.changed <= datetime.now(UTC)
    store.remove([one.id for one in tools(3)])
    assert [state.source for state in store.sources()] == ["a"]


def test_another_order_of_properties_is_no_change(store: Store) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}
    turned = {"properties": {"b": {"type": "string"}, "a": {"type": "string"}}, "type": "object"}
    store.add([replace(tool("send"), input_schema=schema)])
    assert store.add([replace(tool("send"), input_schema=turned)]).unchanged == 1


def test_change(store: Store) -> None:
    store.add(tools(3), "a")
    assert store.add([tool("tool_0001", "new words"), tool("more")], "a") == AddReport(1, 1, 0, 0, 2)
    assert store.get(["mail/tool_0001"])[0].description == "new words"
    digest = {each.id: each.digest() for each in store.tools()}
    assert list(store.changes(1)) == [
        Change("mail/more", "added", 2, digest["mail/more"]),
        Change("mail/tool_0001", "changed", 2, digest["mail/tool_0001"]),
    ]
    # from the very start a later change is still an arrival
    assert [(change.tool_id, change.kind, change.version) for change in store.changes(0)] == [
        ("mail/tool_0000", "added", 1),
        ("mail/tool_0002", "added", 1),
        ("mail/more", "added", 2),
        ("mail/tool_0001", "added", 2),
    ]


def test_content_beyond_the_text_counts_as_a_change(store: Store) -> None:
    store.add([FULL])
    assert store.add([replace(FULL, annotations={"readOnlyHint": False})]).changed == 1
    assert next(store.changes(1)).digest == FULL.digest()


def test_remove(store: Store) -> None:
    store.add(tools(4))
    assert store.remove(["mail/tool_0002", "mail/tool_0000", "mail/tool_0002"]) == 2
    assert store.ids() == ["mail/tool_0001", "mail/tool_0003"]
    gone = [Change(f"mail/tool_000{number}", "removed", 2, "") for number in (0, 2)]
    assert list(store.changes(1)) == gone
    assert list(store.documents(1)) == [(change, None) for change in gone]
    assert store.version() == 2
    store.add([tool("tool_0002", "back")])
    assert [(change.tool_id, change.kind) for change in store.changes(1)] == [
        ("mail/tool_0000", "removed"),
        ("mail/tool_0002", "added"),
    ]


@pytest.mark.parametrize("bad", ["mail/none", "", "mail/tool_0000\x00", "\ud800", "mail/TOOL_0000", "mail/%"])
def test_unknown_ids(store: Store, bad: str) -> None:
    store.add(tools(2))
    with pytest.raises(UnknownTool, match="toolscout list"):
        store.get(["mail/tool_0000", bad])
    with pytest.raises(UnknownTool):
        store.remove(["mail/tool_0000", bad])
    with pytest.raises(UnknownTool):
        store.set_alias(bad, "x")
    assert store.count() == 2
    assert store.version() == 1


def test_another_source_may_not_change_a_tool(store: Store) -> None:
    store.add(tools(3), "first.json")
    with pytest.raises(DuplicateTool, match=r"mail/tool_0001 .*first\.json.*namespace.*replace"):
        store.add([tool("fresh"), tool("tool_0001", "stolen")], "second.json")
    assert store.count() == 3
    assert store.version() == 1
    assert store.add([tool("tool_0001", "stolen")], "second.json", replace=True) == AddReport(0, 1, 0, 0, 2)
    with pytest.raises(DuplicateTool, match=r"second\.json"):
        store.add(tools(3), "first.json")


def test_replace_takes_over_equal_tools_too(store: Store) -> None:
    store.add(tools(3), "old.json")
    assert store.add(tools(3), "moved.json", replace=True) == AddReport(0, 0, 3, 0, 1)
    assert store.add([], "old.json", sync=True).removed == 0
    assert store.add(tools(1), "moved.json", sync=True).removed == 2


def test_twice_in_one_add(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for chunk in (2000, 3):  # in one chunk, and in different ones
        monkeypatch.setattr("toolscout.stores.sqlite.tools.CHUNK", chunk)
        with pytest.raises(DuplicateTool, match="mail/tool_0001 is given twice"):
            store.add([*tools(7), tool("tool_0001", "other")], replace=True)
        assert store.count() == 0
    assert store.add([*tools(7), *tools(7)]) == AddReport(7, 0, 0, 0, 1)
    with pytest.raises(DuplicateTool):  # also where one of the two is what the store has
        store.add([*tools(7), tool("tool_0001", "other")])
    assert store.get(["mail/tool_0001"]) == [tool("tool_0001")]


def test_sync(store: Store) -> None:
    store.add(tools(5), "a")
    store.add(tools(2, namespace="other"), "b")
    assert store.add([*tools(2), tool("more")], "a", sync=True) == AddReport(1, 0, 2, 3, 3)
    assert store.ids() == ["mail/more", "mail/tool_0000", "mail/tool_0001", "other/tool_0000", "other/tool_0001"]
    assert store.add([], "b", sync=True) == AddReport(0, 0, 0, 2, 4)
    assert store.add([], "b", sync=True) == AddReport(0, 0, 0, 0, 4)


@pytest.mark.parametrize(
    "error",
    [OSError("the server died"), sqlite3.DatabaseError("another file"), UnicodeDecodeError("utf-8", b"", 0, 1, "")],
)
@pytest.mark.parametrize("at", [5, 35])
def test_a_source_that_breaks_leaves_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: Exception, at: int
) -> None:
    monkeypatch.setattr("toolscout.stores.sqlite.tools.CHUNK", 10)
    store.add([tool("before")], "a")

    def breaking() -> Iterator[Tool]:
        yield from tools(at)
        raise error

    with pytest.raises(type(error)) as raised:
        store.add(breaking(), "a", sync=True)
    assert raised.value is error
    assert store.ids() == ["mail/before"]
    assert store.version() == 1
    assert store.add(tools(35), "a").added == 35


def test_unwritable_content(store: Store) -> None:
    around: dict[str, object] = {}
    around["self"] = around
    for schema in ({("a", 1): 2}, around):
        with pytest.raises(BadTool, match="mail/send"):
            store.add([tool("fine"), replace(tool("send"), input_schema=schema)])
    assert store.count() == 0


def test_documents(store: Store) -> None:
    store.add([FULL, *tools(3)])
    found = list(store.documents(0))
    assert [change for change, _ in found] == list(store.changes(0))
    for change, listing in found:
        known = store.get([change.tool_id])[0]
        aliases, text = known.aliases, known.document()
        assert listing == Listing(known.id, known.namespace, known.name, aliases, text, text_digest(text))


def test_aliases_outlive_imports(store: Store) -> None:
    store.add([FULL, tool("send")], "a")
    assert store.set_alias(FULL.id, " bug\n")
    assert store.set_alias(FULL.id, "a bug")
    assert not store.set_alias(FULL.id, "bug")
    assert store.version() == 3
    assert store.get([FULL.id])[0].aliases == ("issue", "a bug", "bug")
    assert [(change.tool_id, change.kind) for change in store.changes(1)] == [(FULL.id, "changed")]
    assert next(store.documents(1))[1] == next(
        Listing(each.id, each.namespace, each.name, each.aliases, each.document(), each.digest())
        for each in store.tools("code/hosting")
    )
    assert store.add([FULL, tool("send")], "a").unchanged == 2
    store.add([tool("send")], "a", sync=True)
    store.add([replace(FULL, description="New.")], "a")
    assert store.get([FULL.id])[0].aliases == ("issue", "a bug", "bug")
    assert store.remove_alias(FULL.id, "bug")
    assert not store.remove_alias(FULL.id, "bug")
    assert not store.remove_alias(FULL.id, "issue")  # the tool's own
    assert store.get([FULL.id])[0].aliases == ("issue", "a bug")
    with pytest.raises(BadTool):
        store.set_alias(FULL.id, " \x00")


def test_a_source_that_adds_while_it_is_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolscout.stores.sqlite.tools.CHUNK", 2)

    def greedy() -> Iterator[Tool]:
        yield from tools(5)
        store.add([tool("inner")])

    with pytest.raises(StoreError):
        store.add(greedy())
    assert store.count() == 0
    assert store.add(tools(1)).added == 1


def test_a_description_of_ten_megabytes(store: Store) -> None:
    large = tool("large", "word " * 2_000_000)
    store.add([large])
    assert store.get([large.id]) == [large]
