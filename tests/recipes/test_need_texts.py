"""Our own sentences for the need head: what is made of tool descriptions, and that nothing contradicts itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from recipes import need_texts

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("description", "task", "topic"),
    [
        ("Returns the open issues of a repository.", "get the open issues of a repository", "open issues"),
        ("Searches for flights between two cities", "search for flights between two cities", None),
        ("Fetches a new access token", "fetch a new access token", "new access token"),
        ("This tool does something", None, None),
        ("Delete file", None, None),
        ("Récupère la liste des contacts", None, None),
    ],
)
def test_what_a_description_asks_for(description: str, task: str | None, topic: str | None) -> None:
    assert need_texts.imperative(description) == task
    if task and topic:
        assert need_texts.topic(task) == topic
        assert need_texts.tasks([description, description]) == [(task, topic)]


def test_answers_in_the_middle_of_a_talk_are_no_requests() -> None:
    for said in (
        "Yes, please go ahead with it.",
        "10",
        "{}",
        "The season is 2021, I think.",
        "My username is Jane, thanks.",
    ):
        assert not need_texts.stands_alone(said)
    for said in ("Show me all open orders", "I need to book a flight", "Notify the team that it is done"):
        assert need_texts.stands_alone(said)


def test_every_template_can_be_filled() -> None:
    known = [("send the mail", "mail"), ("list all open issues", "open issues")] * 200
    asked, talked = need_texts.about_tools(known, np.random.default_rng(0))
    assert len(asked) == len(talked) == 400
    everyday = need_texts.everyday(np.random.default_rng(0))
    for texts in (asked, talked, *everyday):
        assert not any("{" in text for text in texts)


def test_the_same_seed_makes_the_same_sentences() -> None:
    assert need_texts.everyday(np.random.default_rng(5)) == need_texts.everyday(np.random.default_rng(5))


def test_no_sentence_stands_on_both_sides() -> None:
    asked, talked = need_texts.everyday(np.random.default_rng(0))
    files = {"recipes/need_asked.txt": asked, "toolscout/search/background.txt": asked, "recipes/need_talk.txt": talked}
    for name, side in files.items():
        side += (ROOT / name).read_text(encoding="utf-8").splitlines()
    assert not {text.casefold() for text in asked} & {text.casefold() for text in talked}
