"""Sources of tools: `read` picks the importer for what it is given. Each module in importers/ is one importer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

from toolscout.catalogue.base import Importer, ReadOptions, as_path, is_url, safe_url, unique
from toolscout.catalogue.importers import functions, mcp
from toolscout.catalogue.importers import importers as all_importers
from toolscout.core.tool import Tool
from toolscout.errors import BadSource

__all__ = ["Importer", "ReadOptions", "describe", "read"]

_KINDS = (
    "a .jsonl or .json file of tools; an OpenAPI document (file or URL); an MCP server (command line, URL ending in "
    "/mcp, anything after 'mcp:', or a JSON file with mcpServers); a BEIR folder (with corpus.jsonl); a folder of "
    "ToolBench JSON files; a Python function, module or file (package.module:function)"
)


def read(source: object, options: ReadOptions | None = None) -> Iterator[Tool]:
    """The tools of any source, each id once. A source that no importer takes is refused at once."""
    options = options or ReadOptions()
    known = all_importers()
    if options.kind is not None:
        if options.kind not in known:
            raise BadSource(f"there is no importer {options.kind!r}; the importers are: {', '.join(known)}")
        return known[options.kind].read(source, options)
    for importer in known.values():
        if importer.accepts(source):
            return importer.read(source, options)
    if isinstance(source, Tool):
        return iter([source])
    if isinstance(source, Iterable) and not isinstance(source, str | bytes | Mapping | Path):
        return unique(_given(source, options), options)
    raise _refused(source)


def describe(source: object) -> str:
    """A stable label of a source without secrets: a path, URL, command line or module:name."""
    if mcp.accepts(source):
        return mcp.label(source)
    if isinstance(source, str) and is_url(source):
        return safe_url(source)
    if isinstance(source, ModuleType):
        return f"{source.__name__}:"
    if isinstance(source, list | tuple) and source and all(map(callable, source)):
        return ", ".join(map(_function_label, source))
    if callable(source):
        return _function_label(source)
    path = as_path(source)
    return "in memory" if path is None else _path_label(path, source)


def _path_label(path: Path, source: object) -> str:
    place, colon, name = str(path).rpartition(":")
    if os.path.exists(path) or not (colon or functions.accepts(source)):
        return os.path.abspath(path)
    return f"{os.path.abspath(place)}:{name}" if place.endswith(".py") else str(source)


def _function_label(function: object) -> str:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', None) or 'builtins'}:{name}"


def _given(tools: Iterable[object], options: ReadOptions) -> Iterator[tuple[str, Tool]]:
    """Tools that are at hand already."""
    for number, tool in enumerate(tools, 1):
        if isinstance(tool, Tool):
            yield f"item {number}", tool
        else:
            options.problem(BadSource(f"item {number} is not a Tool but {type(tool).__name__}; give Tools only"))


def _refused(source: object) -> BadSource:
    path = as_path(source)
    if path is not None and not os.path.exists(path):
        return BadSource(f"{str(source)!r:.200} does not exist. A source is {_KINDS}")
    shown = str(path) if path is not None else f"{source!r:.80}"
    return BadSource(f"{shown} holds no tools that can be read. A source is {_KINDS}")
