"""Choose the next tool of an agent: from a shortlist in the prompt, or by a model that generates tool ids."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from toolscout.agent.llm_batch import ask, json_object
from toolscout.core.answer import Allowed
from toolscout.core.tool import Tool
from toolscout.core.vendor_formats import first_sentence, wire_name
from toolscout.data.conversations import FINISH, Spent, Talks, Turn, request_of
from toolscout.llm.base import LanguageModel
from toolscout.retrievers.generative.base import SPECIALS, GenerativeRetriever, free_actions

Search = Callable[[Sequence[str], int], list[list[Tool]]]
"""Takes requests and k; returns the k best tools of each request."""

_FINISH = "finish"
_PICK_TOKENS = 48


@dataclass(frozen=True, slots=True)
class Unpicked:
    """No tool was chosen because the language model failed; `reason` says how."""

    reason: str


@dataclass(frozen=True, slots=True)
class InventedTool:
    """A model that generates freely named a tool that there is not; `name` is what it wrote."""

    name: str


Pick = str | Unpicked | InventedTool | None
"""A tool id, FINISH, Unpicked (the model failed), InventedTool, or None (nothing was named)."""


class Picker(ABC):
    """Chooses the next action of each conversation."""

    @abstractmethod
    def pick(self, conversations: Talks, *, without: Spent = ()) -> Sequence[Pick]:
        """Return the next action of each conversation.

        Each conversation ends with the turn "Generate the action.". `without` holds, for each, the ids not to choose.
        """

    def introduce(self, requests: Sequence[str]) -> list[str]:
        """Return text to add to the system prompt of each request, such as a list of tools; "" by default."""
        return [""] * len(requests)


class IdPicker(Picker):
    """Has a model that generates tool ids generate the next one, among the tools that the caller may see."""

    def __init__(self, writer: GenerativeRetriever, allowed: Allowed | None = None) -> None:
        """`allowed`: the tools that the caller may see; None: all of them."""
        self._writer, self._allowed = writer, allowed

    def pick(self, conversations: Talks, *, without: Spent = ()) -> list[Pick]:
        """Return the tool id or FINISH that the model generates for each conversation."""
        return list(self._writer.pick(conversations, self._allowed, without))


class FreeIdPicker(Picker):
    """Has a model that generates tool ids generate the next one without the trie of ids: it may invent one."""

    def __init__(self, writer: GenerativeRetriever) -> None:
        """Take the model."""
        self._writer = writer

    def pick(self, conversations: Talks, *, without: Spent = ()) -> list[Pick]:
        """Return the tool id, FINISH or InventedTool that the model generates; `without` cannot be heeded."""
        return [
            None
            if one is None
            else InventedTool(one.text)
            if not one.key
            else FINISH
            if one.key in SPECIALS
            else one.key
            for one in free_actions(self._writer, conversations)
        ]


def picks_itself(retriever: object) -> TypeGuard[GenerativeRetriever]:
    """Return whether a retriever generates tool ids and was trained on agent conversations, as IdPicker needs."""
    return isinstance(retriever, GenerativeRetriever) and bool(retriever.options.trajectories)


class ShortlistPicker(Picker):
    """Puts the k best tools of a search into the prompt; the model names one of them or finishes.

    Each request is searched once. A tool goes by its name, or by its wire name where another tool has the same name.
    """

    def __init__(self, search: Search, llm: LanguageModel, k: int = 5) -> None:
        """`search` finds the tools, `llm` names one of them, `k` is the length of the shortlist."""
        self._search, self._llm, self._k = search, llm, k
        self._shown: dict[str, dict[str, Tool]] = {}

    def shown(self, request: str) -> dict[str, Tool]:
        """Return the shortlist of a request: its tools by the names that the prompt uses."""
        self._find([request])
        return self._shown[request]

    def introduce(self, requests: Sequence[str]) -> list[str]:
        """Return the shortlist of each request as text."""
        self._find(requests)
        return [_lines(self._shown[request]) for request in requests]

    def pick(self, conversations: Talks, *, without: Spent = ()) -> list[Pick]:
        """Return the id of the tool that the model names, FINISH, Unpicked if it failed, or None for other names."""
        requests = list(map(request_of, conversations))
        self._find(requests)
        offered = [
            [*(name for name, tool in self._shown[request].items() if tool.id not in spent), _FINISH]
            for request, spent in zip(requests, without or [()] * len(requests), strict=True)
        ]
        prompts = [_prompt(turns, names) for turns, names in zip(conversations, offered, strict=True)]
        replies = ask(self._llm, prompts, max_tokens=_PICK_TOKENS, schemas=[_schema(names) for names in offered])
        picked: list[Pick] = []
        for request, reply in zip(requests, replies, strict=True):
            if reply.failed:
                picked.append(Unpicked(reply.failed))
                continue
            name = (json_object(reply.text) or {}).get("tool")
            tool = self._shown[request].get(str(name))
            picked.append(tool.id if tool else FINISH if name == _FINISH else None)
        return picked

    def _find(self, requests: Sequence[str]) -> None:
        new = [request for request in dict.fromkeys(requests) if request not in self._shown]
        for request, tools in zip(new, self._search(new, self._k) if new else [], strict=True):
            self._shown[request] = _named(tools)


def _lines(shown: dict[str, Tool]) -> str:
    lines = [f"- {name}: {first_sentence(tool.description)}" for name, tool in shown.items()]
    return "\n".join(["The tools are:", *lines, f"- {_FINISH}: end the work and give the answer."])


def _named(tools: Sequence[Tool]) -> dict[str, Tool]:
    # A tool's name may equal the wire name of another tool: then it goes by its own wire name.
    taken = Counter([_FINISH, *(tool.name for tool in tools), *(wire_name(tool.id) for tool in tools)])
    return {tool.name if taken[tool.name] == 1 else wire_name(tool.id): tool for tool in tools}


def _prompt(turns: Sequence[Turn], names: Sequence[str]) -> list[Turn]:
    words = f'{turns[-1].content} Answer with JSON: {{"tool": NAME}}, NAME being one of: {", ".join(names)}.'
    return [*turns[:-1], Turn("user", words)]


def _schema(names: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"tool": {"type": "string", "enum": list(names)}},
        "required": ["tool"],
        "additionalProperties": False,
    }
