"""Shared by the integrations: choosing among a framework's own tools, and offering the catalogue's tools to it.

An agent can use a Scout in two ways. Toolbox puts the agent's own tools, which the framework runs, into the catalogue
and selects those that fit a request. Offered turns tools of the catalogue into the framework's objects and calls them.
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
from toolscout.core.answer import Allowed, Level
from toolscout.core.json_schema import with_safe_keys
from toolscout.core.tool import Tool
from toolscout.errors import BadRequest, BadTool, MissingLibrary
from toolscout.scout import Scout, checked_request
from toolscout.search.verdict import checked_level

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
    """Turn an ImportError inside the block into MissingLibrary, which says how to install the library."""
    try:
        yield
    except ImportError as error:
        raise MissingLibrary(f"toolscout.integrations.{name}", REQUIREMENTS[name]) from error


@dataclass(frozen=True, slots=True)
class Choice:
    """How to choose among an agent's own tools.

    `k`: how many to choose. `namespace`: their namespace in the catalogue, a plain word, since it is searched too;
    agents whose tools share names but not descriptions need one each. `ids`: catalogue ids, by the agent's tool name,
    of tools that the catalogue has already; a model trained on the catalogue knows them by these ids.
    For integrations that cut the tools before a model is called: `pinned` tools are always sent, and with fewer than
    `pass_through` tools all are sent. `abstain`: send no others where no tool is needed or none fits; otherwise the
    closest are sent, since a model cannot ask for tools that it does not see. `level`: how sure the verdict must be
    before tools are offered (lenient, balanced or strict); None: the level of the Scout.
    """

    k: int = 5
    namespace: str = "agent"
    ids: Mapping[str, str] = field(default_factory=dict)
    pinned: tuple[str, ...] = ()
    pass_through: int = 10
    abstain: bool = False
    level: Level | None = None

    def __post_init__(self) -> None:
        """Raise BadRequest for an unknown level."""
        if self.level is not None:
            checked_level(self.level)


class Toolbox(Generic[_T]):
    """An agent's own tools in a Scout. Safe to use from many threads."""

    def __init__(
        self,
        scout: Scout,
        choice: Choice | None,
        read: Callable[[_T], tuple[str | None, Any]],
        name: Callable[[_T], str] = attrgetter("name"),
    ) -> None:
        """Take functions that read a tool's (description, JSON schema) and its name.

        Raises UnknownTool where `choice.ids` names a tool that the catalogue lacks.
        """
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
        """Return the tools for a model's search query, best first; [] where none fits."""
        named = {self.name(tool): tool for tool in tools}
        ids = self._ids(named)
        if not ids:
            return []
        allowed = Allowed.of(ids=ids)
        answer = self._scout.search(query, self.choice.k, allowed, level=self.choice.level, needed=True)
        return [named[ids[hit.tool_id]] for hit in answer.hits]

    def narrowed(self, request: str, tools: Sequence[_T], used: Iterable[str] = ()) -> list[_T]:
        """Return the tools to send for a request, in their order: those that fit, the pinned, and those `used` before.

        Tools that the catalogue cannot hold, such as one with line breaks in its name, are always sent.
        """
        if len(tools) < self.choice.pass_through or len(tools) <= self.choice.k:
            return list(tools)
        try:
            text = checked_request(request[-_READ_CHARS:])
        except BadRequest:
            return list(tools)
        ids = self._ids({self.name(tool): tool for tool in tools})
        answer = self._scout.search(text, self.choice.k, Allowed.of(ids=ids), level=self.choice.level)
        hits = answer.hits if self.choice.abstain else answer.considered
        dropped = {*ids.values()} - {*(ids[hit.tool_id] for hit in hits), *self.choice.pinned, *used}
        return [tool for tool in tools if self.name(tool) not in dropped]

    def _ids(self, named: Mapping[str, _T]) -> dict[str, str]:
        """Add new or changed tools to the catalogue; return the names of all of them by catalogue id."""
        with self._lock:
            records = {name: self._record(name, tool) for name, tool in named.items()}
            own = [tool for name, tool in records.items() if tool and name not in self.choice.ids]
            changed = [tool for tool in own if self._kept.get(tool.name) != tool]
            if changed:
                self._scout.add(changed, label=f"integration:{self._namespace}")
                self._kept.update((tool.name, tool) for tool in changed)
        return {self.choice.ids.get(name) or tool.id: name for name, tool in records.items() if tool}

    def _record(self, name: str, given: _T) -> Tool | None:
        """Return a tool as a catalogue record, None where it is no valid one; each object is read once."""
        known = self._read.get(name)
        if known is None or known[0] is not given:
            description, schema = self._reader(given)
            made = None
            with suppress(BadTool):
                made = Tool(self._namespace, name, description or "", input_schema=schema or {"type": "object"})
            known = self._read[name] = (given, made)
        return known[1]


