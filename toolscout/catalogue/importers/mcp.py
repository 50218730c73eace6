"""MCP servers: a command line (stdio), a URL (streamable HTTP), or the mcpServers file of another client."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from toolscout.catalogue.base import (
    Importer,
    ReadOptions,
    as_json,
    existing,
    existing_file,
    is_mcp_url,
    is_url,
    not_a,
    parse_json,
    read_text,
    shape,
    suffix,
    tool_from,
    unique,
)
from toolscout.catalogue.mcp.client import McpServer, ServerListing, list_tools
from toolscout.catalogue.mcp.config import CONFIG_KEYS, config_servers, has_servers
from toolscout.core.tool import MAX_NAME_CHARS, Tool, clean_text
from toolscout.errors import BadSource, ToolscoutError

_PREFIXES = ("mcp:", "stdio:", "mcp+http://", "mcp+https://")
_WANTED = "an MCP server: a command line, a URL, or a JSON file with mcpServers"
# What is data by its name is never run, whatever its permissions say; a Python file is read for its functions.
_NOT_COMMANDS = (".json", ".jsonl", ".ndjson", ".yaml", ".yml", ".py", ".txt", ".md")
# Characters of a tool as JSON. What is longer no model could read.
MAX_TOOL_CHARS = 4_000_000
_NO_OBJECTS = frozenset({"array", "boolean", "integer", "null", "number", "string"})
# A server speaks of its tools only: it does not get to choose another's namespace or how its tools are called.
_FIELDS = ("name", "title", "description", "inputSchema", "outputSchema", "annotations", "_meta")


class McpImporter(Importer):
    """MCP servers."""

    def accepts(self, source: object) -> bool:
        """Whether this is said to be an MCP server, looks like a command to run, or is a file that names servers."""
        if isinstance(source, list | tuple):
            return bool(source) and all(isinstance(item, str) for item in source)
        if isinstance(source, str) and (source.startswith(_PREFIXES) or is_mcp_url(source)):
            return True
        found = shape(source)
        if found is not None and found.form == "object":
            return bool(found.keys & CONFIG_KEYS) and has_servers(
                source if isinstance(source, Mapping) else _config(source)
            )
        path = existing(source)
        if path is not None:
            return path.is_file() and suffix(path) not in _NOT_COMMANDS and os.access(path, os.X_OK)
        return _is_parameters(source) or (isinstance(source, str) and not is_url(source) and _is_command(source))

    def read(self, source: object, options: ReadOptions) -> Iterator[Tool]:
        """The tools of each server. Namespace: the option, else the server's key in the file, else its own name."""
        servers = _servers(source, options)
        for server in servers:
            try:
                listing = _run(server, options)
                yield from unique(tools_of(server, listing, options, alone=len(servers) == 1), options)
            except ToolscoutError as error:
                if len(servers) == 1:
                    raise
                options.problem(error)

    def label(self, source: object) -> str:
        """The secret-free name of a source that this importer accepts."""
        server = _one_server(source, ReadOptions())
        path = existing_file(_without_prefix(source))
        return server.label if server else os.path.abspath(path) if path else "in memory"


def _servers(source: object, options: ReadOptions) -> list[McpServer]:
    server = _one_server(source, options)
    if server is not None:
        return [server]
    inner = _without_prefix(source)
    path = existing_file(inner)
    if path is None and not isinstance(source, Mapping):
        raise not_a(source, _WANTED)
    return config_servers(_config(inner), str(path or "the given servers"), options)


def _without_prefix(source: object) -> object:
    if not isinstance(source, str):
        return source
    return source.removeprefix("stdio:").removeprefix("mcp:").removeprefix("mcp+").strip()


def _one_server(source: object, options: ReadOptions) -> McpServer | None:
    """The server that a command line, URL or StdioServerParameters names; None for a file of servers."""
    if _is_parameters(source):
        parameters: Any = source
        own = {**(parameters.env or {}), **options.env}
        directory = str(parameters.cwd) if parameters.cwd else None
        return McpServer(command=(parameters.command, *parameters.args), env=own, cwd=directory)
    if isinstance(source, list | tuple) and source and all(isinstance(item, str) for item in source):
        return McpServer(command=tuple(source), env=dict(options.env))
    if isinstance(source, Path):
        runs = existing_file(source) is not None and suffix(source) not in _NOT_COMMANDS
        return McpServer(command=(str(source.resolve()),), env=dict(options.env)) if runs else None
    if not isinstance(source, str) or not source.strip():
        return None
    text = str(_without_prefix(source))
    if is_url(text):
        return McpServer(url=text, headers=dict(options.headers), addresses=options.addresses)
    path = existing_file(text)
    if path is not None and suffix(path) == ".json":
        return None
    command = _split(text)
    return McpServer(command=command, env=dict(options.env)) if command else None


