"""Pydantic AI: a strategy for its ToolSearch, and a toolset of the catalogue's tools."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any

from toolscout.calling.dispatch import ToolCaller
from toolscout.integrations.toolbox import Choice, Offer, Offered, Toolbox, library
from toolscout.scout import Scout

if TYPE_CHECKING:
    from pydantic_ai.capabilities import ToolSearch
    from pydantic_ai.toolsets import FunctionToolset

Strategy = Callable[[Any, Sequence[str], Sequence[Any]], Awaitable[list[str]]]


def strategy(scout: Scout, choice: Choice | None = None) -> Strategy:
    """What ToolSearch takes as its `strategy`: names of the deferred tools that fit, the best of each query first."""
    box = Toolbox(scout, choice, _read)

    def search(queries: Sequence[str], tools: Sequence[Any]) -> list[str]:
        found = [[tool.name for tool in box.found(query, tools)] for query in queries if query.strip()]
        return list(dict.fromkeys(filter(None, chain.from_iterable(zip_longest(*found)))))

    async def searched(ctx: Any, queries: Sequence[str], tools: Sequence[Any]) -> list[str]:
        return await scout.arun(search, queries, tools)

    return searched


def tool_search(scout: Scout, choice: Choice | None = None) -> ToolSearch:
    """The capability for an agent: its tools with defer_loading=True are found by Scout, and loaded append-only."""
    with library("pydantic_ai"):
        from pydantic_ai.capabilities import ToolSearch

    choice = choice or Choice()
    made: ToolSearch = ToolSearch(strategy=strategy(scout, choice), max_results=2 * choice.k)
    return made


def toolset(scout: Scout, ids: Iterable[str], caller: ToolCaller | None = None) -> FunctionToolset:
    """These tools of the catalogue, deferred: with tool_search the model sees those that it finds.

    Tell the search which they are, `Choice(ids={wire_name(one): one for one in ids})`, and it searches the catalogue's
    own records instead of copies.
    """
    with library("pydantic_ai"):
        from pydantic_ai.toolsets import FunctionToolset

    made: FunctionToolset = FunctionToolset(
        list(Offered(scout, _tool, caller=caller).of(scout.tools(ids)).values()), defer_loading=True
    )
    return made


def _read(tool: Any) -> tuple[str | None, Any]:
    return tool.description, tool.parameters_json_schema


def _tool(offer: Offer) -> Any:
    with library("pydantic_ai"):
        from pydantic_ai import ModelRetry, Tool

    async def call(**arguments: Any) -> str:
        result = await asyncio.to_thread(offer.call, arguments)
        if not result.ok:
            raise ModelRetry(result.observation)
        return result.content

    return Tool.from_schema(call, offer.name, offer.description, offer.schema)
