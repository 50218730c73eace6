"""An encoder behind an embeddings endpoint: what it sends, what it makes of bad answers, what it costs."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.llm.fake_endpoint import KEY, Answer, FakeEndpoint, in_turn, refused
from toolscout.errors import BadModel, BadRequest, EncoderUnavailable
from toolscout.models.encoders.endpoint import EmbeddingOptions, EndpointEncoder

Vector = list[float]


def of_text(text: str) -> Vector:
    """A vector that depends on the text alone."""
    return [float(len(text)), float(sum(map(ord, text)) % 97), 1.0, -2.0]


def answer(texts: list[str], vector: Callable[[str], Vector] = of_text, **more: Any) -> Answer:
    data = [{"index": place, "embedding": vector(text)} for place, text in enumerate(texts)]
    return 200, {}, json.dumps({"data": data, **more}).encode()


def good(request: dict[str, Any], _: int) -> Answer:
    return answer(request["input"])


def encoder(url: str, **options: Any) -> EndpointEncoder:
    return EndpointEncoder(url, EmbeddingOptions(model="m", **{"backoff": 0.001, **options}))


def unit(text: str) -> np.ndarray[Any, Any]:
    vector = np.array(of_text(text))
    return vector / np.linalg.norm(vector)


def documents(one: EndpointEncoder, texts: list[str]) -> dict[int, np.ndarray[Any, Any]]:
    return {int(p): row for places, rows in one.encode_documents(texts) for p, row in zip(places, rows, strict=True)}


def test_requests_and_documents_are_unit_vectors_in_the_order_of_the_texts() -> None:
    with FakeEndpoint(good) as fake:
        one = encoder(fake.url, batch=2, request_prompt="query: ", document_prompt="passage: ")
        np.testing.assert_allclose(one.encode_request("a"), unit("query: a"), rtol=1e-6)
        np.testing.assert_allclose(one.encode(["a", "bb", "c"])[1], unit("query: bb"), rtol=1e-6)
        found = documents(one, ["x" * n for n in range(1, 8)])
        assert sorted(found) == list(range(7))
        np.testing.assert_allclose(found[4], unit("passage: xxxxx"), rtol=1e-6)
        assert one.dimension == 4
        assert set(fake.paths) == {"/v1/embeddings"}
        assert max(len(request["input"]) for request in fake.requests) == 2


def test_answers_out_of_order_and_in_base64_are_understood() -> None:
    def shuffled(request: dict[str, Any], _: int) -> Answer:
        packed = [base64.b64encode(np.array(of_text(text), "<f4").tobytes()).decode() for text in request["input"]]
        data = [{"index": place, "embedding": one} for place, one in enumerate(packed)]
        return 200, {}, json.dumps({"data": data[::-1]}).encode()

    with FakeEndpoint(shuffled) as fake:
        np.testing.assert_allclose(encoder(fake.url).encode(["a", "bb"])[1], unit("bb"), rtol=1e-6)


def test_the_fingerprint_covers_what_a_vector_depends_on_and_nothing_else() -> None:
    base = encoder("http://127.0.0.1:1/v1").fingerprint
    for changed in (
        {"request_prompt": "q: "},
        {"document_prompt": "d: "},
        {"dimensions": 2},
        {"document_chars": 100},
        {"request_chars": 100},
    ):
        assert encoder("http://127.0.0.1:1/v1", **changed).fingerprint != base
    assert encoder("http://127.0.0.1:2/v1").fingerprint != base
    assert encoder("http://127.0.0.1:1/v1/", timeout=3.0, batch=2, price=0.1).fingerprint == base


def test_dimensions_are_asked_for_and_cut_here_where_the_server_does_not_know_them() -> None:
    def strict(request: dict[str, Any], _: int) -> Answer:
        if "dimensions" in request:
            return refused(400, "unknown parameter: dimensions")
        return good(request, 0)

    with FakeEndpoint(strict) as fake:
        found = encoder(fake.url, dimensions=2).encode_request("abc")
        expected = np.array(of_text("abc")[:2])
        np.testing.assert_allclose(found, expected / np.linalg.norm(expected), rtol=1e-6)
        assert fake.requests[0]["dimensions"] == 2


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_refusal_for_now_is_tried_again(status: int) -> None:
    with FakeEndpoint(lambda request, n: good(request, n) if n else refused(status, "later")) as fake:
        assert len(documents(encoder(fake.url), ["a", "b"])) == 2
        assert len(fake.requests) == 2


def test_an_endpoint_that_stays_down_says_so() -> None:
    with FakeEndpoint(in_turn(refused(500, "broken"))) as fake, pytest.raises(EncoderUnavailable, match="answered 500"):
        documents(encoder(fake.url, retries=2), ["a"])


def test_a_search_waits_no_longer_than_its_timeout_and_then_lets_the_endpoint_rest() -> None:
    def slow(request: dict[str, Any], _: int) -> Answer:
        time.sleep(1.0)
        return good(request, 0)

    with FakeEndpoint(slow) as fake:
        one = encoder(fake.url, search_timeout=0.2, rest=30.0)
        started = time.monotonic()
        for _ in range(5):
            with pytest.raises(EncoderUnavailable, match="no answer within"):
                one.encode_request("a")
        assert time.monotonic() - started < 1.0
        assert len(fake.requests) == 1
        assert len(documents(one, ["a"])) == 1  # an add takes its time
        np.testing.assert_allclose(one.patient().encode_request("a"), unit("a"), rtol=1e-6)


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (answer(["a"]), "1 vectors for 2 texts"),
        ((200, {}, b"<html>welcome</html>"), "no list of vectors"),
        ((200, {}, b'{"data": "none"}'), "no list of vectors"),
        (answer(["a", "b"], lambda text: [float("nan"), 1.0]), "finite"),
        (answer(["a", "b"], lambda text: [0.0, 0.0]), "zero"),
        (answer(["a", "b"], lambda text: [1.0] * ord(text)), "not of one length"),
        ((200, {}, b'{"data": [{"embedding": ["x"]}, {"embedding": ["y"]}]}'), "no list of vectors"),
        ((200, {}, b'{"data": [{"index": 0, "embedding": [1]}, {"index": 0, "embedding": [1]}]}'), "places"),
        (refused(401, "no key"), "put its key into OPENAI_API_KEY"),
        (refused(404, "no such model"), "no model 'm'"),
    ],
)
def test_a_bad_answer_is_an_error_that_says_what_is_wrong(
    reply: Answer, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with FakeEndpoint(in_turn(reply)) as fake, pytest.raises(EncoderUnavailable, match=why):
        encoder(fake.url, retries=1).encode(["a", "b"])


def test_vectors_of_another_length_later_are_refused() -> None:
    def growing(request: dict[str, Any], number: int) -> Answer:
        return answer(request["input"], lambda text: [1.0] * (3 + number))

    with FakeEndpoint(growing) as fake:
        one = encoder(fake.url)
        one.encode_request("a")
        with pytest.raises(EncoderUnavailable, match="4 numbers after others of 3"):
            one.encode_request("b")


def test_a_batch_that_is_too_large_is_sent_in_halves_and_a_text_that_is_too_long_is_cut() -> None:
    def small(request: dict[str, Any], _: int) -> Answer:
        texts = request["input"]
        if len(texts) > 2 or any(len(text) > 500 for text in texts):
            return refused(413, "too large")
        return answer(texts)

    with FakeEndpoint(small) as fake:
        found = documents(encoder(fake.url, batch=8), ["a", "b", "c", "d", "x" * 1900])
        np.testing.assert_allclose(found[1], unit("b"), rtol=1e-6)
        np.testing.assert_allclose(found[4], unit("x" * 475), rtol=1e-6)


def test_the_key_is_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBED_KEY", KEY)
    with FakeEndpoint(lambda request, n: refused(400, f"bad key {KEY}")) as fake:
        with pytest.raises(EncoderUnavailable) as caught:
            encoder(fake.url, key_variable="EMBED_KEY").encode_request("a")
        assert fake.headers[0]["Authorization"] == f"Bearer {KEY}"
        assert KEY not in str(caught.value)


def test_an_add_above_the_ceiling_is_refused_before_anything_is_sent() -> None:
    with FakeEndpoint(good) as fake:
        one = encoder(fake.url, price=1_000_000.0, ceiling=10.0)
        with pytest.raises(EncoderUnavailable, match=r"about 50\.00, and the ceiling is 10"):
            documents(one, ["x" * 200])
        assert not fake.requests
        assert len(documents(one, ["x" * 20])) == 1


def test_an_add_stops_when_it_costs_more_than_it_should_and_what_came_is_kept() -> None:
    with FakeEndpoint(lambda request, n: answer(request["input"], usage={"prompt_tokens": 60})) as fake:
        one = encoder(fake.url, price=1_000_000.0, ceiling=100.0, batch=1, concurrency=1)
        kept = []
        with pytest.raises(EncoderUnavailable, match="above the ceiling of 100"):
            kept.extend(one.encode_documents(["a"] * 50))
        assert 2 <= len(kept) < 50


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ([], "name of a model"),
        (["model=m", "ceiling=1"], "needs the price"),
        (["model=m", "batch=0"], "above 0"),
        (["model=m", "key_variable=sk-1234"], "never a key"),
        (["model=m", "colour=red"], "is no option of an embeddings endpoint"),
        (["model=m", "dimensions=x"], "must be of type int"),
    ],
)
def test_bad_settings_are_refused(settings: list[str], why: str) -> None:
    with pytest.raises((BadRequest, BadModel), match=why):
        EndpointEncoder.open("http://127.0.0.1:1/v1", settings)


def test_odd_texts_are_sent_as_they_can_be() -> None:
    with FakeEndpoint(good) as fake:
        one = encoder(fake.url)
        for text in ("\ud800 lone", "שלום עולם", "e\u0301" * 50, "x" * 100_000):
            assert np.isfinite(one.encode_request(text)).all()
        assert max(len(text) for request in fake.requests for text in request["input"]) == 4_000
