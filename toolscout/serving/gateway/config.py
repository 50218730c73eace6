"""What stands behind a gateway, from one file: mcpServers as other clients keep them, OpenAPI services, functions.

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
from toolscout.catalogue.mcp.config import config_servers, entry_texts, expanded, has_servers
from toolscout.core.tool import clean_text
from toolscout.errors import BadSource

_SOURCES = ("openapi", "functions")
_SERVERS = ("mcpServers", "servers")
_SERVER_KEYS = ("command", "args", "env", "envFile", "cwd", "url", "headers", "type", "disabled")
_SOURCE_KEYS = ("source", "baseUrl", "headers")
# VS Code and Cursor allow comments and a comma after the last entry. Texts are matched first, to be left alone.
_COMMENT = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_LAST_COMMA = re.compile(r'("(?:\\.|[^"\\])*")|,(?=\s*[}\]])', re.DOTALL)
_WORKSPACES = (".vscode", ".cursor")


@dataclass(frozen=True, slots=True)
class Source:
    """An OpenAPI document or Python functions, read once when the gateway starts."""

    name: str
    kind: str
    source: str
    base_url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Everything that a gateway proxies. `origin` names the file, and marks the tools that came through it."""

    servers: tuple[McpServer, ...] = ()
    sources: tuple[Source, ...] = ()
    origin: str = ""
    problems: tuple[str, ...] = ()


def read_config(path: Path) -> GatewayConfig:
    """The file's servers and sources; a half described one is a problem, and the others are taken."""
    if not path.is_file():
        raise BadSource(f"{path} does not exist; give the JSON file with mcpServers that your MCP client uses")
    return parse_config(parse_json(without_comments(read_text(path)), str(path)), str(path), path.resolve())


def without_comments(text: str) -> str:
    """JSON as editors allow it, as plain JSON; every line stays where it is."""
    text = _COMMENT.sub(lambda match: match[1] or re.sub(r"[^\n]", " ", match[0]), text)
    return _LAST_COMMA.sub(lambda match: match[1] or " ", text)


def parse_config(document: Any, where: str, place: Path | None = None) -> GatewayConfig:
    """A document as read_config reads it from a file; `place` is what relative paths stand beside."""
    options = ReadOptions(keep_going=True)
    known = isinstance(document, Mapping) and any(isinstance(document.get(key), Mapping) for key in _SOURCES)
    mistakes = _mistakes(document)
    if not known and not has_servers(document):
        needed = "an object 'mcpServers', 'openapi' or 'functions' is needed"
        raise BadSource("; ".join([f"{where} names no MCP servers; {needed}", *mistakes]))
    for mistake in mistakes:
        options.problem(BadSource(f"{where}: {mistake}"))
    document = _filled(document, _variables(place), options)
    servers = config_servers(document, where, options) if has_servers(document) else []
    sources: list[Source] = []
    for kind in _SOURCES:
        entries = document.get(kind)
        for name, entry in entries.items() if isinstance(entries, Mapping) else ():
            try:
                sources.append(_source(kind, name, entry, options, place))
            except BadSource as error:
                options.problem(BadSource(f"{where}: {kind} {name}: {error}"))
    servers, sources = _named_once(servers, sources, where, options)
    return GatewayConfig(tuple(servers), tuple(sources), str(place or where), tuple(options.problems))


def _mistakes(document: Any) -> list[str]:
    """What is written where nothing reads it: a misspelt key would otherwise be passed over in silence."""
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
    """The keys that look like one that could be there. Others belong to some client and are its own matter."""
    free = {key.lower(): key for key in known if key not in entry}
    near = {key: get_close_matches(key.lower(), free, 1, 0.75) for key in entry if key not in known}
    return [(key, free[match[0]]) for key, match in near.items() if match]


def _variables(place: Path | None) -> dict[str, str]:
    """What VS Code and Cursor fill in themselves."""
    found = {"userHome": str(Path.home()), "pathSeparator": os.sep, "/": os.sep}
    if place is not None and place.parent.name in _WORKSPACES:
        workspace = place.parent.parent
        found |= {"workspaceFolder": str(workspace), "workspaceFolderBasename": workspace.name}
    return found


def _filled(value: Any, variables: Mapping[str, str], options: ReadOptions) -> Any:
    """The document with the editors' variables filled in, and each `envFile` read into its `env`."""
    if isinstance(value, str):
        for name, text in variables.items():
            value = value.replace(f"${{{name}}}", text)
        return value
    if isinstance(value, list):
        return [_filled(item, variables, options) for item in value]
    if not isinstance(value, Mapping):
        return value
    filled = {key: _filled(item, variables, options) for key, item in value.items()}
    if isinstance(filled.get("envFile"), str) and isinstance(filled.get("env", {}), dict):
        try:
            lines = read_text(Path(expanded(filled["envFile"], options))).splitlines()
        except (BadSource, OSError) as error:
            options.problem(BadSource(f"envFile: {error}; its server is started without it"))
        else:
            filled["env"] = {**_assignments(lines), **filled.get("env", {})}
    return filled


def _assignments(lines: Iterable[str]) -> dict[str, str]:
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
    source = expanded(entry["source"], options)
    # A client is started anywhere; what the file names stands beside it.
    if place is not None and not is_url(source) and existing(place.parent / source) is not None:
        source = str(place.parent / source)
    return Source(name, kind, source, expanded(base, options), entry_texts(entry, "headers", options))


def _named_once(
    servers: list[McpServer], sources: list[Source], where: str, options: ReadOptions
) -> tuple[list[McpServer], list[Source]]:
    """A name is a namespace: the first that has it keeps it."""
    taken: set[str] = set()

    def new(name: str) -> bool:
        name = clean_text(name)
        if not name or name in taken:
            options.problem(BadSource(f"{where}: {name or 'an empty name'!r} is named twice or empty; rename one"))
            return False
        taken.add(name)
        return True

    return [one for one in servers if new(one.name)], [one for one in sources if new(one.name)]
