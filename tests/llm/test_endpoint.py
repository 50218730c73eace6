"""The endpoint engine against a real server: what is sent, what comes back, what it costs, and what is kept."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from tests.llm.fake_endpoint import KEY, Answer, FakeEndpoint, asked, chat, echo, in_turn, message, refused
from toolscout.errors import BadCompletion, BadRequest, EndpointError, NotCached
from toolscout.llm import Completion, Message, Usage, open_llm
from toolscout.llm.endpoint import Endpoint
from toolscout.llm.options import EndpointOptions
from toolscout.retrievers.rewrite.llm_writer import QueryWriter

QUICK = EndpointOptions(retries=2, backoff=0.005, timeout=5.0)
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


pytestmark = pytest.mark.usefixtures("planted")


def test_a_call_is_sent_whole_and_comes_back_in_order() -> None:
    with FakeEndpoint(echo) as server:
        model = open_llm(f"{server.url}/", model="m", options=replace(QUICK, input_price=1.0, output_price=2.0))
        answers = model.complete(
            [[Message("system", "s"), Message("user", "one")], *asked("two", "three")],
            temperature=0.5,
            max_tokens=9,
            stop=["X", "Y"],
        )
    assert [one.text for (one,) in answers] == ["ONE", "TWO", "THREE"]
    assert answers[0] == [Completion("ONE", 10, 4, "stop", cost=18e-6)]
    sent = min(server.requests, key=lambda request: -len(request["messages"]))
    assert sent == {
        "model": "m",
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "one"}],
        "temperature": 0.5,
        "max_tokens": 9,
        "stop": ["X", "Y"],
    }
    assert set(server.paths) == {"/v1/chat/completions"}
    assert {headers["Authorization"] for headers in server.headers} == {f"Bearer {KEY}"}


def test_without_a_key_none_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with FakeEndpoint(echo) as server:
        Endpoint(server.url, "m", QUICK).complete(asked("x"))
    assert "Authorization" not in server.headers[0]


def test_n_choices_share_the_cost_and_a_server_that_gives_one_is_asked_again() -> None:
    with FakeEndpoint(in_turn(chat("a", "bbb"), chat("c"))) as server:
        model = Endpoint(server.url, "m", replace(QUICK, input_price=1.0, output_price=1.0))
        found = model.complete(asked("x"), n=3)[0]
    assert [one.text for one in found] == ["a", "bbb", "c"]
    assert [request.get("n") for request in server.requests] == [3, None]
    assert sum(one.completion_tokens for one in found) == 12
    assert sum(one.cost or 0 for one in found) == pytest.approx(32e-6)


def test_texts_are_cut_at_stops_and_lengths_told_and_tool_results_reworded() -> None:
    with FakeEndpoint(in_turn(chat("a STOP b"), chat("a", finish_reason="length"))) as server:
        model = Endpoint(server.url, "m", QUICK)
        assert model.complete(asked("x"), stop=["STOP"])[0][0].text == "a "
        assert model.complete([[Message("user", "x"), Message("tool", "42")]])[0][0].finish == "length"
    assert server.requests[1]["messages"][1] == {"role": "user", "content": "Result of the tool:\n42"}


def test_tokens_that_a_server_does_not_count_are_estimated() -> None:
    bare = json.dumps({"choices": [{"message": {"content": "x" * 40}}]}).encode()
    with FakeEndpoint(in_turn((200, {}, bare))) as server:
        one = Endpoint(server.url, "m", QUICK).complete(asked("y" * 40))[0][0]
    assert (one.prompt_tokens, one.completion_tokens, one.cost) == (14, 11, None)


def test_many_are_asked_at_once_but_not_too_many() -> None:
    def slow(request: dict[str, Any], number: int) -> Answer:
        time.sleep(0.05)
        return echo(request, number)

    with FakeEndpoint(slow) as server:
        Endpoint(server.url, "m", replace(QUICK, concurrency=3)).complete(asked(*"abcdefgh"))
    assert 2 <= server.most_at_once <= 3


def test_the_rate_is_kept() -> None:
    with FakeEndpoint(echo) as server:
        Endpoint(server.url, "m", replace(QUICK, requests_per_minute=1200)).complete(asked(*"abcd"))
    assert max(server.times) - min(server.times) >= 3 * 0.05 - 0.02


@pytest.mark.parametrize("wait", ["0.2", "date"])
def test_a_server_that_asks_to_wait_is_left_alone_that_long(wait: str) -> None:
    def script(request: dict[str, Any], number: int) -> Answer:
        # A date has whole seconds.
        seconds = wait if wait != "date" else formatdate(time.time() + 1.2, usegmt=True)
        return refused(429, "slow down", {"Retry-After": seconds}) if number == 0 else echo(request, number)

    with FakeEndpoint(script) as server:
        assert Endpoint(server.url, "m", QUICK).complete(asked("x"))[0][0].text == "X"
    assert server.times[1] - server.times[0] >= 0.15


def test_a_wait_that_is_too_long_is_told_instead() -> None:
    said = r"daily limit.*asks to wait 3600 seconds; try again then"
    bad = refused(429, "daily limit", {"Retry-After": "3600"})
    with FakeEndpoint(in_turn(bad)) as server, pytest.raises(EndpointError, match=said):
        Endpoint(server.url, "m", QUICK).complete(asked("x"))
    assert len(server.requests) == 1


def test_content_in_parts_is_joined() -> None:
    with FakeEndpoint(in_turn(message(content=[{"type": "text", "text": "a"}, {"text": "b"}, 3]))) as server:
        assert Endpoint(server.url, "m", QUICK).complete(asked("x"))[0][0].text == "ab"


def test_a_schema_is_sent_and_the_answer_checked_and_asked_for_once_more() -> None:
    with FakeEndpoint(in_turn(chat('{"n": "5"}'), chat("five"), chat('{"n": 5}'), chat("x"))) as server:
        model = Endpoint(server.url, "m", replace(QUICK, input_price=1.0, output_price=1.0))
        first = model.complete(asked("x"), schema=SCHEMA)[0][0]
        second = model.complete(asked("x"), schema=SCHEMA)[0][0]
        with pytest.raises(BadCompletion, match="did not answer with JSON but with: x"):
            model.complete(asked("x"), schema=SCHEMA)
    assert server.requests[0]["response_format"]["json_schema"]["schema"] == SCHEMA
    assert server.requests[2]["messages"][1] == {"role": "assistant", "content": "five"}
    assert "JSON Schema" in server.requests[2]["messages"][2]["content"]
    assert (second.text, second.prompt_tokens, second.completion_tokens) == ('{"n": 5}', 20, 8)
    assert second.cost == pytest.approx(28e-6)
    assert (first.text, len(first.repairs), first.refused) == ('{"n": 5}', 1, "")
    assert (second.repairs, "with: five" in second.refused) == ((), True)


def test_half_a_json_says_to_raise_max_tokens() -> None:
    half = chat('{"n', finish_reason="length")
    said = "cut off after 7 tokens; raise max_tokens"
    with FakeEndpoint(in_turn(half)) as server, pytest.raises(BadCompletion, match=said):
        Endpoint(server.url, "m", QUICK).complete(asked("x"), schema=SCHEMA, max_tokens=7)
    assert len(server.requests) == 1


def test_what_a_server_does_not_know_is_left_out_from_then_on() -> None:
    def old(request: dict[str, Any], number: int) -> Answer:
        if "max_tokens" in request:
            return refused(400, "Unsupported parameter: 'max_tokens'; use 'max_completion_tokens'", param="max_tokens")
        for name in ("temperature", "response_format", "n"):
            if name in request:
                return refused(400, f"Unsupported value: '{name}' does not fit this model", param=name)
        return chat('{"n": 1}')

    with FakeEndpoint(old) as server:
        model = Endpoint(server.url, "m", replace(QUICK, retries=0))
        assert len(model.complete(asked("x"), schema=SCHEMA, n=2)[0]) == 2
        before = len(server.requests)
        model.complete(asked("y"), schema=SCHEMA)
    assert len(server.requests) == before + 1
    last = server.requests[-1]
    assert set(last) == {"model", "messages", "max_completion_tokens"}
    assert last["messages"][0]["role"] == "system"
    assert json.dumps(SCHEMA) in last["messages"][0]["content"]


def test_a_cache_repeats_for_free_and_offline(tmp_path: Path) -> None:
    options = replace(QUICK, cache=tmp_path / "cache", input_price=1.0, output_price=1.0)
    usage = Usage()
    with FakeEndpoint(echo) as server:
        first = Endpoint(server.url, "m", options).complete(asked("a", "b"))
        again = Endpoint(server.url, "m", options).complete(asked("b", "a", "c"))
        assert len(server.requests) == 3
        for change in ({"temperature": 0.5}, {"n": 2}, {"max_tokens": 3}, {"stop": ["x"]}):
            Endpoint(server.url, "m", options).complete(asked("a"), **change)  # type: ignore[arg-type]
        assert len(server.requests) >= 7
    offline = Endpoint(server.url, "m", replace(options, offline=True))  # the server is gone
    third = offline.complete(asked("a", "c"))
    assert [one.text for (one,) in third] == ["A", "C"]
    assert [one.cached for (one,) in (*first, *again, *third)] == [False, False, True, True, False, True, True]
    usage.add([*first, *third])
    assert usage.cost == pytest.approx(28e-6)
    with pytest.raises(NotCached, match=r"no completion for: d; run once without offline"):
        offline.complete(asked("d"))
    with pytest.raises(NotCached):
        Endpoint(server.url, "other", replace(options, offline=True)).complete(asked("a"))


def test_what_was_answered_before_a_fault_is_kept(tmp_path: Path) -> None:
    def script(request: dict[str, Any], number: int) -> Answer:
        return echo(request, number) if number < 2 else refused(401, "revoked")

    options = replace(QUICK, cache=tmp_path / "cache", concurrency=1)
    with FakeEndpoint(script) as server:
        with pytest.raises(EndpointError, match="revoked"):
            Endpoint(server.url, "m", options).complete(asked(*"abcdef"))
        assert len(server.requests) == 3  # and nobody else was asked
    offline = Endpoint(server.url, "m", replace(options, offline=True))
    assert [one.text for (one,) in offline.complete(asked("a", "b"))] == ["A", "B"]


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("ftp://host/v1", EndpointOptions()),
        ("https://", EndpointOptions()),
        (f"https://user:{KEY}@host/v1", EndpointOptions()),
        (f"https://host/v1?key={KEY}", EndpointOptions()),
        (f"http://{KEY}@[::1/v1", EndpointOptions()),
        ("http://host:port/v1", EndpointOptions()),
        ("http://host/ökö/v1", EndpointOptions()),
        ("http://host/a b/v1", EndpointOptions()),
        ("https://host/v1", EndpointOptions(key_variable=KEY)),
        ("https://host/v1", EndpointOptions(offline=True)),
        ("https://host/v1", EndpointOptions(input_price=1.0)),
        ("https://host/v1", EndpointOptions(concurrency=0)),
        ("https://host/v1", EndpointOptions(timeout=0)),
        ("https://host/v1", EndpointOptions(requests_per_minute=-1)),
        ("https://host/v1", EndpointOptions(requests_per_minute=0)),
        ("https://host/v1", EndpointOptions(retries=-1)),
        ("https://host/v1", EndpointOptions(backoff=-1.0)),
        ("https://host/v1", EndpointOptions(backoff=float("nan"))),
        ("https://host/v1", EndpointOptions(timeout=1e12)),
        ("https://host/v1", EndpointOptions(longest_wait=float("inf"))),
        ("https://host/v1", EndpointOptions(input_price=-1.0, output_price=1.0)),
        ("https://host/v1", EndpointOptions(input_price=1.0, output_price=float("nan"))),
    ],
)
def test_options_that_make_no_sense_are_refused_without_repeating_a_key(url: str, options: EndpointOptions) -> None:
    with pytest.raises(BadRequest) as caught:
        Endpoint(url, "m", options)
    assert KEY not in str(caught.value)


def test_an_address_that_cannot_be_used_is_told_what_to_write() -> None:
    for url in ("http://[::1/v1", "http://host:99999/v1"):
        with pytest.raises(BadRequest, match=r"base URL such as .*http://\[::1\]/v1"):
            Endpoint(url, "m")
    for url in ("http://host/ökö/v1", "http://bücher/v1"):
        with pytest.raises(BadRequest, match="no letters beyond ASCII; write"):
            Endpoint(url, "m")


def test_a_scheme_in_capitals_is_the_same_endpoint() -> None:
    with FakeEndpoint(echo) as server:
        model = open_llm(server.url.replace("http", "HTTP"), model="m", options=QUICK)
        assert model.complete(asked("a"))[0][0].text == "A"
        assert isinstance(model, Endpoint)
        assert model.url == server.url  # so that a cache knows it
        author = QueryWriter(server.url.replace("http", "Http"), "m")
        assert [(one.text, one.problem) for one in author.session().write(asked("b"), 0.0, 8)] == [("B", "")]


def test_each_conversation_is_sent_with_its_own_schema() -> None:
    other = {"type": "object", "properties": {"w": {"type": "string"}}, "required": ["w"]}
    answers = {"one": '{"n": 1}', "two": '{"w": "x"}', "three": "plain"}
    with FakeEndpoint(lambda request, _: chat(answers[request["messages"][-1]["content"]])) as server:
        found = Endpoint(server.url, "m", QUICK).complete(asked(*answers), schema=[SCHEMA, other, None])
    assert [one.text for (one,) in found] == list(answers.values())
    sent = {one["messages"][-1]["content"]: one.get("response_format") for one in server.requests}
    assert sent["three"] is None
    assert [sent[name]["json_schema"]["schema"] for name in ("one", "two")] == [SCHEMA, other]
