"""Expansion: what a tool is for, in words that users say. It is stored beside the tool and searched, never shown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from toolscout.core.tool import clean_text
from toolscout.errors import BadSource

MAX_EXPANSION_CHARS = 2_000
# Stands between a document and its expansion where both are one text. No document holds it: it is a control character.
_MARK = "\n\x1e\n"
_KEYS = ("for", "when", "not")


@dataclass(frozen=True, slots=True)
class Expansion:
    """A text about a tool that somebody else wrote, by rules or with a language model.

    purpose, when, limits: what the tool is for, when to use it, and what it cannot do ("for", "when" and "not" in
        a file).
    digest: the digest of the tool's own searched text that it was written for; "" where that is not known.
    """

    purpose: str = ""
    when: str = ""
    limits: str = ""
    digest: str = ""

    def searched(self) -> str:
        """Return what is searched: purpose and when.

        What a tool cannot do is left out: words and vectors know no "not", so it would find the tool for just that.
        """
        return "\n".join(filter(None, (self.purpose, self.when)))[:MAX_EXPANSION_CHARS]

    def to_record(self, tool_id: str) -> dict[str, str]:
        """Return the line of a file for the tool with this id."""
        return {"id": tool_id, "for": self.purpose, "when": self.when, "not": self.limits, "digest": self.digest}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Read a line of a file. Raises ValueError where a field is no text, or nothing is there to be searched."""
        texts = [record.get(key, "") for key in (*_KEYS, "digest")]
        wrong = [key for key, text in zip((*_KEYS, "digest"), texts, strict=True) if not isinstance(text, str)]
        if wrong:
            raise ValueError(f"{wrong[0]!r} is not text")
        found = cls(*(clean_text(text)[:MAX_EXPANSION_CHARS] for text in texts))
        if not found.searched():
            raise ValueError('"for" and "when" are empty')
        return found


def with_expansion(document: str, expansion: str) -> str:
    """Return the text that a tool's vector and its digest are made of: the document, and its expansion if any."""
    return f"{document}{_MARK}{expansion}" if expansion else document


def split_expansion(text: str) -> tuple[str, str]:
    """Return the document and the expansion that with_expansion joined; "" for none."""
    document, _, expansion = text.partition(_MARK)
    return document, expansion


def read_expansions(path: str | Path) -> dict[str, Expansion]:
    """Read a file of expansions, one JSON object in a line; the last line of a tool counts.

    Raises BadSource, which names the line, where the file cannot be read.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")  # a text may hold other line separators
    except (OSError, UnicodeDecodeError) as error:
        raise BadSource(
            f"{path} cannot be read as expansions ({error}); write them with: toolscout synth --expand"
        ) from None
    found: dict[str, Expansion] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if not isinstance(record, dict) or not isinstance(record.get("id"), str):
                raise ValueError('it needs "id", "for", "when"')
            found[record["id"]] = Expansion.from_record(record)
        except (ValueError, RecursionError) as error:
            raise BadSource(
                f"{path} line {number} is not an expansion ({error}); correct or remove that line"
            ) from None
    return found


def write_expansions(path: Path, expansions: Iterable[tuple[str, Expansion]]) -> None:
    """Write a file that read_expansions reads; it is there as a whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_text("".join(json.dumps(one.to_record(i)) + "\n" for i, one in expansions), encoding="utf-8")
    part.replace(path)
