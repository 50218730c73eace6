from __future__ import annotations

import json
from pathlib import Path

import pytest

from toolscout.errors import BadCompletion, BadRequest
from toolscout.llm import Completion, EndpointOptions, Message, Usage, complete_each, open_llm
from toolscout.llm.base import fitted
from toolscout.llm.scripted import Scripted, ScriptedReply


def asked(*texts: str) -> list[list[Message]]:
    return [[Message("user", text)] for text in texts]


def test_lines_are_said_in_turn_and_those_that_match_first() -> None:
    model = Scripted(["one", ScriptedReply("sunny", when="weather"), lambda asked: asked[-1].content.upper()])
    answers = model.complete(asked("hello", "the weather?", "loud", "weather again"))
    assert [one.text for (one,) in answers] == ["one", "sunny", "LOUD", "sunny"]
    assert model.asked == asked("hello", "the weather?", "loud", "weather again")
    with pytest.raises(BadCompletion, match="no line left for: more"):
        model.complete(asked("more"))


def test_a_script_is_read_from_a_file(tmp_path: Path) -> None:
    script = tmp_path / "script.jsonl"
    script.write_text('{"text": "hi there friend"}\n\n{"when": "bye", "text": "gone STOP on"}\n')
    model = open_llm(f"scripted:{script}")
    answers = model.complete(asked("hey", "bye"), max_tokens=2, stop=["STOP"])
    assert [(one.text, one.finish) for (one,) in answers] == [("hi there", "length"), ("gone ", "stop")]
    for bad in ("no json", '{"when": "x"}', "[1]"):
        script.write_text(bad)
        with pytest.raises(BadRequest, match="write a line of JSON"):
            open_llm(f"scripted:{script}")
    with pytest.raises(BadRequest, match="is no script"):
        open_llm(f"scripted:{tmp_path / 'missing'}")


def test_what_does_not_fit_the_schema_fails_alone() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    model = Scripted(['Sure! ```json\n{"n": "5"}\n```', "no idea"])
    good, bad = complete_each(model, asked("a", "b"), schema=schema)
    assert isinstance(good, list)
    assert json.loads(good[0].text) == {"n": 5}
    assert good[0].repairs == ('"n": "5" taken as 5',)
    assert str(bad) == "the model did not answer with JSON but with: no idea"


@pytest.mark.parametrize("text", ["", "NaN", "{", '{"n": NaN}', "[" * 100_000, "{" * 3000 + "x"])
def test_what_is_no_json_is_told(text: str) -> None:
    with pytest.raises(BadCompletion):
        fitted(text, {"type": "object", "required": ["n"]})


def test_usage_adds_up_and_counts_the_prompt_once() -> None:
    usage = Usage()
    usage.add([[Completion("a", 10, 1, "stop", 0.5), Completion("b", 10, 2, "stop", 0.25)], []])
    usage.add([[Completion("a", 7, 3, "stop", 9.0, cached=True)]])
    assert usage.row() == {
        "llm_calls": 2,
        "llm_cached": 1,
        "llm_prompt_tokens": 17,
        "llm_completion_tokens": 6,
        "llm_cost": 0.75,
    }
    assert Usage().row()["llm_cost"] is None


def test_a_spec_that_names_nothing_says_what_can_be_named() -> None:
    with pytest.raises(BadRequest, match="scripted:FILE, or smollm2"):
        open_llm("no-such-folder")
    with pytest.raises(BadRequest, match="give its URL"):
        open_llm("", model="gpt")
    with pytest.raises(BadRequest, match="give its URL"):
        open_llm("smollm2", options=EndpointOptions(concurrency=2))
    with pytest.raises(BadRequest, match="needs the name of a model"):
        open_llm("https://host/v1")


def test_each_conversation_may_have_a_schema_of_its_own() -> None:
    number = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    word = {"type": "object", "properties": {"w": {"type": "string"}}, "required": ["w"]}
    model = Scripted(['{"n": "3"}', "as it comes", '{"n": 3}'])
    found = complete_each(model, asked("a", "b", "c"), schema=[number, None, word])
    assert [one[0].text for one in found[:2] if isinstance(one, list)] == ['{"n": 3}', "as it comes"]
    assert [len(one[0].repairs) for one in found[:2] if isinstance(one, list)] == [1, 0]
    assert isinstance(found[2], BadCompletion)
    with pytest.raises(BadRequest, match="2 schemas for 1 conversations"):
        model.complete(asked("a"), schema=[number, word])
