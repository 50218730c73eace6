"""Spelling correction for word search: function words, edit distance, and the indexed words near a misspelt one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

_CORRECTIONS = 3
_CORRECTED_FROM = 2  # the first letters of a misspelt word that are assumed to be right
_NEAREST_KEPT = 10_000
# Latin, Greek, Cyrillic and Armenian end here in Unicode; Georgian stands apart.
_LAST_ALPHABET, _GEORGIAN = "\u0590", frozenset(map(chr, range(0x10A0, 0x1100)))
Read = Callable[[str], Sequence[tuple[str, int]]]
"""Reads the indexed words with a prefix, each with its document frequency."""

# Function words and polite phrases, which never distinguish tools.
FUNCTION_WORDS = """
a about am an and any are aren as at be been being but by can could couldn d did didn do does doesn doing don for
from had has hasn have haven having he hello help her here hers hey hi him his how i if in into is isn it its just
ll m me might my need no not now of on one or our ours out please re s shall she should so some t than thank thanks
that the their theirs them then there these they this those to too us ve very want wanna was wasn we were what when
where whether which who whom whose why will with won would wouldn you your yours
""".split()


class WordsByPrefix:
    """Indexed words with a common prefix, each with its document frequency."""

    def __init__(self, found: Sequence[tuple[str, int]]) -> None:
        """Compute the lengths and letter sets of the words, which all comparisons use."""
        self._found = found
        self._lengths = np.fromiter((len(text) for text, _ in found), dtype=np.int64, count=len(found))
        self._letters = np.fromiter((letters(text) for text, _ in found), dtype=np.uint32, count=len(found))

    def near(self, term: str, limit: int) -> list[tuple[int, int, str]]:
        """The words at most `limit` edits away, as (edits, negative frequency, word), so that they sort best first."""
        shaped = np.bitwise_count(self._letters ^ np.uint32(letters(term))) <= 2 * limit
        alike = np.flatnonzero(shaped & (np.abs(self._lengths - len(term)) <= limit))
        found = (self._found[place] for place in alike.tolist())
        return [(far, -count, text) for text, count in found if (far := edits(term, text, limit)) <= limit]


class Vocabulary:
    """A snapshot of the words of an index, read by prefix on first use."""

    def __init__(self) -> None:
        """Start empty."""
        self.since = time.monotonic()
        self._known: dict[str, WordsByPrefix] = {}
        self._near: dict[str, list[tuple[int, int, str]]] = {}

    def near(self, term: str, read: Read, among: Callable[[str], bool]) -> list[tuple[str, int]]:
        """The indexed words closest to a misspelt one, with their frequencies.

        `read` reads the words with a prefix; `among` tells whether a word may be used as correction.
        """
        found = self._near.get(term)
        if found is None:
            if len(self._near) >= _NEAREST_KEPT:
                self._near = {}
            found = self._near[term] = self._compared(term, read)
        nearest: list[tuple[str, int]] = []
        least = 0
        for distance, negative, word in found:
            if nearest and (distance > least or len(nearest) == _CORRECTIONS):
                break
            if among(word):
                least = distance
                nearest.append((word, -negative))
        return nearest

    def _compared(self, term: str, read: Read) -> list[tuple[int, int, str]]:
        prefix = term[:_CORRECTED_FROM]
        known = self._known.get(prefix)
        if known is None:
            known = self._known[prefix] = WordsByPrefix(read(prefix))
        return sorted(known.near(term, 1 if len(term) < 6 else 2))


def correctable(term: str) -> bool:
    """Whether a word is long and plain enough to be corrected, and in an alphabet: one edit is a small change there."""
    return len(term) > 3 and term.isalpha() and (term[0] < _LAST_ALPHABET or term[0] in _GEORGIAN)


def letters(word: str) -> int:
    """A bit mask of the letters of a word, for a quick lower bound of the edit distance."""
    bits = 0
    for letter in word:
        bits |= 1 << (ord(letter) & 31)
    return bits


def edits(one: str, other: str, limit: int) -> int:
    """The edit distance (insert, delete, replace, swap neighbours); `limit` + 1 if it is above `limit`."""
    one, other = _apart(one, other)
    if not one or not other:
        return min(len(one) + len(other), limit + 1)
    before, row = list(range(len(other) + 1)), list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        last, before, row = before, row, [i] + [0] * len(other)
        for j, against in enumerate(other, 1):
            row[j] = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != against))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == against:
                row[j] = min(row[j], last[j - 2] + 1)
        if min(row) > limit:
            return limit + 1
    return row[-1]


def _apart(one: str, other: str) -> tuple[str, str]:
    """Two words without their common prefix and suffix."""
    shorter, begin, end = min(len(one), len(other)), 0, 0
    while begin < shorter and one[begin] == other[begin]:
        begin += 1
    while end < shorter - begin and one[-1 - end] == other[-1 - end]:
        end += 1
    return one[begin : len(one) - end], other[begin : len(other) - end]
