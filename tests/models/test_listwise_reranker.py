"""A chat model as a reranker: what it is asked, what its list counts for, and models that answer badly."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import pytest

from tests.llm.fake_endpoint import Answer, FakeEndpoint, chat, in_turn
from toolscout.errors import BadCompletion, BadModel, BadRequest, EndpointError
from toolscout.llm.scripted import Scripted
from toolscout.models.rerankers.listwise import ChatOptions, ListwiseReranker
from toolscout.models.rerankers.opening import open_reranker


def ranking(*numbers: int) -> Answer:
    return chat(json.dumps({"ranking": list(numbers)}))


def places(count: int, *numbers: int) -> list[float]:
    last = -math.log(count + 1)
    return [-math.log(numbers.index(n) + 1) if n in numbers else last for n in range(1, count + 1)]


def test_a_list_becomes_scores() -> None:
    with FakeEndpoint(in_turn(ranking(3, 1))) as fake:
        reranker = open_reranker(f"chat:{fake.url}?model=m&document_chars=9&input_price=1&output_price=1")
        judged = reranker.judge("mail it", ["first\none of many", "second", "third"])
    assert judged.scores == places(3, 3, 1)
    assert judged.cost is not None
    assert (judged.cost.calls, judged.cost.price) == (1, pytest.approx(14e-6))
    (sent,) = fake.requests
    assert "Request: mail it\n\nTools:\n1. first one\n2. second\n3. third" in sent["messages"][-1]["content"]
    number = sent["response_format"]["json_schema"]["schema"]["properties"]["ranking"]["items"]
    assert number == {"type": "integer", "minimum": 1, "maximum": 3}
    assert (reranker.name, reranker.remote, reranker.visible_only) == ("m", True, True)


@pytest.mark.parametrize(("numbers", "counts"), [((), ()), ((2, 2, 1), (2, 1)), ((1, 2, 3), (1, 2, 3))])
def test_lists_of_any_length(numbers: tuple[int, ...], counts: tuple[int, ...]) -> None:
    with FakeEndpoint(in_turn(ranking(*numbers))) as fake:
        found = open_reranker(f"chat:{fake.url}?model=m").score("x", ["a", "b", "c"])
    assert found == places(3, *counts)


@pytest.mark.parametrize("text", ["no idea", '{"ranking": [9]}', '{"ranking": "all"}', "[]"])
def test_a_model_that_answers_badly_twice(text: str) -> None:
    with FakeEndpoint(in_turn(chat(text))) as fake, pytest.raises(BadCompletion):
        open_reranker(f"chat:{fake.url}?model=m").score("x", ["a", "b", "c"])
    assert len(fake.requests) == 2


def test_a_model_that_hangs_is_left_at_the_deadline() -> None:
    def hang(*_: Any) -> Answer:
        time.sleep(2)
        return ranking(1)

    with FakeEndpoint(hang) as fake:
        began = time.monotonic()
        with pytest.raises(EndpointError, match="within"):
            open_reranker(f"chat:{fake.url}?model=m").score("x", ["a"], began + 0.2)
        assert time.monotonic() - began < 1.5


def test_a_model_that_is_open_is_used() -> None:
    reranker = ListwiseReranker("scripted", ChatOptions(), Scripted(['{"ranking": [2]}']))
    assert reranker.score("x", ["a", "b"]) == places(2, 2)
    assert not reranker.remote
    assert reranker.visible_only  # one document may talk the model out of another


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        ("chat:http://127.0.0.1:9/v1", BadRequest, "needs the name of a model"),
        ("chat:smollm2?model=m", BadRequest, "model is for an endpoint"),
        ("chat:smollm2?max_tokens=0", BadRequest, "above 0"),
        ("chat:smollm2?cache=x.db", BadModel, "no option of a chat model"),
    ],
)
def test_names_that_open_nothing(name: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        open_reranker(name)
