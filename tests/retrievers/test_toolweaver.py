"""toolweaver: codes that are unique and stay, what `toolscout codes` shows, and a fit that goes on after a kill."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.retrievers import generators
from tests.retrievers.generators import made, opened
from tests.retrievers.scenes import scenes
from tests.toys import HashedWords
from toolscout.core.tool import Tool
from toolscout.errors import BadModel, NeedsTraining
from toolscout.retrievers.provenance import TrainingSet
from toolscout.retrievers.toolweaver import Toolweaver, ToolweaverOptions

pytestmark = pytest.mark.slow

pytest.importorskip("torch", reason="training needs the extra 'train'")
pytest.importorskip("onnx", reason="serving a language model needs the extra 'encoder'")

DATA = scenes()
NEW = [Tool("zoo", f"pat_{number}", "pats the lion") for number in range(40)]


def test_codes_are_unique_and_stay(tmp_path: Path) -> None:
    retriever = opened("toolweaver")
    woven = retriever.codes()
    assert sorted(woven) == sorted(tool.id for tool in DATA.tools)
    retriever.add(NEW)
    retriever.add(DATA.tools[:5])
    codes = retriever.codes()
    assert len(set(codes.values())) == len(codes) == 100
    assert {tool_id: codes[tool_id] for tool_id in woven} == woven
    retriever.save(tmp_path / "model")
    loaded = Toolweaver.load(tmp_path / "model", HashedWords())
    assert loaded.codes() == codes
    loaded.remove([NEW[0].id, DATA.tools[0].id])
    assert loaded.codes().keys() == codes.keys() - {NEW[0].id, DATA.tools[0].id}
    loaded.add([Tool("zoo", "other", "pats the lion"), DATA.tools[0], NEW[0]])
    found = loaded.codes()
    assert len(set(found.values())) == 101
    assert {tool_id: found[tool_id] for tool_id in woven} == woven


def test_what_is_shown_of_codes() -> None:
    retriever = opened("toolweaver")
    health = retriever.health()
    assert health["tools"] == 60
    assert health["collisions"] == 0
    assert all(len(code) == health["levels"] for code in retriever.codes().values())
    assert all(0 <= one < health["codes"] for code in retriever.codes().values() for one in code)
    gold = DATA.split("train").gold
    wanted = Counter(pair for few in gold for pair in combinations(sorted(set(few)), 2))
    assert {(one, other): count for one, other, count in retriever.uses()} == wanted
    assert health["pairs"] == len(wanted)


def test_the_tokens_of_levels_are_apart() -> None:
    retriever = opened("toolweaver")
    first = retriever.base().architecture.vocabulary + 2
    size = retriever.health()["codes"]
    for tool_id, code in retriever.codes().items():
        assert retriever.path(tool_id) == tuple(first + level * size + one for level, one in enumerate(code))
    assert len(retriever.words()) == first + size * retriever.health()["levels"]


def test_rows_begin_near_the_names_of_their_tools() -> None:
    fitting = {start: made("toolweaver", start=start, code_steps=2) for start in ("codebooks", "random")}
    encoder, tools = HashedWords(), DATA.tools[:20]
    vectors = {tool.id: encoder.encode_request(tool.document()) for tool in tools}
    plans = {start: one.plan(vectors, [[tools[0].id, tools[1].id]]) for start, one in fitting.items()}
    assert plans["codebooks"].paths == plans["random"].paths
    assert plans["codebooks"].start.shape == plans["random"].start.shape
    from toolscout.retrievers.generative.token_rows import name_rows

    base = fitting["codebooks"].base()
    names = name_rows(base, base.table(), [tool.id for tool in tools])
    off = {}
    for start, plan in plans.items():
        rows = plan.start[[plan.paths[tool.id][0] - base.architecture.vocabulary for tool in tools]]
        off[start] = float(np.linalg.norm(rows - names, axis=1).mean())
    assert off["codebooks"] < off["random"]
    with pytest.raises(BadModel, match="codebooks or random"):
        ToolweaverOptions(start="nonsense")  # type: ignore[arg-type]


def test_codes_that_were_learned_are_not_learned_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from toolscout.training import code_learning

    encoder, tools = HashedWords(), DATA.tools[:20]
    vectors = {tool.id: encoder.encode_request(tool.document()) for tool in tools}
    uses = [[tools[0].id, tools[1].id]]
    first = made("toolweaver", code_steps=2)
    wanted = first.plan(vectors, uses, tmp_path / "kept")
    learned: list[int] = []
    learner = code_learning._Learner

    def learning(*parts: Any) -> Any:
        learned.append(1)
        return learner(*parts)

    monkeypatch.setattr(code_learning, "_Learner", learning)
    again = made("toolweaver", code_steps=2)
    found = again.plan(vectors, uses, tmp_path / "kept")
    assert (found.paths, again.health(), learned) == (wanted.paths, first.health(), [])
    np.testing.assert_array_equal(found.vectors, wanted.vectors)
    made("toolweaver", code_steps=3).plan(vectors, uses, tmp_path / "kept")
    made("toolweaver", code_steps=3).plan(vectors, [*uses, *uses, [tools[1].id, tools[2].id]], tmp_path / "kept")
    (tmp_path / "kept" / "learned.json").write_text("{")
    made("toolweaver", code_steps=2).plan(vectors, uses, tmp_path / "kept")
    assert len(learned) == 3


def test_an_untrained_model_names_the_command() -> None:
    with pytest.raises(NeedsTraining, match="toolscout train DATA --retriever toolweaver --out FOLDER"):
        made("toolweaver").add(DATA.tools)
    assert made("toolweaver").codes() == {}


def test_a_fit_that_was_killed_goes_on_to_the_same_model(tmp_path: Path) -> None:
    quick = {"epochs": 2, "memorise": 1, "code_steps": 2}
    whole = made("toolweaver", **quick)
    whole.fit([TrainingSet(DATA)], tmp_path / "whole")

    def dying(text: str, done: int, total: int) -> None:
        if text.startswith("retrieve: ") and 2 * done >= total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made("toolweaver", **quick).fit([TrainingSet(DATA)], tmp_path / "killed", dying)
    assert [path.name for path in (tmp_path / "killed").glob("training-*")]
    with pytest.raises(BadModel, match="other data or with other options"):
        made("toolweaver", **quick, seed=3).fit([TrainingSet(DATA)], tmp_path / "killed")
    made("toolweaver", **quick).fit([TrainingSet(DATA)], tmp_path / "killed")
    for file in ("adapter.npz", "rows.npy", "codes.json", "specials.npy"):
        assert (tmp_path / "killed" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    assert not list((tmp_path / "killed").glob("training-*"))


def test_a_model_is_trained_again_on_more_tools(tmp_path: Path) -> None:
    for name in ("toolweaver", "toolgen-numeric"):
        retriever = opened(name)
        retriever.options = made(name, epochs=1, code_steps=1).options if name == "toolweaver" else retriever.options
        retriever.add(NEW[:3])
        retriever.fit([TrainingSet(DATA)], tmp_path / name)
        assert sorted(retriever.ids()) == sorted(tool.id for tool in DATA.tools)
        assert len({retriever.path(tool_id) for tool_id in retriever.ids()}) == 60
        assert len(retriever.search(["anything"], 100)[0]) == 60
    assert generators.home().is_dir()
