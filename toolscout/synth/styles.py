"""Styles of requests: a goal, terse or wordy, with or without values for parameters."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

TERSE, WORDY = 9, 26
"""A terse request has at most TERSE words, a wordy one at least WORDY."""
_VALUES = re.compile(r"\d|[\"“”]|(?<![\w'’])'[^']+'|(?<=[\w,;:] )(?!I\b)[A-Z]\w")


@dataclass(frozen=True, slots=True)
class Style:
    """A way to word a request; `values`: whether it says concrete values for parameters."""

    shape: str
    values: bool

    @property
    def name(self) -> str:
        """Its name in options, metadata and prompts."""
        return f"{self.shape}, {'with' if self.values else 'no'} values"


STYLES = {
    style.name: style for shape in ("goal", "terse", "wordy") for style in (Style(shape, False), Style(shape, True))
}


def style_of(text: str) -> Style:
    """The style of a request, by its length and its looks."""
    words = len(text.split())
    shape = "terse" if words <= TERSE else "wordy" if words >= WORDY else "goal"
    return Style(shape, _VALUES.search(text) is not None)


def style_shares(texts: Iterable[str]) -> dict[str, float]:
    """The share of each style among requests."""
    counts = Counter(style_of(text).name for text in texts)
    return {name: round(counts[name] / counts.total(), 4) for name in STYLES if counts[name]}
