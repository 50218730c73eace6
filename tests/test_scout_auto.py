"""Scout.search(k="auto"): as many tools as the model says are needed, with verdicts and permissions as always."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sized import Sized, SizedOptions
from tests.toys import catalogue
from toolscout import Allowed, Scout
from toolscout.errors import BadModel, BadRequest
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.hybrid.retriever import Hybrid
from toolscout.stores.sqlite.store import SqliteStore

FEW, MANY = "create order weather", "create order weather list map price search note report"


@pytest.fixture
def scout(tmp_path: Path) -> Scout:
    made = Scout(SqliteStore(tmp_path / "tools.db"), Sized())
    made.add(catalogue(60))
    return made


def test_as_many_tools_come_as_the_model_says(scout: Scout) -> None:
    for text, count in ((FEW, 1), (MANY, 3)):
        auto, told = scout.search(text, "auto"), scout.search(text, count)
        assert len(auto.hits) == count
        assert auto == told  # the same ranking here, so the whole answer: verdict, need, fit, reasons
    assert scout.search("qwzx vbnm", k="auto").verdict == "nothing_fits"


def test_a_caller_gets_only_what_it_may_see(scout: Scout) -> None:
    allowed = Allowed.of(namespaces=["space3"])
    found = scout.search(MANY, "auto", allowed)
    assert 0 < len(found.considered) <= 3
    assert all(allowed.permits(hit.tool_id) for hit in found.considered)
    scout.store.grant("ann", allowed)
    assert scout.search(MANY, "auto", "ann").considered == found.considered
    assert scout.search(MANY, "auto", "nobody").verdict == "nothing_fits"


@pytest.mark.parametrize("retriever", [Bm25(), Sized(SizedOptions(sets=False)), Hybrid(parts=[Sized(), Bm25()])])
def test_who_cannot_tell_how_many_says_what_to_do(retriever: Bm25 | Hybrid, tmp_path: Path) -> None:
    assert retriever.as_many([]) is None
    with Scout(SqliteStore(tmp_path / "tools.db"), retriever) as scout:
        scout.add(catalogue(5))
        with pytest.raises(BadModel, match=r"give k as a number.*toolgen --option sets=true"):
            scout.search(FEW, "auto")


def test_other_words_are_no_number(scout: Scout) -> None:
    with pytest.raises(BadRequest, match="k must be a number or \"auto\", got 'many'"):
        scout.search(FEW, "many")  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match="the request is empty"):
        scout.search(" ", "auto")
