"""toolgen over time: tools that come and go use no more room, and a training goes on from another one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.retrievers.generators import fitted, opened
from tests.retrievers.scenes import scenes
from tests.toys import HashedWords, catalogue
from toolscout.errors import BadModel
from toolscout.retrievers.base import TrainingSet
from toolscout.retrievers.toolgen import Toolgen, ToolgenOptions


def test_tools_that_come_and_go_use_the_same_tokens_again() -> None:
    retriever = opened("toolgen")
    tools = catalogue(60)
    retriever.add(tools)
    before, size = retriever.rank(["weather order"], 60), len(retriever.words())
    for turn in range(5):
        retriever.add([replace(tools[3], description=f"another one {turn}")])
        retriever.remove([tools[7].id])
        retriever.add([tools[7], tools[3]])
    assert len(retriever.words()) == size
    assert retriever.rank(["weather order"], 60) == before


def test_a_training_goes_on_from_an_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = opened("toolgen")
    monkeypatch.setattr(Toolgen, "open_encoder", lambda self: HashedWords())
    options = replace(earlier.options, begin=str(fitted("toolgen")), epochs=1, rate=1e-9, memorise=0, no_tool="")
    again = Toolgen(options, HashedWords())
    again.fit([TrainingSet(scenes("other", 1))], tmp_path / "again")
    assert again.options.begin == fitted("toolgen").name
    assert {split.dataset for split in again._seen.splits} >= {"scenes", "other"}
    assert abs(again._taught.map - earlier._taught.map).max() < 1e-3
    assert abs(again._taught.map).max() > 1e-2


def test_a_model_of_another_rank_cannot_be_begun_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Toolgen, "open_encoder", lambda self: HashedWords())
    earlier = opened("toolgen")
    options = ToolgenOptions(base=earlier.options.base, rank=2, begin=str(fitted("toolgen")), device="cpu")
    with pytest.raises(BadModel, match="set rank"):
        Toolgen(options, HashedWords()).fit([TrainingSet(scenes())], tmp_path / "other")
