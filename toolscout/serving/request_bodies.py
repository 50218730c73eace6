"""Reads and checks request bodies. Each BadRequest names the field that is wrong and says what it should be."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

from toolscout.core import vendor_formats
from toolscout.core.answer import Level
from toolscout.core.tool import MAX_NESTING, Tool, clean_text
from toolscout.errors import BadRequest, BadTool, OriginRefused
from toolscout.scout import Count
from toolscout.search.verdict import checked_level

MAX_K = 100
MAX_BATCH = 32
MAX_EXAMPLE_ID = 64
MAX_LISTED = 1_000
MAX_BUDGET = 10_000_000
DEFAULT_SOURCE = "http"
MAX_TOOL_CHARS = 256_000
_MAX_LABEL = 200
_Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SearchBody:
    """The body of a search or a need question: one request or a batch, and the form of the answer."""

    requests: tuple[str, ...]
    batch: bool
    k: Count = 5
    format: vendor_formats.Format | None = None
    budget: int | None = None
    namespace: str | None = None
    level: Level | None = None


@dataclass(frozen=True, slots=True)
class FeedbackBody:
    """One example of feedback: the tools that a request used, and those that it rejected.

    `id`: by which the caller may send it again and have it recorded once; "" for none.
    """

    request: str
    used: tuple[str, ...]
    rejected: tuple[str, ...]
    id: str = ""


@dataclass(frozen=True, slots=True)
class Changes:
    """Tools to add or change, and ids to remove."""

    tools: tuple[Tool, ...] = ()
    remove: tuple[str, ...] = ()
    source: str = DEFAULT_SOURCE
    replace: bool = False
    sync: bool = False


def record(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a body; raises BadRequest where it is none."""
    try:
        found = json.loads(body, parse_constant=_no_number, parse_float=_finite)
    except RecursionError:
        raise BadRequest(f"the body is nested too deeply; {MAX_NESTING} levels are read") from None
    except ValueError:
        raise BadRequest("the body is not JSON; send one JSON object in UTF-8") from None
    if not isinstance(found, dict):
        raise BadRequest(f"the body must be a JSON object, got {type(found).__name__}")
    return found


def _no_number(name: str) -> NoReturn:
    raise ValueError(name)


def _finite(text: str) -> float:
    """Read a number; raises BadRequest for one such as 1e999, which would be written as infinity, not JSON."""
    number = float(text)
    return number if math.isfinite(number) else _no_number(text)


def read_search(given: _Record) -> SearchBody:
    """Read the body of a search."""
    _only(given, "request", "requests", "k", "format", "budget", "namespace", "level")
    requests, batch = _requests(given)
    k: Any = given.get("k", 5)
    if k != "auto" and not _is_whole_number(k, 1, MAX_K):
        raise BadRequest(f'k must be a whole number from 1 to {MAX_K}, or "auto"')
    format, budget, namespace = given.get("format"), given.get("budget"), given.get("namespace")
    if format is not None and format not in vendor_formats.FORMATS:
        raise BadRequest(f"format must be one of {', '.join(vendor_formats.FORMATS)}")
    if budget is not None and not _is_whole_number(budget, 1, MAX_BUDGET):
        raise BadRequest(f"budget must be a whole number of tokens from 1 to {MAX_BUDGET:,}")
    if namespace is not None and not isinstance(namespace, str):
        raise BadRequest("namespace must be text")
    level = None if given.get("level") is None else checked_level(given["level"])
    return SearchBody(requests, batch, k, cast("vendor_formats.Format | None", format), budget, namespace, level)


def read_need(given: _Record) -> SearchBody:
    """Read the body of a need question: whether requests need a tool."""
    _only(given, "request", "requests")
    return SearchBody(*_requests(given))


def read_feedback(given: _Record) -> list[FeedbackBody]:
    """Read feedback: one example, or several under "examples"."""
    examples = given.get("examples")
    if examples is None:
        return [_used(given)]
    _only(given, "examples")
    if not isinstance(examples, list) or not 1 <= len(examples) <= MAX_BATCH:
        raise BadRequest(f"examples must be a list of 1 to {MAX_BATCH} examples")
    return [_used(example) for example in examples]


