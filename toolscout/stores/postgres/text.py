"""Text in PostgreSQL, which holds no NUL. One is written with an escape and read back as it was."""

from __future__ import annotations

from collections.abc import Iterable

from toolscout.stores.records import storable

# A private character that stands for itself as _ESCAPE + "1"; text without both, which is nearly all, stays as it is.
_ESCAPE = "\uf8f0"


def write(text: str) -> str:
    """Return text as it is stored; a lone surrogate becomes a question mark."""
    text = storable(text)
    if "\x00" in text or _ESCAPE in text:
        text = text.replace(_ESCAPE, _ESCAPE + "1").replace("\x00", _ESCAPE + "0")
    return text


def read(text: str) -> str:
    """Return what `write` was given."""
    if _ESCAPE in text:
        text = text.replace(_ESCAPE + "0", "\x00").replace(_ESCAPE + "1", _ESCAPE)
    return text


def findable(ids: Iterable[str]) -> list[str]:
    """Return those ids that a tool may have: ids of tools hold no NUL and no lone surrogate."""
    return [tool_id for tool_id in ids if "\x00" not in tool_id and storable(tool_id) == tool_id]
