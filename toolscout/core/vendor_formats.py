"""Renders tools in the formats of OpenAI, Anthropic and MCP, with valid names and within a token budget."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from toolscout.core.json_schema import object_schema, safe_keys, slim, sound, type_word, with_items, with_safe_keys
from toolscout.core.tool import Tool, clean_text
from toolscout.errors import BadRequest, UnknownTool

Format = Literal["openai", "openai-responses", "anthropic", "mcp"]
Level = Literal["full", "slim", "signatures", "names"]
FORMATS: tuple[Format, ...] = get_args(Format)
LEVELS: tuple[Level, ...] = get_args(Level)  # the richest first

MAX_NAME_CHARS = 64
MAX_OPENAI_DESCRIPTION_CHARS = 1024
MAX_SENTENCE_CHARS = 200
TOKENS_PER_TOOL = 5  # hashes in names take extra tokens, and vendors add some text to each tool

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HASHED_NAME = re.compile(r".*_[0-9a-f]{8}(?:[0-9a-f]{8})?")
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!\be\.g\.)(?<!\bi\.e\.)\s|(?<=[。！？])|\n\s*\n")
# Each match is about one token or less; see estimate_tokens.
_PIECE = re.compile(r"[A-Z]?[a-z]{1,5}|[A-Z]{1,2}|[0-9]|[_-]|[!-,./:-@\[-^`{-~]{1,3}|\s{2,8}")


@dataclass(frozen=True, slots=True)
class Rendered:
    """Tools in a vendor's format: the payload, its level of detail, its estimated tokens, and the names used."""

    payload: list[dict[str, Any]]
    level: Level
    tokens: int
    names: WireNames


class WireNames:
    """Maps tool ids to wire names (names that all vendors accept) and back."""

    def __init__(self, tool_ids: Iterable[str]) -> None:
        """Name every tool. A name depends on the tool's id alone, so that it is the same in every prompt."""
        ids = list(dict.fromkeys(tool_ids))
        named: dict[str, list[str]] = {}
        for tool_id in ids:
            named.setdefault(wire_name(tool_id), []).append(tool_id)
        # Two names collide with a chance of one in four billion; then both get a longer hash.
        self._names = {
            tool_id: name if len(sharing) == 1 else _hashed(tool_id, 8)
            for name, sharing in named.items()
            for tool_id in sharing
        }
        self._ids = {name: tool_id for tool_id, name in self._names.items()}

    def name(self, tool_id: str) -> str:
        """Return the wire name of a tool; UnknownTool where it was not named."""
        if tool_id not in self._names:
            raise UnknownTool(f"{tool_id} is not among the {len(self._names)} tools that were named")
        return self._names[tool_id]

    def tool_id(self, wire_name: str) -> str:
        """Return the tool id of a wire name; UnknownTool where no tool has it."""
        if wire_name not in self._ids:
            raise UnknownTool(f"no tool was offered under the name {wire_name!r:.80}; offered: {len(self._ids)}")
        return self._ids[wire_name]


def wire_name(tool_id: str) -> str:
    """Return a name of at most 64 characters of [A-Za-z0-9_-] for a tool id.

    It is "namespace__name" where that is valid, else a shortened form with a hash of the id. The first "__" of a plain
    name separates its parts, so no two ids share one, and no plain name looks like a hashed one.
    """
    namespace, _, name = tool_id.rpartition("/")
    plain = f"{namespace}__{name}"
    splits_clearly = "__" not in namespace and not namespace.endswith("_") and name[:1] not in ("", "_") and namespace
    if splits_clearly and _PLAIN_NAME.fullmatch(plain) and not _HASHED_NAME.fullmatch(plain):
        return plain
    return _hashed(tool_id, 4)


def _hashed(tool_id: str, digest_size: int) -> str:
    """Return namespace and name, shortened to fit with priority to the name, and a hash of the id."""
    digest = hashlib.blake2b(tool_id.encode(errors="surrogatepass"), digest_size=digest_size).hexdigest()
    room = MAX_NAME_CHARS - len(digest) - 1
    namespace, name = (re.sub(r"[^A-Za-z0-9_-]+", "_", part).strip("_") for part in tool_id.rsplit("/", 1))
    name = name[:room]
    namespace = namespace[: max(0, room - len(name) - 2)].rstrip("_")
    return "_".join(filter(None, ["__".join(filter(None, [namespace, name])), digest]))


def render(tools: Sequence[Tool], format: Format, budget: int | None = None) -> Rendered:
    """Render tools at the richest level that fits a budget of tokens, in full without a budget.

    Raises BadRequest for an unknown format, or where even bare names exceed the budget.
    """
    if format not in FORMATS:
        raise BadRequest(f"unknown format {format!r}; use one of {', '.join(FORMATS)}")
    tools = list({tool.id: tool for tool in tools}.values())
    names = WireNames(tool.id for tool in tools)
    tokens = 0
    for level in LEVELS:
        payload = [to_wire(tool, format, level, names.name(tool.id)) for tool in tools]
        tokens = estimate_tokens(payload)
        if budget is None or tokens <= budget or not tools:
            return Rendered(payload, level, tokens, names)
    raise BadRequest(
        f"{len(tools)} tools take {tokens} tokens even as bare names and the budget is {budget}; "
        f"raise it to {tokens} or ask for fewer tools"
    )