def read_changes(body: bytes) -> Changes:
    """Read the tools to add or change and the ids to remove."""
    given = record(body)
    _only(given, "tools", "remove", "source", "replace", "sync", "namespace")
    tools, source = given.get("tools", []), given.get("source", DEFAULT_SOURCE)
    if not isinstance(tools, list):
        raise BadRequest("tools must be a list of tools")
    if not isinstance(source, str) or not clean_text(source) or len(source) > _MAX_LABEL:
        raise BadRequest(f"source must be a name of up to {_MAX_LABEL} characters")
    flags = {name: given.get(name, False) for name in ("replace", "sync")}
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise BadRequest(f"{name} must be true or false")
    removed = _texts(given, "remove")
    if not tools and not removed and not flags["sync"]:
        raise BadRequest("there is nothing to do; give tools, or ids to remove")
    if flags["sync"] and removed:
        raise BadRequest("sync removes what the source no longer has; remove other tools by themselves")
    namespace = given.get("namespace")
    if namespace is not None and not isinstance(namespace, str):
        raise BadRequest("namespace must be text")
    read = tuple(_tool(tool, number, namespace) for number, tool in enumerate(tools))
    return Changes(read, removed, clean_text(source), **flags)


def read_tool_lines(body: bytes) -> Changes:
    """Read tools sent as JSON lines, one tool a line."""
    tools = []
    for number, line in enumerate(body.splitlines()):
        if line.strip():
            tools.append(_tool(record(line), number, None))
    if not tools:
        raise BadRequest("there is nothing to do; send one tool a line")
    return Changes(tuple(tools))


def read_page(query: Mapping[str, str]) -> tuple[str | None, int, int]:
    """Return the namespace, offset and limit of a listing."""
    numbers = []
    for name, default, most in (("offset", 0, 10**9), ("limit", 100, MAX_LISTED)):
        text = query.get(name, str(default))
        if not (text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) <= most):
            raise BadRequest(f"{name} must be a whole number from 0 to {most:,}")
        numbers.append(int(text))
    return query.get("namespace") or None, numbers[0], numbers[1]


def _used(given: Any) -> FeedbackBody:
    if not isinstance(given, Mapping):
        raise BadRequest("an example must be an object with request, used and rejected")
    _only(given, "request", "used", "rejected", "id")
    if not isinstance(given.get("request"), str):
        raise BadRequest("request must be text: what should be done")
    name = given.get("id", "")
    if not isinstance(name, str) or len(name) > MAX_EXAMPLE_ID or (not name and "id" in given):
        raise BadRequest(f"id must be text of 1 to {MAX_EXAMPLE_ID} characters, such as a UUID of your own")
    found = FeedbackBody(given["request"], _texts(given, "used"), _texts(given, "rejected"), name)
    if not found.used and not found.rejected:
        raise BadRequest("feedback needs used or rejected: lists of tool ids")
    return found


def _requests(given: _Record) -> tuple[tuple[str, ...], bool]:
    one, many = given.get("request"), given.get("requests")
    if (one is None) == (many is None):
        raise BadRequest("give request: what should be done, in words; or requests: a list of such")
    if many is None:
        if not isinstance(one, str):
            raise BadRequest("request must be text: what should be done")
        return (one,), False
    if not isinstance(many, list) or not 1 <= len(many) <= MAX_BATCH or not all(isinstance(r, str) for r in many):
        raise BadRequest(f"requests must be a list of 1 to {MAX_BATCH} texts")
    return tuple(many), True


def _tool(given: Any, number: int, namespace: str | None) -> Tool:
    for key in ("namespace", "name", "description", "title"):
        if isinstance(given, Mapping) and given.get(key) is not None and not isinstance(given[key], str):
            raise BadTool(f"tools[{number}]: {key} must be text")
    if isinstance(given, Mapping) and given.get("origin") is not None:
        raise OriginRefused(f"tools[{number}]")
    check_size(given, f"tools[{number}]")
    try:
        tool = Tool.from_record(given, namespace)
    except BadTool as error:
        raise BadTool(f"tools[{number}]: {error}") from None
    return tool


def check_size(record: Any, where: str) -> None:
    """Raise BadRequest for a tool so large that rendering it would keep other callers waiting."""
    if len(json.dumps(record)) > MAX_TOOL_CHARS:
        raise BadTool(f"{where}: a tool may have {MAX_TOOL_CHARS:,} characters as JSON here; shorten its schema")


def _texts(given: _Record, name: str) -> tuple[str, ...]:
    value = given.get(name, [])
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(item, str) for item in value):
        raise BadRequest(f"{name} must be a list of tool ids")
    return tuple(value)


def _is_whole_number(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _only(given: _Record, *known: str) -> None:
    unknown = [name for name in given if name not in known]
    if unknown:
        raise BadRequest(f"there is no field {unknown[0]!r:.80}; the fields are {', '.join(known)}")
