"""What a search by words knows of language: words that tell nothing, and how far one word is from another."""

from __future__ import annotations

from typing import NamedTuple

# Words of grammar and politeness: they tell one request from another, never one tool from another.
FUNCTION_WORDS = """
a about am an and any are aren as at be been being but by can could couldn d did didn do does doesn doing don for
from had has hasn have haven having he hello help her here hers hey hi him his how i if in into is isn it its just
ll m me might my need no not now of on one or our ours out please re s shall she should so some t than thank thanks
that the their theirs them then there these they this those to too us ve very want wanna was wasn we were what when
where whether which who whom whose why will with won would wouldn you your yours
""".split()


class Known(NamedTuple):
    """An indexed word."""

    text: str
    frequency: int
    letters: int


def correctable(term: str) -> bool:
    """Whether a word is long and plain enough to be corrected."""
    return len(term) > 3 and term.isalpha()


def letters(word: str) -> int:
    """One bit for each letter that occurs, so that two words are compared in one step."""
    bits = 0
    for letter in word:
        bits |= 1 << (ord(letter) & 31)
    return bits


def edits(one: str, other: str, limit: int) -> int:
    """Letters to insert, drop, change or swap to get from one word to the other; beyond `limit` just "more"."""
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
