"""OpenAI Agents SDK, for real: agents whose model is scripted, and what that model was sent."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.integrations.workshop import CALLER, FUNCTIONS, LION, NAMES, NOTHING
from toolscout import Scout
from toolscout.integrations import Choice
from toolscout.integrations.toolbox import NOTHING_FITS

pytest.importorskip("agents.testing", reason="openai-agents is not installed; run: make test-integrations")

from agents import Agent, ModelSettings, RunConfig, Runner, WebSearchTool, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call

from toolscout.integrations import openai_agents

TOOLS = [function_tool(function) for function in FUNCTIONS]
QUIET = RunConfig(tracing_disabled=True)


def ran(agent: Any, given: Any) -> Any:
    return asyncio.run(Runner.run(agent, given, run_config=QUIET))  # run_sync leaves an event loop open


def sent(model: ScriptedModel) -> list[list[str]]:
    return [[tool.name for tool in call.tools] for call in model.calls]


def outputs(result: Any) -> list[str]:
    return [item.output for item in result.new_items if item.type == "tool_call_output_item"]


def lion_script(name: str = "feed_lion", **arguments: Any) -> ScriptedModel:
    return ScriptedModel([[function_call(name, arguments, call_id="1")], [assistant_message("Done.")]])


def test_the_model_sees_the_right_tools_and_the_agent_runs_them(scout: Scout) -> None:
    model = lion_script(meat="beef", hungry=True)
    cut = openai_agents.narrowed(model, scout, Choice(k=2, pinned=("set_alarm",)))
    agent = Agent("keeper", tools=[*TOOLS, WebSearchTool()], model=cut)
    result = ran(agent, LION)
    assert (result.final_output, outputs(result)) == ("Done.", ["the lion ate beef"])
    for names in sent(model):
        assert {"feed_lion", "set_alarm", "web_search"} <= set(names)
        assert len(names) <= 4
        assert names[:-1] == [name for name in NAMES if name in names]


def test_streams_are_cut_alike(scout: Scout) -> None:
    model = lion_script(meat="beef", hungry=True)

    async def run() -> Any:
        agent = Agent("keeper", tools=TOOLS, model=openai_agents.narrowed(model, scout, Choice(k=1)))
        result = Runner.run_streamed(agent, LION, run_config=QUIET)
        return [event.type async for event in result.stream_events()], result.final_output

    events, said = asyncio.run(run())
    assert "raw_response_event" in events
    assert said == "Done."
    assert sent(model) == [["feed_lion"], ["feed_lion"]]


def test_what_a_request_names_or_used_is_sent(scout: Scout) -> None:
    model = ScriptedModel([[assistant_message("Hm.")]])
    cut = openai_agents.narrowed(model, scout, Choice(k=1))
    agent = Agent("keeper", tools=TOOLS, model=cut, model_settings=ModelSettings(tool_choice="stock_price"))
    talk = [
        {"role": "user", "content": "a flight"},
        {"type": "function_call", "name": "book_flight", "call_id": "1", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "FRA-OSL"},
        {"role": "user", "content": [{"type": "input_text", "text": LION}]},
    ]
    ran(agent, talk)
    assert sent(model) == [["book_flight", "stock_price", "feed_lion"]]


def test_two_tools_stand_for_the_catalogue(stocked: Scout) -> None:
    search = function_call("search_tools", {"query": LION}, call_id="1")
    use = function_call("call_tool", {"name": "workshop__feed_lion", "arguments": {"meat": "beef"}}, call_id="2")
    model = ScriptedModel([[search], [use], [assistant_message("Done.")]])
    agent = Agent("keeper", tools=openai_agents.catalogue_tools(stocked, k=2, caller=CALLER), model=model)
    found, fed = outputs(ran(agent, LION))
    assert json.loads(found)["tools"][0]["name"] == "workshop__feed_lion"
    assert fed == "the lion ate beef"


def test_the_two_tools_say_what_is_wrong(stocked: Scout) -> None:
    search, use = openai_agents.catalogue_tools(stocked, caller=CALLER)

    def invoked(tool: Any, given: str) -> str:
        return str(asyncio.run(tool.on_invoke_tool(None, given)))

    assert invoked(search, json.dumps({"query": NOTHING})) == NOTHING_FITS
    assert "empty" in invoked(search, "{}")
    assert invoked(search, "[").startswith("error")
    assert invoked(search, "[]").startswith("error")
    assert "search_tools first" in invoked(use, '{"name": "workshop__send_mail"}')
    invoked(search, json.dumps({"query": LION}))
    assert "meat" in invoked(use, '{"name": "workshop__feed_lion"}')
    assert "one JSON object" in invoked(use, '{"name": "workshop__feed_lion", "arguments": 3}')


def test_tools_of_the_catalogue(stocked: Scout) -> None:
    model = lion_script("workshop__feed_lion", meat="salad")
    agent = Agent("keeper", tools=openai_agents.tools(stocked, ["workshop/feed_lion"], CALLER), model=model)
    (said,) = outputs(ran(agent, LION))
    assert "lions do not eat salad" in said
