"""Haystack, for real: toolsets, alone and in an agent whose model is scripted."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integrations.workshop import CALLER, FUNCTIONS, LION, NAMES, NOTHING
from toolscout import Scout
from toolscout.integrations import Choice
from toolscout.integrations.toolbox import NOTHING_FITS

pytest.importorskip("haystack", reason="haystack-ai is not installed; run: make test-integrations")

from haystack import component
from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.tools import Toolset, create_tool_from_function

from toolscout.integrations import haystack

TOOLS = [create_tool_from_function(function) for function in FUNCTIONS]


@component
class Scripted:
    """Says what it is told to and remembers the tools that it was sent."""

    def __init__(self, script: list[ChatMessage]) -> None:
        self.script, self.sent = script, list[list[str]]()

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage], tools: Any = None, **kwargs: Any) -> dict[str, Any]:
        self.sent.append([tool.name for tool in tools or ()])
        return {"replies": [self.script.pop(0)]}


def call(name: str, **arguments: Any) -> ChatMessage:
    return ChatMessage.from_assistant(tool_calls=[ToolCall(name, arguments, id=name)])


def shown(toolset: Any) -> list[str]:
    return [tool.name for tool in toolset]


def searched(toolset: Any, query: str) -> str:
    return str(next(iter(toolset)).invoke(query=query))


def test_a_model_sees_the_search_and_what_it_found(scout: Scout) -> None:
    toolset = haystack.toolset(scout, TOOLS, Choice(k=2, pinned=("set_alarm",)))
    assert shown(toolset) == ["search_tools", "set_alarm"]
    assert "feed_lion" in searched(toolset, LION)
    assert "feed_lion" in toolset
    assert shown(toolset)[:3] == ["search_tools", "set_alarm", "feed_lion"]
    assert searched(toolset, NOTHING) == NOTHING_FITS
    assert "empty" in searched(toolset, " ")


def test_runs_do_not_share_what_they_found_and_keep_to_their_selection(scout: Scout) -> None:
    toolset = haystack.toolset(scout, Toolset(TOOLS), Choice(k=5))
    one, other = toolset.spawn(), toolset.spawn({"play_music", "set_alarm"})
    searched(one, LION)
    assert "feed_lion" in shown(one)
    assert shown(other) == ["search_tools"]
    assert "feed_lion" not in searched(other, LION)
    searched(other, "play a song")
    assert "play_music" in shown(other)
    assert shown(toolset) == ["search_tools"]
    assert [tool.name for tool in toolset.get_selectable_tools()] == NAMES


def test_few_tools_are_all_shown(scout: Scout) -> None:
    assert shown(haystack.toolset(scout, TOOLS[:3])) == NAMES[:3]


def test_it_says_what_it_cannot_do(scout: Scout) -> None:
    toolset = haystack.toolset(scout, TOOLS)
    with pytest.raises(NotImplementedError, match="at once"):
        toolset.add(TOOLS[0])
    with pytest.raises(NotImplementedError, match="anew"):
        toolset.to_dict()


@pytest.mark.parametrize("from_catalogue", [False, True])
def test_an_agent_searches_and_calls(scout: Scout, stocked: Scout, from_catalogue: bool) -> None:
    toolset = (
        haystack.catalogue_toolset(stocked, k=2, caller=CALLER) if from_catalogue else haystack.toolset(scout, TOOLS)
    )
    name = "workshop__feed_lion" if from_catalogue else "feed_lion"
    script = [call("search_tools", query=LION), call(name, meat="beef"), ChatMessage.from_assistant("Done.")]
    model = Scripted(script)
    agent = Agent(chat_generator=model, tools=toolset)
    messages = agent.run(messages=[ChatMessage.from_user(LION)])["messages"]
    assert messages[-1].text == "Done."
    assert messages[-2].tool_call_result.result == "the lion ate beef"
    assert model.sent[0] == ["search_tools"]
    assert name in model.sent[1]


def test_tools_of_the_catalogue(stocked: Scout) -> None:
    (lion,) = haystack.tools(stocked, ["workshop/feed_lion"], CALLER)
    assert lion.invoke(meat="beef") == "the lion ate beef"
    assert "lions do not eat salad" in lion.invoke(meat="salad")
