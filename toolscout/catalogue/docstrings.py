"""Parses docstrings in the styles of Google, NumPy and reST."""

from __future__ import annotations

import inspect
import re

_PARAMETERS = {"args", "arguments", "parameters", "params", "keyword args", "keyword arguments", "other parameters"}
_OTHERS = {
    *("returns", "return", "yields", "yield", "raises", "receives", "warns", "attributes", "example", "examples"),
    *("note", "notes", "references", "see also", "todo", "warning", "warnings"),
}
_FIELD = re.compile(r"^:(?:param|parameter|arg|argument|key|keyword)\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:\s*(.*)$")
_OTHER_FIELD = re.compile(r"^:[a-z]+(?:\s+[^:]*)?:(?:\s|$)")
_GOOGLE_ENTRY = re.compile(r"^\*{0,2}(\w+)\s*(?:\((?:[^()]|\([^()]*\))*\))?\s*:\s*(.*)$")
_NUMPY_ENTRY = re.compile(r"^(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?$")


def parse_docstring(docstring: str | None) -> tuple[str, dict[str, str]]:
    """Return the text before the first section, and the description of each documented parameter."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    parameters: dict[str, list[str]] = {}
    description: list[str] = []
    names: list[str] = []
    section, depth, skip = "", 0, False
    for number, line in enumerate(lines):
        if skip:  # the dashes under a NumPy heading
            skip = False
            continue
        heading, skip = _heading(lines, number)
        if heading:
            section, names, depth = heading, [], 0
        elif line.startswith(":") and (_FIELD.match(line) or _OTHER_FIELD.match(line)):
            field = _FIELD.match(line)
            section, names = "field", [field[1]] if field else []
            _append(parameters, names, field[2] if field else "")
        elif not section:
            description.append(line)
        elif section == "field":
            _append(parameters, names, line)
        elif section != "other" and line.strip():
            indent = len(line) - len(line.lstrip())
            depth = depth or indent
            entry = (_NUMPY_ENTRY if section == "numpy" else _GOOGLE_ENTRY).match(line.strip())
            if entry and indent == (0 if section == "numpy" else depth):
                names = [name.strip(" *") for name in entry[1].split(",")]
                _append(parameters, names, entry[2] if section == "google" else "")
            else:
                _append(parameters, names, line)
    texts = {name: " ".join(filter(None, map(str.strip, lines_of))) for name, lines_of in parameters.items()}
    return "\n".join(description).strip(), {name: text for name, text in texts.items() if text}


def _heading(lines: list[str], number: int) -> tuple[str, bool]:
    """Return the kind of section that a line opens ("" if none), and whether a row of dashes follows."""
    line = lines[number]
    if not line or line[0].isspace():
        return "", False
    dashes = number + 1 < len(lines) and re.fullmatch(r"\s*-{3,}\s*", lines[number + 1]) is not None
    word = line.strip().lower()
    if not dashes and not word.endswith(":"):
        return "", False
    word = word.rstrip(":")
    if word in _PARAMETERS:
        return "numpy" if dashes else "google", dashes
    return ("other", dashes) if word in _OTHERS or dashes else ("", False)


def _append(parameters: dict[str, list[str]], names: list[str], text: str) -> None:
    for name in names:
        parameters.setdefault(name, []).append(text)
