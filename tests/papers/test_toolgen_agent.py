"""ToolGen's agent as published, with a scripted model: its turns, its limits, its retries, and how it gives up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.agent.brains import FORECAST, MAIL, Brain, called, lookup
from toolscout.agent.pickers import Picker, Unpicked
from toolscout.calling.dispatch import OriginCaller
from toolscout.core.tool import Tool
from toolscout.data.conversations import ACTION, FINISH, INPUT, Spent, Talks
from toolscout.llm.base import Completion, Message
from toolscout.papers.toolgen_agent import PublishedAgent, PublishedAgentOptions

CALLER = OriginCaller(functions={FORECAST.id: lambda city, days=1: f"sun in {city}", MAIL.id: lambda to="": "sent"})


class Ids(Picker):
    """Names these actions, one after another."""

    def __init__(self, *actions: str | Unpicked | None) -> None:
        self.actions, self.seen = list(actions), list[list[tuple[str, str]]]()

    def pick(self, conversations: Talks, *, without: Spent = ()) -> Sequence[str | Unpicked | None]:
        self.seen += [[(turn.role, turn.content) for turn in turns] for turns in conversations]
        return [self.actions.pop(0) for _ in conversations]


class Writer(Brain):
    """Answers by functions of the conversation, and notes the temperatures."""

    def __init__(self, fill: Any = None, *answers: Any, tokens: int = 0) -> None:
        super().__init__(
            lambda _: "", lambda _: {"city": "Rome"} if fill is None else fill, lambda _: self.answers.pop(0)
        )
        self.answers, self.tokens, self.temperatures = list(answers) or ["done"], tokens, list[float]()

    def complete(self, conversations: Sequence[Sequence[Message]], **settings: Any) -> list[list[Completion]]:
        self.temperatures.append(settings["temperature"])
        done = super().complete(conversations, **settings)
        each = zip(done, conversations, strict=True)
        return [[Completion(one.text, self.tokens * called(said), 0, "stop")] for (one,), said in each]


def published(writer: Brain, picker: Picker, **options: Any) -> PublishedAgent:
    return PublishedAgent(writer, picker, CALLER, lookup, PublishedAgentOptions(**options))


def test_a_step_is_thought_action_arguments_and_observation() -> None:
    writer, picker = Writer(), Ids(FORECAST.id, FINISH)
    (episode,) = published(writer, picker).run(["Rain in Rome?"])
    (step,) = episode.steps
    assert (step.thought, step.tool_id, step.arguments) == ("thought 1", FORECAST.id, {"city": "Rome"})
    assert (step.valid, step.called, step.ok, step.observation) == (True, True, True, "sun in Rome")
    assert (episode.finish, episode.answer, episode.reason) == ("answered", "done", "")
    assert [role for role, _ in picker.seen[1]] == ["system", *["user", "assistant"] * 4, "user"]
    words = [content for _, content in picker.seen[1][1:]]
    assert words[:4] == ["Rain in Rome?", "thought 1", ACTION, FORECAST.id]
    assert words[4].startswith(f'{INPUT}{{"name": "forecast"')
    assert words[5:] == ['{"city": "Rome"}', "Observation: sun in Rome", "thought 2", ACTION]
    # No tool's documentation is shown before the tool was chosen.
    assert not any(FORECAST.description in message.content for message in writer.asked[0])


def test_without_thoughts_the_action_comes_at_once() -> None:
    writer, picker = Writer(), Ids(FORECAST.id, FINISH)
    (episode,) = published(writer, picker, thoughts=False).run(["Rain?"])
    assert (episode.steps[0].thought, episode.answer) == ("", "done")
    assert [said[-1].content.startswith(INPUT) for said in writer.asked] == [True, True]
    assert picker.seen[0][-1] == ("user", f"Rain?\n{ACTION}")


def test_arguments_are_taken_as_they_are_written() -> None:
    (episode,) = published(Writer("Rome, please"), Ids(FORECAST.id, FINISH)).run(["Rain?"])
    (step,) = episode.steps
    assert (step.called, step.arguments, step.observation) == (False, None, "error: the input is no JSON object")
    wrong, same = published(Writer({"days": "x"}), Ids(FORECAST.id, FORECAST.id, FINISH)).run(["Rain?"])[0].steps
    assert (wrong.called, wrong.valid, wrong.ok) == (True, False, False)
    assert (same.called, same.repeated) == (True, False)


GIVE_UP = {"return_type": "give_up_and_restart", "final_answer": "no tool helps"}


def test_who_gives_up_tries_again_warmer() -> None:
    sorry = {"return_type": "give_answer", "final_answer": "I'm sorry, no."}
    writer = Writer({}, GIVE_UP, sorry, "It rains.")
    (episode,) = published(writer, Ids(FINISH, FINISH, FINISH)).run(["Rain?"])
    assert (episode.finish, episode.answer) == ("answered", "It rains.")
    assert episode.reason == "steps were written again 2 times"
    assert writer.temperatures == [0.0, 0.0, 0.6, 0.6, 1.0, 1.0]


def test_a_retry_may_go_on_with_a_tool() -> None:
    writer = Writer({"to": "Ann"}, GIVE_UP, "Sent.")
    (episode,) = published(writer, Ids(FINISH, MAIL.id, FINISH)).run(["Mail Ann"])
    assert (episode.called, episode.answer) == ((MAIL.id,), "Sent.")


@pytest.mark.parametrize(("retry", "asked"), [(True, 5), (False, 1)])
def test_it_gives_up_in_the_end(retry: bool, asked: int) -> None:
    writer = Writer({}, *[GIVE_UP] * 5)
    (episode,) = published(writer, Ids(*[FINISH] * 5), retry=retry, thoughts=False).run(["Rain?"])
    assert (episode.finish, episode.answer, len(writer.asked)) == ("gave_up", "no tool helps", asked)


@pytest.mark.parametrize(("thoughts", "steps"), [(True, 6), (False, 8)])
def test_sixteen_turns_end_it_without_an_answer(thoughts: bool, steps: int) -> None:
    (episode,) = published(Writer(), Ids(*[FORECAST.id] * 9), thoughts=thoughts).run(["Rain?"])
    assert (len(episode.steps), episode.finish, episode.answer) == (steps, "step_limit", "")


def test_a_trajectory_has_a_limit_of_tokens() -> None:
    (episode,) = published(Writer(tokens=2_500), Ids(*[FORECAST.id] * 9)).run(["Rain?"])
    assert (len(episode.steps), episode.finish) == (3, "step_limit")  # the fourth step reads three observations
    assert episode.reason == "the trajectory is longer than 6,144 tokens"


def test_requests_go_in_lockstep_and_fail_alone() -> None:
    class Broken(Writer):
        def _say(self, conversation: Sequence[Message]) -> str:
            return "no JSON at all" if conversation[-1].content.startswith(INPUT) else super()._say(conversation)

    picker = Ids(MAIL.id, None, Unpicked("the model is away"), FINISH)
    episodes = published(Broken(), picker).run(["a", "b", "c"])
    assert [one.finish for one in episodes] == ["answered", "nothing_picked", "model_failed"]
    assert episodes[0].answer == "no JSON at all"
    assert published(Writer(), Ids()).run([]) == []


def test_tools_are_looked_up_once_for_all_requests() -> None:
    asked: list[list[str]] = []

    def found(ids: Sequence[str]) -> list[Tool]:
        asked.append(list(ids))
        return lookup(ids)

    picker = Ids(MAIL.id, MAIL.id, FINISH, FINISH)
    PublishedAgent(Writer({"to": "Ann"}, "x", "y"), picker, CALLER, found).run(["a", "b"])
    assert asked == [[MAIL.id], []]
