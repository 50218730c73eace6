"""decoding=free: what a model generates without the trie of ids, and what becomes of ids that no tool has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.retrievers import generators
from tests.retrievers.generators import opened
from tests.retrievers.scenes import recall, scenes
from toolscout.agent.pickers import FreeIdPicker, InventedTool
from toolscout.core.answer import Allowed
from toolscout.core.scope import Scope
from toolscout.data.conversations import FINISH, ConversationBuilder
from toolscout.errors import BadModel
from toolscout.retrievers import opening
from toolscout.retrievers.toolgen import ToolgenOptions

pytestmark = pytest.mark.slow

pytest.importorskip("torch", reason="training needs the extra 'train'")
pytest.importorskip("onnx", reason="serving a language model needs the extra 'encoder'")

DATA = scenes()
REQUESTS = [text for _, text in DATA.split("test").requests[:6]]
IDS = {tool.id for tool in DATA.tools}


def free(name: str) -> Any:
    retriever = opened(name)
    retriever.options = replace(retriever.options, decoding="free")
    return retriever


@pytest.mark.parametrize("name", ["toolgen", "toolgen-hierarchical", "toolgen-semantic", "toolweaver"])
def test_what_is_generated_under_the_trie_is_always_a_tool(name: str) -> None:
    retriever = opened(name)
    constrained, freely = (retriever.generate(REQUESTS, how) for how in ("constrained", "free"))
    special = {"\0no tool", "\0finish"}
    for few, many in zip(constrained, freely, strict=True):
        assert {one.key for one in few} <= IDS | special
        assert {one.key for one in many} <= IDS | special | {""}
        assert len(many) == 5
        assert [one.score for one in many] == sorted((one.score for one in many), reverse=True)
        under = {one.key: one.score for one in retriever.generate(REQUESTS, "constrained", 60)[0]}
        assert all(one.score <= under[one.key] + 1e-4 for one in freely[0] if one.key in under)


def test_a_trained_model_finds_tools_freely() -> None:
    retriever = free("toolgen")
    assert recall(retriever, DATA, "train") >= 0.8
    ranked = retriever.rank(REQUESTS, 10)
    assert all(set(one.ids()) <= IDS and len(one.ids()) <= 5 for one in ranked)
    some = Allowed.of(ids=sorted(IDS)[:30])
    assert all(set(one.ids()) <= set(sorted(IDS)[:30]) for one in retriever.rank(REQUESTS, 5, Scope(some)))


def test_a_model_that_learned_little_invents_ids() -> None:
    retriever = free("toolgen-numeric")
    generated = [one for few in retriever.generate(REQUESTS, "free") for one in few]
    invented = [one for one in generated if not one.key]
    assert invented
    spelled = {retriever.base().decode(retriever.path(tool_id)[:-1]) for tool_id in IDS}
    assert not {one.text for one in invented} & spelled
    retriever.remove(sorted(IDS)[:59])
    left = {one.key for few in retriever.generate(REQUESTS, "free") for one in few}
    assert left <= {"", max(IDS), "\0no tool", "\0finish"}


def test_an_agent_may_invent_a_tool() -> None:
    retriever = free("toolgen-agent")
    called, answered, strange = (one.messages[0].content for one in generators.trajectories())
    used = generators.trajectories()[0].tools[0].id
    talks = [ConversationBuilder(text).before_action() for text in (called, answered, strange)]
    assert retriever.pick(talks[:2]) == [used, FINISH]
    picker = FreeIdPicker(retriever)
    assert picker.pick(talks[:2]) == [used, FINISH]
    retriever.remove([used])  # its token stays: what is generated is the id of no tool any more
    (invented,) = picker.pick(talks[:1])
    assert isinstance(invented, InventedTool)
    assert retriever.pick(talks[:1]) == [None]
    assert picker.pick([ConversationBuilder("word " * 600).before_action()]) == [None]


def test_values_that_cannot_be() -> None:
    with pytest.raises(BadModel, match="decoding must be one of constrained, free, got 'greedy'"):
        ToolgenOptions(decoding="greedy")  # type: ignore[arg-type]
    with pytest.raises(BadModel, match="sets are generated under the trie"):
        ToolgenOptions(decoding="free", sets=True)


def test_both_engines_generate_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    served = opened("toolgen-hierarchical").generate(REQUESTS, "free")
    monkeypatch.setenv("TOOLSCOUT_DEVICE", "cpu")
    in_torch = opened("toolgen-hierarchical").generate(REQUESTS, "free")
    for one, other in zip(served, in_torch, strict=True):
        assert one[0].score == pytest.approx(other[0].score, abs=0.1)  # one of them has 8 bits
        found = {(item.text, item.key) for item in other}
        assert (one[0].text, one[0].key) in found  # the second may be as likely


@pytest.mark.parametrize("method", ["toolgen", "toolweaver"])
def test_it_is_an_option_of_both_methods(method: str) -> None:
    assert opening.made(method, (), ["decoding=free"]).options.decoding == "free"  # type: ignore[attr-defined]
    assert opening.made(method, (), ["preset=published"]).options.decoding == "constrained"  # type: ignore[attr-defined]
