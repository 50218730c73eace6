"""Tools as the vendors' interfaces take them: shapes, names that fit everywhere and lead back, token budgets."""

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
TOKENS_PER_TOOL = 5  # hashes in names split badly, and vendors wrap each tool in some words of their own

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HASHED_NAME = re.compile(r".*_[0-9a-f]{8}(?:[0-9a-f]{8})?")
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!\be\.g\.)(?<!\bi\.e\.)\s|(?<=[。！？])|\n\s*\n")
# Pieces of text that are at most one token each, or nearly so; see estimate_tokens.
_PIECE = re.compile(r"[A-Z]?[a-z]{1,5}|[A-Z]{1,2}|[0-9]|[_-]|[!-,./:-@\[-^`{-~]{1,3}|\s{2,8}")


@dataclass(frozen=True, slots=True)
class Rendered:
    """Tools ready to send: the level that fitted, and the tokens it takes by estimate."""

    payload: list[dict[str, Any]]
    level: Level
    tokens: int
    names: WireNames


class WireNames:
    """The wire names of a set of tools, and the way back."""

    def __init__(self, tool_ids: Iterable[str]) -> None:
        """Name every tool by its id alone, so that a tool's name is the same in every prompt."""
        ids = list(dict.fromkeys(tool_ids))
        named: dict[str, list[str]] = {}
        for tool_id in ids:
            named.setdefault(wire_name(tool_id), []).append(tool_id)
        # One chance in four billion for two tools of one prefix: then both get the longer hash.
        self._names = {
            tool_id: name if len(sharing) == 1 else _hashed(tool_id, 8)
            for name, sharing in named.items()
            for tool_id in sharing
        }
        self._ids = {name: tool_id for tool_id, name in self._names.items()}

    def name(self, tool_id: str) -> str:
        """The wire name of a tool."""
        if tool_id not in self._names:
            raise UnknownTool(f"{tool_id} is not among the {len(self._names)} tools that were named")
        return self._names[tool_id]

    def tool_id(self, wire_name: str) -> str:
        """The tool that a model called by this name."""
        if wire_name not in self._ids:
            raise UnknownTool(f"no tool was offered under the name {wire_name!r:.80}; offered: {len(self._ids)}")
        return self._ids[wire_name]


def wire_name(tool_id: str) -> str:
    """A name of at most 64 of [A-Za-z0-9_-] for a tool id: "namespace__name" as it is, or made fit and hashed.

    Both kinds can be told apart, and the seam of the first kind is its first "__": no two ids share a plain name, and
    no plain name looks like a hashed one.
    """
    namespace, _, name = tool_id.rpartition("/")
    plain = f"{namespace}__{name}"
    seam_is_clear = "__" not in namespace and not namespace.endswith("_") and name[:1] not in ("", "_") and namespace
    if seam_is_clear and _PLAIN_NAME.fullmatch(plain) and not _HASHED_NAME.fullmatch(plain):
        return plain
    return _hashed(tool_id, 4)


def _hashed(tool_id: str, digest_size: int) -> str:
    """What can be kept of namespace and name, the name first, and a hash of the id."""
    digest = hashlib.blake2b(tool_id.encode(errors="surrogatepass"), digest_size=digest_size).hexdigest()
    room = MAX_NAME_CHARS - len(digest) - 1
    namespace, name = (re.sub(r"[^A-Za-z0-9_-]+", "_", part).strip("_") for part in tool_id.rsplit("/", 1))
    name = name[:room]
    namespace = namespace[: max(0, room - len(name) - 2)].rstrip("_")
    return "_".join(filter(None, ["__".join(filter(None, [namespace, name])), digest]))


def render(tools: Sequence[Tool], format: Format, budget: int | None = None) -> Rendered:
    """The tools at the richest level whose estimated tokens fit the budget; in full without one."""
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
    """One tool in a vendor's shape; `name` is the tool's own wire name unless another is given."""
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
        # Left unsaid, "strict" is true there, which forbids optional parameters.
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
    """The arguments of a model's call under the tool's own parameter names; Anthropic forbids some of those."""
    schema = object_schema(tool.input_schema)
    original = {safe: key for key, safe in safe_keys(schema["properties"]).items()}
    return {original.get(name, name): value for name, value in arguments.items()}


def estimate_tokens(payload: Sequence[Mapping[str, Any]]) -> int:
    """The tokens of a list of rendered tools, estimated rather too high: of its JSON, and a few for each tool.

    The JSON counts one for each run of up to five small letters (with a capital before it), two capitals, digit,
    underscore, hyphen, three other signs and eight spaces, and two for every three bytes of other scripts. On 14,735
    published tools, mostly not those it was fitted to, the median is 1.3 times the largest count of OpenAI's o200k and
    cl100k and the tokenizer that Anthropic once published; fewer than one tool in a thousand lies below that count (at
    worst by 15 %), and no five tools together do.
    """
    text = json.dumps(payload, ensure_ascii=False, separators=(",", ":"), default=str)
    other_bytes = len(text.encode(errors="replace")) - len(text.encode("ascii", "ignore"))
    return len(_PIECE.findall(text)) + other_bytes * 2 // 3 + TOKENS_PER_TOOL * len(payload)


def signature(name: str, schema: Mapping[str, Any]) -> str:
    """A tool in one line: "name(to: string, cc?: string[])"; a question mark stands after what may be left out."""
    required = schema.get("required", ())
    parameters = [
        f"{key}{'' if key in required else '?'}: {type_word(value, schema)}"
        for key, value in schema["properties"].items()
    ]
    return clean_text(f"{name}({', '.join(parameters)})")


def first_sentence(text: str) -> str:
    """What a description says first, on one line."""
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
    """Clients check results against it, so one that MCP does not allow is left out rather than bent."""
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
    """The shape itself unless its JSON could not be sent: lone surrogates, NaN and Python objects are replaced."""
    try:
        json.dumps(shape, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, TypeError):
        text = json.dumps(shape, ensure_ascii=False, default=str).encode(errors="replace")
        return cast(dict[str, Any], json.loads(text, parse_constant=lambda _: None))
    return shape
