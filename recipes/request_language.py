"""Makes the table by which a request's language is told: python -m recipes.request_language

Reads tldr-parallel and, for more English, hwu64, clinc150 and banking77 in $TOOLSCOUT_DATA (all CC BY), and
frequent_words.txt, which was written for this: it makes up for what goals of command-line programs never say, and is
all there is for most languages. Writes toolscout/search/request_language.npz: no texts, but log-odds of frequent words
and groups of letters in each language against English. Deterministic: it counts, and draws nothing.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from toolscout.core.arrays import Doubles
from toolscout.data.dataset import Dataset
from toolscout.search.request_language import ENGLISH, LONGEST_WORD, STEP, TABLE, letter_groups, words_of

HERE = Path(__file__).resolve().parent
MORE_ENGLISH = ("hwu64", "clinc150", "banking77")
# What tldr-parallel calls languages that the table calls otherwise; those without Latin letters are left out.
CALLED = {"pt_BR": "pt", "pt_PT": "pt", "bs": "hr", "sr": "hr", "nb": "no"}
WORDS, GROUPS = 6_000, 4_000
# How much of a language's distribution its frequent words make up, where there are texts as well.
LISTED_SHARE = 0.3
# So many texts' words for each listed word are enough to trust the texts.
TRUSTED = 20
# Dirichlet smoothing towards the mean of all languages: as if so many words, or groups of letters, had been read.
SMOOTHING_WORDS, SMOOTHING_GROUPS = 2_000, 1_000
MOST_READ = 50_000
Features = Callable[[str], Sequence[str]]


def frequent_words() -> dict[str, list[str]]:
    """The frequent words of each language."""
    lines = (HERE / "frequent_words.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split(":", 1) for line in lines if line and not line.startswith("#"))
    return {language: list(dict.fromkeys(words.lower().split())) for language, words in pairs}


def read_texts(home: Path, languages: Sequence[str]) -> dict[str, Counter[str]]:
    """How often each word occurs in the texts of each language."""
    found: dict[str, Counter[str]] = {language: Counter() for language in languages}
    english: dict[str, None] = {}
    with gzip.open(home / "tldr-parallel" / "pairs.jsonl.gz", "rt", encoding="utf-8") as file:
        for line in file:
            pair = json.loads(line)
            english[pair["english"]] = None
            language = CALLED.get(pair["language"], pair["language"])
            if language in found:
                found[language].update(words_of(pair["text"]))
    for name in MORE_ENGLISH:
        english |= dict.fromkeys(text for _, text in Dataset.load(home / name, ["train"]).split("train").requests)
    for text in english:
        found[ENGLISH].update(words_of(text))
    return found


def log_odds(
    texts: Mapping[str, Counter[str]], listed: Mapping[str, Sequence[str]], features: Features, smoothing: float
) -> tuple[list[str], Doubles, Doubles]:
    """The features of words, how frequent each is, and its log-odds in each language against English."""
    shares: list[dict[str, float]] = []
    read: list[int] = []
    for language, words in listed.items():
        counted: Counter[str] = Counter()
        for word, count in texts[language].items():
            for feature in features(word):
                counted[feature] += count
        named = Counter(feature for word in words for feature in features(word))
        many, few = sum(counted.values()), sum(named.values())
        weight = LISTED_SHARE + (1 - LISTED_SHARE) * max(0.0, 1 - many / (TRUSTED * few))
        shares.append(
            {key: (1 - weight) * counted[key] / max(many, 1) + weight * named[key] / few for key in counted | named}
        )
        read.append(min(many + 3 * few, MOST_READ))
    keys = sorted({key for one in shares for key in one})
    found = np.array([[one.get(key, 0.0) for one in shares] for key in keys])
    mean = found.mean(axis=1)
    counts = np.array(read, dtype=np.float64)
    chances = (counts * found + smoothing * mean[:, None]) / (counts + smoothing)
    logs = np.log(chances)
    return keys, mean, logs - logs[:, [list(listed).index(ENGLISH)]]


def chosen(keys: Sequence[str], mean: Doubles, odds: Doubles, count: int) -> tuple[list[str], NDArray[np.int8]]:
    """The features that say most, with their log-odds as whole numbers."""
    worth = np.round(mean * np.abs(odds).max(axis=1), 12)
    order = sorted(range(len(keys)), key=lambda place: (-worth[place], keys[place]))[:count]
    return [keys[place] for place in order], np.clip(np.rint(odds[order] * STEP), -127, 127).astype(np.int8)


def make_table(home: Path) -> dict[str, NDArray[Any]]:
    """The arrays of the table."""
    listed = frequent_words()
    texts = read_texts(home, list(listed))
    words, word_odds = chosen(*log_odds(texts, listed, lambda word: [word], SMOOTHING_WORDS), WORDS)
    groups, group_odds = chosen(*log_odds(texts, listed, letter_groups, SMOOTHING_GROUPS), GROUPS)
    assert max(map(len, words)) <= LONGEST_WORD
    return {
        "languages": np.array(" ".join(listed)),
        "words": np.array(" ".join(words)),
        "groups": np.array(" ".join(groups)),
        "log_odds": np.concatenate([word_odds, group_odds]),
    }


def main() -> None:
    """Write the table."""
    made = make_table(Path(os.environ["TOOLSCOUT_DATA"]))
    np.savez_compressed(TABLE, allow_pickle=False, **made)
    Console().print(f"{TABLE}: {TABLE.stat().st_size:,} bytes, {len(str(made['languages']).split())} languages")


if __name__ == "__main__":
    if not os.environ.get("TOOLSCOUT_DATA"):
        sys.exit("python -m recipes.request_language, with the folder of datasets in TOOLSCOUT_DATA")
    main()
