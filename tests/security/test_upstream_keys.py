"""A key of ours goes to no model's server, wherever a client has put it; nor into the audit log or the metrics."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from tests.security.live_server import connected, listening, message
from tests.serving.http_app import TOOLS, Served, served
from toolscout import Scout
from toolscout.core.permissions import new_secret
from toolscout.serving import http_protocol
from toolscout.serving.access import Access
from toolscout.serving.app import make_app
from toolscout.serving.limits import ServeOptions
from toolscout.serving.llm_proxy import holds_key

PLACES = (
    "Authorization Proxy-Authorization X-Forwarded-Authorization X-API-Key Api-Key X-Goog-Api-Key X-Auth-Token "
    "Ocp-Apim-Subscription-Key Cookie Referer Forwarded X-Toolscout-Key"
).split()


def basic(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


SHAPES = {
    "alone": lambda key: key,
    "bearer": lambda key: f"Bearer {key}",
    "lower case": lambda key: f"bearer  {key}",
    "token": lambda key: f'Token token="{key}", nonce=1',
    "basic password": lambda key: f"Basic {basic('user:' + key)}",
    "basic user": lambda key: f"Basic {basic(key + ':')}",
    "basic without padding": lambda key: f"Basic {basic('me:' + key).rstrip('=')}",
    "basic of another alphabet": lambda key: f"Basic {base64.urlsafe_b64encode(f'ÿÿ:{key}'.encode()).decode()}",
    "cookie": lambda key: f"theme=dark; session={key}; lang=en",
    "quoted cookie": lambda key: f'session="{key}"',
    "percent": lambda key: f"https://tools.example/?key={quote(key).replace('_', '%5F')}",
    "percent three times": lambda key: quote(quote(f"key={key}".replace("_", "%5F"))),
    "glued": lambda key: f"user{key}",
    "json": lambda key: json.dumps({"key": key}),
}


class Model(BaseHTTPRequestHandler):
    """Stands in for a model's server: remembers what it is sent."""

    seen: list[tuple[str, list[tuple[str, str]]]] = []  # noqa: RUF012

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.seen.append((self.path, [(name.lower(), value) for name, value in self.headers.items()]))
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        for _ in range(12 if "slow" in self.path else 0):
            self.wfile.write(b"word ")
            self.wfile.flush()
            time.sleep(0.1)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Model) as listening_:
        thread = threading.Thread(target=listening_.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening_.server_port}/v1"
        listening_.shutdown()
        thread.join()


