"""Converts tools to the JSON that the page shows: plain text of limited length."""

from __future__ import annotations

from typing import Any

from toolscout.core.answer import Allowed
from toolscout.core.json_schema import object_schema, type_word
from toolscout.core.tool import Tool, clean_text, namespace_of
from toolscout.core.vendor_formats import wire_name

MAX_DESCRIPTION = 4_000
MAX_PARAMETERS = 100
MAX_PARAMETER_TEXT = 400


def tool_shape(tool: Tool) -> dict[str, Any]:
    """Return one tool's names, description and parameters as JSON."""
    schema = object_schema(tool.input_schema)
    required = schema.get("required", ())
    return {
        "id": tool.id,
        "namespace": clean_text(tool.namespace),
        "name": clean_text(tool.name),
        "title": clean_text(tool.title)[:MAX_PARAMETER_TEXT],
        "description": _lines(tool.description[:MAX_DESCRIPTION]),
        "wire_name": wire_name(tool.id),
        "parameters": [
            {
                "name": clean_text(str(name)),
                "type": clean_text(type_word(value, schema)),
                "required": name in required,
                "description": _description(value),
            }
            for name, value in list(schema["properties"].items())[:MAX_PARAMETERS]
        ],
    }


def _lines(text: str) -> str:
    """Return the text without control characters in its lines, and with at most one blank line at a time."""
    lines = [clean_text(line) for line in text.splitlines()]
    return "\n".join(line for at, line in enumerate(lines) if line or (at and lines[at - 1])).strip()


def _description(parameter: Any) -> str:
    text = parameter.get("description") if isinstance(parameter, dict) else None
    return clean_text(text)[:MAX_PARAMETER_TEXT] if isinstance(text, str) else ""


def narrowed(allowed: Allowed | None, namespace: str) -> Allowed:
    """Return what a caller may see of one namespace; `allowed` None: the caller may see everything."""
    if allowed is None or namespace in allowed.namespaces:
        return Allowed.of([namespace])
    return Allowed.of(ids=[tool_id for tool_id in allowed.ids if namespace_of(tool_id) == namespace])
