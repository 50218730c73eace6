"""An endpoint that is down, slow, refuses, or answers nonsense: tried again where that helps, else told in a line."""

from __future__ import annotations

import gzip
import socket
import ssl
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from tests.llm.fake_endpoint import Answer, FakeEndpoint, asked, chat, echo, in_turn, message, refused
from toolscout.errors import BadCompletion, BadRequest, EndpointError
from toolscout.llm import complete_each
from toolscout.llm.endpoint import Endpoint
from toolscout.llm.options import EndpointOptions

pytestmark = pytest.mark.usefixtures("planted")
QUICK = EndpointOptions(retries=2, backoff=0.005, timeout=5.0)


HTML = (200, {"Content-Type": "text/html"}, b"<html><style>p{}</style><h1>Log in</h1></html>")


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (refused(429, "slow down"), r"answered 429 \(slow down\) 3 times; ask less often"),
        (refused(500, "oops"), "answered 500 .* try again later"),
        ((503, {}, b"<h1>Busy</h1>"), r"answered 503 \(Busy\)"),
        (HTML, r"no completion \(Log in\) 3 times"),
        ((200, {}, b'{"choices": [{"mess'), "no completion"),
        ((200, {}, b'{"choices": []}'), "no completion"),
        ((200, {}, b"[]"), "no completion"),
        ((200, {}, b""), r"no completion \(nothing more\)"),
        (refused(200, "model overloaded"), "model overloaded"),
        ((200, {"Content-Length": "5000"}, b'{"choices"'), "cannot be reached"),
    ],
)
def test_passing_faults_are_tried_again_and_told_in_the_end(bad: Answer, said: str) -> None:
    with FakeEndpoint(in_turn(bad, bad, chat("fine"))) as server:
        assert Endpoint(server.url, "m", replace(QUICK, timeout=0.5)).complete(asked("x"))[0][0].text == "fine"
    with FakeEndpoint(in_turn(bad)) as server, pytest.raises(EndpointError, match=said):
        Endpoint(server.url, "m", replace(QUICK, timeout=0.5)).complete(asked("x"))
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("bad", "said", "status"),
    [
        (refused(401, "bad key"), r"refuses access \(401: bad key\); check the key in OPENAI_API_KEY", 401),
        (refused(403, "no"), "check the key", 403),
        (refused(404, "The model does not exist"), "has no model 'm', or is not a base URL", 404),
        (refused(418, "teapot"), "answered 418", 418),
        ((302, {"Location": "https://elsewhere.example/v1"}, b""), "sends on to https://elsewhere.example/v1", 302),
        (refused(429, "pay first", code="insufficient_quota"), "insufficient_quota: pay first", 429),
    ],
)
def test_lasting_faults_are_told_at_once(bad: Answer, said: str, status: int) -> None:
    with FakeEndpoint(in_turn(bad)) as server, pytest.raises(EndpointError, match=said) as caught:
        Endpoint(server.url, "m", QUICK).complete(asked("x"))
    assert caught.value.status == status
    assert len(server.requests) == 1


def test_a_missing_key_is_what_401_speaks_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    said = "put its key into OPENAI_API_KEY"
    with FakeEndpoint(in_turn(refused(401, "who are you"))) as server, pytest.raises(EndpointError, match=said):
        Endpoint(server.url, "m", QUICK).complete(asked("x"))


