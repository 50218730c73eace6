"""What a model thinks aloud, and odd replies: neither is taken for an answer, nor for what was counted."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.llm.fake_endpoint import KEY, FakeEndpoint, asked, chat, in_turn, message, refused
from toolscout.errors import BadCompletion, EndpointError, LanguageModelError
from toolscout.llm import complete_each
from toolscout.llm.base import spoken
from toolscout.llm.endpoint import Endpoint
from toolscout.llm.http import RateLimiter
from toolscout.llm.options import EndpointOptions
from toolscout.llm.scripted import Scripted, ScriptedReply

pytestmark = pytest.mark.usefixtures("planted")
QUICK = EndpointOptions(retries=0, backoff=0.005, timeout=5.0)
ANSWER = "weather forecast for a city\nsend a message"


@pytest.mark.parametrize(
    "text",
    [
        f"<think>\nfirst\nsecond\n</think>\n\n{ANSWER}",
        f"<THINK>x</Think>{ANSWER}",
        f'<thinking level="high">x</thinking >{ANSWER}',
        f"<reasoning>x</reasoning>\n{ANSWER}\n<think>is that all?",
        f"the prompt began the thought\n</think>\n{ANSWER}",
        f"<think>I could write <think> here</think>{ANSWER}",
        f"<think>a<think>b</think>c</think>{ANSWER}",
        f"<think></think><think>more</think>{ANSWER}",
        ANSWER,
    ],
)
def test_thoughts_are_no_part_of_an_answer(text: str) -> None:
    assert spoken(text) == ANSWER
    with FakeEndpoint(in_turn(chat(text))) as server:
        assert Endpoint(server.url, "m", QUICK).complete(asked("x"))[0][0].text == ANSWER
    (told,) = complete_each(Scripted([text]), asked("x"))
    assert isinstance(told, list)
    assert told[0].text == ANSWER


@pytest.mark.parametrize(
    "text",
    [
        "<thinker>x</thinker>",
        "<reasoning_effort>high",
        "I think >",
        '{"a": "<think>"}',
        'Here:\n{"x": "see <think> tag"}',
        'Action Input: {"x": "<think>a</think>b"}',
        '```json\n{"x": "<think>a</think>b"}\n```',
        "Put it between <thinking> and </thinking>, then save.",
        "Some models write a <thinking> tag first; others do not.",
        "First write the plan. End it with </reasoning>. Then the rest.",
    ],
)
def test_what_only_looks_like_a_thought_stays(text: str) -> None:
    assert spoken(text) == text


@pytest.mark.parametrize("text", ["<think>hm", "<think>hm</think>\n\n", "hm</think>", "<reasoning>a</reasoning> "])
def test_nothing_but_thoughts_is_no_answer(text: str) -> None:
    with FakeEndpoint(in_turn(chat(text), chat(text, finish_reason="length"))) as server:
        model = Endpoint(server.url, "m", QUICK)
        with pytest.raises(BadCompletion, match="thoughts and no answer"):
            model.complete(asked("x"))
        with pytest.raises(BadCompletion, match="before it wrote a word"):
            model.complete(asked("x"))
    good, bad = complete_each(
        Scripted([ScriptedReply("fine", "good"), ScriptedReply(text, "bad")]), asked("good", "bad")
    )
    assert isinstance(good, list)
    assert isinstance(bad, BadCompletion)


def test_json_behind_a_thought_is_as_it_was_written() -> None:
    for wrapped in ('{"x": "<think>a</think>b"}', '```json\n{"x": "<think>a</think>b"}\n```'):
        assert spoken(f"<think>p</think>\n{wrapped}") == wrapped


def test_one_that_only_thinks_costs_no_other_answer() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    with FakeEndpoint(in_turn(chat("<think>hm</think>"), chat('{"n": 2}'))) as server:
        one = Endpoint(server.url, "m", QUICK).complete(asked("x"), schema=schema)[0][0]
    assert json.loads(one.text) == {"n": 2}
    with FakeEndpoint(in_turn(chat("<think>hm", "fine"))) as server:
        assert [one.text for one in Endpoint(server.url, "m", QUICK).complete(asked("x"), n=2)[0]] == ["", "fine"]


def test_many_thoughts_are_read_in_one_go() -> None:
    assert spoken("<think>" * 300_000 + "</think>fine") == "fine"
    assert spoken("<think " * 300_000 + "fine").endswith("fine")


def test_json_after_thoughts_is_read_and_thoughts_are_counted() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    thought = f'<think>{{"n": 1}} or {{"n": 2}}? {"hm " * 100}</think>{{"n": 2}}'
    with FakeEndpoint(in_turn(message(content=thought))) as server:
        one = Endpoint(server.url, "m", QUICK).complete(asked("x"), schema=schema)[0][0]
    assert json.loads(one.text) == {"n": 2}
    assert one.completion_tokens > 75


@pytest.mark.parametrize("before", range(200 - len(KEY), 201, 5))
def test_a_long_refusal_is_shortened_without_half_a_key(before: int) -> None:
    long = "x" * before + KEY + "y" * 6_000_000
    for said in (long, [long]):
        told = pytest.raises(BadCompletion, match="refuses to answer")
        with FakeEndpoint(in_turn(message(content=None, refusal=said))) as server, told as caught:
            Endpoint(server.url, "m", QUICK).complete(asked("x"))
        assert len(str(caught.value)) < 400
        assert "sk" not in str(caught.value).replace("ask", "")


@pytest.mark.parametrize("count", [10**400, 10**12, -3, True, 2.5, "7", None, [1]])
def test_a_count_that_makes_no_sense_is_not_taken(count: Any) -> None:
    usage = {"prompt_tokens": count, "completion_tokens": count}
    with FakeEndpoint(in_turn(chat("four", usage=usage))) as server:
        options = replace(QUICK, input_price=1.0, output_price=1.0)
        one = Endpoint(server.url, "m", options).complete(asked("y" * 40))[0][0]
    assert (one.prompt_tokens, one.completion_tokens) == (14, 2)  # as where nobody counts
    assert one.cost == pytest.approx(16e-6)


def test_a_fault_holds_what_the_others_got() -> None:
    answers = {"bad": refused(401, "no"), "none": message(content=None)}
    with FakeEndpoint(lambda request, _: answers.get(request["messages"][-1]["content"], chat("fine"))) as server:
        model = Endpoint(server.url, "m", replace(QUICK, concurrency=1))
        for call in (model.complete, lambda few: complete_each(model, few)):
            with pytest.raises(EndpointError, match="401") as caught:
                call(asked("a", "none", "bad", "d"))
            first, second, third, fourth = caught.value.results or ()
            assert isinstance(first, list)
            assert first[0].text == "fine"
            assert isinstance(second, BadCompletion)
            assert isinstance(third, LanguageModelError)
            assert fourth is None
        assert len(server.requests) == 2 * 3


def test_who_would_wait_too_long_at_the_gate_leaves_the_turn_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = 100.0, list[float]()
    monkeypatch.setattr("toolscout.llm.http.time.monotonic", lambda: now)
    monkeypatch.setattr("toolscout.llm.http.time.sleep", slept.append)
    gate = RateLimiter(6)
    assert [gate.wait(until) for until in (102.0, 102.0, 102.0, 111.0)] == [True, False, False, True]
    assert slept == [0.0, 10.0]
    gate.shut(60)
    assert not gate.wait(150.0)
    assert gate.wait()
