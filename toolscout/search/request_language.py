"""Which language a request is in, by its script and by words and letter groups that are frequent in a language.

A guess for one purpose: a model that knows some languages is not asked about others. English needs no evidence: code,
names, numbers and whatever is too short to tell count as English. The table is made by recipes/request_language.py.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from toolscout.core.arrays import Floats
from toolscout.core.model_files import read_arrays

ANY_LANGUAGE = "*"
ENGLISH = "en"
TABLE = Path(__file__).with_name("request_language.npz")
STEP = 16  # the table holds log-odds times this, as whole numbers
# The start of a request tells its language; all of a long one would take long to read.
_READ_CHARS, _READ_WORDS, _READ_LETTERS = 200, 16, 50
LONGEST_WORD = 24
_LONGEST_GROUP = 4
# The most that one word can say. A word that the table does not have says less: many names and codes look foreign.
_WORD_CAP, _GROUPS_CAP = 4.0, 2.5
# Groups of letters overlap, so that each says the same as its neighbours: they count half.
_GROUPS_WEIGHT = 0.5
# Log-odds by which another language must beat English. The lowest (in halves) at which no English request of
# tests/search/test_request_language.py is taken for one in another language.
_LEAST = 6.5
# A request that begins in English by so much is English: "Translate this into English:", and then something in Spanish.
_BEGINS_ENGLISH = 8.0
# Letters of other scripts count double, since most of these scripts write a word in fewer letters. A request is in
# another script where such letters are more than this share: "what does 你好 mean?" is English.
_OTHER_WEIGHT, _OTHER_SHARE = 2, 1 / 3

_LATIN = "A-Za-zªºÀ-ÖØ-öø-ɏḀ-ỿ"
_WORD = re.compile(rf"[{_LATIN}]+(?:['’][{_LATIN}]+)*")
_OTHER_LETTER = re.compile(rf"[^\W\d_{_LATIN}]")
_QUOTED = re.compile(r"[\"`“„«][^\"`“”»]{1,200}[\"`“”»]|(?<!\w)['‘][^'’]{1,200}['’](?!\w)")
# Languages of the table that are not told apart from others.
_ALIKE = {"hr": ("hr", "bs", "sr"), "no": ("no", "nb", "nn")}
# The first letter of each script in Unicode, and the languages written in it; ranges without languages are other signs.
_SCRIPTS: tuple[tuple[int, str], ...] = (
    (0x0000, ""),
    (0x0370, "el"),
    (0x0400, "ru uk bg sr mk be kk ky tg mn"),
    (0x0530, "hy"),
    (0x0590, "he yi"),
    (0x0600, "ar fa ur ps ug ku sd"),
    (0x0700, ""),
    (0x0750, "ar fa ur ps ug ku sd"),
    (0x0780, "dv"),
    (0x07C0, ""),
    (0x08A0, "ar fa ur ps ug ku sd"),
    (0x0900, "hi mr ne sa"),
    (0x0980, "bn as"),
    (0x0A00, "pa"),
    (0x0A80, "gu"),
    (0x0B00, "or"),
    (0x0B80, "ta"),
    (0x0C00, "te"),
    (0x0C80, "kn"),
    (0x0D00, "ml"),
    (0x0D80, "si"),
    (0x0E00, "th"),
    (0x0E80, "lo"),
    (0x0F00, "bo dz"),
    (0x1000, "my"),
    (0x10A0, "ka"),
    (0x1100, "ko"),
    (0x1200, "am ti"),
    (0x13A0, ""),
    (0x1780, "km"),
    (0x1800, "mn"),
    (0x18B0, ""),
    (0x1F00, "el"),
    (0x2000, ""),
    (0x3005, "zh ja"),
    (0x3040, "ja"),
    (0x3100, "zh"),
    (0x3130, "ko"),
    (0x3190, ""),
    (0x31F0, "ja"),
    (0x3200, ""),
    (0x3400, "zh ja"),
    (0xA000, ""),
    (0xAC00, "ko"),
    (0xD7FC, ""),
    (0xF900, "zh ja"),
    (0xFB00, ""),
    (0xFB1D, "he yi"),
    (0xFB50, "ar fa ur ps ug ku sd"),
    (0xFE00, ""),
    (0xFE70, "ar fa ur ps ug ku sd"),
    (0xFEFF, ""),
    (0xFF66, "ja"),
    (0xFFA0, "ko"),
    (0xFFE0, ""),
    (0x20000, "zh ja"),
    (0x32000, ""),
)
_FIRSTS = [first for first, _ in _SCRIPTS]


class _Table(NamedTuple):
    """Languages, and the log-odds of each against English for words and for groups of letters ("^th", "ing$").

    `words` and `groups`: the rows of `log_odds`. `against_english`: the log-odds of the language that a word fits best.
    """

    languages: list[str]
    words: dict[str, int]
    groups: dict[str, int]
    against_english: dict[str, float]
    log_odds: Floats


def languages_of(text: str) -> frozenset[str]:
    """The languages (ISO 639-1) that a text may be in: one for Latin script, else all that are written in its script.

    What stands in quotes counts only where there is little else. Empty for a text without letters, and for a script
    whose languages are not listed here.
    """
    read = text[:_READ_CHARS]
    words, others = _letters(_QUOTED.sub(" ", read))
    if len(words) < 2 and not others:
        words, others = _letters(read)
    weight = _OTHER_WEIGHT * len(others)
    if weight > _OTHER_SHARE * (weight + sum(map(len, words))):
        return _written_in(others)
    if not words:
        return frozenset()
    language = _latin_language(words)
    return frozenset(_ALIKE.get(language, (language,)))


def knows(languages: Iterable[str], text: str) -> bool:
    """Whether a text may be in one of the languages; true where one of them is ANY_LANGUAGE, or it has no letters."""
    known = frozenset(languages)
    if ANY_LANGUAGE in known or not any(map(str.isalpha, text)):
        return True
    return not known.isdisjoint(languages_of(text))


def words_of(text: str) -> list[str]:
    """The words of a text in Latin letters, as the table spells them; over-long ones are left out."""
    return [_spelt(word) for word in _WORD.findall(text) if len(word) <= LONGEST_WORD]


def letter_groups(word: str) -> list[str]:
    """Every run of one to four letters of a word, whose ends are marked by ^ and $; none for an over-long word."""
    marked = f"^{word}$" if len(word) <= LONGEST_WORD else ""
    return [marked[i : i + n] for n in range(1, _LONGEST_GROUP + 1) for i in range(len(marked) - n + 1)]


def _letters(text: str) -> tuple[list[str], list[str]]:
    """The words of a text in Latin letters, and all its letters of other scripts."""
    return _WORD.findall(text), [] if text.isascii() else _OTHER_LETTER.findall(text)


def _spelt(word: str) -> str:
    return word.lower().replace("’", "'")


def _written_in(letters: Sequence[str]) -> frozenset[str]:
    """The languages of the script that most letters are of."""
    scripts = Counter(_SCRIPTS[bisect_right(_FIRSTS, ord(letter)) - 1][1] for letter in letters[:_READ_LETTERS])
    if "ja" in scripts and "ko" not in scripts:  # Japanese mixes kana with the letters that Chinese is written in
        return frozenset(["ja"])
    return frozenset(scripts.most_common(1)[0][0].split())


def _latin_language(words: Sequence[str]) -> str:
    """The language of words in Latin letters; English unless there is evidence for another."""
    table, spelt = _table(), list(dict.fromkeys(map(_spelt, words)))[:_READ_WORDS]
    groups, lead = table.groups, 0.0
    for word in spelt:
        lead += table.against_english.get(word, 0.0)
        if lead <= -_BEGINS_ENGLISH:
            return ENGLISH
    rows: list[int] = []
    starts: list[int] = []
    caps: list[float] = []
    for word in spelt:
        row = table.words.get(word)
        found = [row] if row is not None else [groups[group] for group in letter_groups(word) if group in groups]
        if found:
            starts.append(len(rows))
            rows += found
            caps.append(_GROUPS_CAP if row is None else _WORD_CAP)
    if not rows:
        return ENGLISH
    said, most = np.add.reduceat(table.log_odds[rows], starts, axis=0), np.array(caps)
    said *= np.where(most == _WORD_CAP, 1.0, _GROUPS_WEIGHT)[:, None]
    said *= np.minimum(1.0, most / np.maximum(said.max(axis=1), 1e-6))[:, None]
    total = np.maximum(said, -_WORD_CAP).sum(axis=0)
    best = int(total.argmax())
    return table.languages[best] if total[best] > _LEAST else ENGLISH


@cache
def _table() -> _Table:
    found = read_arrays(TABLE)
    languages, words, groups = (str(found[name]).split() for name in ("languages", "words", "groups"))
    places = {group: len(words) + place for place, group in enumerate(groups)}
    log_odds: Floats = found["log_odds"].astype(np.float32) / np.float32(STEP)
    best = np.clip(
        np.delete(log_odds[: len(words)], languages.index(ENGLISH), axis=1).max(axis=1), -_WORD_CAP, _WORD_CAP
    )
    against = dict(zip(words, best.tolist(), strict=True))
    return _Table(languages, {word: place for place, word in enumerate(words)}, places, against, log_odds)
