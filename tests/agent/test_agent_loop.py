"""The agent from the request to the answer, with a scripted model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.agent.brains import FORECAST, MAIL, TOOLS, Brain, called, lookup
from toolscout.agent.judging import trace
from toolscout.agent.loop import USED_UP, Agent, AgentOptions
from toolscout.agent.pickers import IdPicker, Picker, ShortlistPicker, picks_itself, request_of
from toolscout.calling.dispatch import OriginCaller
from toolscout.core.answer import Allowed
from toolscout.core.tool import Tool
from toolscout.data.conversations import ACTION, FINISH, Spent, Talks, Turn
from toolscout.errors import BadCompletion, BadRequest, UnknownTool
from toolscout.llm.base import Message


def both(requests: Sequence[str], k: int) -> list[list[Tool]]:
    return [[FORECAST, MAIL][:k] for _ in requests]


def caller() -> OriginCaller:
    functions = {FORECAST.id: lambda city, days=1: f"{days} days of sun in {city}", MAIL.id: lambda to="": f"to {to}"}
    return OriginCaller(functions=functions)


def once(conversation: Sequence[Message]) -> str:
    return "finish" if called(conversation) else "forecast"


def agent(brain: Brain, options: AgentOptions | None = None, **more: Any) -> Agent:
    return Agent(brain, ShortlistPicker(both, brain), caller(), lookup, options, **more)


def test_it_thinks_picks_fills_in_calls_and_answers() -> None:
    brain = Brain(once, lambda _: {"city": "Rome", "days": 2}, lambda said: said[-4].content)
    seen: list[tuple[int, str]] = []
    episode = agent(brain, watch=lambda number, step: seen.append((number, step.tool_id))).run(["Rain in Rome?"])[0]
    (step,) = episode.steps
    assert (step.tool_id, step.thought, step.arguments) == (FORECAST.id, "thought 1", {"city": "Rome", "days": 2})
    assert (step.valid, step.called, step.ok, step.exact) == (True, True, True, True)
    assert (step.repairs, step.refusals, step.observation) == ((), (), "2 days of sun in Rome")
    assert (episode.finish, episode.answer) == ("answered", "thought 2")
    assert episode.called == (FORECAST.id,)
    assert seen == [(0, FORECAST.id)]
    first = brain.asked[0]
    assert "- forecast: The weather to come.\n- send: Sends a mail.\n- finish" in first[0].content
    assert first[1].content == "Rain in Rome?"
    assert "Observation 1: 2 days of sun in Rome\nAnswer (answered): thought 2" in trace(episode)


def test_a_long_observation_says_how_much_of_the_response_is_missing() -> None:
    brain = Brain(once, lambda _: {"city": "Rome"})
    long = OriginCaller(functions={FORECAST.id: lambda city: "A" * 10_000_000})
    episode = Agent(brain, ShortlistPicker(both, brain), long, lookup).run(["Rain?"])[0]
    told = "A" * 1_000 + " … (9,999,000 more characters)"
    assert episode.steps[0].observation == told
    assert f"Observation 1: {told}\n" in trace(episode)
    assert any(said.content.startswith(f"Observation: {told}") for said in brain.asked[-1])


def test_requests_go_in_lockstep_and_end_by_themselves() -> None:
    def pick(conversation: Sequence[Message]) -> str:
        return "finish" if called(conversation) >= int(conversation[1].content[0]) else "forecast"

    brain = Brain(pick, lambda said: {"city": f"city {called(said)}"})
    episodes = agent(brain, AgentOptions(steps=2)).run(["0 a", "1 b", "2 c", "2 d"])
    assert [len(one.steps) for one in episodes] == [0, 1, 2, 2]
    assert [one.finish for one in episodes] == ["answered", "answered", "step_limit", "step_limit"]
    assert all(one.answer == "done" for one in episodes)
    # thought, pick, answer and arguments of four, then of the three that go on, then the answers at the limit
    assert brain.batches == [4, 4, 1, 3, 3, 3, 1, 2, 2]


def test_without_thoughts_the_action_is_asked_for_at_once() -> None:
    brain = Brain(once, lambda _: {"city": "Rome"})
    episode = agent(brain, AgentOptions(thoughts=False)).run(["Rain?"])[0]
    assert episode.steps[0].thought == ""
    assert brain.asked[0][1].content.startswith(f"Rain?\n{ACTION}")


@pytest.mark.parametrize("constrain", [True, False])
def test_arguments_are_repaired(constrain: bool) -> None:
    brain = Brain(once, lambda _: {"City": "Rome", "days": "2"})
    step = agent(brain, AgentOptions(constrain=constrain)).run(["Rain?"])[0].steps[0]
    assert step.arguments == {"city": "Rome", "days": 2}
    assert not step.valid  # also where the engine repairs what it promises to fit
    assert sorted(step.repairs) == ['"City": renamed to "city"', '"days": "2" taken as 2']


@pytest.mark.parametrize("constrain", [True, False])
def test_a_refusal_is_told_once(constrain: bool) -> None:
    def fill(conversation: Sequence[Message]) -> dict[str, Any]:
        return {"city": "Rome"} if "The input was refused" in conversation[-1].content else {"town": "Rome"}

    step = agent(Brain(once, fill), AgentOptions(constrain=constrain)).run(["Rain?"])[0].steps[0]
    assert (step.valid, step.called, step.arguments) == (False, True, {"city": "Rome"})
    assert len(step.refusals) == 1
    assert "city" in step.refusals[0]


def test_what_an_endpoint_got_right_when_asked_again_was_not_valid() -> None:
    class Corrected(Brain):
        def complete(self, conversations: Any, **settings: Any) -> Any:
            found = super().complete(conversations, **settings)
            return [[replace(one, refused="no JSON")] for (one,) in found]

    step = agent(Corrected(once, lambda _: {"city": "Rome"})).run(["Rain?"])[0].steps[0]
    assert (step.valid, step.called, step.refusals) == (False, True, ("no JSON",))


def test_what_is_refused_twice_is_not_called_and_the_model_hears_why() -> None:
    brain = Brain(once, lambda _: "I would rather not")
    episode = agent(brain, AgentOptions(constrain=False)).run(["Rain?"])[0]
    (step,) = episode.steps
    assert (step.called, len(step.refusals)) == (False, 2)
    assert "a JSON object is needed, got I would rather not" in step.observation
    assert any("Observation: error: the call was not made" in message.content for message in brain.asked[-1])
    assert (episode.finish, episode.called) == ("answered", ())


def test_a_call_may_be_refused() -> None:
    def approve(tool: Tool, arguments: Any) -> str:
        return "" if tool.annotations.get("readOnlyHint") else "not allowed"

    brain = Brain(lambda said: "send" if called(said) < 1 else once(said), lambda _: {"to": "Ann"})
    step = agent(brain, approve=approve).run(["Mail Ann"])[0].steps[0]
    assert (step.called, step.refusals) == (False, ("not allowed",))


def test_giving_up_and_failing() -> None:
    gave_up = {"return_type": "give_up_and_restart", "final_answer": "sorry"}
    episode = agent(Brain(lambda _: "finish", dict, lambda _: gave_up)).run(["Rain?"])[0]
    assert (episode.finish, episode.answer) == ("gave_up", "sorry")

    class Mute(Brain):
        def complete(self, conversations: Any, **settings: Any) -> Any:
            raise BadCompletion("nothing to say")

    episode = agent(Mute(once, dict)).run(["Rain?"])[0]
    assert (episode.finish, episode.reason) == ("model_failed", "nothing to say")
    episode = agent(Mute(once, dict), AgentOptions(thoughts=False)).run(["Rain?"])[0]
    assert (episode.finish, episode.reason) == ("model_failed", "nothing to say")


def test_a_failure_at_the_limit_is_no_answer() -> None:
    gave_up, few = {"return_type": "give_up_and_restart", "final_answer": ""}, AgentOptions(steps=1)
    episode = agent(Brain(once, lambda _: {"city": "Rome"}, lambda _: gave_up), few).run(["Rain?"])[0]
    assert (episode.finish, episode.reason, len(episode.steps)) == ("gave_up", USED_UP, 1)

    def fail(_: Sequence[Message]) -> str:
        raise BadCompletion("nothing to say")

    episode = agent(Brain(once, lambda _: {"city": "Rome"}, fail), few).run(["Rain?"])[0]
    assert (episode.finish, episode.reason) == ("model_failed", "nothing to say")


def test_free_words_are_an_answer_too() -> None:
    class Chatty(Brain):
        def _say(self, conversation: Sequence[Message]) -> str:
            text = super()._say(conversation)
            return "It is sunny." if "final_answer" in text else text

    brain = Chatty(lambda _: "finish", dict)
    assert agent(brain, AgentOptions(constrain=False)).run(["Rain?"])[0].answer == "It is sunny."


def test_a_model_that_writes_ids_picks_by_itself() -> None:
    class Generative(Picker):
        def pick(self, conversations: Talks, *, without: Spent = ()) -> list[str | None]:
            self.seen = conversations
            done = [any(turn.action for turn in turns) for turns in conversations]
            return [FINISH if over else None if "nothing" in request_of(turns) else MAIL.id
                    for over, turns in zip(done, conversations, strict=True)]  # fmt: skip

    picker, brain = Generative(), Brain(once, lambda _: {"to": "Ann"})
    episodes = Agent(brain, picker, caller(), lookup).run(["Mail Ann", "nothing"])
    assert [one.finish for one in episodes] == ["answered", "nothing_picked"]
    assert episodes[0].called == (MAIL.id,)
    assert picker.seen[0][-1].content == ACTION
    assert [turn.action for turn in picker.seen[0] if turn.action] == [MAIL.id]


def test_the_same_call_is_not_made_twice_and_its_tool_is_offered_no_more() -> None:
    def pick(conversation: Sequence[Message]) -> str:
        names = conversation[-1].content.partition("one of: ")[2]
        return "forecast" if "forecast" in names else "send" if "send" in names else "finish"

    brain = Brain(pick, lambda said: {"city": "Rome"} if "city" in said[-1].content else {"to": "Ann"})
    episode = agent(brain, AgentOptions(steps=6)).run(["Rain?"])[0]
    assert [(step.tool_id, step.called) for step in episode.steps] == [
        (FORECAST.id, True), (FORECAST.id, False), (MAIL.id, True), (MAIL.id, False),
    ]  # fmt: skip
    assert "was made before with the same input" in episode.steps[1].observation
    assert episode.finish == "answered"
    few = agent(brain, AgentOptions(steps=2)).run(["Rain?"])[0]
    assert few.called == episode.called  # what is repeated takes no step
    assert few.finish == "step_limit"


def test_a_picker_that_does_not_listen_ends_too() -> None:
    class Stubborn(Picker):
        def pick(self, conversations: Talks, *, without: Spent = ()) -> list[str | None]:
            return [FORECAST.id for _ in conversations]

    brain = Brain(once, lambda _: {"city": "Rome"})
    (episode,) = Agent(brain, Stubborn(), caller(), lookup, AgentOptions(steps=3)).run(["Rain?"])
    assert [step.repeated for step in episode.steps] == [False, True, True, True, True, True]
    assert episode.finish == "step_limit"


def test_a_call_with_another_input_is_made() -> None:
    cities = iter(("Rome", "Oslo", "Oslo", "Oslo"))
    brain = Brain(lambda _: "forecast", lambda _: {"city": next(cities)})
    episode = agent(brain, AgentOptions(steps=3)).run(["Rain in Rome or in Oslo?"])[0]
    assert [step.called for step in episode.steps] == [True, True, False]


def test_only_what_was_shown_can_be_picked() -> None:
    brain = Brain(lambda _: "delete_everything", dict)
    assert agent(brain).run(["Rain?"])[0].finish == "model_failed"
    twins = [Tool("a", "get"), Tool("b", "get"), Tool("c", "finish")]
    picker = ShortlistPicker(lambda requests, k: [twins for _ in requests], brain)
    assert set(picker.shown("x")) == {"a__get", "b__get", "c__finish"}


def test_no_tool_takes_the_name_of_another() -> None:
    tools = [Tool("a", "b"), Tool("c", "b"), Tool("z", "a__b"), Tool("z", "plain")]
    picker = ShortlistPicker(lambda requests, k: [tools for _ in requests], Brain(once, dict))
    assert {name: tool.id for name, tool in picker.shown("x").items()} == {
        "a__b": "a/b", "c__b": "c/b", "z__a__b": "z/a__b", "plain": "z/plain",
    }  # fmt: skip


def test_requests_with_tools_of_their_own_are_one_batch() -> None:
    def searched(requests: Sequence[str], k: int) -> list[list[Tool]]:
        return [[MAIL] if request == "Mail" else [FORECAST, MAIL] for request in requests]

    def pick(conversation: Sequence[Message]) -> str:
        return (
            "finish" if called(conversation) else "send" if conversation[1].content.startswith("Mail") else "forecast"
        )

    brain = Brain(pick, lambda said: {"city": "Rome"} if "city" in said[-1].content else {})
    made = Agent(brain, ShortlistPicker(searched, brain), caller(), lookup)
    assert [one.called for one in made.run(["Mail", "Rain?"])] == [(MAIL.id,), (FORECAST.id,)]
    assert brain.batches == [2] * 6  # thought, pick, arguments; thought, pick, answer
    assert [message.action for message in brain.asked[-1] if message.action] == [FORECAST.id, FINISH]


def test_a_model_that_writes_ids_writes_what_its_caller_may_see() -> None:
    class Writer:
        def pick(self, conversations: Talks, allowed: Allowed | None = None, without: Spent = ()) -> list[str | None]:
            return [MAIL.id if allowed and allowed.permits(MAIL.id) else None for _ in conversations]

    turns = [[Turn("user", "Mail Ann")]]
    assert IdPicker(Writer(), Allowed.of(ids=[MAIL.id])).pick(turns) == [MAIL.id]
    assert IdPicker(Writer(), Allowed.of(ids=[FORECAST.id])).pick(turns) == [None]
    assert not picks_itself(Writer())


def test_a_tool_that_was_removed_meanwhile_ends_its_own_run_alone() -> None:
    def gone(ids: Sequence[str]) -> list[Tool]:
        if MAIL.id in ids:
            raise UnknownTool(f"the catalogue has no tool {MAIL.id}")
        return lookup(ids)

    def pick(conversation: Sequence[Message]) -> str:
        return "send" if any("mail" in one.content.split("\n")[0] for one in conversation[1:2]) else once(conversation)

    brain = Brain(pick, lambda _: {"city": "Rome"})
    runner = Agent(brain, ShortlistPicker(both, brain), caller(), gone)
    first, second = runner.run(["mail Bob", "the weather?"])
    assert (first.finish, first.reason) == ("model_failed", f"the catalogue has no tool {MAIL.id} any more")
    assert (second.finish, second.called) == ("answered", (FORECAST.id,))


def test_options_and_empty_batches() -> None:
    with pytest.raises(BadRequest):
        AgentOptions(steps=0)
    assert agent(Brain(once, dict)).run([]) == []
    assert set(TOOLS) == {FORECAST.id, MAIL.id}
