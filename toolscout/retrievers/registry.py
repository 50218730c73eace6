"""Finds a retriever by its name: the built-in methods, and entry points of other packages."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from toolscout.errors import BadModel
from toolscout.models.encoders.base import TextEncoder
from toolscout.retrievers.base import Retriever
from toolscout.retrievers.model_folder import read_model

if TYPE_CHECKING:
    from importlib import metadata

ENTRY_POINTS = "toolscout.retrievers"
BUILT_IN = {
    "bm25": "toolscout.retrievers.bm25:Bm25",
    "centroid": "toolscout.retrievers.centroid:Centroid",
    "colt": "toolscout.retrievers.colt:Colt",
    "dense": "toolscout.retrievers.dense:Dense",
    "hybrid": "toolscout.retrievers.hybrid.retriever:Hybrid",
    "masstool": "toolscout.retrievers.masstool:Masstool",
    "masstool_published": "toolscout.papers.masstool.published:MasstoolPublished",
    "memory": "toolscout.retrievers.memory:Memory",
    "rerank": "toolscout.retrievers.rerank.retriever:Rerank",
    "rewrite": "toolscout.retrievers.rewrite.retriever:Rewrite",
    "toolgen": "toolscout.retrievers.toolgen:Toolgen",
    "toolweaver": "toolscout.retrievers.toolweaver:Toolweaver",
}
"""The methods of this package; a module is imported when its method is first used."""


def available() -> dict[str, metadata.EntryPoint | None]:
    """Every retriever that can be opened by name: those built in (None), and entry points of other packages."""
    from importlib import metadata

    plugins = {point.name: point for point in metadata.entry_points(group=ENTRY_POINTS)}
    return {**plugins, **dict.fromkeys(BUILT_IN)}


def method(name: str) -> type[Retriever]:
    """The class of a method. Raises BadModel if there is none of this name."""
    if name in BUILT_IN:  # saves a scan of all installed packages
        module, _, kind = BUILT_IN[name].partition(":")
        return cast(type[Retriever], getattr(import_module(module), kind))
    found = available()
    plugin = found.get(name)
    if plugin is None:
        raise BadModel(f"there is no retriever called {name!r}; choose one of {', '.join(sorted(found))}, or a folder")
    return cast(type[Retriever], plugin.load())


def load_model(folder: Path, encoder: TextEncoder | None = None) -> Retriever:
    """Open any model folder. `encoder`: the one that its vectors were made with, where the folder does not say."""
    kind = method(read_model(folder)["method"])
    return kind.load(folder) if encoder is None else kind.load(folder, encoder)