def _split(text: str) -> tuple[str, ...]:
    path = existing_file(text)
    if path is not None:
        return (str(path.resolve()),)
    try:
        return tuple(os.path.expanduser(word) if number == 0 else word for number, word in enumerate(shlex.split(text)))
    except ValueError as error:
        raise BadSource(f"the command line cannot be split into words: {error}") from None


def _is_command(text: str) -> bool:
    try:
        words = shlex.split(text)
    except ValueError:
        return False
    return len(words) > 1 and shutil.which(os.path.expanduser(words[0])) is not None


def _is_parameters(source: object) -> bool:
    """The SDK's StdioServerParameters, told without importing the SDK."""
    return type(source).__name__ == "StdioServerParameters" and hasattr(source, "command")


def _config(source: object) -> Any:
    if isinstance(source, Mapping):
        return as_json(source, "the given servers")
    path = existing_file(source)
    return parse_json(read_text(path), str(path)) if path is not None else None


def _run(server: McpServer, options: ReadOptions) -> ServerListing:
    """Ask the server in an event loop: here, or in a thread of its own where one is already running here."""
    # Imported here: most processes that know catalogues never ask a server.
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(list_tools(server, options.timeout))
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, list_tools(server, options.timeout)).result()


def tools_of(
    server: McpServer, listing: ServerListing, options: ReadOptions, alone: bool = True, most: int = MAX_TOOL_CHARS
) -> Iterator[tuple[str, Tool]]:
    """The tools that a server listed, each with its place for messages; `most`: the characters of one as JSON."""
    namespace = clean_text(_namespace(server, listing, options, alone))
    for number, raw in enumerate(listing.tools, 1):
        where = f"{server.label}, tool {number}"
        try:
            if not isinstance(raw, Mapping):
                raise BadSource(f"{where}: a tool must be an object, got {type(raw).__name__}")
            name = _callable_name(raw, where)
            odd = _odd_schema(raw.get("inputSchema"))
            if len(json.dumps(raw)) > most:
                odd = f"has more than {most:,} characters"
            if odd:  # it costs this tool; the others are taken, also when strict
                options.problems.append(f"{where}: {name} {odd}; report it to the server's makers")
                continue
            record = _record(as_json(raw, f"{where}: {name}"), server, listing.service)
            yield where, tool_from(record, namespace, where)
        except BadSource as error:
            options.problem(BadSource(f"{error}; report it to the server's makers, or keep going without it"))


def _namespace(server: McpServer, listing: ServerListing, options: ReadOptions, alone: bool) -> str:
    if options.namespace:
        return options.namespace if alone else f"{options.namespace}/{server.name}"
    return server.name or listing.server_name or server.fallback_name


def _callable_name(raw: Mapping[str, Any], where: str) -> str:
    """A tool's name as it may be shown; BadSource for one that could not be sent back to the server."""
    name = raw.get("name")
    text = name if isinstance(name, str) else ""
    shown = clean_text(text[:MAX_NAME_CHARS])[:80]
    if len(text) > MAX_NAME_CHARS:
        raise BadSource(f"{where}: the name {shown!r}… has more than {MAX_NAME_CHARS:,} characters")
    if text.encode(errors="replace") != text.encode(errors="surrogatepass"):
        raise BadSource(f"{where}: the name {shown!r} is not valid text")
    return shown


def _odd_schema(schema: Any) -> str:
    """What is wrong with an inputSchema under which no arguments could be sent; they are always an object."""
    if schema is None or schema is True:
        return ""
    if not isinstance(schema, Mapping):
        return f"has an inputSchema that is no JSON object but {json.dumps(schema, default=str)[:40]}"
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if kinds and all(isinstance(kind, str) and kind in _NO_OBJECTS for kind in kinds):
        return f"has an inputSchema of type {json.dumps(kinds)[:60]}, but arguments are an object"
    return ""


def _record(raw: Mapping[str, Any], server: McpServer, service: str) -> dict[str, Any]:
    record = {key: raw[key] for key in _FIELDS if raw.get(key) is not None}
    if record.get("inputSchema") is True:  # anything goes
        record["inputSchema"] = {"type": "object"}
    if not isinstance(record.get("outputSchema", {}), Mapping):  # nothing depends on it
        del record["outputSchema"]
    notes = raw.get("annotations")
    if "title" not in record and isinstance(notes, Mapping) and isinstance(notes.get("title"), str):
        record["title"] = notes["title"]
    details = {"tool": raw.get("name"), "transport": "http" if server.url else "stdio"}
    details |= {"cwd": server.cwd} if server.cwd else {}
    record |= {"service": service} if service else {}
    return record | {"origin": {"kind": "mcp", "target": server.label, "details": details}}
