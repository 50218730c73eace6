"""The table of the request's language: what the recipe counts, and that the packaged table is what it makes."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from recipes import request_language
from toolscout.core.model_files import read_arrays
from toolscout.search.request_language import STEP, TABLE, letter_groups, words_of


def test_words_and_letter_groups() -> None:
    assert words_of("Don’t STOP: c'est l'été, 42 файлы x_y") == ["don't", "stop", "c'est", "l'été", "x", "y"]
    assert words_of("a" * 25) == letter_groups("a" * 25) == []
    assert letter_groups("to") == ["^", "t", "o", "$", "^t", "to", "o$", "^to", "to$", "^to$"]


def test_log_odds_by_hand() -> None:
    texts = {"en": Counter({"the": 3, "cat": 1}), "de": Counter({"die": 4})}
    listed = {"en": ["the"], "de": ["die"]}
    keys, mean, odds = request_language.log_odds(texts, listed, lambda word: [word], smoothing=2.0)
    assert keys == ["cat", "die", "the"]
    # The share of the listed words: 0.3 + 0.7 (1 - 4 words read / 20 for the one listed).
    listed_share = 0.3 + 0.7 * (1 - 4 / 20)
    cat = (1 - listed_share) / 4
    assert mean.tolist() == pytest.approx([cat / 2, 0.5, (1 - cat) / 2])
    # 4 words and 3 times one listed word were read: 7 words, and 2 for smoothing.
    assert odds[1].tolist() == pytest.approx([0, np.log((7 * 1 + 2 * 0.5) / (2 * 0.5))])
    assert odds[0, 1] == pytest.approx(np.log((2 * cat / 2) / (7 * cat + 2 * cat / 2)))
    chosen, numbers = request_language.chosen(keys, mean, odds, 2)
    assert chosen == ["die", "the"]
    assert numbers.tolist() == np.rint(odds[1:] * STEP).tolist()


def test_every_language_has_frequent_words() -> None:
    listed = request_language.frequent_words()
    assert "en" in listed
    assert len(listed) > 30
    for language, words in listed.items():
        assert len(words) > 70, language
        assert all(words_of(word) == [word] for word in words), language


@pytest.mark.slow
def test_the_packaged_table_is_what_the_recipe_makes() -> None:
    home = Path(os.environ.get("TOOLSCOUT_DATA", ""))
    if "TOOLSCOUT_DATA" not in os.environ or not (home / "tldr-parallel").is_dir():
        pytest.skip("TOOLSCOUT_DATA has no tldr-parallel")
    kept, made = read_arrays(TABLE), request_language.make_table(home)
    for name in ("languages", "words", "groups"):
        assert str(kept[name]) == str(made[name])
    # A logarithm may be rounded otherwise on another processor.
    assert np.abs(kept["log_odds"].astype(int) - made["log_odds"].astype(int)).max() <= 1
