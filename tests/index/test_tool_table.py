"""Tools in files: what is looked up there is what was written, and what came later counts as well."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolscout.core.answer import Allowed
from toolscout.core.tool import Listing, name_of, namespace_of, tool_id
from toolscout.index import saved_rows, tool_table
from toolscout.index.exact_names import ExactNames
from toolscout.index.row_ids import RowIds
from toolscout.index.saved_rows import PendingTools, load_rows, save_rows
from toolscout.index.tool_table import ToolTable, name_key

IDS = ["a/create_issue", "", "b/createIssue", "a/close-issue", "c/x/y%2Fz", "ü/größe", "d/\ud800", "a/_"]
ALIASES: list[tuple[str, ...]] = [("New ticket", "new_ticket"), ("gone",), (), ("new ticket",), (), (), (), ()]
DIGESTS = ["d1", "d2", "d1", "", "d5", "d6", "d7", "d8"]


@pytest.fixture
def table(tmp_path: Path) -> ToolTable:
    tool_table.write(tmp_path / "table", IDS, ALIASES, DIGESTS)
    return ToolTable(tmp_path / "table")


def test_what_was_written_is_found(table: ToolTable) -> None:
    assert (len(table), table.ids(), [table.id(row) for row in range(8)]) == (8, IDS, IDS)
    assert [table.row(one) for one in IDS if one] == [0, 2, 3, 4, 5, 6, 7]
    assert table.row("a/createIssue") is None
    assert table.rows("namespace", "a").tolist() == [0, 3, 7]
    assert table.rows("namespace", "c/x").tolist() == [4]
    assert table.rows("name", "create_issue").tolist() == [0, 2]
    assert table.rows("alias", "new_ticket").tolist() == [0, 3]
    assert table.rows("alias", "gone").tolist() == []  # of a dead row
    assert table.rows("digest", "d1").tolist() == [0, 2]
    assert table.known("digest", ["d0", "d8", "d2", "d1"]) == ["d8", "d1"]
    assert sorted(table.rows_of_any("namespace", ["d", "nobody", "a"])) == [0, 3, 6, 7]
    assert sorted(table.rows_of_any("id", ["a/createIssue", *filter(None, IDS)])) == [0, 2, 3, 4, 5, 6, 7]
    assert table.rows_of_any("id", []).tolist() == []
    assert [table.aliases(0), table.aliases(2), table.digest(4)] == [ALIASES[0], (), "d5"]


def test_a_key_that_has_the_hash_of_another_is_not_it(table: ToolTable, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = tool_table._hash
    monkeypatch.setattr(tool_table, "_hash", lambda key, salt: hashed("a" if key == "q" else key, salt))
    assert table.rows("namespace", "q").tolist() == []
    assert table.known("namespace", ["q", "a"]) == ["a"]
    assert table.rows_of_any("namespace", ["q", "b"]).tolist() == [2]
    monkeypatch.setattr(tool_table, "_hash", lambda key, salt: hashed("a/_" if key == "q/q" else key, salt))
    assert table.rows_of_any("id", ["q/q", "ü/größe"]).tolist() == [5]


def test_no_two_keys_of_a_table_share_a_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed, salts = tool_table._hash, list[bytes]()

    def colliding(key: str, salt: bytes) -> int:
        if salt not in salts:
            salts.append(salt)
        return 1 if len(salts) == 1 and key in ("a", "b") else hashed(key, salt)

    monkeypatch.setattr(tool_table, "_hash", colliding)
    tool_table.write(tmp_path, IDS, ALIASES, DIGESTS)
    assert len(salts) == 2
    assert ToolTable(tmp_path).rows("namespace", "b").tolist() == [2]


def test_a_table_lies_in_two_places_and_is_written_once(table: ToolTable, tmp_path: Path) -> None:
    table.link(tmp_path / "other")
    table.link(tmp_path / "other")
    assert (tmp_path / "other" / "ids.npy").samefile(table.folder / "ids.npy")
    shutil.rmtree(table.folder)
    assert ToolTable(tmp_path / "other").ids() == table.ids() == IDS  # what is mapped stays readable


def test_no_file_is_ever_unpickled(table: ToolTable) -> None:
    np.save(table.folder / "ids.ends.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="objects"):
        ToolTable(table.folder)


_ids = st.builds(tool_id, st.sampled_from("abc"), st.sampled_from(["get_x", "getX", "put_y", "z", "long name here"]))
_change = st.tuples(st.booleans(), _ids, st.sampled_from([(), ("One Two",), ("three",)]))


@settings(max_examples=60, deadline=None)
@given(st.lists(_change, max_size=12), st.lists(_change, max_size=12), st.sampled_from([0, 3, 100]))
def test_rows_and_names_of_a_table_are_those_that_were_never_saved(
    tmp_path_factory: pytest.TempPathFactory,
    first: list[tuple[bool, str, tuple[str, ...]]],
    second: list[tuple[bool, str, tuple[str, ...]]],
    listed: int,
) -> None:
    rows, names = RowIds(), ExactNames()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saved_rows, "LISTED", listed)
        saved, called = rows, names
        for changes in (first, second):
            for comes, one, aliases in changes:
                for index, known in ((rows, names), (saved, called)) if saved is not rows else ((rows, names),):
                    index.remove(one)
                    known.remove(one)
                    if comes:
                        index.add(one)
                        known.add(one, aliases)
            folder = tmp_path_factory.mktemp("rows")
            save_rows(folder, saved, called)
            saved, called, _ = load_rows(folder)
            assert list(saved.ids) == list(rows.ids)
            assert (len(saved), len(called)) == (len(rows), len(names))
            assert saved.alive().tolist() == rows.alive().tolist()
            assert sorted(called.ids()) == sorted(names.ids())
            for caller in (Allowed.of(["a"]), Allowed.of(["b", "q"], ["a/z", "c/z"])):
                assert saved.allowed(caller).tolist() == rows.allowed(caller).tolist()
            for text in ("getX", "get_x", "a/get_x", "use one two now", "three", "long name here", "nothing"):
                assert called.find(text) == names.find(text)
                assert called.is_name(text) == names.is_name(text)
            for one in filter(None, rows.ids):
                assert (saved.row(one), called.aliases(one)) == (rows.row(one), names.aliases(one))


@pytest.mark.parametrize("listed", [0, 100])
def test_tools_that_wait_do_so_in_a_file_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: int) -> None:
    monkeypatch.setattr(saved_rows, "LISTED", listed)
    waiting = PendingTools()
    for number in range(6):
        one = f"n{number % 2}/tool_{number}"
        waiting[one] = Listing(one, namespace_of(one), name_of(one), ("known",), "text", f"d{number % 3}")
    for turn in range(3):
        folder = tmp_path / str(turn)
        save_rows(folder, RowIds(), ExactNames(), waiting)
        waiting = PendingTools.load(folder, load_rows(folder)[2])
    assert (len(waiting), sorted(waiting)[0], waiting["n0/tool_0"].aliases) == (6, "n0/tool_0", ("known",))
    assert sorted(tool.id for tool in waiting.with_digests({"d1": 0, "d9": 0})) == ["n0/tool_4", "n1/tool_1"]
    assert waiting.count(Allowed.of(["n0"], ["n1/tool_5"])) == 4
    del waiting["n0/tool_0"]
    assert waiting.pop("n0/tool_0", None) is None
    with pytest.raises(KeyError):
        del waiting["n0/tool_0"]
    later = Listing("n0/tool_2", "n0", "tool_2", (), "other", "d7")
    waiting["n0/tool_2"] = later
    assert (len(waiting), "n0/tool_0" in waiting, waiting["n0/tool_2"]) == (5, False, later)
    found = waiting.with_digests({"d0": 0, "d7": 0, "d2": 0})
    assert sorted(tool.id for tool in found) == ["n0/tool_2", "n1/tool_3", "n1/tool_5"]


def test_one_name_in_many_spellings_has_one_key() -> None:
    assert {name_key(text) for text in ("createIssue", "create_issue", "create-issue")} == {"create_issue"}


def test_a_table_is_not_extended_where_two_keys_would_have_one_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool_table.write(tmp_path / "one", ["a/old", "a/other"], [(), ()], ["", ""])
    table, hashed = ToolTable(tmp_path / "one"), tool_table._hash
    assert tool_table.extend(table, tmp_path / "two", ["b/new", ""], [("nu",), ()], [1])
    two = ToolTable(tmp_path / "two")
    assert two.ids() == ["a/old", "a/other", "b/new", ""]
    assert [two.row(one) for one in ("a/old", "a/other", "b/new")] == [0, None, 2]
    assert two.rows("alias", "nu").tolist() == [2]
    monkeypatch.setattr(tool_table, "_hash", lambda key, salt: hashed({"b/new": "a/old"}.get(key, key), salt))
    assert not tool_table.extend(table, tmp_path / "three", ["b/new"], [()], [])
    monkeypatch.setattr(tool_table, "_hash", lambda key, salt: hashed({"b/new": "b/newer"}.get(key, key), salt))
    assert not tool_table.extend(table, tmp_path / "three", ["b/new", "b/newer"], [(), ()], [])
