"""What the integrations share: a framework's tools in a Scout, the choice among them, and the catalogue's own to call.

Two ways are open to an agent. Its own tools, which the framework runs, are described to a Scout and cut down to the
right ones (Toolbox). Or the tools come from the catalogue, which knows how they are called (Offered).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Generic, TypeVar

from toolscout.calling.dispatch import CallResult, OriginCaller, ToolCaller
from toolscout.core import vendor_formats
from toolscout.core.answer import Allowed, Answer
from toolscout.core.json_schema import with_safe_keys
from toolscout.core.tool import Tool
from toolscout.errors import BadRequest, BadTool, MissingLibrary
from toolscout.scout import Scout, checked_request

REQUIREMENTS = {
    "langchain": "langchain>=1.4,<2",
    "llamaindex": "llama-index-core>=0.14.25,<0.15",
    "pydantic_ai": "pydantic-ai-slim>=2.66,<3",
    "haystack": "haystack-ai>=3.4,<4",
    "openai_agents": "openai-agents>=0.24,<0.25",
    "fastmcp": "fastmcp>=4.1,<5",
}
"""What each integration was tested with, as pip takes it."""
NOTHING_FITS = "No tool here fits this. Say so or go on without one; do not search for the same again."
_READ_CHARS = 4_000
_T = TypeVar("_T")


@contextmanager
def library(name: str) -> Iterator[None]:
    """Imports inside say which line installs the library where it is missing, or too old."""
    try:
        yield
    except ImportError as error:
        raise MissingLibrary(f"toolscout.integrations.{name}", REQUIREMENTS[name]) from error


@dataclass(frozen=True, slots=True)
class Choice:
    """How an agent's own tools are chosen among.

    `k`: how many. `namespace`: where the catalogue keeps them, a plain word, since it is searched too; agents whose
    tools share names but not descriptions need one each. `ids`: tools that the catalogue has from elsewhere, by the
    name they have in the agent; a model that was trained on the catalogue knows them by these ids.
    For those that cut before a model is called: `pinned` are always sent, and below `pass_through` tools all are.
    `abstain`: send no others where no tool is needed or none fits; else the closest are sent, since a model cannot ask
    again for what it does not see.
    """

    k: int = 5
    namespace: str = "agent"
    ids: Mapping[str, str] = field(default_factory=dict)
    pinned: tuple[str, ...] = ()
    pass_through: int = 10
    abstain: bool = False


class Toolbox(Generic[_T]):
    """An agent's tools, described to a Scout. One Toolbox serves many threads."""

    def __init__(
        self,
        scout: Scout,
        choice: Choice | None,
        read: Callable[[_T], tuple[str | None, Any]],
        name: Callable[[_T], str] = attrgetter("name"),
    ) -> None:
        """`read`: a tool's description and JSON schema. UnknownTool where `choice.ids` names what is not there."""
        self.choice = choice or Choice()
        self.name = name
        self._scout = scout
        self._namespace = self.choice.namespace
        self._reader = read
        self._lock = threading.Lock()
        self._read: dict[str, tuple[_T, Tool | None]] = {}
        self._kept: dict[str, Tool] = {}
        scout.store.get(list(self.choice.ids.values()))

    def found(self, query: str, tools: Iterable[_T]) -> list[_T]:
        """The tools that a model searches for, the best first; none where none fits."""
        named = {self.name(tool): tool for tool in tools}
        ids = self._ids(named)
        if not ids:
            return []
        answer = self._scout.search(query, self.choice.k, Allowed.of(ids=ids))
        return [named[ids[hit]] for hit in fitting(self._scout, answer)]

    def narrowed(self, request: str, tools: Sequence[_T], used: Iterable[str] = ()) -> list[_T]:
        """The tools to send for a request, in their order: the right ones, the pinned and those `used` before.

        What the catalogue cannot take, such as a name with line breaks, is sent as well.
        """
        if len(tools) < self.choice.pass_through or len(tools) <= self.choice.k:
            return list(tools)
        try:
            text = checked_request(request[-_READ_CHARS:])
        except BadRequest:
            return list(tools)
        ids = self._ids({self.name(tool): tool for tool in tools})
        answer = self._scout.search(text, self.choice.k, Allowed.of(ids=ids))
        hits = answer.hits if self.choice.abstain else answer.considered
        dropped = {*ids.values()} - {*(ids[hit.tool_id] for hit in hits), *self.choice.pinned, *used}
        return [tool for tool in tools if self.name(tool) not in dropped]

    def _ids(self, named: Mapping[str, _T]) -> dict[str, str]:
        """The names of these tools by their ids in the catalogue, which has them on return."""
        with self._lock:
            records = {name: self._record(name, tool) for name, tool in named.items()}
            own = [tool for name, tool in records.items() if tool and name not in self.choice.ids]
            changed = [tool for tool in own if self._kept.get(tool.name) != tool]
            if changed:
                self._scout.add(changed, label=f"integration:{self._namespace}")
                self._kept.update((tool.name, tool) for tool in changed)
        return {self.choice.ids.get(name) or tool.id: name for name, tool in records.items() if tool}

    def _record(self, name: str, given: _T) -> Tool | None:
        """A tool as the catalogue takes it, None where it does not; each object is read once."""
        known = self._read.get(name)
        if known is None or known[0] is not given:
            description, schema = self._reader(given)
            made = None
            with suppress(BadTool):
                made = Tool(self._namespace, name, description or "", input_schema=schema or {"type": "object"})
            known = self._read[name] = (given, made)
        return known[1]


