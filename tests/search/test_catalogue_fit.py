"""Does anything fit? The best of what names, words, meaning and past requests say."""

from __future__ import annotations

import pytest

from toolscout.core.answer import ExactName, Hit, MatchedWords, PastRequest, Reason, Similarity
from toolscout.search.catalogue_fit import FitOptions, catalogue_fit_of


def fits(*reasons: Reason, level: float | None = None) -> float:
    return catalogue_fit_of([Hit("mail/send", 1.0, reasons)], FitOptions(), level)


def test_nothing_found_does_not_fit_and_a_name_always_does() -> None:
    assert catalogue_fit_of([], FitOptions()) == 0
    assert fits(ExactName("send"), Similarity(0.0)) == 1


def test_meaning_words_and_past_requests_each_suffice() -> None:
    weak = fits(Similarity(0.1), MatchedWords(("a",), 0.1), PastRequest("x", 0.3))
    assert weak < FitOptions().threshold
    assert weak == pytest.approx(fits(Similarity(0.1), MatchedWords(("a",), 0.1)), abs=0.01)
    assert fits(Similarity(0.6), PastRequest("x", 0.3)) == fits(Similarity(0.6)) > 0.85
    assert fits(Similarity(0.1), MatchedWords(("a",), 0.9)) > 0.9
    assert fits(Similarity(0.1), PastRequest("x", 0.8)) > 0.9


def test_a_past_request_is_believed_the_more_the_nearer_it_is() -> None:
    found = [fits(Similarity(0.0), PastRequest("", cosine / 10)) for cosine in range(4, 10)]
    assert found == sorted(found)
    assert fits(Similarity(0.0), PastRequest("", 0.6)) == pytest.approx(0.5)


def test_similarity_counts_above_the_level_of_the_catalogue() -> None:
    options = FitOptions()
    assert fits(Similarity(0.4), level=0.1) == pytest.approx(fits(Similarity(0.6), level=0.3))
    assert fits(Similarity(0.4), level=0.1) > fits(Similarity(0.4), level=0.3)
    assert fits(Similarity(0.4)) == fits(Similarity(0.4), level=options.usual)
    half_way = -options.bias / options.similarity
    assert fits(Similarity(0.2 + half_way), level=0.2) == pytest.approx(0.5)


def test_a_level_changes_nothing_where_names_words_or_past_requests_decide() -> None:
    assert fits(ExactName("send"), Similarity(0.0), level=0.9) == 1
    assert fits(MatchedWords(("a",), 0.1), level=0.9) == fits(MatchedWords(("a",), 0.1))
    assert fits(Similarity(0.1), PastRequest("x", 0.8), level=0.9) > 0.9


def test_tools_below_the_level_do_not_fit_and_those_far_above_do() -> None:
    assert fits(Similarity(0.1), level=0.1) < FitOptions().threshold
    assert fits(Similarity(0.5), level=0.1) > 0.8
