"""OpenAI Agents SDK: a model that is sent the right tools only, and the catalogue's tools behind a search."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

from toolscout.calling.dispatch import ToolCaller
from toolscout.core.answer import Allowed
from toolscout.errors import ToolscoutError
from toolscout.integrations.toolbox import NOTHING_FITS, Choice, Offer, Offered, Toolbox, chosen_names, library, text_of
from toolscout.scout import Scout

if TYPE_CHECKING:
    from agents import FunctionTool, Model

SEARCH_TOOL, CALL_TOOL = "search_tools", "call_tool"
_QUERY = {
    "type": "object",
    "properties": {"query": {"type": "string", "description": "What should be done, in plain words."}},
    "required": ["query"],
}
_CALL = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": f"A tool's name as {SEARCH_TOOL} gives it."},
        "arguments": {"type": "object", "description": "The tool's arguments.", "additionalProperties": True},
    },
    "required": ["name"],
}


def narrowed(model: Model | str, scout: Scout, choice: Choice | None = None) -> Model:
    """A model that sees the right ones of its agent's function tools with each call; the agent can run them all.

    `model`: one of the SDK's, or a name as Agent takes it. Hosted tools are never cut.
    """
    with library("openai_agents"):
        from agents import FunctionTool, Model, MultiProvider

    inner: Any = MultiProvider().get_model(model) if isinstance(model, str) else model
    box = Toolbox(scout, choice, _read)

    def cut(given: Any, settings: Any, tools: list[Any]) -> list[Any]:
        own = [tool for tool in tools if isinstance(tool, FunctionTool)]
        asked, called = _last_request_and_calls(given)
        kept = {id(tool) for tool in box.narrowed(asked, own, called | chosen_names(settings.tool_choice))}
        return [tool for tool in tools if id(tool) in kept or not isinstance(tool, FunctionTool)]

    class ScoutModel(Model):
        """Passes everything on but the tools that are not needed."""

        async def get_response(
            self, system_instructions: Any, input: Any, model_settings: Any, tools: Any, *args: Any, **kwargs: Any
        ) -> Any:
            kept = await scout.arun(cut, input, model_settings, tools)
            return await inner.get_response(system_instructions, input, model_settings, kept, *args, **kwargs)

        async def stream_response(
            self, system_instructions: Any, input: Any, model_settings: Any, tools: Any, *args: Any, **kwargs: Any
        ) -> AsyncIterator[Any]:
            kept = await scout.arun(cut, input, model_settings, tools)
            async for event in inner.stream_response(system_instructions, input, model_settings, kept, *args, **kwargs):
                yield event

        def get_retry_advice(self, request: Any) -> Any:
            return inner.get_retry_advice(request)

        async def close(self) -> None:
            await inner.close()

        async def _cleanup_on_run_end(self, owner: object) -> None:
            await inner._cleanup_on_run_end(owner)  # some models keep a connection for each run

    return ScoutModel()


def catalogue_tools(
    scout: Scout, k: int = 5, allowed: Allowed | str | None = None, caller: ToolCaller | None = None
) -> list[FunctionTool]:
    """Two tools that stand for the whole catalogue: one searches it, one calls what was found."""
    offered: Offered[Offer] = Offered(scout, lambda offer: offer, k, allowed, caller)

    def search(arguments: Any) -> str:
        found = offered.found(str(arguments.get("query", ""))).values()
        shapes = [{"name": one.name, "description": one.description, "parameters": one.schema} for one in found]
        return json.dumps({"tools": shapes}, ensure_ascii=False) if shapes else NOTHING_FITS

    def call(arguments: Any) -> str:
        ready = offered.named(str(arguments.get("name", "")))
        if ready is None:
            return f"error: no tool of this name was found before; use {SEARCH_TOOL} first"
        return ready.call(arguments.get("arguments", {})).observation

    about = "Find tools by what they should do: name, description and parameters of those that fit."
    return [
        _function_tool(SEARCH_TOOL, about, _QUERY, search, scout.arun),
        _function_tool(CALL_TOOL, f"Call a tool that {SEARCH_TOOL} found.", _CALL, call),
    ]


def tools(scout: Scout, ids: Iterable[str], caller: ToolCaller | None = None) -> list[FunctionTool]:
    """These tools of the catalogue as the SDK's, which run where they come from."""

    def make(offer: Offer) -> FunctionTool:
        return _function_tool(offer.name, offer.description, offer.schema, lambda given: offer.call(given).observation)

    return list(Offered(scout, make, caller=caller).of(scout.tools(ids)).values())


def _function_tool(
    name: str,
    about: str,
    schema: dict[str, Any],
    run: Callable[[Any], str],
    aside: Callable[[Callable[[str], str], str], Awaitable[str]] = asyncio.to_thread,
) -> FunctionTool:
    """A tool of the SDK's. `aside`: where it runs; by default in a thread of the loop's, since calls may take long."""
    with library("openai_agents"):
        from agents import FunctionTool

    def ran(given: str) -> str:
        try:
            arguments = json.loads(given or "{}")
            return run(arguments) if isinstance(arguments, dict) else "error: the arguments must be one JSON object"
        except (ValueError, ToolscoutError) as error:
            return f"error: {error}"

    async def invoke(_: Any, given: str) -> str:
        return await aside(ran, given)

    # A strict schema has no optional parameters, which most tools have.
    made: FunctionTool = FunctionTool(name, about, schema, invoke, strict_json_schema=False)
    return made


def _read(tool: Any) -> tuple[str | None, Any]:
    return tool.description, tool.params_json_schema


def _last_request_and_calls(given: Any) -> tuple[str, set[str]]:
    """Return the text of the user's last message, and the names of the tools called so far."""
    if isinstance(given, str):
        return given, set()
    items = [item if isinstance(item, dict) else vars(item) for item in given]
    said = [text_of(item.get("content")) for item in items if item.get("role") == "user"]
    called = {str(item.get("name")) for item in items if item.get("type") == "function_call"}
    return next((text for text in reversed(said) if text), ""), called
