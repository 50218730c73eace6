"""A LangChain agent over a catalogue of tools: each call of the model carries the three right ones.

Runs offline, since the model is scripted. For a real one: create_agent("openai:gpt-5.5", …).

    pip install toolscout 'langchain>=1.4,<2'
    python examples/langchain_agent.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import office
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool

from toolscout import Scout
from toolscout.calling.dispatch import CallOptions, OriginCaller
from toolscout.integrations import langchain

REQUEST = "Has Miller & Sons paid their invoice? If not, send them a firm payment reminder."


@tool
def ask_user(question: str) -> str:
    """Ask the user something."""
    return input(question)


class ScriptedModel(BaseChatModel):
    """Stands in for a language model: says what the script says, and prints the tools that it was sent."""

    script: list[AIMessage]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        """Take the tools of one call."""
        return self.bind(names=[tool.name for tool in tools])

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        print("tools sent:", ", ".join(kwargs.get("names", ())))
        return ChatResult(generations=[ChatGeneration(message=self.script.pop(0))])


def call(name: str, **arguments: Any) -> AIMessage:
    """What a model says when it wants a tool to be run."""
    return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": name, "type": "tool_call"}])


def main() -> None:
    """Let the agent work on one request."""
    script = [
        call("office__find_invoice", customer="Miller & Sons"),
        call("office__send_reminder", invoice="1017", tone="firm"),
        AIMessage("Invoice 1017 was unpaid; a firm reminder is on its way."),
    ]
    with tempfile.TemporaryDirectory() as folder, Scout.open(Path(folder) / "tools.db") as scout:
        scout.add(office)
        print(f"tools in the catalogue: {scout.count()}")
        # `ask_user` is the agent's own; the others come from the catalogue as they are needed.
        caller = OriginCaller(CallOptions(allow=("office:*",)))  # a catalogue does not say what may be run
        bring = langchain.catalogue_middleware(scout, k=3, caller=caller)
        agent = create_agent(ScriptedModel(script=script), [ask_user], middleware=[bring])
        for message in agent.invoke({"messages": [{"role": "user", "content": REQUEST}]})["messages"]:
            if message.content:
                print(f"{message.type}: {message.content}")


if __name__ == "__main__":
    main()
