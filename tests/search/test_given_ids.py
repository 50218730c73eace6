"""The ids that a model gave to tools of a store stay, whoever gave them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.postgres import Postgres
from toolscout.core.tool import Tool
from toolscout.retrievers.bm25 import Bm25
from toolscout.search import index_snapshot
from toolscout.search.index_snapshot import AssignedIds
from toolscout.stores import Store, open_store
from toolscout.stores.sqlite.store import SqliteStore

TOOLS = [Tool("shop", f"tool_{n}", f"does thing {n}") for n in range(6)]
IDS = [tool.id for tool in TOOLS]
Ids = dict[str, tuple[int, ...]]


class Naming(Bm25):
    """Names tools as it is told."""

    def __init__(self) -> None:
        """Nothing has a name yet."""
        super().__init__()
        self.given: Ids = {}
        self.version = 0

    @property
    def gives_ids(self) -> bool:
        return True

    @property
    def ids_version(self) -> int:
        return self.version

    def given_ids(self) -> Ids:
        return dict(self.given)

    def recall_ids(self, ids: Mapping[str, tuple[int, ...]]) -> None:
        self.given.update(ids)

    def name(self, **names: tuple[int, ...] | None) -> None:
        """Give tools names, or take them away."""
        changed = {f"shop/{name}": own for name, own in names.items()}
        self.given = {key: own for key, own in (self.given | changed).items() if own is not None}
        self.version += 1


class Process:
    """One that has the store and the model open."""

    def __init__(self, store: Store, folder: Path) -> None:
        """Recall what was given."""
        self.retriever: Any = Naming()
        self.given = AssignedIds(store, folder / "model", self.retriever)
        there = [one for _, one in store.documents(0) if one is not None]
        self.given.saw([one.id for one in there], [one.digest() for one in there])

    def name(self, **names: tuple[int, ...] | None) -> None:
        """Give names, and keep them."""
        self.retriever.name(**names)
        self.given.keep()


@pytest.fixture
def opened(tmp_path: Path) -> SqliteStore:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.json").write_text("{}")
    store = SqliteStore(tmp_path / "s.db")
    store.add(TOOLS)
    return store


def kept(folder: Path) -> Path:
    (file,) = (folder / "s.db.index" / "ids").iterdir()
    return file


def test_a_change_is_a_line_whatever_was_given_before(opened: SqliteStore, tmp_path: Path) -> None:
    one = Process(opened, tmp_path)
    one.name(tool_0=(1, 2), tool_1=(1, 3))
    before = kept(tmp_path).read_text()
    one.name(tool_2=(4, 0))
    added = kept(tmp_path).read_text().removeprefix(before)
    assert json.loads(added) == [0, IDS[2], TOOLS[2].digest(), 4, 0]
    one.given.keep()
    one.retriever.version += 1
    one.given.keep()
    assert kept(tmp_path).read_text() == before + added
    one.name(tool_0=None, tool_1=(5, 5))
    assert Process(opened, tmp_path).retriever.given == {IDS[1]: (5, 5), IDS[2]: (4, 0)}


def test_processes_keep_what_each_of_them_gave(opened: SqliteStore, tmp_path: Path) -> None:
    one, other = Process(opened, tmp_path), Process(opened, tmp_path)
    one.name(tool_0=(1,))
    other.name(tool_1=(2,))
    one.name(tool_2=(3,))
    other.name(tool_2=(4,), tool_1=None)
    assert Process(opened, tmp_path).retriever.given == {IDS[0]: (1,), IDS[2]: (4,)}


def test_what_another_process_gave_is_taken_while_both_are_open(opened: SqliteStore, tmp_path: Path) -> None:
    one, other = Process(opened, tmp_path), Process(opened, tmp_path)
    one.name(tool_0=(1,), tool_1=(2,))
    one.name(tool_0=None, tool_2=(1,))
    other.given.saw(IDS[:3], [tool.digest() for tool in TOOLS[:3]])
    assert other.retriever.given == {IDS[1]: (2,), IDS[2]: (1,)}
    written = kept(tmp_path).read_text()
    other.retriever.version += 1
    other.given.keep()
    assert kept(tmp_path).read_text() == written
    one.name(tool_3=(3,), tool_4=(4,))
    other.given.saw(IDS[3:5], [TOOLS[3].digest(), "another document by now"])
    assert other.retriever.given == {IDS[1]: (2,), IDS[2]: (1,), IDS[3]: (3,)}


def test_what_another_gave_is_known_when_its_tool_comes_later(opened: SqliteStore, tmp_path: Path) -> None:
    one, other = Process(opened, tmp_path), Process(opened, tmp_path)
    one.name(tool_1=(2,), tool_2=(3,))
    other.given.saw(IDS[:1], [TOOLS[0].digest()])
    other.name(tool_0=(1,))
    other.given.saw(IDS[1:2], [TOOLS[1].digest()])
    assert other.retriever.given == {IDS[0]: (1,), IDS[1]: (2,)}


def test_a_file_that_was_written_whole_is_taken_over(opened: SqliteStore, tmp_path: Path) -> None:
    Process(opened, tmp_path).name(tool_0=(9,))
    lines = kept(tmp_path)
    whole = [{IDS[0]: [TOOLS[0].digest(), 1, 2], IDS[1]: ["another document", 3]}]
    lines.with_suffix(".json").write_text(json.dumps(whole))
    lines.unlink()
    assert Process(opened, tmp_path).retriever.given == {IDS[0]: (1, 2)}
    assert kept(tmp_path) == lines
    assert Process(opened, tmp_path).retriever.given == {IDS[0]: (1, 2)}
    lines.with_suffix(".json").write_text('[{"x": 1}]')
    lines.unlink()
    assert Process(opened, tmp_path).retriever.given == {}


def test_a_line_that_was_cut_off_costs_that_line_alone(opened: SqliteStore, tmp_path: Path) -> None:
    one = Process(opened, tmp_path)
    one.name(tool_0=(1,))
    one.name(tool_1=(2, 3))
    file = kept(tmp_path)
    file.write_bytes(file.read_bytes()[:-3])
    two = Process(opened, tmp_path)
    assert two.retriever.given == {IDS[0]: (1,)}
    two.name(tool_3=(7,))
    assert Process(opened, tmp_path).retriever.given == {IDS[0]: (1,), IDS[3]: (7,)}


def test_a_tool_with_another_document_gets_an_id_anew(opened: SqliteStore, tmp_path: Path) -> None:
    Process(opened, tmp_path).name(tool_0=(1,), tool_1=(2,))
    opened.add([Tool("shop", "tool_0", "does something else")], replace=True)
    opened.remove([IDS[1]])
    assert Process(opened, tmp_path).retriever.given == {}


def test_lines_that_are_out_of_date_are_written_anew(
    opened: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_snapshot, "_LINES_LEFT", 3)
    one = Process(opened, tmp_path)
    for place in range(20):
        one.name(tool_0=(place,), tool_1=(place, 1))
    assert len(kept(tmp_path).read_text().split("\n")) == 1 + 40
    assert Process(opened, tmp_path).retriever.given == {IDS[0]: (19,), IDS[1]: (19, 1)}
    assert len(kept(tmp_path).read_text().split("\n")) == 1 + 2
    assert Process(opened, tmp_path).retriever.given == {IDS[0]: (19,), IDS[1]: (19, 1)}


def test_what_could_not_be_written_is_tried_again(opened: SqliteStore, tmp_path: Path) -> None:
    one = Process(opened, tmp_path)
    (tmp_path / "s.db.index").write_text("in the way")
    one.name(tool_0=(1,))
    (tmp_path / "s.db.index").unlink()
    one.name(tool_1=(2,))
    assert Process(opened, tmp_path).retriever.given == {IDS[0]: (1,), IDS[1]: (2,)}


def test_processes_on_one_database_share_the_ids(postgres: Postgres, tmp_path: Path) -> None:
    with open_store(postgres.url("given_ids")) as store, open_store(postgres.url("given_ids")) as other:
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "model.json").write_text("{}")
        store.add(TOOLS)
        one = Process(store, tmp_path)
        one.name(tool_0=(1,), tool_1=(2,))
        assert Process(other, tmp_path).retriever.given == {IDS[0]: (1,), IDS[1]: (2,)}
