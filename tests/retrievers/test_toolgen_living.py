"""toolgen over time: tools that come and go use no more room, and a training goes on from another one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.retrievers.generators import empty, fitted, made, opened
from tests.retrievers.scenes import scenes
from tests.toys import HashedWords, catalogue
from toolscout.core.scope import EVERYTHING
from toolscout.core.tool import Tool
from toolscout.data.no_tool_prompts import Prompt
from toolscout.errors import BadModel
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.generative.fit import _calibrated, _listed
from toolscout.retrievers.provenance import TrainingSet
from toolscout.retrievers.toolgen import Toolgen, ToolgenOptions
from toolscout.scout import Scout
from toolscout.stores.sqlite.store import SqliteStore

pytestmark = pytest.mark.slow


def test_tools_that_come_and_go_use_the_same_tokens_again() -> None:
    retriever = opened("toolgen")
    tools = catalogue(60)
    retriever.add(tools)
    (before,), size = retriever.rank(["weather order"], 60), len(retriever.words())
    for turn in range(5):
        retriever.add([replace(tools[3], description=f"another one {turn}")])
        retriever.remove([tools[7].id])
        retriever.add([tools[7], tools[3]])
    assert len(retriever.words()) == size
    assert retriever.extend(before, 60, EVERYTHING) == before.pairs
    assert retriever.rank(["weather order"], 60)[0].ids() == before.ids()


def test_a_training_goes_on_from_an_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = opened("toolgen")
    monkeypatch.setattr(Toolgen, "encoder", HashedWords())
    options = replace(earlier.options, init_from=str(fitted("toolgen")), epochs=1, rate=1e-9, memorise=0, no_tool="")
    again = Toolgen(options, HashedWords())
    again.fit([TrainingSet(scenes("other", 1))], tmp_path / "again")
    assert again.options.init_from == fitted("toolgen").name
    assert {split.dataset for split in again.trained_on.splits} >= {"scenes", "other"}
    assert abs(again._learned_rows.map - earlier._learned_rows.map).max() < 1e-3
    assert abs(again._learned_rows.map).max() > 1e-2


def test_a_model_of_another_rank_cannot_be_begun_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Toolgen, "encoder", HashedWords())
    earlier = opened("toolgen")
    options = ToolgenOptions(base=earlier.options.base, rank=2, init_from=str(fitted("toolgen")), device="cpu")
    with pytest.raises(BadModel, match="set rank"):
        Toolgen(options, HashedWords()).fit([TrainingSet(scenes())], tmp_path / "other")
    woven = replace(options, init_from=str(fitted("toolweaver")))
    with pytest.raises(BadModel, match="is a toolweaver; begin with a toolgen"):
        Toolgen(woven, HashedWords()).fit([TrainingSet(scenes())], tmp_path / "other")


def test_a_list_of_tools_is_learned_in_one_order_or_in_any() -> None:
    paths = [(10, 20), (10, 21), (11,)]
    fixed, free = (_listed([1, 2], paths, 99, any_order=one) for one in (False, True))
    assert list(fixed.tokens) == list(free.tokens) == [1, 2, 10, 20, 10, 21, 11]
    assert fixed.right == [(1, (10,)), (2, (20,)), (3, (10,)), (4, (21,)), (5, (11,)), (6, (99,))]
    assert free.right == [(1, (10, 11)), (2, (20, 21)), (3, (10, 11)), (4, (21,)), (5, (11,)), (6, (99,))]


def test_in_any_order_tools_are_ranked_as_without_sets() -> None:
    ranked = opened("toolgen").rank(["weather order"], 10)[0].pairs
    listing = opened("toolgen")
    listing.options = replace(listing.options, sets=True, order="any")
    found = listing.rank(["weather order"], 10)
    assert found[0].pairs == ranked
    assert len(listing.as_many(found)) == 1
    with pytest.raises(BadModel, match="order"):
        ToolgenOptions(order="none")  # type: ignore[arg-type]


class Other(HashedWords):
    """Another encoder, of the same size."""

    fingerprint = "other-words"


@pytest.mark.parametrize("name", ["toolgen", "toolweaver"])
def test_what_was_learned_is_bound_to_one_encoder(name: str) -> None:
    assert empty(name).bound_to() == HashedWords.fingerprint
    assert made(name).bound_to() is None


def test_a_map_of_another_encoder_cannot_be_begun_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Toolgen, "encoder", property(lambda self: self._encoder or HashedWords()))
    options = replace(opened("toolgen").options, init_from=str(fitted("toolgen")), epochs=1, memorise=0, no_tool="")
    with pytest.raises(BadModel, match="was trained with another encoder"):
        Toolgen(options, Other()).fit([TrainingSet(scenes())], tmp_path / "other")


def test_a_forecast_that_says_the_opposite_is_none(tmp_path: Path) -> None:
    def opposite(requests: list[str]) -> Any:
        return np.array([1.0 if request.startswith("prompt") else -1.0 for request in requests])

    prompts = [Prompt(f"prompt {number}", "some", "dev", "text") for number in range(5)]
    wrong: Any = SimpleNamespace(against_none=opposite)
    assert _calibrated(wrong, [TrainingSet(scenes())], prompts) is None
    right: Any = SimpleNamespace(against_none=lambda requests: -opposite(requests))
    assert _calibrated(right, [TrainingSet(scenes())], prompts) is not None
    retriever = opened("toolgen")
    assert retriever.need(["x"]) is not None
    retriever._platt = None
    retriever.save(tmp_path)
    assert Toolgen.load(tmp_path, HashedWords()).need(["x"]) is None


@pytest.mark.parametrize("name", ["toolgen", "toolweaver"])
def test_a_tool_that_gets_no_id_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    retriever = empty(name)

    def full(tools: Any) -> Any:
        raise BadModel("no id is left")

    monkeypatch.setattr(retriever, "_assign_ids", full)
    with pytest.raises(BadModel, match="no id is left"):
        retriever.add(catalogue(2))
    assert (len(retriever), retriever.rank(["weather"], 3)[0].pairs) == (0, [])


def test_conversations_that_nobody_goes_through_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="learned in agent_epochs: set it above 0"):
        made("toolgen-agent", agent_epochs=0).fit([TrainingSet(scenes())], tmp_path / "none")


def paths_of(scout: Scout) -> dict[str, tuple[int, ...]]:
    """The ids of all tools, as tokens."""
    retriever: Any = scout.retriever
    return {tool_id: retriever.path(tool_id) for tool_id in retriever.ids()}


@pytest.mark.parametrize("name", ["toolgen-hierarchical", "toolgen-numeric", "toolgen-semantic", "toolweaver"])
def test_ids_stay_when_a_store_is_opened_again(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolscout.models.encoders.onnx_encoder.Encoder", HashedWords)
    later = [
        Tool("later", f"get_order_{n % 4}_{n}", f"gets order {n % 4} of the weather, edition {n}") for n in range(9)
    ]
    request, model = "get the order of the weather", fitted(name)
    with Scout.open(tmp_path / "s.db", model) as scout:
        for tool in later[:6]:
            scout.add([tool])
        scout.remove([later[1].id, later[4].id])
        for tool in later[6:]:
            scout.add([tool])
        paths = paths_of(scout)
        found = scout.search(request, 5).considered
    with Scout.open(tmp_path / "s.db", model) as scout:
        assert paths_of(scout) == paths
        assert scout.search(request, 5).considered == found
    with Scout(SqliteStore(tmp_path / "s.db"), Bm25()) as other:  # while the model is not open
        other.add([replace(later[0], description="feeds the lions of the zoo")], replace=True)
    with Scout.open(tmp_path / "s.db", model) as scout:
        scout.embed()
        fresh = paths_of(scout)
        assert {key for key in paths if fresh[key] != paths[key]} <= {later[0].id}
    for damage in ("", "[]", "[1]", '[{"later/x": "y"}]', '[{"later/get_order_2": [Infinity]}]', "[" * 100_000):
        (kept,) = (tmp_path / "s.db.index" / "ids").iterdir()
        kept.write_text(damage)
        with Scout.open(tmp_path / "s.db", model) as scout:
            assert len(paths_of(scout)) == len(paths)


def test_codes_of_tools_that_are_gone_are_free_when_a_store_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolscout.models.encoders.onnx_encoder.Encoder", HashedWords)
    model, later = fitted("toolweaver"), [Tool("later", f"tool_{n}", f"does thing {n}") for n in range(20)]
    with Scout.open(tmp_path / "s.db", model) as scout:
        scout.add(later[:10])
    with Scout(SqliteStore(tmp_path / "s.db"), Bm25()) as other:
        other.remove([tool.id for tool in later[:10]])
        other.add(later[10:])
    with Scout.open(tmp_path / "s.db", model) as scout:
        scout.embed()
        retriever: Any = scout.retriever
        assert not retriever._codes.keys() & {tool.id for tool in later[:10]}
        assert len(scout.retriever) == 10
