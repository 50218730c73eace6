"""toolweaver when codes run out: as many tools as fit get one, the others wait, are told of, and come in later."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.retrievers.generators import empty, fitted, opened
from tests.toys import HashedWords, catalogue
from toolscout.core.answer import Allowed
from toolscout.core.scope import Scope
from toolscout.core.tool import Tool
from toolscout.retrievers import document_index
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.hybrid.retriever import Hybrid
from toolscout.retrievers.toolweaver import Toolweaver
from toolscout.scout import Scout
from toolscout.stores.sqlite.store import SqliteStore

pytestmark = pytest.mark.slow

pytest.importorskip("torch", reason="training needs the extra 'train'")
pytest.importorskip("onnx", reason="serving a language model needs the extra 'encoder'")

CODES = 1024  # two levels of 32, of which the 60 tools of training keep theirs
LATER = [Tool("later", f"thing_{number}", f"does thing {number} of the zoo") for number in range(CODES)]
LEFT = CODES - 60
IDS = [tool.id for tool in LATER]


@cache
def vectors() -> dict[str, Any]:
    return document_index.document_vectors(HashedWords(), LATER)


def full(count: int = LEFT) -> Any:
    """One that was asked to take so many tools beside those it keeps codes for."""
    retriever = empty("toolweaver")
    retriever.add(LATER[:count], vectors())
    return retriever


def test_as_many_get_codes_as_there_are() -> None:
    retriever = full(LEFT - 4)
    assert (retriever.pending(), retriever.without_id(), retriever.no_id_left()) == (0, 0, "")
    retriever.add(LATER[LEFT - 4 : LEFT + 6], vectors())
    assert (len(retriever), retriever.pending(), retriever.without_id()) == (LEFT, 6, 6)
    assert len(set(retriever.codes().values())) == LEFT
    assert sorted(retriever.ids()) == sorted(IDS[: LEFT + 6])
    assert retriever.no_id_left().startswith(
        "6 tools have no id, since all 1,024 codes of the model are taken, 60 of them kept for tools that it was "
        "trained with and that are not here: "
    )
    seen = Scope(Allowed.of(ids=[IDS[0], IDS[LEFT]]))
    assert (retriever.pending(seen), retriever.without_id(seen)) == (1, 1)
    assert retriever.no_id_left(seen).startswith("1 tool has no id")
    assert len(retriever.search(["does a thing"], 2000)[0]) == LEFT
    retriever.add(catalogue(60))  # their codes were kept for them
    assert (len(retriever), retriever.without_id()) == (CODES, 6)
    assert "trained with" not in retriever.no_id_left()


def test_a_tool_without_a_code_is_found_by_its_name() -> None:
    retriever = full(LEFT + 2)
    assert retriever.search([f"call {IDS[LEFT]} now"], 3)[0][0].tool_id == IDS[LEFT]
    assert retriever.search([f"call {IDS[LEFT]} now"], 3, Scope(Allowed.of(ids=IDS[:5])))[0][0].tool_id in IDS[:5]
    retriever.remove([IDS[LEFT]])
    assert IDS[LEFT] not in [hit.tool_id for hit in retriever.search([f"call {IDS[LEFT]} now"], 2000)[0]]


def test_removing_tools_brings_those_in_that_waited() -> None:
    retriever = full(LEFT + 6)
    codes = retriever.codes()
    retriever.remove(IDS[:2])
    assert (len(retriever), retriever.without_id()) == (LEFT, 4)
    assert {key: code for key, code in retriever.codes().items() if key in codes} == {
        key: code for key, code in codes.items() if key not in IDS[:2]
    }
    assert retriever.codes().keys() - codes.keys() == set(IDS[LEFT : LEFT + 2])
    retriever.remove([*IDS[2:100], IDS[LEFT + 5]])
    assert (retriever.pending(), retriever.without_id(), retriever.no_id_left()) == (0, 0, "")
    assert IDS[LEFT + 4] in retriever.codes()
    assert retriever.search([IDS[LEFT + 4]], 1)[0][0].tool_id == IDS[LEFT + 4]
    retriever.remove(retriever.ids())
    assert (len(retriever), retriever.ids()) == (0, [])


def test_trying_again_without_room_looks_at_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    retriever = full(LEFT + 6)

    def never(*_: Any) -> Any:
        raise AssertionError("there is no room")

    monkeypatch.setattr(retriever, "_assign_ids", never)
    retriever.add(LATER[LEFT + 6 :], vectors())
    assert retriever.without_id() == CODES - LEFT
    retriever.remove(IDS[LEFT + 6 :])
    assert retriever.without_id() == 6


@pytest.mark.parametrize("at_once", [True, False])
def test_a_tool_that_changes_comes_before_those_without_a_code(at_once: bool) -> None:
    retriever = full(LEFT + 6)
    changed = [replace(tool, description="feeds the lion") for tool in LATER[:3]]
    known = document_index.document_vectors(HashedWords(), changed)
    retriever.add([LATER[LEFT + 6], *changed], {**vectors(), **known} if at_once else vectors())
    if not at_once:
        assert (retriever.pending(), retriever.without_id()) == (10, 7)
        retriever.add(LATER[LEFT + 7 : LEFT + 9], vectors())
        retriever.remove([IDS[2]])
        assert (len(retriever), retriever.without_id()) == (LEFT - 2, 8)
        retriever.take_vectors(known)
    assert {IDS[0], IDS[1]} <= retriever.codes().keys()
    assert len(retriever) == LEFT
    assert retriever.search([IDS[0]], 1)[0][0].tool_id == IDS[0]


def test_what_cannot_be_taken_waits_and_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    retriever = opened("toolweaver")
    with monkeypatch.context() as patch:
        patch.setattr(retriever, "_assign_ids", lambda tools: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            retriever.add(LATER[:2], vectors())
    assert (retriever.pending(), retriever.without_id()) == (2, 0)
    retriever.take_vectors(vectors())
    assert (retriever.pending(), len(retriever)) == (0, 62)


def test_a_saved_index_holds_those_that_wait(tmp_path: Path) -> None:
    full(LEFT + 2).save(tmp_path)
    loaded = Toolweaver.load(tmp_path, HashedWords())
    assert (len(loaded), loaded.pending()) == (LEFT, 2)
    loaded.remove(IDS[:5])
    loaded.take_vectors(vectors())
    assert (len(loaded), loaded.pending()) == (LEFT - 3, 0)


def test_a_code_that_was_recalled_is_free_once_its_tool_is_gone() -> None:
    retriever = empty("toolweaver")
    retriever.recall_ids({IDS[0]: (0, 0), IDS[1]: (0, 1)})
    assert retriever._room() <= LEFT - 1
    retriever.add(LATER[:2], {})
    retriever.remove(IDS[:2])
    assert retriever._room() == LEFT


def test_a_catalogue_goes_on_when_codes_run_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolscout.models.encoders.onnx_encoder.Encoder", HashedWords)
    model, path = fitted("toolweaver"), tmp_path / "s.db"
    with Scout.open(path, model) as scout:
        scout.add(LATER[: LEFT - 4])
        scout.add(LATER[LEFT - 4 : LEFT + 6])
        answer = scout.search(LATER[LEFT + 5].id, 3)
        assert answer.hits[0].tool_id == IDS[LEFT + 5]
        assert any(note.startswith("6 tools have no id") for note in answer.notes)
        assert (answer.words_only, scout.embed()) == (6, 0)
        with Scout(SqliteStore(path), Bm25()) as other:
            other.add(LATER[LEFT + 6 : LEFT + 9])
        scout.embed()
        assert scout.search("does a thing", 3).words_only == 9
        scout.remove(IDS[:100])
        scout.embed()
        answer = scout.search("does a thing", 3)
        assert (answer.words_only, [note for note in answer.notes if "no id" in note]) == (0, [])


def test_a_hybrid_finds_those_without_a_code_by_their_words() -> None:
    hybrid = Hybrid(parts=[Bm25(), full()])
    strange = Tool("other", "polish_spoons", "polishes silver spoons")
    hybrid.parts[0].add(LATER[:LEFT])
    hybrid.add([strange], document_index.document_vectors(HashedWords(), [strange]))
    assert hybrid.pending() == 1
    assert hybrid.search(["polish my silver spoons"], 3)[0][0].tool_id == strange.id
