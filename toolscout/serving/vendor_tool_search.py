"""Client-side tool search for Anthropic and OpenAI: the model calls a search tool, Scout answers in their format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from toolscout.core import vendor_formats
from toolscout.core.tool import Tool
from toolscout.errors import BadRequest
from toolscout.scout import Scout

SEARCH_TOOL = "search_tools"
_ABOUT = "Find tools by what they should do. Say in words what is needed; the tools that fit are loaded."
_QUERY = {
    "type": "object",
    "properties": {"query": {"type": "string", "description": "What should be done, in words."}},
    "required": ["query"],
    "additionalProperties": False,
}


def anthropic_tools(tools: Iterable[Tool]) -> list[dict[str, Any]]:
    """Return the `tools` of a Messages request: the search tool, and all others with deferred loading."""
    search = {"name": SEARCH_TOOL, "description": _ABOUT, "input_schema": _QUERY}
    return [search, *({**vendor_formats.to_wire(tool, "anthropic"), "defer_loading": True} for tool in tools)]


def anthropic_result(scout: Scout, tool_use: Mapping[str, Any], k: int = 5) -> dict[str, Any]:
    """Return the `tool_result` block for a `tool_use` of the search tool: a `tool_reference` for each tool found."""
    answer = scout.search(_query(tool_use.get("input")), k)
    names = [vendor_formats.wire_name(hit.tool_id) for hit in answer.hits]
    references: list[dict[str, Any]] = [{"type": "tool_reference", "tool_name": name} for name in names]
    explanation = [{"type": "text", "text": _nothing(answer.verdict)}]
    return {"type": "tool_result", "tool_use_id": tool_use.get("id", ""), "content": references or explanation}


def openai_tool() -> dict[str, Any]:
    """Return the entry in a Responses request's `tools` that lets the model search; no other tool need be sent."""
    return {"type": "tool_search", "execution": "client", "description": _ABOUT, "parameters": _QUERY}


def openai_output(scout: Scout, call: Mapping[str, Any], k: int = 5) -> dict[str, Any]:
    """Return the `tool_search_output` item for a `tool_search_call` item: the tools found, in full."""
    answer = scout.search(_query(call.get("arguments")), k)
    tools = [{**tool, "defer_loading": True} for tool in scout.render(answer, "openai-responses").payload]
    output = {"type": "tool_search_output", "call_id": call.get("call_id"), "execution": "client"}
    return {**output, "status": "completed", "tools": tools}


def _query(arguments: Any) -> str:
    query = arguments.get("query") if isinstance(arguments, Mapping) else None
    if not isinstance(query, str):
        raise BadRequest(f"a call of {SEARCH_TOOL} needs a query: what should be done, in words")
    return query


def _nothing(verdict: str) -> str:
    return "No tool is needed for this." if verdict == "no_tool_needed" else "No tool here does this."