@pytest.mark.timing
@pytest.mark.parametrize(
    ("scheme", "begins", "drop"),
    [
        ("http", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", b" "),
        ("http", b"HTTP/1.1 200 OK\r\n", b"X-More: 1\r\n"),
        ("http", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1", b";"),
        ("http", b"", b"H"),
        ("https", b"\x16\x03\x03\x40\x00", b"\x02"),  # a handshake
    ],
)
def test_a_reply_that_drips_is_given_up_in_time(scheme: str, begins: bytes, drop: bytes) -> None:
    def drip(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection, suppress(OSError):
            connection.recv(65536)
            connection.sendall(begins)
            for _ in range(75):  # fewer than http.client takes as headers
                connection.sendall(drop)
                time.sleep(0.04)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=drip, args=(listening,))
        thread.start()
        url, started = f"{scheme}://127.0.0.1:{listening.getsockname()[1]}/v1", time.monotonic()
        with pytest.raises(EndpointError, match=r"no answer within 0\.2 seconds;"):
            Endpoint(url, "m", replace(QUICK, timeout=0.2, retries=0)).complete(asked("x"))
        assert time.monotonic() - started < 1.5
        thread.join()


def test_silence_and_absence_end_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:  # accepts and says nothing
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        with pytest.raises(EndpointError, match=r"no answer within 0.1 seconds 2 times; .*raise timeout"):
            Endpoint(url, "m", replace(QUICK, timeout=0.1, retries=1)).complete(asked("x"))
    with pytest.raises(EndpointError, match=r"cannot be reached \(.*refused\) 2 times; check that it runs"):
        Endpoint(url, "m", replace(QUICK, retries=1)).complete(asked("x"))


def test_a_certificate_that_nobody_vouches_for_is_a_fault_of_the_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        error = ssl.SSLCertVerificationError(1, "certificate verify failed")
        error.verify_message = "self-signed certificate"
        raise error

    monkeypatch.setattr("toolscout.llm.client.post", refuse)
    with pytest.raises(EndpointError, match=r"cannot be trusted \(self-signed certificate\); .* SSL_CERT_FILE"):
        Endpoint("https://host/v1", "m", QUICK).complete(asked("x"))


def test_a_host_that_is_too_long_is_a_fault_of_the_endpoint() -> None:
    with pytest.raises(EndpointError, match=r"cannot be looked up .*check its host"):
        Endpoint(f"https://{'a' * 70}.example/v1", "m", replace(QUICK, retries=0)).complete(asked("x"))


def test_a_conversation_is_made_of_messages() -> None:
    wrong: Any = [[{"role": "user", "content": "x"}]]
    with pytest.raises(BadRequest, match=r"of llm\.Message\(role, content\), got dict"):
        Endpoint("https://host/v1", "m").complete(wrong)


def test_gzip_that_nobody_asked_for_is_called_so() -> None:
    told = pytest.raises(EndpointError, match="it sent gzip, which it was not asked for")
    with FakeEndpoint(in_turn((200, {}, gzip.compress(b"{}")))) as server, told:
        Endpoint(server.url, "m", replace(QUICK, retries=0)).complete(asked("x"))


def test_an_endless_answer_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolscout.llm.http.MAX_BYTES", 1_000_000)
    large = 200, {}, b"x" * 3_000_000
    with FakeEndpoint(in_turn(large)) as server, pytest.raises(BadCompletion, match="more than 1 MB"):
        Endpoint(server.url, "m", QUICK).complete(asked("x"))


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (message(content=None, tool_calls=[{"id": "1"}]), "called a tool instead of answering"),
        (message(content=None, refusal="I cannot"), r"refuses to answer \(I cannot\)"),
        (message(content=None), "has no text"),
        ((200, {}, b'{"choices": [7]}'), "has no message"),
        (chat("", finish_reason="length"), "before it wrote a word"),
        (refused(400, "maximum context length is 8 tokens"), "maximum context length .*; shorten or change it"),
        (refused(413, "too large"), "413"),
    ],
)
def test_an_answer_of_no_use_spoils_no_other(bad: Answer, said: str) -> None:
    def script(request: dict[str, Any], number: int) -> Answer:
        return bad if request["messages"][0]["content"] == "bad" else echo(request, number)

    with FakeEndpoint(script) as server:
        model = Endpoint(server.url, "m", QUICK)
        first, second, third = complete_each(model, asked("a", "bad", "c"))
        with pytest.raises(BadCompletion, match=said):
            model.complete(asked("bad"))
    assert isinstance(second, BadCompletion)
    assert isinstance(first, list)
    assert isinstance(third, list)
    assert (first[0].text, third[0].text) == ("A", "C")
