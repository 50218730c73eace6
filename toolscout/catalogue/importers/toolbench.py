"""Imports ToolBench's original layout: one JSON file a tool, its APIs in `api_list`; each API becomes a Tool."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from toolscout.catalogue.base import (
    Importer,
    ReadOptions,
    RepeatCheck,
    as_json,
    existing,
    not_a,
    parse_json,
    read_text,
    rename_repeats,
    shape,
    suffix,
)
from toolscout.core.tool import Origin, Tool, clean_text
from toolscout.errors import BadSource, BadTool

# Files of a folder that `accepts` opens to find a ToolBench file.
_MAX_PROBED = 20
_TYPES: dict[str, dict[str, Any]] = {
    "STRING": {"type": "string"},
    "NUMBER": {"type": "number"},
    "INTEGER": {"type": "integer"},
    "BOOLEAN": {"type": "boolean"},
    "ENUM": {"type": "string"},
    "ARRAY": {"type": "array"},
    "LIST": {"type": "array"},
    "OBJECT": {"type": "object"},
    "MAP": {"type": "object"},
    "DATE": {"type": "string", "format": "date"},
    "TIME": {"type": "string", "format": "time"},
    "DATETIME": {"type": "string", "format": "date-time"},
}
_PYTHON = {"string": str, "boolean": bool, "array": list, "object": dict}


class ToolBenchImporter(Importer):
    """Reads ToolBench JSON files, and folders of them."""

    def accepts(self, source: object) -> bool:
        """Return whether this is a ToolBench JSON file, or a folder that holds some."""
        path = existing(source)
        if path is not None and path.is_dir():
            return any(_is_tool_file(file) for file in islice(_json_files(path), _MAX_PROBED))
        return _is_tool_file(source)

    def read(self, source: object, options: ReadOptions) -> Iterator[Tool]:
        """Return one Tool for each API: its namespace is the ToolBench tool's name, its tag the tool's category.

        A document without a category has that of its folder. Some ToolBench tools have different APIs of one name:
        the later ones are named name_2, name_3 … Raises BadSource for any other source, or for a broken document.
        """
        return rename_repeats(
            _tools(source, options),
            RepeatCheck(),
            lambda tool, number: replace(tool, name=f"{tool.name}_{number}", title=tool.name),
        )


def _tools(source: object, options: ReadOptions) -> Iterator[tuple[str, Tool]]:
    for file, category, document in _documents(source, options):
        try:
            apis = _apis(document, file)
        except BadSource as error:
            options.problem(error)
            continue
        for number, api in enumerate(apis, 1):
            where = f"{file} API {number}"
            try:
                yield where, _tool(document, api, category, options, where)
            except BadSource as error:
                options.problem(error)


def _is_tool_file(source: object) -> bool:
    found = shape(source)
    return found is not None and "api_list" in found.keys


def _json_files(folder: Path) -> Iterator[Path]:
    for root, folders, files in os.walk(folder):
        folders.sort()
        yield from (Path(root, name) for name in sorted(files) if suffix(Path(name)) == ".json")


def _documents(source: object, options: ReadOptions) -> Iterator[tuple[str, str, Any]]:
    """Yield each document with its place for messages and the category that its folder names."""
    path = existing(source)
    if isinstance(source, Mapping):
        yield "the given tool", "", as_json(source, "the given tool")
    elif path is None:
        raise not_a(source, "a folder of ToolBench JSON files, or one such file")
    else:
        found = False
        for file in [path] if path.is_file() else _json_files(path):
            found = True
            try:
                document = parse_json(read_text(file), str(file))
            except BadSource as error:
                options.problem(error)
                continue
            folder = file.resolve().parent.name
            yield str(file), "" if folder == "tools" else folder, document
        if not found:
            raise not_a(source, "a folder of ToolBench JSON files: it holds no .json file")


def _apis(document: Any, where: str) -> list[Any]:
    apis = document.get("api_list") if isinstance(document, Mapping) else None
    if not isinstance(apis, list):
        raise BadSource(f"{where} has no api_list; a ToolBench tool is an object with the list of its APIs")
    return apis


def _tool(document: Mapping[str, Any], api: Any, category: str, options: ReadOptions, where: str) -> Tool:
    if not isinstance(api, Mapping):
        raise BadSource(f"{where}: an API must be a JSON object, got {type(api).__name__}")
    names = (document.get(key) for key in ("tool_name", "name", "title", "standardized_name"))
    namespace = options.namespace or next((text for text in map(_text, names) if text), "")
    category = _text(document.get("category")) or _text(document.get("category_name")) or category
    description = api.get("description") if isinstance(api.get("description"), str) else ""
    method = (_text(api.get("method")) or "GET").upper()
    schema = _schema(api, where)
    service, home = _text(document.get("tool_description")), _text(document.get("home_url"))
    try:
        return Tool(
            namespace=clean_text(namespace),
            name=_text(api.get("name")),
            description=description or service,
            service=service,
            input_schema=schema,
            tags=(category,) if category else (),
            origin=_origin(document, api, method, schema),
            meta={"home_url": home} if home else {},
        )
    except BadTool as error:
        raise BadSource(f"{where}: {error}") from None


def _text(value: Any) -> str:
    return clean_text(value) if isinstance(value, str) else ""


def _schema(api: Mapping[str, Any], where: str) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    required: list[str] = []
    for key in ("required_parameters", "optional_parameters"):
        parameters = api.get(key) or []
        if not isinstance(parameters, list):
            raise BadSource(f"{where}: {key} must be a list, got {type(parameters).__name__}")
        for parameter in parameters:
            name = parameter.get("name") if isinstance(parameter, Mapping) else None
            if not isinstance(name, str) or not name:
                raise BadSource(f"{where}: a parameter of {key} has no name")
            if name not in properties:
                properties[name] = _parameter(parameter)
                required += [name] if key.startswith("required") else []
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return schema | {"required": required} if required else schema


def _parameter(parameter: Mapping[str, Any]) -> dict[str, Any]:
    """Return a parameter's schema. A type may have a remark, as in "DATE (YYYY-MM-DD)"; an unknown one is a string."""
    kind = _text(parameter.get("type")).upper().partition(" ")[0]
    schema = dict(_TYPES.get(kind, _TYPES["STRING"]))
    description = _text(parameter.get("description"))
    if description:
        schema["description"] = description
    values: list[Any] = next(
        (parameter[key] for key in ("enum", "options") if isinstance(parameter.get(key), list)), []
    )
    if values:
        schema["enum"] = values
    default = _default(parameter.get("default"), schema["type"])
    return schema if default is None else schema | {"default": default}


def _default(value: Any, kind: str) -> Any:
    """Convert a default to its type, or None: ToolBench writes most defaults as strings, and "" for no default."""
    if value is None or value == "":
        return None
    if kind in ("number", "integer"):
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            return None
        return int(number) if number.is_integer() else number if math.isfinite(number) else None
    if kind == "boolean" and isinstance(value, str):
        return {"true": True, "false": False}.get(value.strip().lower())
    return value if isinstance(value, _PYTHON[kind]) else None


def _origin(document: Mapping[str, Any], api: Mapping[str, Any], method: str, schema: Mapping[str, Any]) -> Origin:
    try:
        parts = urlsplit(_text(api.get("url")))
    except ValueError:
        parts = urlsplit("")
    host, path = parts.netloc.rpartition("@")[2] or _text(document.get("host")), parts.path
    target = f"{parts.scheme or 'https'}://{host}" if host else ""
    other = "query" if method in ("GET", "HEAD", "DELETE") else "body"
    places = {name: "path" if f"{{{name}}}" in path else other for name in schema["properties"]}
    return Origin("http", target, {"method": method, "path": path, "in": places})
