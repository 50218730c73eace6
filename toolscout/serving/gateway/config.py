"""Reads the gateway's configuration file: mcpServers as in other clients, OpenAPI services, Python functions.

```json
{
  "mcpServers": {"github": {"command": "npx", "args": ["-y", "…"]}, "docs": {"url": "https://…/mcp"}},
  "openapi":    {"shop": {"source": "https://…/openapi.json", "baseUrl": "https://…", "headers": {"X-Key": "${KEY}"}}},
  "functions":  {"mine": "tools.py"}
}
```
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from toolscout.catalogue.base import ReadOptions, existing, is_url, parse_json, read_text
from toolscout.catalogue.mcp.client import McpServer
from toolscout.catalogue.mcp.config import config_servers, entry_texts, expand_variables, has_servers
from toolscout.core.tool import clean_text
from toolscout.errors import BadSource
from toolscout.serving.gateway.upstream_auth import UpstreamAuth, parse_upstream_auth

_SOURCES = ("openapi", "functions")
_SERVERS = ("mcpServers", "servers")
_SERVER_KEYS = ("command", "args", "env", "envFile", "cwd", "url", "headers", "type", "disabled", "auth")
_SOURCE_KEYS = ("source", "baseUrl", "headers", "auth")
# VS Code and Cursor allow comments and trailing commas. Strings are matched first, so that they stay unchanged.
_COMMENT = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_LAST_COMMA = re.compile(r'("(?:\\.|[^"\\])*")|,(?=\s*[}\]])', re.DOTALL)
_WORKSPACES = (".vscode", ".cursor")


@dataclass(frozen=True, slots=True)
class Source:
    """An OpenAPI document or Python functions (`kind`), read once when the gateway starts; `name` is the namespace."""

    name: str
    kind: str
    source: str
    base_url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """The servers and sources behind a gateway. `origin`: the file's path, which marks the tools that come from it.

    `auth`: by name of a server or source, how it is told who calls.
    """

    servers: tuple[McpServer, ...] = ()
    sources: tuple[Source, ...] = ()
    origin: str = ""
    problems: tuple[str, ...] = ()
    auth: Mapping[str, UpstreamAuth] = field(default_factory=dict)


def read_config(path: Path) -> GatewayConfig:
    """Return the servers and sources of a file; an incomplete entry becomes one of `problems`, the others are kept.

    Raises BadSource where there is no such file, it is not JSON, or it names neither servers nor sources.
    """
    if not path.is_file():
        raise BadSource(f"{path} does not exist; give the JSON file with mcpServers that your MCP client uses")
    return parse_config(parse_json(without_comments(read_text(path)), str(path)), str(path), path.resolve())


def without_comments(text: str) -> str:
    """Return JSON without comments and trailing commas, with the same line numbers."""
    text = _COMMENT.sub(lambda match: match[1] or re.sub(r"[^\n]", " ", match[0]), text)
    return _LAST_COMMA.sub(lambda match: match[1] or " ", text)


def parse_config(document: Any, where: str, place: Path | None = None) -> GatewayConfig:
    """Return the configuration in a parsed document; relative paths are relative to the folder of `place`.

    Raises BadSource where it names neither servers nor sources.
    """
    options = ReadOptions(keep_going=True)
    has_sources = isinstance(document, Mapping) and any(isinstance(document.get(key), Mapping) for key in _SOURCES)
    mistakes = _mistakes(document)
    if not has_sources and not has_servers(document):
        needed = "an object 'mcpServers', 'openapi' or 'functions' is needed"
        raise BadSource("; ".join([f"{where} names no MCP servers; {needed}", *mistakes]))
    for mistake in mistakes:
        options.problem(BadSource(f"{where}: {mistake}"))
    document = _with_variables(document, _variables(place), options)
    servers = config_servers(document, where, options) if has_servers(document) else []
    sources: list[Source] = []
    for kind in _SOURCES:
        entries = document.get(kind)
        for name, entry in entries.items() if isinstance(entries, Mapping) else ():
            try:
                sources.append(_source(kind, name, entry, options, place))
            except BadSource as error:
                options.problem(BadSource(f"{where}: {kind} {name}: {error}"))
    servers, sources = _unique_names(servers, sources, where, options)
    auth, unusable = _auth(document, servers, sources, where, options, place)
    servers = [one for one in servers if clean_text(one.name) not in unusable]
    sources = [one for one in sources if clean_text(one.name) not in unusable]
    return GatewayConfig(tuple(servers), tuple(sources), str(place or where), tuple(options.problems), auth)


def _auth(
    document: Mapping[str, Any],
    servers: Iterable[McpServer],
    sources: Iterable[Source],
    where: str,
    options: ReadOptions,
    place: Path | None,
) -> tuple[dict[str, UpstreamAuth], set[str]]:
    """Return how servers and sources are told who calls, and the names of those that say it wrongly.

    The latter are left out: called without credentials they might do something else than is meant.
    """
    nested = document.get("mcp")
    sections = [document, nested if isinstance(nested, Mapping) else {}]
    urls = {one.name for one in servers if one.url}
    found: dict[str, UpstreamAuth] = {}
    wrong: set[str] = set()
    for section in (*_SERVERS, "openapi", "functions"):
        for entries in (one.get(section) for one in sections):
            for name, entry in entries.items() if isinstance(entries, Mapping) else ():
                if not isinstance(entry, Mapping) or entry.get("auth") is None:
                    continue
                try:
                    auth = parse_upstream_auth(entry, options, place)
                    if section == "functions" or (section in _SERVERS and name not in urls):
                        raise BadSource("'auth' is for servers and services at an address")
                except BadSource as error:
                    options.problem(BadSource(f"{where}: {name}: {error}; it is left out"))
                    wrong.add(clean_text(name))
                else:
                    assert auth is not None
                    found[clean_text(name)] = auth
    known = {clean_text(name) for name in (*(one.name for one in servers), *(one.name for one in sources))}
    return {name: auth for name, auth in found.items() if name in known - wrong}, wrong


def _mistakes(document: Any) -> list[str]:
    """Return a problem for each key that is probably misspelt, and for each section that is not an object."""
    if not isinstance(document, Mapping):
        return []
    found = [_unknown(key, right) for key, right in _misspelt(document, (*_SERVERS, *_SOURCES))]
    for section in (*_SERVERS, *_SOURCES):
        entries = document.get(section, {})
        if not isinstance(entries, Mapping):
            found.append(f"{section!r} must be an object of names, got {type(entries).__name__}")
            continue
        keys = _SERVER_KEYS if section in _SERVERS else _SOURCE_KEYS
        for name, entry in entries.items():
            if isinstance(entry, Mapping):
                found += [f"{section} {name}: {_unknown(key, right)}" for key, right in _misspelt(entry, keys)]
    return found


def _unknown(key: str, right: str) -> str:
    return f"{clean_text(key)[:80]!r} is not known and not used; write {right!r}, if that is meant"


def _misspelt(entry: Mapping[str, Any], known: Iterable[str]) -> list[tuple[str, str]]:
    """Return (key, known key) for keys that resemble a known one; other keys may belong to other clients."""
    free = {key.lower(): key for key in known if key not in entry}
    near = {key: get_close_matches(key.lower(), free, 1, 0.75) for key in entry if key not in known}
    return [(key, free[match[0]]) for key, match in near.items() if match]


def _variables(place: Path | None) -> dict[str, str]:
    """Return the variables that VS Code and Cursor define, such as workspaceFolder."""
    found = {"userHome": str(Path.home()), "pathSeparator": os.sep, "/": os.sep}
    if place is not None and place.parent.name in _WORKSPACES:
        workspace = place.parent.parent
        found |= {"workspaceFolder": str(workspace), "workspaceFolderBasename": workspace.name}
    return found


def _with_variables(value: Any, variables: Mapping[str, str], options: ReadOptions) -> Any:
    """Return the document with the editors' variables replaced, and each `envFile` read into `env`."""
    if isinstance(value, str):
        for name, text in variables.items():
            value = value.replace(f"${{{name}}}", text)
        return value
    if isinstance(value, list):
        return [_with_variables(item, variables, options) for item in value]
    if not isinstance(value, Mapping):
        return value
    filled = {key: _with_variables(item, variables, options) for key, item in value.items()}
    if isinstance(filled.get("envFile"), str) and isinstance(filled.get("env", {}), dict):
        try:
            lines = read_text(Path(expand_variables(filled["envFile"], options))).splitlines()
        except (BadSource, OSError) as error:
            options.problem(BadSource(f"envFile: {error}; its server is started without it"))
        else:
            filled["env"] = {**_parse_env_file(lines), **filled.get("env", {})}
    return filled


