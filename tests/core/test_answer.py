"""Answer, Hit and their reasons; what a caller may see."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime

import pytest

from toolscout.core.answer import Allowed, Answer, ExactName, Example, Hit, MatchedWords, PastRequest, Similarity
from toolscout.core.tool import tool_id

PAST = PastRequest("send it", 0.91)
HIT = Hit("mail/send", 0.5, (ExactName("send"), MatchedWords(("mail", "send"), 0.5), Similarity(0.8149), PAST))


def test_reasons_are_read_by_people_and_by_kind() -> None:
    shown = ["names send", "words: mail, send", "meaning 0.81", "used for “send it” 0.91"]
    assert [str(reason) for reason in HIT.reasons] == shown
    assert [reason.kind for reason in HIT.reasons] == ["exact_name", "matched_words", "similarity", "past_request"]
    assert str(PastRequest("", 0.5)) == "used for a request like it 0.50"
    assert str(PastRequest("send " * 100, 0.5)) == f"used for “{'send ' * 11}send…” 0.50"


def test_a_hit_as_json() -> None:
    assert json.loads(json.dumps(HIT.to_dict())) == {
        "tool_id": "mail/send",
        "score": 0.5,
        "reasons": [
            {"name": "send", "kind": "exact_name"},
            {"words": ["mail", "send"], "share": 0.5, "kind": "matched_words"},
            {"cosine": 0.8149, "kind": "similarity"},
            {"request": "send it", "cosine": 0.91, "kind": "past_request"},
        ],
    }


def test_an_answer_as_json_has_every_field() -> None:
    answer = Answer(
        "send it", "nothing_fits", (), (HIT,), searched=7, version=3, fit=0.1, words_only=2, notes=("slow",)
    )
    shown = json.loads(json.dumps(answer.to_dict()))
    assert shown.keys() == {field.name for field in dataclasses.fields(Answer)}
    assert (shown["verdict"], shown["hits"]) == ("nothing_fits", [])
    assert shown["considered"] == [json.loads(json.dumps(HIT.to_dict()))]
    assert (shown["searched"], shown["version"], shown["need"], shown["fit"]) == (7, 3, None, 0.1)
    assert (shown["words_only"], shown["notes"]) == (2, ["slow"])


def test_answers_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        HIT.score = 1.0  # type: ignore[misc]


def test_an_example_knows_when_it_was_made() -> None:
    before = datetime.now(UTC)
    assert before <= Example("x").time <= datetime.now(UTC)


def test_a_caller_may_see_whole_namespaces_and_single_tools() -> None:
    allowed = Allowed.of(["mail", "a/b"], [tool_id("files", "read/write")])
    assert allowed.permits("mail/send")
    assert allowed.permits(tool_id("a/b", "c"))
    assert allowed.permits(tool_id("files", "read/write"))
    assert not allowed.permits(tool_id("files", "delete"))
    assert not allowed.permits(tool_id("a", "b"))
    assert not allowed.permits(tool_id("mail/inner", "send"))
    assert not allowed.permits(tool_id("a", "b/c")), "a slash in a name must not pass for a namespace"
    assert not Allowed().permits("mail/send")
