"""What an adapter implements, and the text that a peer without fields of its own is given. Standard library only."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

Record = Mapping[str, Any]
"""A tool: `name` (unique), `namespace`, `title` (its name without the namespace), `description`, `parameters`."""


class Adapter(ABC):
    """A peer over some tools. Each file of this folder has one class `Peer` that inherits this one.

    `embedded` counts the texts of tools that were embedded so far; None where a peer has no vectors, or does not say.
    """

    embedded: Any = None

    @abstractmethod
    def __init__(self, tools: Sequence[Record], folder: Path, **options: Any) -> None:
        """Index the tools. `folder` is empty, and the place for files; `options` are those of the peer's variant."""

    @abstractmethod
    def search(self, request: str, k: int) -> list[str]:
        """Return the names of the tools that an agent is handed, best first; none where the peer finds none."""

    def rank(self, request: str, k: int) -> list[str]:
        """Return the best tools even where none is handed out, for a peer that decides this apart from ranking."""
        return self.search(request, k)

    def add(self, tool: Record) -> None:
        """Add one tool to the index as it stands; not implemented where a peer has to index all tools again."""
        raise NotImplementedError

    def remove(self, name: str) -> None:
        """Remove one tool from the index as it stands; not implemented where a peer has to index all tools again."""
        raise NotImplementedError

    def save(self) -> None:
        """Write what `reopen` reads into the folder."""

    @classmethod
    def reopen(cls, tools: Sequence[Record], folder: Path, **options: Any) -> Self:
        """Open the index again in another process. What keeps nothing indexes all tools once more."""
        return cls(tools, folder, **options)


def text_of(tool: Record) -> str:
    """Return a tool as one text: its name as written and in words, description, and parameters with descriptions."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[_\W]+", " ", tool["name"])
    parts = [tool["name"], words, tool["description"]]
    for name, schema in (tool["parameters"].get("properties") or {}).items():
        parts += [name, str(schema.get("description", "")) if isinstance(schema, Mapping) else ""]
    return "\n".join(part for part in parts if part)


def words_of(text: str) -> list[str]:
    """Return the lower-case words of a text, for a peer that brings no tokeniser."""
    return re.findall(r"[^\W_]+", text.lower())
