"""Pydantic AI, for real: an agent whose model searches before it calls."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.integrations.workshop import CALLER, FUNCTIONS, LION, NAMES, NOTHING
from toolscout import Scout
from toolscout.core import vendor_formats
from toolscout.integrations import Choice

pytest.importorskip("pydantic_ai", reason="pydantic-ai-slim is not installed; run: make test-integrations")

from pydantic_ai import Agent, Tool
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.tools import ToolDefinition

from toolscout.integrations import pydantic_ai


def scripted(script: list[Any], sent: list[list[str]]) -> FunctionModel:
    def model(messages: Any, info: AgentInfo) -> ModelResponse:
        sent.append([tool.name for tool in info.function_tools])
        return ModelResponse(parts=[script.pop(0)])

    return FunctionModel(model)


def returned(result: Any) -> list[Any]:
    return [part.content for m in result.all_messages() for part in m.parts if isinstance(part, ToolReturnPart)]


def test_an_agent_finds_a_deferred_tool_and_calls_it(scout: Scout) -> None:
    sent: list[list[str]] = []
    script = [
        ToolCallPart("search_tools", {"queries": ["feed a lion with meat"]}),
        ToolCallPart("feed_lion", {"meat": "beef"}),
        TextPart("Done."),
    ]
    tools = [Tool(function, defer_loading=True) for function in FUNCTIONS]
    search = pydantic_ai.tool_search(scout, Choice(k=2))
    agent = Agent(scripted(script, sent), tools=tools, capabilities=[search])
    result = asyncio.run(agent.run(LION))
    assert result.output == "Done."
    assert sent[0] == ["search_tools"]
    assert "feed_lion" in sent[1]
    assert len(sent[1]) <= 3
    assert returned(result)[1] == "the lion ate beef"


def test_nothing_is_found_where_nothing_fits(scout: Scout) -> None:
    sent: list[list[str]] = []
    script = [ToolCallPart("search_tools", {"queries": [NOTHING]}), TextPart("No such tool.")]
    tools = [Tool(function, defer_loading=True) for function in FUNCTIONS]
    agent = Agent(scripted(script, sent), tools=tools, capabilities=[pydantic_ai.tool_search(scout)])
    (found,) = returned(asyncio.run(agent.run(NOTHING)))
    assert found["discovered_tools"] == []
    assert sent[1] == ["search_tools"]


def test_the_best_of_each_query_come_first(scout: Scout) -> None:
    tools = [ToolDefinition(name=f.__name__, description=f.__doc__) for f in FUNCTIONS]
    search = pydantic_ai.strategy(scout, Choice(k=3))
    found = asyncio.run(search(None, ["feed the lion meat", "", "play a song"], tools))
    assert set(found[:2]) == {"feed_lion", "play_music"}
    assert len(set(found)) == len(found)
    assert asyncio.run(search(None, [], tools)) == []
    assert asyncio.run(search(None, ["feed the lion"], [])) == []


def test_the_catalogues_tools_are_searched_under_their_own_ids(stocked: Scout) -> None:
    before = stocked.count()
    ids = [f"workshop/{name}" for name in NAMES]
    names = {vendor_formats.wire_name(one): one for one in ids}
    script = [
        ToolCallPart("search_tools", {"queries": ["feed a lion with meat"]}),
        ToolCallPart("workshop__feed_lion", {"meat": "salad"}),
        ToolCallPart("workshop__feed_lion", {"meat": "beef"}),
        TextPart("Done."),
    ]
    sent: list[list[str]] = []
    agent = Agent(
        scripted(script, sent),
        toolsets=[pydantic_ai.toolset(stocked, ids, CALLER)],
        capabilities=[pydantic_ai.tool_search(stocked, Choice(ids=names))],
    )
    assert returned(asyncio.run(agent.run(LION)))[-1] == "the lion ate beef"
    assert stocked.count() == before
