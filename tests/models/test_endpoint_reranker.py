"""A reranker behind HTTP: the shapes of Cohere and of text-embeddings-inference, and servers that fail."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import pytest

from tests.llm.fake_endpoint import KEY, Answer, FakeEndpoint, in_turn, refused
from toolscout.errors import BadCompletion, BadModel, BadRequest, EndpointError
from toolscout.models.rerankers.endpoint import KEY_VARIABLE, EndpointReranker, RerankEndpointOptions
from toolscout.models.rerankers.opening import open_reranker

QUICK = RerankEndpointOptions(model="m", retries=0, timeout=5.0)


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-somebody-else")


def answer(content: Any, status: int = 200) -> Answer:
    return status, {}, json.dumps(content).encode()


def results(*scores: tuple[int, Any]) -> Answer:
    return answer({"id": "x", "results": [{"index": place, "relevance_score": score} for place, score in scores]})


def odds(share: float) -> float:
    return math.log(share / (1 - share))


def test_what_is_sent_and_what_comes_back() -> None:
    with FakeEndpoint(in_turn(results((1, 0.9), (0, 0.2)))) as fake:
        reranker = open_reranker(f"{fake.url}?model=m&document_chars=5")
        assert reranker.score("a request", ["first one", "second \ud800"]) == pytest.approx([odds(0.2), odds(0.9)])
    assert (reranker.name, reranker.remote, reranker.visible_only) == ("m", True, True)
    assert fake.paths == ["/v1/rerank"]
    sent = {"query": "a request", "documents": ["first", "secon"], "top_n": 2, "return_documents": False, "model": "m"}
    assert fake.requests == [sent]
    assert "Authorization" not in fake.headers[0]


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    with FakeEndpoint(in_turn(results((0, 3)))) as fake:
        assert EndpointReranker(fake.url, QUICK).score("x", ["y"]) == [3.0]  # no share: as it is
    assert fake.headers[0]["Authorization"] == f"Bearer {KEY}"


def tei(request: dict[str, Any], _: int) -> Answer:
    if "texts" not in request:
        body = b"Failed to deserialize the JSON body into the target type: missing field `texts` at line 1 column 9"
        return 422, {"Content-Type": "text/plain"}, body
    if len(request["texts"]) > 32:
        return answer({"error": "batch size 33 > maximum allowed batch size 32", "error_type": "Validation"}, 422)
    scored = [{"index": place, "score": float(text)} for place, text in enumerate(request["texts"])]
    return answer(sorted(scored, key=lambda one: -one["score"]))


def test_text_embeddings_inference_is_known_by_its_refusal() -> None:
    with FakeEndpoint(tei) as fake:
        reranker = EndpointReranker(fake.url, QUICK)
        assert reranker.score("x", [str(n) for n in range(50)]) == [float(n) for n in range(50)]
        assert reranker.score("x", ["7", "-7"]) == [7.0, -7.0]
    assert [len(one.get("texts", [])) for one in fake.requests] == [0, 32, 18, 2]  # it is asked the wrong way once
    assert fake.requests[1].keys() == {"query", "texts", "raw_scores", "truncate"}


def test_a_field_that_a_server_does_not_know_is_left_out() -> None:
    with FakeEndpoint(in_turn(refused(400, "unknown field: 'return_documents'"), results((0, 0.5)))) as fake:
        assert EndpointReranker(fake.url, QUICK).score("x", ["y"]) == [0.0]
    assert "return_documents" not in fake.requests[1]


@pytest.mark.parametrize(
    "strange",
    [
        [(1, 2.0)],
        [(1, 2.0), (0, math.nan)],
        [(1, 2.0), (0, math.inf), (5, 1.0), (-1, 1.0)],
        [(1, 2.0), (0, "high")],
        [(1, 2.0), (0, None)],
        [(1, 2.0), (True, 1.0), (0, 10**400)],
    ],
)
def test_half_of_the_results_is_half_of_the_scores(strange: list[tuple[int, Any]]) -> None:
    with FakeEndpoint(in_turn(results(*strange))) as fake:
        assert EndpointReranker(fake.url, QUICK).score("x", ["y", "z"]) == [None, 2.0]


def test_results_that_are_no_results() -> None:
    with FakeEndpoint(in_turn(answer({"results": [1, None, {"index": "0"}, {}]}))) as fake:
        assert EndpointReranker(fake.url, QUICK).score("x", ["y"]) == [None]


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (refused(429, "slow down"), "answered 429 .slow down.*ask less often"),
        (refused(500, "oops"), "answered 500 .oops.*try again later"),
        ((200, {}, b"<html><body>Welcome</body></html>"), "no list of scores .Welcome"),
        (answer({"results": []}), "no list of scores"),
        (answer([]), "no list of scores"),
        (refused(401, "who are you"), f"refuses access .*put its key into {KEY_VARIABLE}"),
        (refused(404, "nothing here"), "has no model 'm', or is not a base URL"),
    ],
)
def test_servers_that_fail(reply: Answer, says: str) -> None:
    with FakeEndpoint(in_turn(reply)) as fake, pytest.raises(EndpointError, match=says):
        EndpointReranker(fake.url, QUICK).score("x", ["y"])


def test_a_server_that_echoes_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    with FakeEndpoint(in_turn(refused(400, f"no {KEY}"))) as fake, pytest.raises(BadCompletion) as caught:
        EndpointReranker(fake.url, QUICK).score("x", ["y"])
    assert KEY not in str(caught.value)


def test_a_server_that_hangs_is_left_at_the_deadline() -> None:
    def hang(*_: Any) -> Answer:
        time.sleep(2)
        return results((0, 1.0))

    with FakeEndpoint(hang) as fake:
        began = time.monotonic()
        with pytest.raises(EndpointError, match="gave no answer within"):
            EndpointReranker(fake.url, QUICK).score("x", ["y"], began + 0.2)
        assert time.monotonic() - began < 1.5


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        ("http://127.0.0.1:9/v1", BadRequest, "needs the name of a model; write https://host/v1.model=NAME"),
        ("http://127.0.0.1:9/v1?model=m&nonsense=1", BadModel, "no option of a rerank endpoint"),
        ("http://user:pass@host/v1?model=m", BadRequest, "no user, key or query"),
        ("http://127.0.0.1:9/v1?model=m&document_chars=0", BadRequest, "above 0"),
        ("http://127.0.0.1:9/v1?model=m&key_variable=sk-123", BadRequest, "never a key"),
    ],
)
def test_names_that_open_nothing(name: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        open_reranker(name)


def test_a_key_is_not_sent_over_plain_http(monkeypatch: pytest.MonkeyPatch) -> None:
    open_reranker("http://host.example/v1?model=m")
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    with pytest.raises(BadRequest, match="not sent over plain http"):
        open_reranker("http://host.example/v1?model=m")
