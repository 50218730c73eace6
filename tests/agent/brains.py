"""Language models for the agent's tests: they answer by what they are asked for, and count the calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toolscout.core.tool import Tool
from toolscout.data.conversations import INPUT
from toolscout.llm.base import Completion, Message
from toolscout.llm.scripted import Scripted, ScriptedReply

Conversation = Sequence[Message]
Decide = Callable[[Conversation], Any]

CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}
FORECAST = Tool("weather", "forecast", "The weather to come.", input_schema=CITY, annotations={"readOnlyHint": True})
MAIL = Tool("mail", "send", "Sends a mail.", input_schema={"type": "object", "properties": {"to": {"type": "string"}}})
TOOLS = {tool.id: tool for tool in (FORECAST, MAIL)}


def lookup(ids: Sequence[str]) -> list[Tool]:
    return [TOOLS[tool_id] for tool_id in ids]


def called(conversation: Conversation) -> int:
    """How many observations it has seen."""
    return sum(message.content.startswith("Observation: ") for message in conversation)


class Brain(Scripted):
    """Thinks, picks and fills in by functions of the conversation; `batches` are the sizes of its calls."""

    def __init__(self, pick: Decide, fill: Decide, answer: Decide = lambda _: "done") -> None:
        super().__init__([ScriptedReply(self._say, when="")])
        self._decide = (pick, fill, answer)
        self.batches: list[int] = []

    def complete(self, conversations: Sequence[Conversation], **settings: Any) -> list[list[Completion]]:
        self.batches.append(len(conversations))
        return super().complete(conversations, **settings)

    def _say(self, conversation: Conversation) -> str:
        pick, fill, answer = self._decide
        last = conversation[-1].content
        if 'JSON: {"tool": NAME}' in last:
            return json.dumps({"tool": pick(conversation)})
        if last.startswith(INPUT + '{"name": "Finish"'):
            given = answer(conversation)
            return json.dumps(given if isinstance(given, Mapping) else _answer(given))
        if last.startswith(INPUT):
            given = fill(conversation)
            return given if isinstance(given, str) else json.dumps(given)
        return f"thought {called(conversation) + 1}"


def _answer(text: str) -> dict[str, str]:
    return {"return_type": "give_answer", "final_answer": text}