def _parse_env_file(lines: Iterable[str]) -> dict[str, str]:
    """Return the variables of lines such as `export NAME="value"`; comments are skipped."""
    pairs = (line.strip().removeprefix("export ").partition("=") for line in lines if not line.lstrip().startswith("#"))
    found = {}
    for name, equals, text in pairs:
        text = text.strip()
        quoted = len(text) > 1 and text[0] in "\"'" and text[-1] == text[0]
        if name.strip() and equals:
            found[name.strip()] = text[1:-1] if quoted else text
    return found


def _source(kind: str, name: str, entry: Any, options: ReadOptions, place: Path | None) -> Source:
    entry = {"source": entry} if isinstance(entry, str) else entry
    if not isinstance(entry, Mapping) or not isinstance(entry.get("source"), str) or not entry["source"]:
        raise BadSource("it must be a text or an object with 'source': a file, a URL or a Python module")
    base = entry.get("baseUrl") or ""
    if not isinstance(base, str):
        raise BadSource("'baseUrl' must be a text")
    source = expand_variables(entry["source"], options)
    # The working folder may be any: paths are relative to the configuration file.
    if place is not None and not is_url(source) and existing(place.parent / source) is not None:
        source = str(place.parent / source)
    return Source(name, kind, source, expand_variables(base, options), entry_texts(entry, "headers", options))


def _unique_names(
    servers: list[McpServer], sources: list[Source], where: str, options: ReadOptions
) -> tuple[list[McpServer], list[Source]]:
    """Return servers and sources with unique names, as each is a namespace; later duplicates become problems."""
    taken: set[str] = set()

    def new(name: str) -> bool:
        name = clean_text(name)
        if not name or name in taken:
            options.problem(BadSource(f"{where}: {name or 'an empty name'!r} is named twice or empty; rename one"))
            return False
        taken.add(name)
        return True

    return [one for one in servers if new(one.name)], [one for one in sources if new(one.name)]