def to_wire(tool: Tool, format: Format, level: Level = "full", name: str | None = None) -> dict[str, Any]:
    """Return one tool in a vendor's format; `name` replaces its wire name."""
    name = name or wire_name(tool.id)
    schema = _schema(tool, format, level)
    description = _description(tool, format, level)
    described = {"description": description} if description else {}
    if format == "openai":
        function: dict[str, Any] = {"name": name, **described}
        return _sendable(
            {"type": "function", "function": function | ({} if level == "names" else {"parameters": schema})}
        )
    if format == "openai-responses":
        # "strict" is true by default there, which forbids optional parameters.
        parameters = None if level == "names" else schema
        return _sendable({"type": "function", "name": name, **described, "parameters": parameters, "strict": False})
    if format == "anthropic":
        return _sendable({"name": name, **described, "input_schema": schema})
    shape: dict[str, Any] = {"name": name, **described, "inputSchema": schema}
    if level == "full":
        extras = {"title": tool.title, "outputSchema": _output_schema(tool), "_meta": dict(tool.meta)}
        shape |= {key: value for key, value in extras.items() if value}
    if level in ("full", "slim") and tool.annotations:
        shape["annotations"] = dict(tool.annotations)
    return _sendable(shape)


def call_arguments(tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's arguments under the tool's own parameter names, which were renamed for Anthropic."""
    schema = object_schema(tool.input_schema)
    original = {safe: key for key, safe in safe_keys(schema["properties"]).items()}
    return {original.get(name, name): value for name, value in arguments.items()}


def estimate_tokens(payload: Sequence[Mapping[str, Any]]) -> int:
    """Estimate the tokens of a list of rendered tools from its JSON, rather too high than too low.

    It counts TOKENS_PER_TOOL for each tool; one token for each run of up to five small letters (with a capital before
    it), two capitals, one digit, underscore or hyphen, three other signs, or eight spaces; and two tokens for every
    three bytes of other scripts. On 14,735
    published tools, mostly not those it was fitted to, the median is 1.3 times the largest count of OpenAI's o200k and
    cl100k and the tokenizer that Anthropic once published; fewer than one tool in a thousand lies below that count (at
    worst by 15 %), and no five tools together do.
    """
    text = json.dumps(payload, ensure_ascii=False, separators=(",", ":"), default=str)
    other_bytes = len(text.encode(errors="replace")) - len(text.encode("ascii", "ignore"))
    return len(_PIECE.findall(text)) + other_bytes * 2 // 3 + TOKENS_PER_TOOL * len(payload)


def signature(name: str, schema: Mapping[str, Any]) -> str:
    """Return a tool in one line, such as "name(to: string, cc?: string[])"; "?" marks optional parameters."""
    required = schema.get("required", ())
    parameters = [
        f"{key}{'' if key in required else '?'}: {type_word(value, schema)}"
        for key, value in schema["properties"].items()
    ]
    return clean_text(f"{name}({', '.join(parameters)})")


def first_sentence(text: str) -> str:
    """Return the first sentence of a description as one line."""
    return _cut(clean_text(_SENTENCE_END.split(text.strip(), maxsplit=1)[0]), MAX_SENTENCE_CHARS)


def _schema(tool: Tool, format: Format, level: Level) -> dict[str, Any]:
    if level == "names":
        return {"type": "object"}
    if level == "signatures":
        return {"type": "object", "properties": {}, "additionalProperties": True}
    schema = _accepted_schema(tool, format)
    return slim(schema) if level == "slim" else schema


def _accepted_schema(tool: Tool, format: Format) -> dict[str, Any]:
    if format == "mcp":  # MCP asks for an object and leaves the rest to JSON Schema
        return {**sound(tool.input_schema), "type": "object"}
    schema = object_schema(tool.input_schema)
    return with_safe_keys(schema) if format == "anthropic" else with_items(schema)


def _output_schema(tool: Tool) -> dict[str, Any] | None:
    """Return the output schema, or None where MCP does not allow it: clients check results against it."""
    if tool.output_schema is None or tool.output_schema.get("type", "object") != "object":
        return None
    return {**sound(tool.output_schema), "type": "object"}


def _description(tool: Tool, format: Format, level: Level) -> str:
    if level == "names":
        return ""
    if level == "signatures":
        schema = object_schema(tool.input_schema)
        text = signature(tool.name, with_safe_keys(schema) if format == "anthropic" else schema)
    else:
        text = first_sentence(tool.description) if level == "slim" else tool.description
    return _cut(text, MAX_OPENAI_DESCRIPTION_CHARS) if format.startswith("openai") else text


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"


def _sendable(shape: dict[str, Any]) -> dict[str, Any]:
    """Return the payload with lone surrogates, NaN and Python objects replaced, so that it can be sent as JSON."""
    try:
        json.dumps(shape, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, TypeError):
        text = json.dumps(shape, ensure_ascii=False, default=str).encode(errors="replace")
        return cast(dict[str, Any], json.loads(text, parse_constant=lambda _: None))
    return shape
