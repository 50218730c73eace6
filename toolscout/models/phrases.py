"""The words and pairs of words of a request: how it is put, which tells a task from talk."""

from __future__ import annotations

import re
from itertools import pairwise

_WORDS = 60
_START, _END, _NUMBER = "^", "$", "0"
_PARTS = re.compile(r"[a-z']+|[0-9]+|[?!.,]")


def phrases(text: str) -> frozenset[str]:
    """All words of the beginning of a text and all pairs of neighbours, marks of its start and end among them.

    Every number is the same word.
    """
    found = [_NUMBER if word.isdigit() else word for word in _PARTS.findall(text.lower())[:_WORDS]]
    words = [_START, *found, _END]
    return frozenset([*words, *(f"{left} {right}" for left, right in pairwise(words))])
