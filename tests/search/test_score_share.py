"""Scores as people read them."""

from __future__ import annotations

from toolscout.core.answer import ExactName, Hit, Similarity
from toolscout.search.score_share import score_shares, share_texts


def test_scores_are_shares_of_the_best_one() -> None:
    hits = [Hit("a/x", 2.5), Hit("a/y", 1.0), Hit("a/z", -0.5)]
    assert score_shares(hits) == [1.0, 0.4, 0.0]
    assert share_texts(hits) == ["100 %", "40 %", "0 %"]
    assert score_shares([]) == share_texts([]) == []


def test_a_named_tool_says_so_and_leaves_the_others_their_shares() -> None:
    hits = [Hit("a/x", 1002.0, (ExactName("x"), Similarity(0.5))), Hit("a/y", 1.0, (Similarity(0.3),))]
    assert score_shares(hits) == [1.0, 0.5]
    assert share_texts(hits) == ["named", "50 %"]
    found_by_name_alone = Hit("a/x", 1000.0, (ExactName("x"),))
    assert share_texts([found_by_name_alone, Hit("a/y", 0.8)]) == ["named", "100 %"]
    assert share_texts([found_by_name_alone]) == ["named"]
    set_of_a_model = [Hit("a/x", 0.9, (ExactName("x"),)), Hit("a/y", 0.45)]  # k="auto" adds nothing for a name
    assert share_texts(set_of_a_model) == ["named", "50 %"]


def test_without_a_score_above_zero_there_are_no_shares() -> None:
    hits = [Hit("a/x", 0.0), Hit("a/y", -0.2)]
    assert score_shares(hits) == [None, None]
    assert share_texts(hits) == ["", ""]