class Offered(Generic[_T]):
    """Tools of the catalogue as a framework's objects, each made when it is first found."""

    def __init__(
        self,
        scout: Scout,
        make: Callable[[Offer], _T],
        k: int = 5,
        allowed: Allowed | str | None = None,
        caller: ToolCaller | None = None,
    ) -> None:
        """Take `make`, which makes a framework's object. `allowed`: what may be found.

        `caller`: what runs the calls; without one every call is refused.

        `OriginCaller(CallOptions(allow=…))` calls tools where they come from, at the targets that are allowed.
        """
        self._scout, self._make, self._k, self._allowed = scout, make, k, allowed
        self._caller = caller or OriginCaller()
        self._made: dict[str, tuple[Tool, _T]] = {}

    def found(self, query: str) -> dict[str, _T]:
        """Return the tools for a model's search query by name, best first; {} where none fits."""
        return self.of(self._scout.tools(self._scout.search(query, self._k, self._allowed, needed=True)))

    def fetched(self, request: str) -> dict[str, _T]:
        """Return the tools to send for a request by name; {} where no tool is needed or none fits."""
        try:
            text = checked_request(request[-_READ_CHARS:])
        except BadRequest:
            return {}
        return self.of(self._scout.tools(self._scout.search(text, self._k, self._allowed)))

    def of(self, tools: Iterable[Tool]) -> dict[str, _T]:
        """Return the framework's objects for these tools, by name."""
        found = {}
        for tool in tools:
            name = vendor_formats.wire_name(tool.id)
            made = self._made.get(name)
            if made is None or made[0] != tool:
                made = self._made[name] = (tool, self._make(Offer(tool, name, self._caller)))
            found[name] = made[1]
        return found

    def named(self, name: str) -> _T | None:
        """Return a tool that was found before; None where there is none of this name."""
        made = self._made.get(name)
        return made[1] if made else None


class Offer:
    """A tool of the catalogue in the form that models take, with a method to call it."""

    def __init__(self, tool: Tool, name: str, caller: ToolCaller) -> None:
        """Make a schema whose parameter names every vendor accepts; `call` maps them back to the tool's own."""
        shape = vendor_formats.to_wire(tool, "openai", "full", name)["function"]
        self.tool, self.name = tool, name
        self.description: str = shape.get("description", "")
        self.schema: dict[str, Any] = with_safe_keys(shape["parameters"])
        self._caller = caller

    def call(self, arguments: Any) -> CallResult:
        """Call the tool; errors are returned in the result, in words that a model can act on."""
        if not isinstance(arguments, Mapping):
            return CallResult(False, "", "the arguments must be one JSON object")
        return self._caller.call([(self.tool, vendor_formats.call_arguments(self.tool, arguments))])[0]


def chosen_names(tool_choice: Any) -> set[str]:
    """Return the tool names in a request's tool_choice, in any vendor's format; these tools must be sent."""
    if isinstance(tool_choice, str):
        return {tool_choice}
    if not isinstance(tool_choice, Mapping):
        return set()
    name = tool_choice.get("name")
    inner = [tool_choice.get("function"), *(tool_choice.get("tools") or ())]
    names = [chosen_names(one) for one in inner if isinstance(one, Mapping)]
    return ({name} if isinstance(name, str) else set()).union(*names)


def text_of(content: Any) -> str:
    """Return the text of a message's content: a string, or a list of parts of which some are text."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, Sequence) else ()
    texts = (part.get("text") if isinstance(part, Mapping) else part for part in parts)
    return " ".join(text for text in texts if isinstance(text, str)).strip()
