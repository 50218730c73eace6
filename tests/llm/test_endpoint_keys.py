"""A key that was planted reaches the server and nothing else: no log, error, answer, repr or file."""

from __future__ import annotations

import json
import logging
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.llm.fake_endpoint import KEY, Answer, FakeEndpoint, asked, chat, in_turn, message, refused
from toolscout.errors import EndpointError, LanguageModelError
from toolscout.llm.endpoint import Endpoint
from toolscout.llm.options import EndpointOptions

pytestmark = pytest.mark.usefixtures("planted")
QUICK = EndpointOptions(retries=2, backoff=0.005, timeout=5.0)
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.mark.parametrize(
    "answer",
    [
        chat(f"your key is {KEY}"),
        chat(json.dumps({"n": 1, "key": KEY})),
        refused(401, f"Incorrect API key provided: {KEY}"),
        refused(400, f"bad {KEY}"),
        refused(404, KEY),
        refused(500, KEY),
        (200, {}, f"<p>{KEY}</p>".encode()),
        (302, {"Location": f"https://x/{KEY}"}, b""),
        message(content=None, refusal=KEY),
    ],
)
@pytest.mark.parametrize("schema", [None, SCHEMA])
def test_a_planted_key_is_found_nowhere(
    answer: Answer, schema: dict[str, Any] | None, tmp_path: Path, caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    caplog.set_level(logging.DEBUG)
    options = replace(QUICK, retries=0, cache=tmp_path / "cache")
    seen: list[str] = []
    with FakeEndpoint(in_turn(answer)) as server:
        model = Endpoint(server.url, "m", options)
        try:
            seen.append(repr(model.complete(asked("x"), schema=schema)))
        except LanguageModelError as error:
            seen += [str(error), repr(error), repr(error.args), repr(vars(error)), *traceback.format_exception(error)]
        assert server.headers[0]["Authorization"] == f"Bearer {KEY}"  # it was sent
    seen += [repr(model), repr(vars(model)), repr(model.options), caplog.text, *capfd.readouterr()]
    assert not [text for text in seen if KEY in text]
    for file in tmp_path.rglob("*"):
        assert KEY.encode() not in file.read_bytes()


@pytest.mark.parametrize("before", range(200 - len(KEY), 201, 3))
@pytest.mark.parametrize("status", [200, 401, 500])
def test_a_key_is_taken_out_before_what_was_said_is_cut(status: int, before: int) -> None:
    page = b"<p>" + b" " * (20_000 - 200 - 3) + b"x" * before + KEY.encode() + b"</p>"
    answers = [refused(status, "x" * before + KEY), (status, {}, b"x" * before + KEY.encode()), (status, {}, page)]
    for answer in answers:
        with FakeEndpoint(in_turn(answer)) as server, pytest.raises(LanguageModelError) as caught:
            Endpoint(server.url, "m", replace(QUICK, retries=0)).complete(asked("x"))
        assert "x" * before in str(caught.value)
        assert "sk" not in str(caught.value)


@pytest.mark.parametrize("key", [f"{KEY}\nX-Other: 1", f"{KEY}é", f"{KEY} {KEY}"])
def test_a_key_that_cannot_be_sent_is_not_repeated(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(EndpointError, match="copy it there anew") as caught:
        Endpoint("http://127.0.0.1:9/v1", "m", QUICK).complete(asked("x"))
    assert KEY not in "".join(traceback.format_exception(caught.value))


def test_a_placeholder_is_left_in_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "mail")
    with FakeEndpoint(in_turn(chat("sends an email"), refused(401, "no mail for mail"))) as server:
        model = Endpoint(server.url, "m", replace(QUICK, retries=0))
        assert [one.text for (one,) in model.complete(asked("x"))] == ["sends an email"]
        with pytest.raises(EndpointError, match=r"no \[key\] for \[key\]"):
            model.complete(asked("y"))
