"""Documents of tools as their owners might change them: round by round, the same edits every time."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from toolscout.core.tool import Tool

SHARE = 0.1
_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_SYNONYMS = {
    "get": "fetch",
    "gets": "fetches",
    "retrieve": "obtain",
    "retrieves": "obtains",
    "return": "give back",
    "returns": "gives back",
    "search": "look",
    "find": "locate",
    "list": "overview",
    "create": "make",
    "delete": "remove",
    "update": "change",
    "provide": "offer",
    "provides": "offers",
    "show": "display",
    "information": "details",
    "data": "records",
    "all": "every",
    "current": "present",
    "latest": "newest",
    "image": "picture",
    "movie": "film",
    "user": "person",
    "users": "people",
    "city": "town",
    "price": "cost",
    "name": "title",
    "number": "count",
    "given": "stated",
    "specific": "particular",
    "using": "with",
    "api": "interface",
    "endpoint": "route",
}
_WORD = re.compile(rf"\b(?:{'|'.join(_SYNONYMS)})\b", re.IGNORECASE)


def edited(tools: Sequence[Tool], rounds: int) -> list[Tool]:
    """The tools after some rounds: in each, one document in ten is changed where it can be."""
    found = {tool.id: tool for tool in tools}
    for number in range(1, rounds + 1):
        order = sorted(found, key=lambda tool_id, salt=number: _hash(f"{salt} {tool_id}"))  # type: ignore[misc]
        for tool_id in order[: round(SHARE * len(order))]:
            rng = np.random.default_rng([number, int(_hash(tool_id), 16) % 2**32])
            found[tool_id] = edit(found[tool_id], rng)
    return list(found.values())


def edit(tool: Tool, rng: np.random.Generator) -> Tool:
    """One change, drawn from those that change the document; a tool that none of them changes stays as it is."""
    changes: list[Callable[[Tool, np.random.Generator], Tool]] = [_without_a_sentence, _shuffled, _reworded]
    for at in rng.permutation(len(changes)).tolist():
        made: Tool = changes[at](tool, rng)
        if made.document() != tool.document():
            return made
    return tool


def _without_a_sentence(tool: Tool, rng: np.random.Generator) -> Tool:
    sentences = _SENTENCE.split(tool.description.strip())
    if len(sentences) < 2:
        return tool
    del sentences[int(rng.integers(len(sentences)))]
    return replace(tool, description=" ".join(sentences))


def _shuffled(tool: Tool, rng: np.random.Generator) -> Tool:
    schema = tool.input_schema
    named = schema.get("properties")
    if not isinstance(named, dict) or len(named) < 2:
        return tool
    names = list(named)
    order = rng.permutation(len(names))
    return replace(tool, input_schema={**schema, "properties": {names[at]: named[names[at]] for at in order.tolist()}})


def _reworded(tool: Tool, rng: np.random.Generator) -> Tool:
    def other(found: re.Match[str]) -> str:
        word = _SYNONYMS[found[0].lower()]
        return word.capitalize() if found[0][0].isupper() else word

    return replace(tool, description=_WORD.sub(other, tool.description))


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
