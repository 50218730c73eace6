"""Conversations: what is learned of them beside requests, and how they are gone on with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.retrievers import generators
from tests.retrievers.generators import STRANGE, made, opened
from tests.retrievers.scenes import scenes
from tests.toys import HashedWords
from toolscout.core.answer import Allowed
from toolscout.core.scope import Scope
from toolscout.data.conversations import FINISH, ConversationBuilder, conversation
from toolscout.data.dataset import request_digest
from toolscout.data.no_tool_prompts import read_negatives
from toolscout.errors import BadModel
from toolscout.retrievers.base import Ranking
from toolscout.retrievers.encoded_requests import Encoding
from toolscout.retrievers.generative import base
from toolscout.retrievers.generative.base import IdPlan, prompt
from toolscout.retrievers.generative.conversation_examples import (
    called_tools,
    choose_carry_on,
    conversation_examples,
    provenance_of,
    read_conversations,
)
from toolscout.retrievers.generative.fit import IdExamples, _insert_training_tools, _training_data
from toolscout.retrievers.generative.reading import chance
from toolscout.retrievers.provenance import TrainedOn, TrainingSet

pytestmark = pytest.mark.slow

pytest.importorskip("torch", reason="training needs the extra 'train'")
pytest.importorskip("onnx", reason="serving a language model needs the extra 'encoder'")

DATA = scenes()
REQUESTS = [text for _, text in DATA.split("test").requests[:6]]
IDS = [tool.id for tool in DATA.tools]


def asked(request: str) -> Any:
    return ConversationBuilder(request).before_action()


def test_conversations_are_gone_on_with() -> None:
    retriever = opened("toolgen-agent")
    called, answered, strange = (one.messages[0].content for one in generators.trajectories())
    used = generators.trajectories()[0].tools[0].id
    assert retriever.pick([asked(called), asked(answered)]) == [used, FINISH]
    assert STRANGE.id not in retriever.ids()
    retriever.add([STRANGE])  # which has the row that it learned
    assert retriever.pick([asked(strange), asked(answered), asked(called)]) == [STRANGE.id, FINISH, used]
    retriever.remove([STRANGE.id])
    first, second = retriever.pick([asked(called), asked(called)], without=[{used}, set()])
    assert (first in {*IDS, FINISH} - {used}, second) == (True, used)
    assert retriever.pick([asked(called)], without=[set(retriever.ids())]) == [FINISH]
    assert retriever.pick([]) == []
    retriever.remove([used])
    again = retriever.pick([asked(called), asked("anything else"), *[asked(text) for text in REQUESTS]])
    assert set(again) <= {*IDS, FINISH} - {used}
    assert retriever.pick([asked("word " * 600)]) == [None]  # more than it can read
    retriever.remove(retriever.ids())
    assert retriever.pick([asked(called)]) == [FINISH]
    assert set(opened("toolgen-hierarchical").pick([asked(called)])) <= {*IDS}


def test_what_users_say_in_conversations_counts_as_seen() -> None:
    said = {request_digest(one.messages[0].content) for one in generators.trajectories()}
    (talk,) = [one for one in opened("toolgen-agent").trained_on.splits if one.split == "conversations"]
    assert (talk.dataset, talk.role, said <= talk.requests) == ("trajectories.jsonl", "train", True)
    edited = [conversation(replace(one, messages=one.messages[:1] * 2)) for one in generators.trajectories()]
    assert (
        provenance_of(edited, "trajectories.jsonl").splits[0].digest != talk.digest
    )  # no training goes on with others
    assert provenance_of([], "") == TrainedOn()


def test_the_model_says_whether_to_act_and_similarity_helps_to_say_how() -> None:
    retriever = opened("toolgen-agent")
    called, answered, _ = (one.messages[0].content for one in generators.trajectories())
    retriever.options = replace(retriever.options, similarity=500.0)
    (nearest,) = retriever.search([called], 1)[0]
    assert nearest.tool_id != generators.trajectories()[0].tools[0].id
    script = ConversationBuilder(called)
    script.think("I look")  # the request is the first turn of the user's, not the last
    found = retriever.pick([asked(called), asked(answered), script.before_action()])
    assert found[:2] == [nearest.tool_id, FINISH]
    assert found[2] in (nearest.tool_id, FINISH)


def test_an_agent_carries_on_while_a_tool_that_it_has_not_called_is_likely(monkeypatch: pytest.MonkeyPatch) -> None:
    retriever = opened("toolgen-agent")
    request = generators.trajectories()[0].messages[0].content
    (first, sure), (second, less), *_ = [(i, chance(score)) for i, score in retriever.rank([request], 5)[0].pairs]
    assert 1 > sure > less > 0
    script = ConversationBuilder(request)
    script.act(first)
    script.observe("done")
    turns = script.before_action()
    monkeypatch.setattr(base, "_actions", lambda _, prompts, *more: [FINISH] * len(prompts))

    def picked(least: float, *talks: Any, **more: Any) -> list[str | None]:
        retriever.options = replace(retriever.options, carry_on=least)
        return retriever.pick(talks, **more)

    assert picked(0.0, turns) == picked(1.0, turns) == picked(less * 1.01, turns) == [FINISH]
    assert picked(less * 0.99, turns, asked(request)) == [second, FINISH]  # who has called nothing needs nothing
    assert picked(less * 0.99, turns, turns, without=[{second}, ()]) == [FINISH, second]
    assert picked(less * 0.99, turns, allowed=Allowed.of(ids=set(IDS) - {second})) == [FINISH]


def test_the_chance_to_carry_on_is_where_what_is_likelier_is_most_like_the_gold() -> None:
    retriever = made("toolgen", trajectories="trajectories.jsonl")
    data = TrainingSet(DATA)

    def ranked(requests: list[str], k: int, among: Scope) -> list[Ranking]:
        gold = dict(zip((text for _, text in DATA.split("dev").requests), DATA.split("dev").gold, strict=True))
        others = [[i for i in IDS if i not in gold[text]][:2] for text in requests]
        return [
            Ranking(text, among, [*((i, 0.12**0.125) for i in gold[text]), *((i, 0.06**0.125) for i in few)])
            for text, few in zip(requests, others, strict=True)
        ]

    retriever.rank = ranked
    assert choose_carry_on(retriever, [data]) == 0.1
    assert choose_carry_on(retriever, [replace(data, dev="")]) == 0.0
    retriever.options = replace(retriever.options, carry_on=1.0)
    assert choose_carry_on(retriever, [data]) == 1.0


def lessons_of(name: str, folder: Path, **changed: Any) -> tuple[Any, IdExamples]:
    retriever = made(name, trajectories="trajectories.jsonl", **changed)
    data = [TrainingSet(DATA)]
    material = _training_data(data, retriever.options, Encoding(HashedWords(), folder, None))
    _insert_training_tools(retriever, material)
    plan = retriever.plan(material.vectors, [*material.gold, *((tool_id,) for tool_id in material.called)])
    lessons = IdExamples(retriever, plan, material, data)
    lessons.stages(retriever.options)
    return retriever, lessons


@pytest.mark.parametrize(
    "name", ["toolgen", "toolgen-semantic", "toolgen-numeric", "toolgen-hierarchical", "toolweaver"]
)
def test_tools_that_conversations_call_are_learned_like_those_that_requests_need(name: str, tmp_path: Path) -> None:
    retriever, lessons = lessons_of(name, tmp_path, rehearse=0.0)
    path = lessons._plan.paths[STRANGE.id]
    assert path not in [one for tool_id, one in lessons._plan.paths.items() if tool_id != STRANGE.id]
    talk = lessons.conversations(0)[2]
    at = next(i for i in range(len(talk.tokens)) if tuple(talk.tokens[i : i + len(path)]) == path)
    assert {(at - 1 + n, (token,)) for n, token in enumerate(path)} <= set(talk.right)
    document = retriever.prompter().ask(STRANGE.document())
    assert any(lesson.tokens[: len(document)] == document for lesson in lessons.documents(0))
    assert sorted(retriever._rows.ids) == sorted(IDS)  # dev is asked among the tools of the dataset


@pytest.mark.parametrize("name", ["toolgen", "toolweaver"])
def test_all_tools_are_memorised_where_that_is_asked(name: str, tmp_path: Path) -> None:
    used = {tool_id for few in DATA.split("train").gold for tool_id in few} | {STRANGE.id}
    for whole, wanted in ((False, used), (True, {*IDS, STRANGE.id})):
        retriever, lessons = lessons_of(name, tmp_path, memorise_all=whole)
        known = {tuple(retriever.prompter().ask(tool.document())): tool.id for tool in [*DATA.tools, STRANGE]}
        ends = (tuple(lesson.tokens[: len(text)]) for lesson in lessons.documents(0) for text in known)
        assert {known[text] for text in ends if text in known} == wanted
    assert used < {*IDS, STRANGE.id}


def test_a_tool_that_nobody_describes_is_read_as_text(tmp_path: Path) -> None:
    record = {"conversations": [{"role": "user", "content": "go"}, {"role": "assistant", "content": "x/y"}]}
    record["conversations"][1]["action"] = "x/y"
    known = {"conversations": [record["conversations"][0], {"role": "assistant", "content": IDS[7], "action": IDS[7]}]}
    path = tmp_path / "sharegpt.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in (record, known)))
    talks = read_conversations(path)
    assert list(called_tools(talks, {IDS[7]: DATA.tools[7]})) == [IDS[7]]
    retriever = opened("toolgen")
    plan = IdPlan({IDS[7]: retriever.path(IDS[7])}, np.zeros((0, 1), np.float32), np.zeros((0, 1), np.float32))
    (lesson,) = conversation_examples(retriever, plan, talks, str(path))  # nothing is learned of the other
    assert retriever.path(IDS[7])[0] in lesson.tokens


def test_long_trajectories_are_cut(tmp_path: Path) -> None:
    _, lessons = lessons_of("toolgen", tmp_path, rehearse=0.0)
    whole = lessons.conversations(0)
    most = max(len(one.tokens) for one in whole) - 3
    _, lessons = lessons_of("toolgen", tmp_path, rehearse=0.0, trajectory_tokens=most)
    for one, cut in zip(whole, lessons.conversations(0), strict=True):
        assert cut.tokens == one.tokens[:most]
        assert cut.right == [target for target in one.right if len(one.tokens) <= most or target[0] < most - 1]
    with pytest.raises(BadModel, match="trajectory_tokens"):
        made("toolgen", trajectory_tokens=0)


def test_requests_are_rehearsed_beside_conversations(tmp_path: Path) -> None:
    negative = [one for one in read_negatives(str(generators.home() / "prompts")) if one.split == "train"]
    count = len(DATA.split("train").requests) + len(negative)
    drawn = []
    for rehearse, epochs, wanted in ((0.0, 2, 0), (0.25, 2, round(count / 4)), (1.0, 2, count), (1.0, 0, 0)):
        _, lessons = lessons_of("toolgen", tmp_path, rehearse=rehearse, epochs=epochs)
        assert [len(lessons.conversations(epoch)) for epoch in range(2)] == [3 + wanted] * 2
        drawn.append([[lesson.tokens for lesson in lessons.conversations(epoch)] for epoch in range(2)])
    assert drawn[1][0] != drawn[1][1]
    assert [one[:3] for one in drawn[1]] == [drawn[0][0]] * 2


def test_an_action_is_read_as_its_id() -> None:
    retriever = opened("toolgen-agent")
    script = ConversationBuilder("do it")
    script.act(IDS[0])
    tokens = retriever.base().chat([])
    found = prompt(retriever, script.before_action())
    assert retriever.path(IDS[0])[0] in found
    assert found[-len(tokens) :] == tokens
