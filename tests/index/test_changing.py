"""Indexes that change while they are searched: nothing is missing, nothing stale; and the folders they work in."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.toys import WORDS, HashedWords, catalogue
from toolscout.core.answer import Allowed
from toolscout.core.scope import Scope
from toolscout.core.tool import Tool
from toolscout.errors import DiskFull
from toolscout.index import row_ids, scratch_dir, word_files
from toolscout.index.exact_names import ExactNames
from toolscout.index.row_ids import RowIds
from toolscout.index.spelling import WordsByPrefix, edits
from toolscout.index.word_files import Fields, WordFiles
from toolscout.retrievers import bm25
from toolscout.retrievers.base import Retriever
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.dense import Dense


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every catalogue counts as a large one, whose engine forgets tools later."""
    monkeypatch.setattr(bm25, "_LARGE", 0)
    monkeypatch.setattr(bm25, "_DEAD_KEPT", 30)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("removed", [1, 20, 45])
def test_what_the_engine_has_not_forgotten_yet_is_never_found_and_takes_no_place(removed: int, tmp_path: Path) -> None:
    tools = catalogue(60)
    changed = Bm25()
    changed.add(tools)
    request = " ".join(WORDS[:6])
    before = [hit.tool_id for hit in changed.search([request], 60)[0]]
    gone = set(before[:removed])
    changed.remove(sorted(gone))
    left = [tool_id for tool_id in before if tool_id not in gone]
    assert len(changed) == 60 - removed
    for k in (1, 3, 10, 60):
        assert {hit.tool_id for hit in changed.search([request], k)[0]} <= set(left)
        assert len(changed.search([request], k)[0]) == min(k, len(left))
    allowed = Allowed.of(ids=left[::2])
    assert [hit.tool_id for hit in changed.search([request], 60, Scope(allowed))[0]] == [
        hit.tool_id for hit in changed.search([request], 60)[0] if hit.tool_id in allowed.ids
    ]
    changed.save(tmp_path)
    assert {hit.tool_id for hit in Bm25.load(tmp_path).search([request], 60)[0]} == set(left)
    changed.add([tool for tool in tools if tool.id in gone])
    assert {hit.tool_id for hit in changed.search([request], 60)[0]} == set(before)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("kind", ["bm25", "dense"])
def test_searches_go_on_while_tools_come_and_go(kind: str) -> None:
    tools = catalogue(300)
    stay, come = tools[:200], tools[200:]
    retriever: Retriever = Bm25() if kind == "bm25" else Dense(encoder=HashedWords())
    retriever.add(stay)
    request = stay[7].description
    lasting = {hit.tool_id for hit in retriever.search([request], 300)[0]}
    wrong: list[str] = []
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            try:
                ids = [hit.tool_id for hit in retriever.search([request], 300)[0]]
                if not all(ids) or len(set(ids)) != len(ids) or not lasting <= set(ids):
                    wrong.append(f"{lasting - set(ids)} not in {ids}")
            except Exception as error:
                wrong.append(repr(error))

    asking = [threading.Thread(target=ask) for _ in range(3)]
    for thread in asking:
        thread.start()
    for tool in come[:40]:
        retriever.add([tool])
        assert tool.id in {hit.tool_id for hit in retriever.search([tool.name], 300)[0]}
        retriever.remove([tool.id])
        assert tool.id not in {hit.tool_id for hit in retriever.search([tool.name], 300)[0]}
    over.set()
    for thread in asking:
        thread.join()
    assert not wrong, wrong[:3]


def test_many_tools_and_few_go_through_writers_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_files, "_MANY", 20)
    tools = catalogue(60)
    retriever = Bm25()
    for few in (tools[:5], tools[5:40], tools[40:45], tools[45:]):
        retriever.add(few)
    retriever.remove([tools[0].id])
    assert {hit.tool_id for hit in retriever.search([" ".join(WORDS)], 60)[0]} == {tool.id for tool in tools[1:]}


def _distance(one: str, other: str) -> int:
    """Optimal string alignment, as in the textbook."""
    rows = np.zeros((len(one) + 1, len(other) + 1), dtype=int)
    rows[:, 0], rows[0] = np.arange(len(one) + 1), np.arange(len(other) + 1)
    for i in range(1, len(one) + 1):
        for j in range(1, len(other) + 1):
            same = one[i - 1] == other[j - 1]
            rows[i, j] = min(rows[i - 1, j] + 1, rows[i, j - 1] + 1, rows[i - 1, j - 1] + (not same))
            if i > 1 and j > 1 and one[i - 1] == other[j - 2] and one[i - 2] == other[j - 1]:
                rows[i, j] = min(rows[i, j], rows[i - 2, j - 2] + 1)
    return int(rows[-1, -1])


_word = st.text("abc", max_size=7)


@settings(max_examples=300, deadline=None)
@given(_word, _word, st.integers(1, 3))
def test_edits_are_those_of_the_textbook(one: str, other: str, limit: int) -> None:
    assert min(edits(one, other, limit), limit + 1) == min(_distance(one, other), limit + 1)


