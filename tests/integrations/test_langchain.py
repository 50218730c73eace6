"""LangChain, for real: documents, agents whose model is scripted, and what that model was sent."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tests.integrations.workshop import CALLER, FUNCTIONS, LION, NAMES, NOTHING
from toolscout import Allowed, Answer, Scout
from toolscout.integrations import Choice

pytest.importorskip("langchain", reason="langchain is not installed; run: make test-integrations")

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool as as_tool

from toolscout.integrations import langchain

TOOLS = [as_tool(function) for function in FUNCTIONS]


class Scripted(BaseChatModel):
    """Says what it is told to and remembers the tools that it was sent."""

    script: list[Any]
    sent: list[list[str]]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self.bind(names=[getattr(one, "name", None) or one["type"] for one in tools])

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        self.sent.append(kwargs.get("names", []))
        return ChatResult(generations=[ChatGeneration(message=self.script.pop(0))])


def call(name: str, **arguments: Any) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": f"call_{name}", "type": "tool_call"}])


def asked(text: str) -> Any:
    return {"messages": [{"role": "user", "content": text}]}


def test_the_retriever_gives_tools_as_documents(stocked: Scout) -> None:
    found = langchain.retriever(stocked, k=2).invoke(LION)
    assert found[0].id == "workshop/feed_lion"
    assert found[0].page_content.startswith("feed_lion: Gives the lion")
    assert found[0].metadata["inputSchema"]["required"] == ["meat"]
    assert found[0].metadata["why"]
    assert len(found) == 2


def test_coroutines_search_in_the_threads_of_the_scout(stocked: Scout, monkeypatch: pytest.MonkeyPatch) -> None:
    real, names = stocked.search, []

    def search(*args: Any, **kwargs: Any) -> Answer:
        names.append(threading.current_thread().name)
        return real(*args, **kwargs)

    monkeypatch.setattr(stocked, "search", search)
    found = asyncio.run(langchain.retriever(stocked, k=2).ainvoke(LION))
    assert found == langchain.retriever(stocked, k=2).invoke(LION)
    assert names[0].startswith("toolscout-search")


def test_the_retriever_is_honest_and_keeps_to_what_is_allowed(stocked: Scout) -> None:
    assert langchain.retriever(stocked).invoke(NOTHING) == []
    only = Allowed.of(ids=["workshop/play_music"])
    ids = [one.id for one in asyncio.run(langchain.retriever(stocked, allowed=only).ainvoke("play a song"))]
    assert ids == ["workshop/play_music"]


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
def test_an_agent_sends_its_model_the_right_tools_and_runs_them(scout: Scout, how: str) -> None:
    model = Scripted(script=[call("feed_lion", meat="beef"), AIMessage("Done.")], sent=[])
    cut = langchain.middleware(scout, Choice(k=2, pinned=("set_alarm",)))
    agent = create_agent(model, TOOLS, middleware=[cut])
    result = agent.invoke(asked(LION)) if how == "invoke" else asyncio.run(agent.ainvoke(asked(LION)))
    assert [message.content for message in result["messages"]][2:] == ["the lion ate beef", "Done."]
    for sent in model.sent:
        assert "feed_lion" in sent
        assert "set_alarm" in sent
        assert len(sent) <= 3
        assert sent == [name for name in NAMES if name in sent]  # the order never changes


def test_tools_that_were_called_stay_and_few_tools_all_pass(scout: Scout) -> None:
    model = Scripted(script=[AIMessage("Hm."), AIMessage("Hm.")], sent=[])
    agent = create_agent(model, TOOLS, middleware=[langchain.middleware(scout, Choice(k=1))])
    called = call("book_flight", origin="FRA", destination="OSL")
    answered = {"role": "tool", "content": "FRA-OSL", "tool_call_id": "call_book_flight"}
    talk = [{"role": "user", "content": "a flight"}, called, answered, {"role": "user", "content": LION}]
    agent.invoke({"messages": talk})
    assert model.sent.pop() == ["book_flight", "feed_lion"]
    create_agent(model, TOOLS[:5], middleware=[langchain.middleware(scout, Choice(k=1))]).invoke(asked(LION))
    assert model.sent.pop() == NAMES[:5]


def test_abstaining_sends_none_where_none_fits(scout: Scout) -> None:
    for abstain, count in ((True, 0), (False, 2)):
        model = Scripted(script=[AIMessage("No.")], sent=[])
        cut = langchain.middleware(scout, Choice(k=2, abstain=abstain))
        create_agent(model, TOOLS, middleware=[cut]).invoke(asked(NOTHING))
        assert len(model.sent[0]) == count


def test_tools_are_embedded_once(scout: Scout) -> None:
    model = Scripted(script=[AIMessage("1"), AIMessage("2"), AIMessage("3")], sent=[])
    agent = create_agent(model, TOOLS, middleware=[langchain.middleware(scout)])
    versions = [agent.invoke(asked(LION)) and scout.search(LION).version for _ in range(2)]
    create_agent(model, TOOLS, middleware=[langchain.middleware(scout)]).invoke(asked(LION))
    assert {*versions, scout.search(LION).version} == {1}


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
def test_the_catalogue_joins_an_agent(stocked: Scout, how: str) -> None:
    model = Scripted(script=[call("workshop__feed_lion", meat="beef"), AIMessage("Done.")], sent=[])
    agent = create_agent(model, [], middleware=[langchain.catalogue_middleware(stocked, k=2, caller=CALLER)])
    result = agent.invoke(asked(LION)) if how == "invoke" else asyncio.run(agent.ainvoke(asked(LION)))
    assert [message.content for message in result["messages"]][2:] == ["the lion ate beef", "Done."]
    assert "workshop__feed_lion" in model.sent[0]
    assert len(model.sent[0]) <= 2


def test_a_call_that_fails_is_told_to_the_model(stocked: Scout) -> None:
    (lion,) = langchain.tools(stocked, ["workshop/feed_lion"], CALLER)
    assert lion.invoke({"meat": "beef"}) == "the lion ate beef"
    assert "lions do not eat salad" in lion.invoke({"meat": "salad"})
    assert "meat" in lion.invoke({})


def test_a_tool_that_was_never_found_is_an_error_that_the_model_is_told(stocked: Scout) -> None:
    model = Scripted(script=[call("workshop__no_such"), AIMessage("Sorry.")], sent=[])
    agent = create_agent(model, [], middleware=[langchain.catalogue_middleware(stocked, caller=CALLER)])
    answered = agent.invoke(asked(LION))["messages"]
    assert answered[-2].status == "error"
    assert answered[-1].content == "Sorry."