class Offered(Generic[_T]):
    """Tools of the catalogue as a framework's own objects, made when they are found."""

    def __init__(
        self,
        scout: Scout,
        make: Callable[[Offer], _T],
        k: int = 5,
        allowed: Allowed | str | None = None,
        caller: ToolCaller | None = None,
    ) -> None:
        """`allowed`: what may be found. `caller`: what runs the calls; without one every call is refused.

        `OriginCaller(CallOptions(allow=…))` calls tools where they come from, at the targets that are allowed.
        """
        self._scout, self._make, self._k, self._allowed = scout, make, k, allowed
        self._caller = caller or OriginCaller()
        self._made: dict[str, tuple[Tool, _T]] = {}

    def found(self, query: str) -> dict[str, _T]:
        """The tools that a model searches for by their names, the best first; none where none fits."""
        answer = self._scout.search(query, self._k, self._allowed)
        return self.of(self._scout.tools(fitting(self._scout, answer)))

    def fetched(self, request: str) -> dict[str, _T]:
        """The tools to send for a request; none where the answer says that none should be used."""
        try:
            text = checked_request(request[-_READ_CHARS:])
        except BadRequest:
            return {}
        return self.of(self._scout.tools(self._scout.search(text, self._k, self._allowed)))

    def of(self, tools: Iterable[Tool]) -> dict[str, _T]:
        """These tools by their names."""
        found = {}
        for tool in tools:
            name = vendor_formats.wire_name(tool.id)
            made = self._made.get(name)
            if made is None or made[0] != tool:
                made = self._made[name] = (tool, self._make(Offer(tool, name, self._caller)))
            found[name] = made[1]
        return found

    def named(self, name: str) -> _T | None:
        """A tool that was found before."""
        made = self._made.get(name)
        return made[1] if made else None


class Offer:
    """A tool of the catalogue as any model's interface takes it, and its call."""

    def __init__(self, tool: Tool, name: str, caller: ToolCaller) -> None:
        """Names of parameters are made fit for every vendor; a call leads back to the tool's own."""
        shape = vendor_formats.to_wire(tool, "openai", "full", name)["function"]
        self.tool, self.name = tool, name
        self.description: str = shape.get("description", "")
        self.schema: dict[str, Any] = with_safe_keys(shape["parameters"])
        self._caller = caller

    def call(self, arguments: Any) -> CallResult:
        """Run it; whatever goes wrong is in the result, in words that a model can act on."""
        if not isinstance(arguments, Mapping):
            return CallResult(False, "", "the arguments must be one JSON object")
        return self._caller.call([(self.tool, vendor_formats.call_arguments(self.tool, arguments))])[0]


def fitting(scout: Scout, answer: Answer) -> list[str]:
    """The ids to hand to a model that asked for tools: it has decided that it needs one, so only the fit counts."""
    fits = answer.fit is None or answer.fit >= scout.fit_options.threshold
    return [hit.tool_id for hit in answer.considered] if fits else []


def chosen_names(tool_choice: Any) -> set[str]:
    """The tools that a request's tool_choice names, in any vendor's shape; they must be sent."""
    if isinstance(tool_choice, str):
        return {tool_choice}
    if not isinstance(tool_choice, Mapping):
        return set()
    name = tool_choice.get("name")
    inner = [tool_choice.get("function"), *(tool_choice.get("tools") or ())]
    return ({name} if isinstance(name, str) else set()).union(*map(chosen_names, filter(_is_mapping, inner)))


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping)


def text_of(content: Any) -> str:
    """The words of a message's content: text, or a list of parts of which some are text."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, Sequence) else ()
    texts = (part.get("text") if isinstance(part, Mapping) else part for part in parts)
    return " ".join(text for text in texts if isinstance(text, str)).strip()
