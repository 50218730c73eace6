"""Imports lists of tools: JSON Lines, a JSON array, an MCP tools/list answer, OpenAI's and Anthropic's formats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from toolscout.catalogue.base import (
    Importer,
    ReadOptions,
    RepeatCheck,
    as_json,
    existing_file,
    not_a,
    parse_json,
    read_lines,
    read_text,
    shape,
    stem,
    suffix,
    tool_from,
    unique,
)
from toolscout.core.tool import Tool
from toolscout.errors import BadSource

_LISTS = ("tools", "functions")
_OTHER_IMPORTERS_KEYS = frozenset({"openapi", "swagger", "api_list", "mcpServers"})
_WANTED = "a file of tools (.jsonl, one tool a line, or .json, an array of tools)"


class JsonlImporter(Importer):
    """Reads tool records from files and Python values."""

    def accepts(self, source: object) -> bool:
        """Return whether this is a file or a value that holds tool records."""
        if isinstance(source, list | tuple):
            return bool(source) and all(isinstance(item, Mapping) for item in source)
        found = shape(source)
        if found is None:
            return False
        if found.form == "broken":  # a broken .json file is accepted, so that `read` says where it is broken
            path = existing_file(source)
            return path is not None and suffix(path) == ".json"
        if found.form == "object":
            return not found.keys & _OTHER_IMPORTERS_KEYS and bool(found.keys & {*_LISTS, "result", "name", "function"})
        return found.form in ("lines", "array")

    def read(self, source: object, options: ReadOptions) -> Iterator[Tool]:
        """Return the tools in order. A record without a namespace has that of the options, else the file's name.

        Raises BadSource for any other source, or for a broken record.
        """
        again = ReadOptions(namespace=options.namespace, keep_going=True)  # the first reading reports the problems
        return unique(_tools(source, options), options, RepeatCheck(again=lambda: _tools(source, again)))


def _tools(source: object, options: ReadOptions) -> Iterator[tuple[str, Tool]]:
    for where, namespace, record in _records(source, options):
        try:
            yield where, tool_from(_unwrapped(record), namespace, where)
        except BadSource as error:
            options.problem(error)


def _records(source: object, options: ReadOptions) -> Iterator[tuple[str, str, Any]]:
    """Yield each record with its place for messages and the namespace it has unless it names its own."""
    path = existing_file(source)
    if path is not None:
        namespace = options.namespace or stem(path)
        rows = _lines(path, options) if _is_json_lines(path) else _entries(parse_json(read_text(path), str(path)), path)
        for where, record in rows:
            yield where, namespace, record
    elif isinstance(source, Mapping | list | tuple):
        for where, record in _entries(as_json(source, "the given tools"), "the given tools"):
            yield where, options.namespace or "default", record
    else:
        raise not_a(source, _WANTED)


def _is_json_lines(path: Path) -> bool:
    found = shape(path)
    if found is None or found.form in ("object", "array"):
        return False
    return found.form == "lines" or suffix(path) != ".json"  # kind="jsonl" allows any file: try its lines


def _lines(path: Path, options: ReadOptions) -> Iterator[tuple[str, Any]]:
    for number, line in read_lines(path, options):
        where = f"{path} line {number}"
        try:
            record = parse_json(line, where)
        except BadSource as error:
            options.problem(error)
            continue
        yield where, record


def _entries(value: Any, where: Path | str) -> Iterator[tuple[str, Any]]:
    """Yield the records of a JSON document, each with its place: an array, an object around one, or a single tool."""
    if isinstance(value, Mapping):
        inner = value["result"] if isinstance(value.get("result"), Mapping) else value
        listed = next((inner[key] for key in _LISTS if isinstance(inner.get(key), list)), None)
        value = [value] if listed is None else listed
    if not isinstance(value, list):
        raise BadSource(f"{where} holds no tools; an array of tools or an object with 'tools' is needed")
    for number, record in enumerate(value, 1):
        yield f"{where} entry {number}", record


def _unwrapped(record: Any) -> Any:
    """Return the record under "function", where OpenAI's chat format has it; any other record unchanged."""
    inner = record.get("function") if isinstance(record, Mapping) else None
    return inner if isinstance(inner, Mapping) else record
