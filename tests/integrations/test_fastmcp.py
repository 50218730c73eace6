"""FastMCP, for real: a server with the transform and a client of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.integrations.workshop import FUNCTIONS, LION, NOTHING
from toolscout import Scout
from toolscout.integrations import Choice
from toolscout.integrations.toolbox import NOTHING_FITS

pytest.importorskip("fastmcp", reason="fastmcp is not installed; run: make test-integrations")

from fastmcp import Client, FastMCP
from fastmcp.exceptions import ToolError

from toolscout.integrations import fastmcp


def server(scout: Scout, **options: Any) -> FastMCP:
    made = FastMCP("workshop")
    for function in FUNCTIONS:
        made.tool(function)
    made.add_transform(fastmcp.search_transform(scout, Choice(k=2, pinned=("set_alarm",)), **options))
    return made


def test_a_client_searches_and_calls(scout: Scout) -> None:
    async def run() -> None:
        async with Client(server(scout)) as client:
            listed = {tool.name: tool for tool in await client.list_tools()}
            assert set(listed) == {"set_alarm", "search_tools", "call_tool"}
            assert set(listed["search_tools"].input_schema["properties"]) == {"query"}
            found = (await client.call_tool("search_tools", {"query": LION})).data
            assert found[0]["name"] == "feed_lion"
            assert found[0]["inputSchema"]["required"] == ["meat"]
            assert len(found) <= 2
            fed = await client.call_tool("call_tool", {"name": "feed_lion", "arguments": {"meat": "beef"}})
            assert fed.content[0].text == "the lion ate beef"
            assert (await client.call_tool("search_tools", {"query": NOTHING})).data == NOTHING_FITS
            with pytest.raises(ToolError, match="empty"):
                await client.call_tool("search_tools", {"query": " "})

    asyncio.run(run())


def test_what_a_client_may_not_see_is_not_found(scout: Scout) -> None:
    async def run() -> None:
        made = server(scout, call_tool_name="use")
        made.disable(names={"feed_lion"})
        async with Client(made) as client:
            assert {tool.name for tool in await client.list_tools()} == {"set_alarm", "search_tools", "use"}
            found = (await client.call_tool("search_tools", {"query": LION})).data
            assert "feed_lion" not in str(found)

    asyncio.run(run())


def test_a_tool_that_comes_later_is_found(scout: Scout) -> None:
    def milk_cow(litres: int) -> str:
        """Milks the cow in the stable."""
        return f"{litres} litres"

    async def run() -> None:
        made = server(scout)
        async with Client(made) as client:
            await client.call_tool("search_tools", {"query": LION})
            made.tool(milk_cow)
            found = (await client.call_tool("search_tools", {"query": "milk the cow"})).data
            assert found[0]["name"] == "milk_cow"

    asyncio.run(run())
