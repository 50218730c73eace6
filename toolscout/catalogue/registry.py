"""Finds an importer by its name: the built-in ones, and entry points of other packages."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module, metadata
from typing import cast

from toolscout.catalogue.base import Importer
from toolscout.errors import BadSource

ENTRY_POINTS = "toolscout.importers"
BUILT_IN = {
    "beir": "toolscout.catalogue.importers.beir:BeirImporter",
    "functions": "toolscout.catalogue.importers.functions:FunctionsImporter",
    "jsonl": "toolscout.catalogue.importers.jsonl:JsonlImporter",
    "mcp": "toolscout.catalogue.importers.mcp:McpImporter",
    "openapi": "toolscout.catalogue.importers.openapi:OpenApiImporter",
    "toolbench": "toolscout.catalogue.importers.toolbench:ToolBenchImporter",
}
"""The importers of this package, in the order in which they are tried."""


def available() -> dict[str, metadata.EntryPoint | None]:
    """Return all importers by name: the built-in ones (None), then the entry points of other packages."""
    points = _entry_points(tuple(sys.path))
    return {**dict.fromkeys(BUILT_IN), **{point.name: point for point in points if point.name not in BUILT_IN}}


@lru_cache(maxsize=1)
def _entry_points(path: tuple[str, ...]) -> tuple[metadata.EntryPoint, ...]:
    """The entry points of the packages on `path`, by name; kept, since finding them reads a file of each package."""
    return tuple(sorted(metadata.entry_points(group=ENTRY_POINTS), key=lambda point: point.name))


def importer(name: str) -> Importer:
    """Return the importer of this name. Raises BadSource where there is none or it cannot be loaded."""
    if name in BUILT_IN:
        module, _, kind = BUILT_IN[name].partition(":")
        return cast(type[Importer], getattr(import_module(module), kind))()
    found = available()
    plugin = found.get(name)
    if plugin is None:
        raise BadSource(f"there is no importer {name!r}; the importers are: {', '.join(found)}")
    try:
        return cast(type[Importer], plugin.load())()
    except Exception as error:  # another package's code: what it raises on import is not known
        package = plugin.dist.name if plugin.dist else plugin.value
        raise BadSource(
            f"the importer {name!r} of {package} cannot be loaded ({type(error).__name__}: {error}); "
            f"update or uninstall {package}"
        ) from error


def accepting(source: object) -> Importer | None:
    """Return the first importer that accepts the source, or None.

    Built-in importers come first, so that an installed package cannot take over sources that they read.
    """
    return next((found for found in map(importer, _names()) if found.accepts(source)), None)


def _names() -> Iterator[str]:
    yield from BUILT_IN
    yield from (name for name in available() if name not in BUILT_IN)
