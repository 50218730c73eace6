"""Does anything fit? The best of what names, words, meaning and past requests say."""

from __future__ import annotations

import pytest

from toolscout.answer import ExactName, Hit, MatchedWords, PastRequest, Reason, Similarity
from toolscout.fit import FitOptions, fit


def fits(*reasons: Reason) -> float:
    return fit([Hit("mail/send", 1.0, reasons)], FitOptions())


def test_nothing_found_does_not_fit_and_a_name_always_does() -> None:
    assert fit([], FitOptions()) == 0
    assert fits(ExactName("send"), Similarity(0.0)) == 1


def test_meaning_words_and_past_requests_each_suffice() -> None:
    weak = fits(Similarity(0.1), MatchedWords(("a",), 0.1), PastRequest("x", 0.3))
    assert weak < FitOptions().threshold
    assert weak == pytest.approx(fits(Similarity(0.1), MatchedWords(("a",), 0.1)), abs=0.01)
    assert fits(Similarity(0.6), PastRequest("x", 0.3)) == fits(Similarity(0.6)) > 0.9
    assert fits(Similarity(0.1), MatchedWords(("a",), 0.9)) > 0.9
    assert fits(Similarity(0.1), PastRequest("x", 0.8)) > 0.9


def test_a_past_request_is_believed_the_more_the_nearer_it_is() -> None:
    found = [fits(Similarity(0.0), PastRequest("", cosine / 10)) for cosine in range(4, 10)]
    assert found == sorted(found)
    assert fits(Similarity(0.0), PastRequest("", 0.6)) == pytest.approx(0.5)