@pytest.fixture(scope="module", params=["", "sk-ours"], ids=["no upstream key", "upstream key"])
def server(request: pytest.FixtureRequest, upstream: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    options = ServeOptions(rate=0, upstream=upstream, upstream_key=request.param)
    with served(tmp_path_factory.mktemp("keys"), options) as running:
        yield running


def leaks(key: str) -> bool:
    """Whether the last request has a key in any form."""
    path, headers = Model.seen[-1]
    return any(key in form for text in (path, *(value for _, value in headers)) for form in decoded(text))


def decoded(text: str) -> Iterator[str]:
    from urllib.parse import unquote

    yield from (text, unquote(text), unquote(unquote(text)), unquote(unquote(unquote(text))))
    for part in text.replace(",", " ").split():
        for alphabet in (base64.b64decode, base64.urlsafe_b64decode):
            try:
                yield alphabet(part + "==").decode("latin-1")
            except ValueError:
                continue


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("place", PLACES)
def test_no_header_takes_a_key_of_ours_along(server: Served, place: str, shape: str) -> None:
    """The caller's own key, besides the one it is known by."""
    own = server.keys["user"]
    headers = {"X-Toolscout-Key": own, place: SHAPES[shape](own)}
    if place == "X-Toolscout-Key":
        headers = {"X-Toolscout-Key": own}
    assert server.client.post("/v1/messages", json={}, headers=headers).status_code == 200
    assert not leaks(own)


@pytest.mark.parametrize("shape", [name for name in SHAPES if name != "glued"])
def test_nor_the_key_of_another(server: Served, shape: str) -> None:
    headers = {"X-Toolscout-Key": server.keys["user"], "X-Other": SHAPES[shape](server.keys["guest"])}
    assert server.client.post("/v1/messages", json={}, headers=headers).status_code == 200
    assert not leaks(server.keys["guest"])


@pytest.mark.parametrize("place", ["Authorization", "X-API-Key"])
def test_the_key_that_a_caller_is_known_by(server: Served, place: str) -> None:
    own = server.keys["user"]
    headers = {place: f"Bearer {own}" if place == "Authorization" else own, "Cookie": f"a=1; k={own}; b=2"}
    assert server.client.post("/v1/messages", json={}, headers=headers).status_code == 200
    assert not leaks(own)
    assert ("cookie", "a=1; b=2") in Model.seen[-1][1]


def test_no_address_takes_it_along(server: Served) -> None:
    own = server.keys["user"]
    query = f"beta=1&key={own}&x={quote(own).replace('_', '%5F')}&auth={quote(basic('me:' + own))}&last=a%20b"
    answer = server.client.post(f"/v1/messages?{query}", json={}, headers={"X-Toolscout-Key": own})
    assert answer.status_code == 200
    assert not leaks(own)
    assert Model.seen[-1][0] == "/v1/messages?beta=1&last=a%20b"


def test_what_is_no_key_of_ours_passes(server: Served) -> None:
    theirs = {
        "api-key": "sk-live_0123456789abcdefghij",
        "x-trace": "accounts_settings_of_the_organization",
        "x-note": "ts_short",
        "x-empty": "",
        "cookie": "ts_theme=dark;  spaced=1",
        "x-jwt": "eyJhbGciOiJIUzI1NiJ9.eyJ0c18iOiJ0c18ifQ.abcts_defghijklmnopqrstuvwxyz0123456789",
    }
    headers = {"X-Toolscout-Key": server.keys["user"], "Authorization": "Bearer sk-theirs", **theirs}
    body = {"messages": [{"role": "user", "content": f"what is {server.keys['user']}?"}]}
    assert server.client.post("/v1/messages", json=body, headers=headers).status_code == 200
    found = dict(Model.seen[-1][1])
    assert {name: found.get(name) for name in theirs} == theirs
    assert found["authorization"] == "Bearer sk-theirs"


def test_the_token_of_a_server_without_keys(upstream: str, tmp_path: Path) -> None:
    token = "ts_a token with spaces, 1"
    for given in (token, new_secret()):
        with Scout.open(tmp_path / "tools.db", "bm25") as scout:
            scout.add(TOOLS)
            options = ServeOptions(rate=0, upstream=upstream)
            app = make_app(scout, Access(scout, token=given), options)
            with TestClient(app, base_url="http://127.0.0.1:8765") as client:
                for name, shape in SHAPES.items():
                    for known in ({"X-Toolscout-Key": given}, {"X-API-Key": given}):
                        headers = {**known, "X-Other": shape(given), "Authorization": "Bearer sk-theirs"}
                        if "X-API-Key" in known:
                            headers["Authorization"] = "Basic c2s6dGhlaXJz"
                        assert client.post("/v1/messages", json={}, headers=headers).status_code == 200, name
                        assert not leaks(given), (name, known)
                        assert dict(Model.seen[-1][1])["authorization"] == headers["Authorization"]
                client.post("/v1/messages", json={}, headers={"X-API-Key": "sk-theirs"})
                assert dict(Model.seen[-1][1])["x-api-key"] == "sk-theirs"


def test_neither_metrics_nor_audit_have_it(tmp_path: Path) -> None:
    with served(tmp_path, ServeOptions(rate=0, audit=tmp_path / "audit.jsonl")) as server:
        own = server.keys["user"]
        server.get(f"/tools/{own}", "user")
        server.get(f"/tools/mail/{own}", "user")
        server.get(f"/{own}?key={own}", "user")
        server.get("/tools/mail/send_email", "user")
        told = server.get("/metrics").text
    log = (tmp_path / "audit.jsonl").read_text()
    assert own not in told
    assert own not in log
    assert "mail/send_email" in log


def test_a_slow_model_is_no_client_that_does_not_read(
    upstream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WRITE_S", "BODY_S", "HEAD_S"):
        monkeypatch.setattr(http_protocol, name, 0.2)
    monkeypatch.setattr(http_protocol, "KEEP_ALIVE_S", 1)
    with (
        served(tmp_path, ServeOptions(rate=0, upstream=upstream), keyed=False) as server,
        listening(server.client.app, lifespan=False) as port,
        connected(port) as one,
    ):
        one.sendall(message("POST", "/v1/messages?slow=1", {}, Connection="close"))
        found = b""
        while part := one.recv(65536):
            found += part
    assert found.count(b"word ") == 12


def test_texts_that_hold_a_key() -> None:
    key = new_secret()
    assert holds_key(key)
    assert holds_key(f"prefix{key}", key)
    assert not holds_key("")
    assert not holds_key("ts_")
    assert not holds_key("=" * 100 + "A" * 17)
