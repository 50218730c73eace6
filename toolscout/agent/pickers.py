"""How an agent comes to its next tool: out of a shortlist that it is shown, or from a model that writes tool ids."""

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
from toolscout.retrievers.generative.base import GenerativeRetriever

Search = Callable[[Sequence[str], int], list[list[Tool]]]
"""For each request its k best tools."""

_FINISH = "finish"
_PICK_TOKENS = 48


@dataclass(frozen=True, slots=True)
class Unpicked:
    """Nothing is chosen, since the language model failed; `reason` says how."""

    reason: str


class Picker(ABC):
    """Chooses the next action of each conversation."""

    @abstractmethod
    def pick(self, conversations: Talks, *, without: Spent = ()) -> Sequence[str | Unpicked | None]:
        """A tool id, Finish, or None or Unpicked where nothing is chosen. The turns end with "Generate the action."."""

    def introduce(self, requests: Sequence[str]) -> list[str]:
        """Lines for the rules that each conversation begins with, such as which tools there are; none by default."""
        return [""] * len(requests)


class IdPicker(Picker):
    """Lets a model that writes tool ids write the next one, among those that a caller may see."""

    def __init__(self, writer: GenerativeRetriever, allowed: Allowed | None = None) -> None:
        """`allowed`: what the caller may see; None is all."""
        self._writer, self._allowed = writer, allowed

    def pick(self, conversations: Talks, *, without: Spent = ()) -> list[str | None]:
        """What it writes among what is allowed."""
        return self._writer.pick(conversations, self._allowed, without)


def picks_itself(retriever: object) -> TypeGuard[GenerativeRetriever]:
    """Whether a retriever is a model that writes tool ids and was trained on conversations; others are searched."""
    return isinstance(retriever, GenerativeRetriever) and bool(retriever.options.trajectories)


class ShortlistPicker(Picker):
    """Shows the k tools that a search finds for the request; the model can name one of them, or finish, and no other.

    A request is searched once. Tools are named by their names; those that share one by a longer one.
    """

    def __init__(self, search: Search, llm: LanguageModel, k: int = 5) -> None:
        """`search`: any retriever, or the gold tools themselves."""
        self._search, self._llm, self._k = search, llm, k
        self._shown: dict[str, dict[str, Tool]] = {}

    def shown(self, request: str) -> dict[str, Tool]:
        """The tools that a request's conversation is shown, by the names that they have there."""
        self._find([request])
        return self._shown[request]

    def introduce(self, requests: Sequence[str]) -> list[str]:
        """The shortlist of each request."""
        self._find(requests)
        return [_lines(self._shown[request]) for request in requests]

    def pick(self, conversations: Talks, *, without: Spent = ()) -> list[str | Unpicked | None]:
        """The tool that the model names; Unpicked where it failed, None where it names none of them."""
        requests = list(map(request_of, conversations))
        self._find(requests)
        offered = [
            [*(name for name, tool in self._shown[request].items() if tool.id not in spent), _FINISH]
            for request, spent in zip(requests, without or [()] * len(requests), strict=True)
        ]
        asked = [_asking(turns, names) for turns, names in zip(conversations, offered, strict=True)]
        replies = ask(self._llm, asked, max_tokens=_PICK_TOKENS, schemas=[_schema(names) for names in offered])
        picked: list[str | Unpicked | None] = []
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
    # A name that is another's long one would hide that tool.
    taken = Counter([_FINISH, *(tool.name for tool in tools), *(wire_name(tool.id) for tool in tools)])
    return {tool.name if taken[tool.name] == 1 else wire_name(tool.id): tool for tool in tools}


def _asking(turns: Sequence[Turn], names: Sequence[str]) -> list[Turn]:
    words = f'{turns[-1].content} Answer with JSON: {{"tool": NAME}}, NAME being one of: {", ".join(names)}.'
    return [*turns[:-1], Turn("user", words)]


def _schema(names: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"tool": {"type": "string", "enum": list(names)}},
        "required": ["tool"],
        "additionalProperties": False,
    }