@settings(max_examples=100, deadline=None)
@given(_word, st.lists(_word, max_size=30, unique=True), st.integers(1, 2))
def test_near_words_are_all_found(term: str, words: list[str], limit: int) -> None:
    found = WordsByPrefix([(word, place) for place, word in enumerate(words)]).near(term, limit)
    expected = [(far, -place, w) for place, w in enumerate(words) if (far := _distance(term, w)) <= limit]
    assert found == expected


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(scratch_dir, "_MEMORY", tmp_path)
    monkeypatch.setattr(scratch_dir, "_ROOM", 0)
    scratch_dir._sweep.cache_clear()
    return tmp_path


class _Owner:
    pass


def test_a_folder_in_memory_goes_with_its_owner(memory: Path) -> None:
    owner = _Owner()
    folder = Path(scratch_dir.scratch_folder(owner, "test"))
    assert folder.parent == memory
    (folder / "file").write_text("x")
    del owner
    assert not folder.exists()


def test_what_the_dead_left_is_swept_and_what_lives_is_not(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    living = _Owner()
    kept = Path(scratch_dir.scratch_folder(living, "test"))
    left, young, other = memory / "toolscout-left", memory / "toolscout-young", memory / "something"
    for folder in (left, young, other):
        folder.mkdir()
    for folder in (left, other, kept):
        os.utime(folder, (0, 0))
    scratch_dir._sweep.cache_clear()
    new = _Owner()
    scratch_dir.scratch_folder(new, "test")
    assert not left.exists()
    assert all(folder.exists() for folder in (kept, young, other))


def test_without_room_in_memory_a_disk_will_do(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch_dir, "_ROOM", 1 << 62)
    owner = _Owner()
    assert Path(scratch_dir.scratch_folder(owner, "test")).parent != memory
    monkeypatch.setattr(scratch_dir, "_MEMORY", memory / "absent")
    assert Path(scratch_dir.scratch_folder(owner, "test")).is_dir()


@pytest.mark.parametrize("request_", ["create_issue", "please use create_issue now"])
def test_a_tool_that_goes_while_its_name_is_looked_up_is_not_remembered(
    request_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool, other = Tool("github", "create_issue", "Opens an issue."), Tool("github", "close_issue", "Ends an issue.")
    retriever = Bm25()
    retriever.add([tool, other])
    look = ExactNames.find

    def slow(names: ExactNames, request: str, allowed: Allowed | None = None) -> dict[str, str]:
        found = look(names, request, allowed)
        monkeypatch.undo()
        retriever.remove([tool.id])
        return found

    monkeypatch.setattr(ExactNames, "find", slow)
    for _ in range(2):
        assert tool.id not in {hit.tool_id for hit in retriever.search([request_], 5)[0]}


def test_rows_that_come_while_those_allowed_are_worked_out_are_seen_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, allowed = RowIds(["a/one"]), Allowed.of(namespaces=["a"])
    sort = np.sort

    def slow(given: Any) -> Any:
        monkeypatch.undo()
        rows.add("a/two")
        return sort(given)

    monkeypatch.setattr(row_ids.np, "sort", slow)
    rows.allowed(allowed)
    assert rows.allowed(allowed).tolist() == [0, 1]


@pytest.fixture
def room(memory: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """Whether there is room in memory and on disk."""
    left = {"memory": True, "disk": True}
    commit = WordFiles._commit

    def written(files: WordFiles, documents: Callable[[], Iterable[Fields]], count: int, dead: Sequence[int]) -> None:
        if not left["memory" if scratch_dir.in_memory(files._folder) else "disk"]:
            raise ValueError("No space left on device")
        commit(files, documents, count, dead)

    monkeypatch.setattr(WordFiles, "_commit", written)
    return left


def test_a_word_index_goes_on_on_disk_once_memory_is_full(memory: Path, room: dict[str, bool]) -> None:
    tools = catalogue(60)
    retriever = Bm25()
    retriever.add(tools[:40])
    retriever.remove([tools[0].id])
    room["memory"] = False
    retriever.add(tools[38:])
    assert not list(memory.iterdir())
    retriever.remove([tools[1].id])
    assert {hit.tool_id for hit in retriever.search([" ".join(WORDS)], 60)[0]} == {tool.id for tool in tools[2:]}


def test_a_word_index_without_any_room_says_so_and_takes_it_in_later(memory: Path, room: dict[str, bool]) -> None:
    tools = catalogue(60)
    retriever = Bm25()
    retriever.add(tools[:40])
    room.update(memory=False, disk=False)
    for _ in range(2):
        with pytest.raises(DiskFull, match="make room"):
            retriever.add(tools[40:])
    request = " ".join(WORDS)
    assert {hit.tool_id for hit in retriever.search([request], 60)[0]} == {tool.id for tool in tools[:40]}
    room["disk"] = True
    retriever.add(tools[40:])
    assert {hit.tool_id for hit in retriever.search([request], 60)[0]} == {tool.id for tool in tools}
