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

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolscout.catalogue._mcp_client import Server
from toolscout.catalogue._mcp_config import config_servers, entry_texts, expanded, has_servers
from toolscout.catalogue.base import ReadOptions, existing, is_url, parse_json, read_text
from toolscout.errors import BadSource
from toolscout.tool import clean_text

_SOURCES = ("openapi", "functions")


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

    servers: tuple[Server, ...] = ()
    sources: tuple[Source, ...] = ()
    origin: str = ""
    problems: tuple[str, ...] = ()


def read_config(path: Path) -> GatewayConfig:
    """The file's servers and sources; a half described one is a problem, and the others are taken."""
    if not path.is_file():
        raise BadSource(f"{path} does not exist; give the JSON file with mcpServers that your MCP client uses")
    return parse_config(parse_json(read_text(path), str(path)), str(path), path.resolve())


def parse_config(document: Any, where: str, place: Path | None = None) -> GatewayConfig:
    """A document as read_config reads it from a file; `place` is what relative paths stand beside."""
    options = ReadOptions(keep_going=True)
    known = isinstance(document, Mapping) and any(isinstance(document.get(key), Mapping) for key in _SOURCES)
    if not known and not has_servers(document):
        raise BadSource(f"{where} names no MCP servers; an object 'mcpServers', 'openapi' or 'functions' is needed")
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
    servers: list[Server], sources: list[Source], where: str, options: ReadOptions
) -> tuple[list[Server], list[Source]]:
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
