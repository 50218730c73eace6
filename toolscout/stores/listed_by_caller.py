"""Marks in a store the tools of servers that list them for each caller, by the label of their source.

Whoever reads the store cannot know for whom such a server lists which of its tools. So these are hidden, except by the
gateway that asks the server, and from whoever is named to see them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from toolscout.stores.base import Store

_MARK = "listed for each caller by "


def marked_source(name: str, gateway: str) -> str:
    """Return the label of the source of a server's tools; `name` is also their namespace."""
    return f"{_MARK}{json.dumps(name, ensure_ascii=False)} (gateway {gateway})"


def marked_namespaces(store: Store) -> frozenset[str]:
    """Return the namespaces whose tools are marked."""
    return frozenset(_named(store.source_labels(_MARK)))


def _named(labels: Iterable[str]) -> Iterable[str]:
    for label in labels:
        try:
            name, _ = json.JSONDecoder().raw_decode(label, len(_MARK))
        except ValueError:  # somebody's own label
            continue
        if isinstance(name, str):
            yield name
