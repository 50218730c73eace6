"""Reads MCP servers from the configuration of other clients: Claude Desktop, Cursor, VS Code."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, cast

from toolscout.catalogue.base import ReadOptions
from toolscout.catalogue.mcp.client import McpServer
from toolscout.errors import BadSource

CONFIG_KEYS = frozenset({"mcpServers", "servers", "mcp"})
_VARIABLE = re.compile(r"\$\{(?:(?:env|input):)?([^}:]+)(?::-([^}]*))?\}")


def has_servers(document: Any) -> bool:
    """Return whether a document names MCP servers."""
    return _server_map(document) is not None


def config_servers(document: Any, where: str, options: ReadOptions) -> list[McpServer]:
    """Return the servers of a document that are not disabled; an incomplete one goes to options.problem.

    `where` names the document in messages. Raises BadSource where it names no servers.
    """
    entries = _server_map(document)
    if entries is None:
        raise BadSource(f"{where} names no MCP servers; an object 'mcpServers' is needed")
    servers = []
    for name, entry in entries.items():
        try:
            if not isinstance(entry, Mapping):
                raise BadSource(f"it must be an object, got {type(entry).__name__}")
            if entry.get("disabled") is not True:
                servers.append(_server(name, entry, options))
        except BadSource as error:
            options.problem(BadSource(f"{where}: server {name}: {error}"))
    return servers


def _server_map(document: Any) -> Mapping[str, Any] | None:
    if not isinstance(document, Mapping):
        return None
    nested = document.get("mcp")
    for owner in (document, nested if isinstance(nested, Mapping) else {}):
        if isinstance(owner.get("mcpServers"), Mapping):
            return cast(Mapping[str, Any], owner["mcpServers"])
        if isinstance(owner.get("servers"), Mapping) and any(map(_is_server, owner["servers"].values())):
            return cast(Mapping[str, Any], owner["servers"])
    return None


def _is_server(entry: Any) -> bool:
    """Return whether an entry is an MCP server: other formats have `servers` too, with a protocol beside the URL."""
    return isinstance(entry, Mapping) and ("command" in entry or ("url" in entry and "protocol" not in entry))


def _server(name: str, entry: Mapping[str, Any], options: ReadOptions) -> McpServer:
    if entry.get("type") == "sse":
        raise BadSource("it speaks the old SSE transport, which is not read; use its streamable HTTP address")
    # `type` is often left out: a URL means HTTP, a command means stdio.
    url, command, directory = entry.get("url"), entry.get("command"), entry.get("cwd")
    if isinstance(url, str) and url:
        headers = {**entry_texts(entry, "headers", options), **options.headers}
        return McpServer(name=name, url=expand_variables(url, options), headers=headers)
    if not isinstance(command, str) or not command:
        raise BadSource("it has neither 'command' nor 'url'; give it one")
    arguments = entry.get("args") or []
    if not isinstance(arguments, list) or not all(isinstance(item, str) for item in arguments):
        raise BadSource("'args' must be a list of texts")
    return McpServer(
        name=name,
        command=tuple(expand_variables(item, options) for item in (command, *arguments)),
        env={**entry_texts(entry, "env", options), **options.env},
        cwd=expand_variables(directory, options) if isinstance(directory, str) and directory else None,
    )


def entry_texts(entry: Mapping[str, Any], key: str, options: ReadOptions) -> dict[str, str]:
    """Return the object under `key` with its values as text, variables replaced; BadSource where it is no object."""
    values = entry.get(key) or {}
    if not isinstance(values, Mapping) or not all(isinstance(value, str | int | float) for value in values.values()):
        raise BadSource(f"'{key}' must be an object of texts")
    return {name: expand_variables(str(value), options) for name, value in values.items()}


def expand_variables(text: str, options: ReadOptions) -> str:
    """Replace ${NAME}, ${env:NAME}, ${input:NAME} and ${NAME:-default} by values of the options or the environment.

    Raises BadSource for a variable that has neither a value nor a default.
    """

    def value(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        found = options.env.get(name, os.environ.get(name, default))
        if found is None:
            raise BadSource(f"{match[0]} has no value; set {name} in the environment")
        return found

    return _VARIABLE.sub(value, text)
