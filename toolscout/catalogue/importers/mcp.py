"""Imports the tools of MCP servers: a command line (stdio), a URL (streamable HTTP), or a client's mcpServers file."""

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
# Files with these endings are never run as commands, even if they are executable: they are data, or Python functions.
_NOT_COMMANDS = (".json", ".jsonl", ".ndjson", ".yaml", ".yml", ".py", ".txt", ".md")
# Characters of a tool as JSON; no model could read a longer one.
MAX_TOOL_CHARS = 4_000_000
_OTHER_THAN_OBJECT = frozenset({"array", "boolean", "integer", "null", "number", "string"})
# The fields taken from a server. It must choose neither the namespace of its tools nor the origin they are called at.
_FIELDS = ("name", "title", "description", "inputSchema", "outputSchema", "annotations", "_meta")


class McpImporter(Importer):
    """Reads the tools that MCP servers list."""

    def accepts(self, source: object) -> bool:
        """Return whether this is marked as an MCP server, is a command to run, or is a file that names servers."""
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
        """Yield the tools of each server. Namespace: the option, else the server's key in the file, else its own name.

        Raises BadSource where the source names no server, or a server does not answer or lists a broken tool.
        """
        servers = _servers(source, options)
        for server in servers:
            try:
                listing = _list_tools(server, options)
                yield from unique(tools_of(server, listing, options, alone=len(servers) == 1), options)
            except ToolscoutError as error:
                if len(servers) == 1:
                    raise
                options.problem(error)

    def label(self, source: object) -> str:
        """Return the command line or URL without its secrets, or the path of the file that names the servers."""
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
    """Return the server that a command line, URL or StdioServerParameters names; None for a file of servers."""
    if _is_parameters(source):
        parameters: Any = source
        env = {**(parameters.env or {}), **options.env}
        directory = str(parameters.cwd) if parameters.cwd else None
        return McpServer(command=(parameters.command, *parameters.args), env=env, cwd=directory)
    if isinstance(source, list | tuple) and source and all(isinstance(item, str) for item in source):
        return McpServer(command=tuple(source), env=dict(options.env))
    if isinstance(source, Path):
        is_command = existing_file(source) is not None and suffix(source) not in _NOT_COMMANDS
        return McpServer(command=(str(source.resolve()),), env=dict(options.env)) if is_command else None
    if not isinstance(source, str) or not source.strip():
        return None
    text = str(_without_prefix(source))
    if is_url(text):
        return McpServer(url=text, headers=dict(options.headers), addresses=options.addresses)
    path = existing_file(text)
    if path is not None and suffix(path) == ".json":
        return None
    command = _command_words(text)
    return McpServer(command=command, env=dict(options.env)) if command else None


def _command_words(text: str) -> tuple[str, ...]:
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
    """Return whether this is the SDK's StdioServerParameters, without importing the SDK."""
    return type(source).__name__ == "StdioServerParameters" and hasattr(source, "command")


def _config(source: object) -> Any:
    if isinstance(source, Mapping):
        return as_json(source, "the given servers")
    path = existing_file(source)
    return parse_json(read_text(path), str(path)) if path is not None else None


def _list_tools(server: McpServer, options: ReadOptions) -> ServerListing:
    """Run list_tools in a new event loop; in another thread where this one already runs a loop."""
    # Imported here: most processes that import this module never connect to a server.
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
    """Yield the tools that a server listed, each with its place for messages.

    `alone`: whether this is the source's only server; else options.namespace is followed by the server's name. `most`:
    the longest tool that is taken, in characters of JSON. A broken tool goes to options.problem.
    """
    namespace = clean_text(_namespace(server, listing, options, alone))
    for number, raw in enumerate(listing.tools, 1):
        where = f"{server.label}, tool {number}"
        try:
            if not isinstance(raw, Mapping):
                raise BadSource(f"{where}: a tool must be an object, got {type(raw).__name__}")
            name = _printable_name(raw, where)
            problem = _schema_problem(raw.get("inputSchema"))
            if len(json.dumps(raw)) > most:
                problem = f"has more than {most:,} characters"
            if problem:  # skip this tool alone, even without keep_going
                options.problems.append(f"{where}: {name} {problem}; report it to the server's makers")
                continue
            record = _record(as_json(raw, f"{where}: {name}"), server, listing.service)
            yield where, tool_from(record, namespace, where)
        except BadSource as error:
            options.problem(BadSource(f"{error}; report it to the server's makers, or keep going without it"))


def _namespace(server: McpServer, listing: ServerListing, options: ReadOptions, alone: bool) -> str:
    if options.namespace:
        return options.namespace if alone else f"{options.namespace}/{server.name}"
    return server.name or listing.server_name or server.fallback_name


def _printable_name(raw: Mapping[str, Any], where: str) -> str:
    """Return a tool's name for messages. Raises BadSource for one that could not be sent back to the server."""
    name = raw.get("name")
    text = name if isinstance(name, str) else ""
    shown = clean_text(text[:MAX_NAME_CHARS])[:80]
    if len(text) > MAX_NAME_CHARS:
        raise BadSource(f"{where}: the name {shown!r}… has more than {MAX_NAME_CHARS:,} characters")
    if text.encode(errors="replace") != text.encode(errors="surrogatepass"):
        raise BadSource(f"{where}: the name {shown!r} is not valid text")
    return shown


def _schema_problem(schema: Any) -> str:
    """Return why an inputSchema accepts no arguments, which are always an object; "" where it can accept some."""
    if schema is None or schema is True:
        return ""
    if not isinstance(schema, Mapping):
        return f"has an inputSchema that is no JSON object but {json.dumps(schema, default=str)[:40]}"
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if kinds and all(isinstance(kind, str) and kind in _OTHER_THAN_OBJECT for kind in kinds):
        return f"has an inputSchema of type {json.dumps(kinds)[:60]}, but arguments are an object"
    return ""


def _record(raw: Mapping[str, Any], server: McpServer, service: str) -> dict[str, Any]:
    record = {key: raw[key] for key in _FIELDS if raw.get(key) is not None}
    if record.get("inputSchema") is True:  # `true` is the schema that accepts anything
        record["inputSchema"] = {"type": "object"}
    if not isinstance(record.get("outputSchema", {}), Mapping):  # an outputSchema is optional: drop a broken one
        del record["outputSchema"]
    notes = raw.get("annotations")
    if "title" not in record and isinstance(notes, Mapping) and isinstance(notes.get("title"), str):
        record["title"] = notes["title"]
    details = {"tool": raw.get("name"), "transport": "http" if server.url else "stdio"}
    details |= {"cwd": server.cwd} if server.cwd else {}
    record |= {"service": service} if service else {}
    return record | {"origin": {"kind": "mcp", "target": server.label, "details": details}}
