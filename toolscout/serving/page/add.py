"""Adds tools from the page: a document or MCP server at a URL, or a dropped file. It runs no code on this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from toolscout.catalogue import ReadOptions, describe, read
from toolscout.catalogue.base import is_url
from toolscout.catalogue.importers.mcp import McpImporter
from toolscout.catalogue.importers.openapi import OpenApiImporter
from toolscout.core.addresses import Addresses
from toolscout.core.tool import Tool, clean_text
from toolscout.errors import BadRequest, BadSource, OriginRefused, ToolscoutError
from toolscout.scout import Added, Scout
from toolscout.serving.request_bodies import check_size

# No Python files: those, and files that name servers, run code on this machine. Only the command line takes them.
SUFFIXES = (".json", ".jsonl", ".ndjson", ".yaml", ".yml")
_MAX_NAME = 100


@dataclass(frozen=True, slots=True)
class Addition:
    """One source to add: a URL, or a file's name and text. `label`: the URL without secrets, or the file's name."""

    label: str
    text: str | None = None
    url: str = ""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return the source in the page's request. Raises BadRequest or BadSource where it is not one URL or file."""
        url, name, text = (values.get(key) for key in ("url", "name", "text"))
        if isinstance(url, str):
            if not is_url(url):
                raise BadSource("give an address that begins with https:// or http://")
            return cls(describe(url), url=url)
        if not isinstance(name, str) or not isinstance(text, str):
            raise BadRequest("give url, or name and text of a file")
        label = clean_text(name.replace("\\", "/").rpartition("/")[2])[-_MAX_NAME:]
        if not label.lower().endswith(SUFFIXES) or label.startswith("."):
            raise BadSource(f"{label or 'a file without a name'} cannot be added here; drop {', '.join(SUFFIXES)}")
        return cls(label, text=text)

    def bring(self, scout: Scout, addresses: Addresses) -> Added:
        """Add its tools to the catalogue and return what was added; until they are embedded, words alone find them.

        `addresses`: the hosts without a public address that may be contacted. Raises BadSource where the source cannot
        be read, OriginRefused for a dropped file whose tools say where they are called.
        """
        if self.text is None:
            return scout.add(self.url, options=ReadOptions(keep_going=True, addresses=addresses), wait=False)
        with tempfile.TemporaryDirectory(prefix="toolscout-") as folder:
            path = Path(folder) / self.label
            path.write_text(self.text, encoding="utf-8", errors="replace")
            if McpImporter().accepts(path):
                raise BadSource(f"{self.label} names servers to start; do that with: toolscout add {self.label}")
            options = ReadOptions(kind="openapi" if OpenApiImporter().accepts(path) else "jsonl", keep_going=True)
            try:
                tools = [self._without_origin(tool, options) for tool in read(path, options)]
            except OriginRefused:
                raise
            except ToolscoutError as error:
                raise BadSource(str(error).replace(f"{folder}/", "")) from None  # the folder is temporary
        added = scout.add(tools, wait=False, label=self.label)
        return replace(added, problems=tuple(text.replace(f"{folder}/", "") for text in options.problems))

    def _without_origin(self, tool: Tool, options: ReadOptions) -> Tool:
        """Return a dropped file's tool without its origin: it can be found, not called, as its author is unknown."""
        if tool.origin is not None and options.kind == "jsonl":
            raise OriginRefused(f"{self.label}: {tool.id}")
        check_size(tool.to_record(), f"{self.label}: {tool.id}")
        return replace(tool, origin=None)
