"""Words of texts in other scripts than Latin, for a word index that knows words between spaces and punctuation alone.

Scripts that write no spaces (Chinese, Japanese, Thai, Lao, Khmer, Burmese), and those whose letters are syllables and
whose words take endings (Korean, the scripts of India), are indexed as overlapping pairs of syllables. Of the others
(Greek, Cyrillic, Arabic, Hebrew, …) the words are indexed, without the marks that writers leave out.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache, lru_cache
from itertools import pairwise

# Letters that are indexed as pairs: Chinese and Japanese; Korean; India; Thailand, Laos, Burma, Cambodia.
_PAIRED = (
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U000323af",
    "\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\uac00-\ud7ff\uffa0-\uffdc",
    "\u0900-\u0963\u0966-\u0dff",
    "\u0e00-\u0e5b\u0e80-\u0eff\u1000-\u109f\u1780-\u17d3\u17d7-\u17ff\ua9e0-\ua9ff\uaa60-\uaa7f",
)
# Letters whose words are indexed: all other scripts from Greek on.
_SPELT = (
    "\u0370-\u058f\u0591-\u05f2\u0600-\u0669\u066e-\u06d3\u06d5-\u08ff\u0f00-\u0fff\u10a0-\u10ff\u1200-\u177f"
    "\u1800-\u1dff\u1f00-\u1fff\u2c80-\u2dff\ua000-\ua4cf\ua500-\ua6ff\uab70-\uabff\ufb1d-\ufdff\ufe70-\ufefe"
)
_ACCENTS = "\u0300-\u036f"
# One letter of such a script may be a unit or a variable: "5μs" is as English as "5s".
_RUN = re.compile(f"[{''.join(_PAIRED)}]+|[{_SPELT}][{_SPELT}{_ACCENTS}]+")
_NOT_LATIN = re.compile(rf"{_RUN.pattern}|(?<!\w)[{_SPELT}](?!\w)")
_PAIRED_RUN = re.compile("|".join(f"[{letters}]+" for letters in _PAIRED))
_ACCENTED = re.compile(f"[A-Za-zÀ-ɏḀ-ỿ][{_ACCENTS}]")
_GREEK = re.compile("[\u0370-\u03ff\u1f00-\u1fff]")
_SIGNED = ("\u0900", "\u17ff"), ("\ua9e0", "\uaa7f")  # scripts in which a letter and the signs around it are a syllable
# In Thai and Lao some vowels stand before their consonant, and some are letters of their own behind it.
_BEFORE, _BEHIND = "เ-ไເ-ໄ", "ะาำๅະາຳ"
# Letters that stand for the same one, as most writers use them.
_ALIKE = dict(zip("ςёЁأإآٱىیکة", "σеЕااااييكه", strict=True)) | {"ـ": None}  # the last only stretches a word
# Signs of Gujarati, Thai, Lao and Khmer that end a word for the engine, and have no combining class.
_SIGNS = (
    "\u0afd\u0afe\u0aff\u0e47\u0e4c\u0e4e\u0ecc\u17b4\u17b5\u17c9\u17ca\u17cb\u17cc\u17cd\u17ce\u17cf\u17d0\u17d1\u17d3"
)
# Bytes of the longest word that the engine indexes (a letter takes two or three); letters of words that are cached.
_LONGEST_BYTES, _CACHED_LETTERS, _CACHED = 39, 24, 20_000


def has_other_scripts(text: str) -> bool:
    """Whether a text holds words in another script than Latin."""
    return not text.isascii() and _RUN.search(text) is not None


def other_words(text: str) -> list[str]:
    """The words of a text in other scripts as they are indexed: pairs of syllables, or folded words."""
    return [] if text.isascii() else [word for run in _RUN.findall(text) for word in _analysed(run)]


def latin_text(text: str) -> str:
    """The text without its words in other scripts, which end the words before them: create_issueを使って."""
    return text if text.isascii() else _NOT_LATIN.sub(" ", text)


def paired_runs(text: str) -> list[str]:
    """The parts of a text in scripts that write no spaces or join endings to words, whole."""
    return [] if text.isascii() else _PAIRED_RUN.findall(text)


def composed(text: str) -> str:
    """The text with accents joined to their Latin letters, as most texts have them: the engine ends a word at them."""
    if text.isascii():
        return text
    text = text.replace("\u0130", "I")  # lower-case, it would be two letters
    return unicodedata.normalize("NFC", text) if _ACCENTED.search(text) else text


def _analysed(run: str) -> tuple[str, ...]:
    return _analysed_word(run) if len(run) <= _CACHED_LETTERS else _analyse(run)


def _analyse(run: str) -> tuple[str, ...]:
    """A run of letters of other scripts as words."""
    plain = unicodedata.normalize("NFKC", run)
    words: list[str] = []
    end = 0
    for found in _PAIRED_RUN.finditer(plain):
        words += [_cut(_folded(plain[end : found.start()])), *_pairs(found[0])]
        end = found.end()
    return tuple(filter(None, [*words, _cut(_folded(plain[end:]))]))


_analysed_word = lru_cache(_CACHED)(_analyse)


def _pairs(run: str) -> list[str]:
    """Overlapping pairs of the syllables of a run; the syllable itself where there is one."""
    signed = any(first <= run[0] <= last for first, last in _SIGNED)
    syllables = [_folded(found) for found in _syllable().findall(run)] if signed else list(run)
    syllables = [syllable for syllable in syllables if syllable]
    return [one + other for one, other in pairwise(syllables)] or syllables


def _folded(word: str) -> str:
    """A word without the marks that writers leave out, many of which end a word for the engine."""
    if _GREEK.search(word):
        word = unicodedata.normalize("NFD", word)
    return word.translate(_folding())


def _cut(word: str) -> str:
    """The beginning of a word, as far as the engine indexes it."""
    if 3 * len(word) <= _LONGEST_BYTES:
        return word
    return word.encode(errors="replace")[:_LONGEST_BYTES].decode(errors="ignore")


@cache
def _folding() -> dict[int, str | None]:
    """What becomes of letters: accents, points, tones and viramas are removed, letters that are alike made the same."""
    marks = (mark for mark in range(0x300, 0x1_0000) if _is_removed(unicodedata.combining(chr(mark))))
    return dict.fromkeys([*marks, *map(ord, _SIGNS)]) | {ord(letter): other for letter, other in _ALIKE.items()}


def _is_removed(combining: int) -> bool:
    """Whether marks of a canonical combining class are removed; classes 84 to 132 are vowels, but for two of tones."""
    return combining > 0 and (combining < 84 or combining in (107, 122) or combining >= 200)


@cache
def _syllable() -> re.Pattern[str]:
    """One letter with the signs before and behind it."""
    signs = "".join(
        chr(sign)
        for first, last in _SIGNED
        for sign in range(ord(first), ord(last) + 1)
        if unicodedata.category(chr(sign)).startswith("M")
    )
    return re.compile(f"[{_BEFORE}]?.[{_BEHIND}{signs}]*", re.DOTALL)
