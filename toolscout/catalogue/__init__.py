"""Reads tools from sources such as files, servers and functions: `read` chooses the importer, `describe` the label."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from toolscout.catalogue import registry
from toolscout.catalogue.base import Importer, ReadOptions, as_path, plain_label, unique
from toolscout.core.tool import Tool
from toolscout.errors import BadSource

__all__ = ["Importer", "ReadOptions", "describe", "read"]

_KINDS = (
    "a .jsonl or .json file of tools; an OpenAPI document (file or URL); an MCP server (command line, URL ending in "
    "/mcp, anything after 'mcp:', or a JSON file with mcpServers); a BEIR folder (with corpus.jsonl); a folder of "
    "ToolBench JSON files; a Python function, module or file (package.module:function)"
)


def read(source: object, options: ReadOptions | None = None) -> Iterator[Tool]:
    """Return the tools of any source, each id once. Raises BadSource at once where no importer accepts the source."""
    options = options or ReadOptions()
    chosen = registry.importer(options.kind) if options.kind is not None else registry.accepting(source)
    if chosen is not None:
        return chosen.read(source, options)
    if isinstance(source, Tool):
        return iter([source])
    if isinstance(source, Iterable) and not isinstance(source, str | bytes | Mapping | Path):
        return unique(_tools(source, options), options)
    raise _no_importer(source)


def describe(source: object) -> str:
    """Return a stable label of a source without secrets: a path, URL, command line or module:name."""
    chosen = registry.accepting(source)
    return plain_label(source) if chosen is None else chosen.label(source)


def _tools(items: Iterable[object], options: ReadOptions) -> Iterator[tuple[str, Tool]]:
    """Yield the position and tool of each item of an iterable of tools; any other item is a problem."""
    for number, tool in enumerate(items, 1):
        if isinstance(tool, Tool):
            yield f"item {number}", tool
        else:
            options.problem(BadSource(f"item {number} is not a Tool but {type(tool).__name__}; give Tools only"))


def _no_importer(source: object) -> BadSource:
    path = as_path(source)
    if path is not None and not os.path.exists(path):
        return BadSource(f"{str(source)!r:.200} does not exist. A source is {_KINDS}")
    shown = str(path) if path is not None else f"{source!r:.80}"
    return BadSource(f"{shown} holds no tools that can be read. A source is {_KINDS}")
