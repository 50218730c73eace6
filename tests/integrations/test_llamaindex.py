"""LlamaIndex, for real: object retrievers, alone and in an agent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.integrations.workshop import CALLER, FUNCTIONS, LION, NOTHING
from toolscout import Scout
from toolscout.integrations import Choice

pytest.importorskip("llama_index.core", reason="llama-index-core is not installed; run: make test-integrations")

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ToolCallBlock
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.objects import ObjectRetriever
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.tools import FunctionTool

from toolscout.integrations import llamaindex

TOOLS = [FunctionTool.from_defaults(function) for function in FUNCTIONS]


def names(tools: list[Any]) -> list[str]:
    return [tool.metadata.name for tool in tools]


def test_it_finds_an_agents_own_tools(scout: Scout) -> None:
    found = llamaindex.object_retriever(scout, TOOLS, Choice(k=2, pinned=("set_alarm",)))
    assert isinstance(found, ObjectRetriever)
    assert names(found.retrieve(LION))[:2] == ["set_alarm", "feed_lion"]
    assert found.retrieve(LION)[1] is TOOLS[-1]
    assert names(asyncio.run(found.aretrieve("play a song")))[1] == "play_music"
    assert names(found.retrieve(NOTHING)) == ["set_alarm"]
    assert names(found.retrieve(" ")) == ["set_alarm"]


def test_postprocessors_see_nodes_with_scores(scout: Scout) -> None:
    found = llamaindex.object_retriever(scout, TOOLS, Choice(k=3))
    best = SimilarityPostprocessor(similarity_cutoff=0.9)
    assert names(ObjectRetriever(found.retriever, found.object_node_mapping, [best]).retrieve(LION)) == ["feed_lion"]


def test_it_finds_tools_of_the_catalogue_which_run(stocked: Scout) -> None:
    lion, *_ = llamaindex.catalogue_retriever(stocked, k=2, caller=CALLER).retrieve(LION)
    assert lion.metadata.to_openai_tool()["function"]["parameters"]["required"] == ["meat"]
    assert lion.metadata.name == "workshop__feed_lion"
    assert lion.call(meat="beef").content == "the lion ate beef"
    assert asyncio.run(lion.acall(meat="beef")).content == "the lion ate beef"
    with pytest.raises(ValueError, match="lions do not eat salad"):
        lion.call(meat="salad")
    assert llamaindex.catalogue_retriever(stocked).retrieve(NOTHING) == []
    assert names(llamaindex.tools(stocked, ["workshop/play_music"])) == ["workshop__play_music"]


# LlamaIndex's workflows look at deprecated attributes of pydantic themselves.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_agent_uses_what_was_found(stocked: Scout) -> None:
    sent: list[list[str]] = []

    def reply(messages: Any, tools: Any = (), **kwargs: Any) -> ChatMessage:
        sent.append(names(tools))
        if any(message.role == "tool" for message in messages):
            return ChatMessage("Done.", role="assistant")
        call = ToolCallBlock(tool_call_id="1", tool_name="workshop__feed_lion", tool_kwargs={"meat": "beef"})
        return ChatMessage(role="assistant", blocks=[call])

    async def run() -> Any:
        llm = MockFunctionCallingLLM(response_generator=reply)
        agent = FunctionAgent(
            llm=llm, tool_retriever=llamaindex.catalogue_retriever(stocked, k=2, caller=CALLER), streaming=False
        )
        return await agent.run(user_msg=ChatMessage(LION))

    result = asyncio.run(run())
    assert [call.tool_output.content for call in result.tool_calls] == ["the lion ate beef"]
    assert "workshop__feed_lion" in sent[0]
