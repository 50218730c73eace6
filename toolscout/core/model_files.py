"""Reads and checks the files of a saved model folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from tokenize import TokenError
from typing import Any, get_args, get_type_hints
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

# All that reading a damaged file may raise. numpy parses an array's header as Python, hence SyntaxError, TokenError.
UNREADABLE = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    EOFError,
    SyntaxError,
    TokenError,
    BadZipFile,
    ArithmeticError,
    MemoryError,
    RecursionError,
)
_KINDS: tuple[tuple[type, type | tuple[type, ...]], ...] = (
    (bool, bool),  # first: it is a number too
    (int, (int, float)),
    (float, (int, float)),
    (str, str),
    (tuple, (list, tuple)),
)


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an .npz file. Raises one of UNREADABLE where it is damaged."""
    with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def malformed(record: Any) -> str:
    """Return what is wrong with the content of a model.json, or "" where it is valid."""
    if not isinstance(record, dict) or not isinstance(record.get("method"), str):
        return "does not name its method"
    for name in ("options", "parts"):
        if not isinstance(record.get(name, {}), dict):
            return f"has no readable {name}"
    for part in record.get("parts", {}):
        if Path(part).name != part or part in ("", ".."):
            return f"names a part outside of its folder ({part!r:.80})"
    return "" if isinstance(record.get("encoder"), str | None) else "does not say which encoder it was made with"


def of_another_kind(kind: type[Any], saved: Mapping[str, Any]) -> list[str]:
    """Return the names of saved options whose type differs from that of the default in the options dataclass `kind`.

    An option whose default is None may be None, or of the type that it is declared with.
    """
    found, hints = [], get_type_hints(kind)
    for field in fields(kind):
        samples = [one() for one in get_args(hints[field.name]) if one in (int, float, str)]
        default = field.default if field.default is not None else next(iter(samples), None)
        wanted = next((wanted for sample, wanted in _KINDS if isinstance(default, sample)), object)
        absent = field.default is None and saved.get(field.name) is None
        if field.name in saved and not absent and not isinstance(saved[field.name], wanted):
            found.append(field.name)
    return found
