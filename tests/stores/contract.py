"""What every kind of store keeps. A test class inherits `StoreContract` and gives it a fixture `make`.

    class TestMine(StoreContract):
        @pytest.fixture
        def make(self) -> Make:
            return lambda folder: MyStore(folder / "store.db")

`make(folder)` opens the store that belongs to a folder, new or again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.stores.store_helpers import follow, tool, tools
from tests.stores.store_model import Model
from toolscout.core.answer import Allowed, Example
from toolscout.core.expansion import Expansion, with_expansion
from toolscout.core.permissions import Key, Principal, new_key
from toolscout.core.tool import Listing, Origin, Tool, text_digest
from toolscout.errors import BadRequest, BadTool, DuplicateTool, StoreError, UnknownPrincipal, UnknownTool
from toolscout.stores import AddReport, Change, Store
from toolscout.stores.base import ExpansionReport, StoredTool

Make = Callable[[Path], Store]
Chunks = Callable[[int], None]

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


def unit(count: int, width: int = 8) -> np.ndarray:
    rows = np.random.default_rng(count).standard_normal((count, width)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


class StoreContract:
    """Tests of one kind of store; each gets a fresh one."""

    @pytest.fixture
    def make(self) -> Make:
        raise NotImplementedError("say how the store is opened: a fixture `make`")

    @pytest.fixture
    def store(self, make: Make, tmp_path: Path) -> Iterator[Store]:
        with make(tmp_path) as made:
            yield made

    @pytest.fixture
    def chunks(self) -> Chunks:
        """Lets the store read a source so many tools at a time, where it reads it in pieces."""
        return lambda size: None

    def test_inherits_the_contract(self, store: Store) -> None:
        assert isinstance(store, Store)

    def test_behaves_like_a_dict(self, make: Make) -> None:
        examples = settings(max_examples=30, stateful_step_count=25, deadline=None)
        run_state_machine_as_test(lambda: Model(make), settings=examples)

    @pytest.fixture
    def driver_error(self) -> Exception:
        """An error of the kind that the store's own database raises."""
        return OSError("the disk died")

    # Tools.

    def test_empty(self, store: Store) -> None:
        assert (store.version(), store.count(), store.ids(), store.namespaces()) == (0, 0, [], {})
        assert list(store.tools()) == list(store.changes(0)) == list(store.documents(0)) == list(store.feedback()) == []
        assert store.missing_vectors("m") == []
        assert store.vectors("m", ["x"]) == {}
        store.put_vectors("m", [], np.zeros((0, 0), dtype=np.float32))
        assert store.prune_vectors() == store.remove([]) == 0
        assert store.get([]) == []
        assert store.add([]) == AddReport(0, 0, 0, 0, 0)
        store.check()

    def test_size_grows_with_what_is_stored(self, store: Store) -> None:
        before = store.size()
        store.put_vectors("m", [f"digest {number}" for number in range(2000)], unit(2000, 256))
        assert store.size() > before + 2000 * 256

    def test_gives_back_what_was_added(self, store: Store) -> None:
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

    def test_pages(self, store: Store) -> None:
        store.add(tools(10) + tools(5, namespace="other"))
        every = list(store.tools())
        assert list(store.tools(offset=3, limit=4)) == every[3:7]
        assert list(store.tools("other", offset=4)) == every[14:]
        assert list(store.tools(limit=0)) == list(store.tools("none")) == []
        with pytest.raises(BadRequest):
            store.tools(offset=-1)
        with pytest.raises(BadRequest):
            store.tools(limit=-1)

    def test_add_again_changes_nothing(self, store: Store) -> None:
        store.add([FULL, *tools(5)], "a")
        stamp = store.stamp()
        assert store.add([FULL, *tools(5)], "a") == AddReport(0, 0, 6, 0, 1)
        assert store.add([FULL, FULL], "another source, same content") == AddReport(0, 0, 1, 0, 1)
        assert list(store.changes(1)) == []
        assert store.stamp() == stamp

    def test_sources(self, store: Store) -> None:
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

    def test_source_labels(self, store: Store) -> None:
        for number, label in enumerate(("list%_ b", "list%_ a", "listed", "other list%_")):
            store.add(tools(1, namespace=f"n{number}"), label)
        assert store.source_labels("list%_ ") == ["list%_ a", "list%_ b"]
        store.remove([one.id for one in tools(1, namespace="n1")])
        assert store.source_labels("list%_ ") == ["list%_ b"]
        assert store.source_labels("nothing") == []

    def test_another_order_of_properties_is_no_change(self, store: Store) -> None:
        schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}
        turned = {"properties": {"b": {"type": "string"}, "a": {"type": "string"}}, "type": "object"}
        store.add([replace(tool("send"), input_schema=schema)])
        assert store.add([replace(tool("send"), input_schema=turned)]).unchanged == 1

    def test_change(self, store: Store) -> None:
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

    def test_content_beyond_the_text_counts_as_a_change(self, store: Store) -> None:
        store.add([FULL])
        assert store.add([replace(FULL, annotations={"readOnlyHint": False})]).changed == 1
        assert next(store.changes(1)).digest == FULL.digest()

    def test_remove(self, store: Store) -> None:
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

    def test_adding_and_removing_in_one_transaction(self, store: Store) -> None:
        store.add(tools(3), "old.json")
        gone = ["mail/tool_0000", "mail/tool_0002", "mail/tool_0000"]
        report = store.add([tool("fresh"), tool("tool_0001")], "new.json", remove=gone)
        assert report == AddReport(1, 0, 1, 2, 2)
        assert store.ids() == ["mail/fresh", "mail/tool_0001"]
        assert [(change.tool_id, change.kind, change.version) for change in store.changes(1)] == [
            ("mail/fresh", "added", 2),
            ("mail/tool_0000", "removed", 2),
            ("mail/tool_0002", "removed", 2),
        ]
        report = store.add([tool("fresh", "changed")], "new.json", remove=["mail/fresh"])  # given, and removed
        assert report == AddReport(0, 1, 0, 1, 3)
        assert store.add([], remove=["mail/tool_0001"]) == AddReport(0, 0, 0, 1, 4)
        assert store.ids() == []

    @pytest.mark.parametrize("bad", ["mail/none", "mail/fresh", "\ud800"])
    def test_where_a_tool_to_remove_is_unknown_nothing_is_added(self, store: Store, bad: str) -> None:
        store.add(tools(2))
        with pytest.raises(UnknownTool, match="toolscout list"):
            store.add([tool("fresh")], remove=["mail/tool_0000", bad])
        assert (store.ids(), store.version()) == (["mail/tool_0000", "mail/tool_0001"], 1)

    def test_where_an_add_fails_nothing_is_removed(self, store: Store, chunks: Chunks) -> None:
        chunks(2)

        def broken() -> Iterator[Tool]:
            yield from tools(5, "changed")
            raise ValueError("the source broke off")

        store.add(tools(2))
        with pytest.raises(ValueError, match="broke off"):
            store.add(broken(), remove=["mail/tool_0000"])
        with pytest.raises(DuplicateTool):
            store.add([tool("tool_0001", "stolen")], "another.json", remove=["mail/tool_0000"])
        assert (list(store.tools()), store.version()) == (tools(2), 1)

    @pytest.mark.parametrize("bad", ["mail/none", "", "mail/tool_0000\x00", "\ud800", "mail/TOOL_0000", "mail/%"])
    def test_unknown_ids(self, store: Store, bad: str) -> None:
        store.add(tools(2))
        with pytest.raises(UnknownTool, match="toolscout list"):
            store.get(["mail/tool_0000", bad])
        with pytest.raises(UnknownTool):
            store.remove(["mail/tool_0000", bad])
        with pytest.raises(UnknownTool):
            store.set_alias(bad, "x")
        assert store.count() == 2
        assert store.version() == 1

    def test_the_tools_that_a_caller_may_see_are_counted(self, store: Store) -> None:
        store.add([*tools(5), tool("other", "elsewhere")])
        seen = {
            Allowed(): 0,
            Allowed.of(["mail"]): store.namespaces()["mail"],
            Allowed.of(["mail", "nowhere"], ["mail/tool_0001", "mail/none", "\ud800"]): store.namespaces()["mail"],
            Allowed.of(["nowhere"], ["mail/tool_0001", "mail/tool_0002", "mail/none"]): 2,
        }
        assert {allowed: store.count(allowed) for allowed in seen} == seen
        store.remove(["mail/tool_0001"])
        assert store.count(Allowed.of(ids=["mail/tool_0001", "mail/tool_0002"])) == 1

    def test_another_source_may_not_change_a_tool(self, store: Store) -> None:
        store.add(tools(3), "first.json")
        with pytest.raises(DuplicateTool, match=r"mail/tool_0001 .*first\.json.*namespace.*replace"):
            store.add([tool("fresh"), tool("tool_0001", "stolen")], "second.json")
        assert store.count() == 3
        assert store.version() == 1
        assert store.add([tool("tool_0001", "stolen")], "second.json", replace=True) == AddReport(0, 1, 0, 0, 2)
        with pytest.raises(DuplicateTool, match=r"second\.json"):
            store.add(tools(3), "first.json")

    def test_replace_takes_over_equal_tools_too(self, store: Store) -> None:
        store.add(tools(3), "old.json")
        assert store.add(tools(3), "moved.json", replace=True) == AddReport(0, 0, 3, 0, 1)
        assert store.add([], "old.json", sync=True).removed == 0
        assert store.add(tools(1), "moved.json", sync=True).removed == 2

    def test_twice_in_one_add(self, store: Store, chunks: Chunks) -> None:
        for chunk in (2000, 3):  # in one chunk, and in different ones
            chunks(chunk)
            with pytest.raises(DuplicateTool, match="mail/tool_0001 is given twice"):
                store.add([*tools(7), tool("tool_0001", "other")], replace=True)
            assert store.count() == 0
        assert store.add([*tools(7), *tools(7)]) == AddReport(7, 0, 0, 0, 1)
        with pytest.raises(DuplicateTool):  # also where one of the two is what the store has
            store.add([*tools(7), tool("tool_0001", "other")])
        assert store.get(["mail/tool_0001"]) == [tool("tool_0001")]

    def test_sync(self, store: Store) -> None:
        store.add(tools(5), "a")
        store.add(tools(2, namespace="other"), "b")
        assert store.add([*tools(2), tool("more")], "a", sync=True) == AddReport(1, 0, 2, 3, 3)
        assert store.ids() == ["mail/more", "mail/tool_0000", "mail/tool_0001", "other/tool_0000", "other/tool_0001"]
        assert store.add([], "b", sync=True) == AddReport(0, 0, 0, 2, 4)
        assert store.add([], "b", sync=True) == AddReport(0, 0, 0, 0, 4)

    @pytest.mark.parametrize("error", [OSError("the server died"), None, UnicodeDecodeError("utf-8", b"", 0, 1, "")])
    @pytest.mark.parametrize("at", [5, 35])
    def test_a_source_that_breaks_leaves_nothing(
        self, store: Store, chunks: Chunks, driver_error: Exception, error: Exception | None, at: int
    ) -> None:
        chunks(10)
        error = error or driver_error
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

    def test_unwritable_content(self, store: Store) -> None:
        around: dict[str, object] = {}
        around["self"] = around
        for schema in ({("a", 1): 2}, around):
            with pytest.raises(BadTool, match="mail/send"):
                store.add([tool("fine"), replace(tool("send"), input_schema=schema)])
        assert store.count() == 0

    def test_documents(self, store: Store) -> None:
        store.add([FULL, *tools(3)])
        found = list(store.documents(0))
        assert [change for change, _ in found] == list(store.changes(0))
        for change, listing in found:
            known = store.get([change.tool_id])[0]
            aliases, text = known.aliases, known.document()
            assert listing == Listing(known.id, known.namespace, known.name, aliases, text, text_digest(text))

    def test_aliases_outlive_imports(self, store: Store) -> None:
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

    def test_expansions(self, store: Store) -> None:
        known, other = tool("send"), tool("read")
        own, written = known.digest(), Expansion("making it go out", "let them know", "never reads", known.digest())
        store.add([known, other], "a")
        assert store.expansions() == {}
        given = {known.id: written, other.id: Expansion("seeing", digest="of another text"), "no/tool": Expansion("x")}
        assert store.set_expansions(given) == ExpansionReport(1, 0, 1, 1, 2)
        assert store.set_expansions({known.id: written}) == ExpansionReport(0, 1, 0, 0, 2)
        assert store.expansions() == store.expansions([known.id, other.id]) == {known.id: written}
        assert store.expansions([other.id]) == {}
        ((change, listing),) = store.documents(1)
        assert (change.tool_id, change.kind) == (known.id, "changed")
        assert listing is not None
        assert (listing.text, listing.expansion) == (known.document(), "making it go out\nlet them know")
        assert listing.digest() == change.digest != own
        assert store.get([known.id]) == [known]  # it is no part of the tool
        missing = dict(store.missing_vectors("model"))
        assert missing[change.digest] == with_expansion(known.document(), listing.expansion)
        assert missing[other.digest()] == other.document()
        assert store.set_expansions({known.id: Expansion()}) == ExpansionReport(1, 0, 0, 0, 3)
        assert [change.digest for change in store.changes(2)] == [own]

    def test_expansions_go_with_the_text_they_were_written_for(self, store: Store) -> None:
        known = tool("send")
        store.add([known], "a")
        store.set_expansions({known.id: Expansion("making it go out")})
        assert store.add([replace(known, tags=("x",))], "a") == AddReport(0, 1, 0, 0, 3, 0)
        assert set(store.expansions()) == {known.id}
        assert store.add([replace(known, description="Another.")], "a") == AddReport(0, 1, 0, 0, 4, 1)
        assert store.expansions() == {}
        assert next(store.documents(3))[0].digest == replace(known, description="Another.").digest()
        store.set_expansions({known.id: Expansion("making it go out")})
        store.remove([known.id])
        store.add([known], "a")
        assert store.expansions() == {}

    def test_entries_are_tools_as_their_sources_gave_them(self, store: Store) -> None:
        store.add([FULL], "code server")
        store.add(tools(2), "mail server")
        store.set_alias("mail/tool_0001", "zebra")
        store.set_alias("mail/tool_0001", "ant")
        first, second, third = store.entries()
        assert first == StoredTool(FULL, "code server", ())
        assert second == StoredTool(tool("tool_0000"), "mail server", ())
        assert third == StoredTool(tool("tool_0001"), "mail server", ("ant", "zebra"))

    def test_a_source_that_adds_while_it_is_read(self, store: Store, chunks: Chunks) -> None:
        chunks(2)

        def greedy() -> Iterator[Tool]:
            yield from tools(5)
            store.add([tool("inner")])

        with pytest.raises(StoreError):
            store.add(greedy())
        assert store.count() == 0
        assert store.add(tools(1)).added == 1

    def test_a_description_of_ten_megabytes(self, store: Store) -> None:
        large = tool("large", "word " * 2_000_000)
        store.add([large])
        assert store.get([large.id]) == [large]

    # Vectors, permissions, feedback, threads.

    def test_vectors(self, store: Store) -> None:
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

    def test_following_vectors(self, store: Store) -> None:
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

    def test_models_are_those_with_vectors(self, store: Store) -> None:
        assert store.models() == []
        store.put_vectors("second", ["a"], unit(1))
        store.put_vectors("first", ["a", "b"], unit(2))
        assert store.models() == ["first", "second"]
        store.prune_vectors()
        assert store.models() == []

    def test_prune_keeps_what_is_used(self, store: Store) -> None:
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
    def test_wrong_vectors(self, store: Store, wrong: np.ndarray) -> None:
        with pytest.raises(StoreError):
            store.put_vectors("m", ["a", "b"], wrong)
        assert store.vectors("m", ["a", "b"]) == {}

    def test_vectors_of_two_widths_never_mix(self, store: Store) -> None:
        store.put_vectors("m", ["a"], unit(1, 8))
        with pytest.raises(StoreError, match="8 numbers, got 4"):
            store.put_vectors("m", ["b"], unit(1, 4))

    def test_permissions(self, store: Store) -> None:
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

    def test_grants_are_kept_as_they_were_given(self, store: Store) -> None:
        given = Allowed.of(namespaces=["mail", "no such"], ids=["code/none"])
        store.put_principal(Principal("agent", deny=("mail/*",)))
        store.grant("agent", given)
        assert store.grants("agent") == given
        store.revoke("agent", Allowed.of(namespaces=["mail"]))
        assert store.grants("agent") == Allowed.of(namespaces=["no such"], ids=["code/none"])
        assert store.grants("nobody") == Allowed.of()

    def test_feedback(self, store: Store) -> None:
        first = Example(
            "send it", ("mail/send",), ("mail/read", "x/y"), "acme", "cli", datetime(2026, 1, 2, tzinfo=UTC)
        )
        second = Example("nothing used \U0001f600")
        store.add_feedback([first])
        store.add_feedback([second, Example("half a pair \ud83d")])
        numbers, examples = zip(*store.feedback(), strict=True)
        assert examples[:2] == (first, second)
        assert examples[2].request == "half a pair ?"
        assert [example for _, example in store.feedback(numbers[0])] == list(examples[1:])
        assert store.version() == 0

    def test_an_example_of_feedback_is_stored_once(self, store: Store) -> None:
        first, second = Example("send it", id="odd \x00\u6f22"), Example("read it")
        store.add_feedback([first, first])
        store.add_feedback([second, first, second])
        store.add_feedback([replace(first, request="something else")])  # the first one stays
        assert [example for _, example in store.feedback()] == [first, second]
        others = [replace(first, tenant="acme"), replace(first, id=""), replace(first, id="")]
        store.add_feedback(others)  # of another tenant, and without ids
        assert [example for _, example in store.feedback()] == [first, second, *others]

    def test_stamp_moves_with_every_commit(self, store: Store) -> None:
        seen = [store.stamp()]
        store.add(tools(1))
        seen.append(store.stamp())
        store.put_vectors("m", ["a"], unit(1))
        seen.append(store.stamp())
        store.grant("ann", Allowed.of(["mail"]))
        seen.append(store.stamp())
        assert len(set(seen)) == 4
        assert store.stamp() == seen[-1]

    def test_reading_while_another_thread_is_in_the_middle_of_an_add(self, store: Store, chunks: Chunks) -> None:
        chunks(10)
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

    def test_many_threads(self, store: Store) -> None:
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

    def test_an_iterator_sees_one_state(self, store: Store) -> None:
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

    def test_closed(self, store: Store) -> None:
        store.add(tools(3))
        started = store.tools()
        next(started)
        store.close()
        store.close()
        assert len(list(started)) == 2  # what had begun may end
        for use in (store.version, store.stamp, lambda: store.add(tools(1)), lambda: list(store.tools())):
            with pytest.raises(StoreError, match="closed"):
                use()

    # What is shared besides.

    def test_a_log_is_read_by_all_who_use_the_store(self, make: Make, store: Store, tmp_path: Path) -> None:
        with make(tmp_path) as other:
            first, second = store.line_log("ids/a"), other.line_log("ids/a")
            assert not second.exists()
            assert second.read_new() == []
            first.append(["one", "two \U0001f600"])
            assert second.exists()
            second.append(["three"])
            first.append([" end"])
            assert list(filter(None, second.read_new()))[:3] == ["one", "two \U0001f600", "three"]
            assert not other.line_log("ids/b").exists()
            assert set(first.read_new()) >= {"one", "three"}
            first.replace(["all"])
            assert "all" in second.read_new()
            assert next(filter(None, other.line_log("ids/a").read_new())) == "all"

    def test_claimed_texts_are_those_without_a_vector(self, store: Store) -> None:
        store.add(tools(5))
        found: dict[str, str] = {}
        while claimed := dict(store.claim_missing("m", 2, 60)):
            assert not claimed.keys() & found.keys()
            found |= claimed
            store.renew_claims("m", list(claimed), 60)
            store.put_vectors("m", list(claimed), unit(len(claimed)))
        assert found == {one.digest(): one.document() for one in store.tools()}
        assert not store.claimed_elsewhere("m")
        version = store.version()
        store.add([tool("late")])
        assert [text for _, text in store.claim_missing("m", 2, 60, version)] == [tool("late").document()]
        assert store.claim_missing("m", 2, 60, version + 1) == []

    # People.

    def test_patterns_are_compiled_for_the_catalogue_as_it_is(self, store: Store) -> None:
        store.add([tool("read"), tool("delete"), tool("run", namespace="code"), tool("x", namespace="hr")])
        store.put_principal(Principal("ann", ("mail/*", "code/r*"), ("*/delete*",)))
        assert store.permissions("ann") == Allowed.of([], ["mail/read", "code/run"])
        store.grant("ann", Allowed.of(["hr"], ["mail/delete", "not/yet"]))
        assert store.permissions("ann") == Allowed.of([], ["mail/read", "code/run", "hr/x", "not/yet"])
        store.put_principal(Principal("ann", ("mail/*",), ("code/*",)))
        assert store.permissions("ann") == Allowed.of(["mail", "hr"], ["mail/delete", "not/yet"])
        store.add([tool("reply", namespace="hr")])
        assert store.permissions("ann").permits("hr/reply")
        assert store.rules("ann").permits("mail/anything")
        assert not store.rules("nobody").permits("mail/read")
        store.put_principal(Principal("root", ("*",), admin=True))
        assert store.permissions("root").namespaces == {"mail", "code", "hr"}
        assert store.rules("root").everything

    def test_principals(self, store: Store) -> None:
        ann = Principal("ann", ("a/*", "b/c"), ("a/x*",), admin=True, tenant="acme \U0001f600")
        assert store.principal("ann") is None
        store.put_principal(ann)
        store.grant("bob", Allowed.of(["mail"]))
        assert store.principal("ann") == ann
        assert store.principal("bob") is None
        assert store.principals() == ["ann", "bob"]
        store.put_principal(Principal("ann"))
        assert store.principal("ann") == Principal("ann")
        assert store.remove_principal("ann")
        assert not store.remove_principal("ann")
        assert store.principals() == ["bob"]
        assert store.version() == 0

    def test_keys(self, store: Store) -> None:
        first, second, other = (new_key(name)[1] for name in ("ann", "ann", "bob"))
        with pytest.raises(UnknownPrincipal, match="keys add"):
            store.add_key(first)
        store.put_principal(Principal("ann"))
        store.put_principal(Principal("bob"))
        for key in (other, first, second):
            store.add_key(key)
        assert [key.principal for key in store.api_keys()] == ["ann", "ann", "bob"]
        assert set(store.api_keys()) == {first, second, other}
        assert store.remove_key(first.digest)
        assert not store.remove_key(first.digest)
        store.put_principal(Principal("ann", ("*",)))  # keys stay valid
        assert store.api_keys() == [second, other]
        assert store.remove_principal("ann")
        assert store.api_keys() == [other]

    def test_access_moves_with_people_and_with_nothing_else(self, store: Store) -> None:
        key: Key = new_key("ann")[1]
        seen = [store.access()]
        for change in (
            lambda: store.grant("ann", Allowed.of(["mail"])),
            lambda: store.revoke("ann", Allowed.of(["mail"])),
            lambda: store.put_principal(Principal("ann")),
            lambda: store.add_key(key),
            lambda: store.remove_key(key.digest),
            lambda: store.remove_principal("ann"),
        ):
            change()
            seen.append(store.access())
        assert len(set(seen)) == len(seen)
        store.add(tools(2))
        assert store.access() == seen[-1]
