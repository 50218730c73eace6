"""Haystack: toolsets in which a model searches, over an agent's own tools or over the catalogue's."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from toolscout.calling.dispatch import ToolCaller
from toolscout.core.answer import Allowed
from toolscout.errors import BadRequest
from toolscout.integrations.toolbox import NOTHING_FITS, Choice, Offer, Offered, Toolbox, library
from toolscout.scout import Scout

if TYPE_CHECKING:
    from haystack.tools import Tool, Toolset

SEARCH_TOOL = "search_tools"
_ABOUT = (
    "Find tools by what they should do and load them. Use it whenever the tools you have do not do what is needed. "
    "Returns the names of the loaded tools; they can be called at once."
)
_QUERY = {
    "type": "object",
    "properties": {"query": {"type": "string", "description": "What should be done, in plain words."}},
    "required": ["query"],
}


def toolset(scout: Scout, tools: Iterable[Any], choice: Choice | None = None) -> Toolset:
    """An agent's own tools behind a search: the model sees search_tools, the pinned ones, and what it has found.

    `tools`: Tools, a Toolset, or both. Below `choice.pass_through` all of them are shown.
    """
    with library("haystack"):
        from haystack.tools import Toolset
        from haystack.tools.utils import flatten_tools_or_toolsets, warm_up_tools

    given: Any = tools if isinstance(tools, Toolset) else list(tools)
    warm_up_tools(given)
    own = {tool.name: tool for tool in flatten_tools_or_toolsets(given)}
    box = Toolbox(scout, choice, _read)

    def find(query: str, selected: frozenset[str] | None) -> dict[str, Any]:
        among = [tool for name, tool in own.items() if selected is None or name in selected]
        return {tool.name: tool for tool in box.found(query, among)}

    always = own if len(own) < box.choice.pass_through else {n: own[n] for n in box.choice.pinned if n in own}
    return _searchable(find, own, always)


def catalogue_toolset(
    scout: Scout, k: int = 5, allowed: Allowed | str | None = None, caller: ToolCaller | None = None
) -> Toolset:
    """The tools of the catalogue behind a search; they run where they come from."""
    offered = Offered(scout, _tool, k, allowed, caller)

    def find(query: str, selected: frozenset[str] | None) -> dict[str, Any]:
        return {name: tool for name, tool in offered.found(query).items() if selected is None or name in selected}

    return _searchable(find, {}, {})


def tools(scout: Scout, ids: Iterable[str], caller: ToolCaller | None = None) -> list[Tool]:
    """These tools of the catalogue as Haystack's."""
    return list(Offered(scout, _tool, caller=caller).of(scout.tools(ids)).values())


def _searchable(
    find: Callable[[str, frozenset[str] | None], dict[str, Any]], own: dict[str, Any], always: dict[str, Any]
) -> Toolset:
    with library("haystack"):
        from haystack.tools import Tool, Toolset

    class ScoutToolset(Toolset):
        """Shows a search and what was found with it; each run of an agent finds for itself."""

        def __init__(self) -> None:
            super().__init__([])
            self._begin(None)

        def _begin(self, selected: frozenset[str] | None) -> None:
            self._selected = selected
            self._loaded: dict[str, Any] = {}
            self._search = Tool(SEARCH_TOOL, _ABOUT, _QUERY, function=self._searched)

        def _searched(self, query: str) -> str:
            try:
                found = find(query, self._selected)
            except BadRequest as error:
                return str(error)
            self._loaded |= found
            return f"Loaded: {', '.join(found)}. Call them directly." if found else NOTHING_FITS

        def __iter__(self) -> Iterator[Any]:
            if not own or len(always) < len(own):
                yield self._search
            shown = always | self._loaded
            yield from (tool for name, tool in shown.items() if self._selected is None or name in self._selected)

        def get_selectable_tools(self) -> list[Any]:
            return list(own.values())

        def spawn(self, selected_tool_names: set[str] | None = None) -> Toolset:
            run = copy.copy(self)
            run._begin(None if selected_tool_names is None else frozenset(selected_tool_names))
            return run

        def add(self, tool: Any) -> None:
            raise NotImplementedError("give all tools to toolscout.integrations.haystack.toolset at once")

        def to_dict(self) -> dict[str, Any]:
            raise NotImplementedError("a Scout cannot be written into a pipeline; make the toolset anew beside it")

    return ScoutToolset()


def _read(tool: Any) -> tuple[str | None, Any]:
    return tool.description, tool.parameters


def _tool(offer: Offer) -> Tool:
    with library("haystack"):
        from haystack.tools import Tool

    def call(**arguments: Any) -> str:
        return offer.call(arguments).observation

    made: Tool = Tool(offer.name, offer.description, offer.schema, function=call)
    return made
