"""What a client or a dropped file sends is searched and never says what is run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.serving.http_app import Served, served
from toolscout import Origin, Scout, Tool
from toolscout.core.permissions import Principal, new_key
from toolscout.serving.access import Access
from toolscout.serving.app import make_app
from toolscout.serving.limits import ServeOptions

pytestmark = pytest.mark.slow

TOKEN = "ts_printed-by-this-server"
ORIGINS: list[Any] = [
    {"kind": "mcp", "target": "sh -c 'touch owned'"},
    {"kind": "mcp", "target": "http://127.0.0.1:9/mcp"},
    {"kind": "function", "target": "os:system"},
    {"kind": "http", "target": "http://127.0.0.1:9", "details": {"method": "GET", "path": "/"}},
    {"kind": "unknown"},
    "sh",
    {},
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path) as found:
        yield found


@pytest.fixture
def limited(server: Served) -> dict[str, str]:
    """The headers of an admin who may change the tools of one namespace."""
    server.scout.store.put_principal(Principal("limited", allow=("mail/*",), admin=True))
    key, resting = new_key("limited")
    server.scout.store.add_key(resting)
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize("origin", ORIGINS, ids=str)
def test_no_client_says_how_a_tool_is_called(server: Served, limited: dict[str, str], origin: Any) -> None:
    record = {"namespace": "mail", "name": "forward", "origin": origin}
    whole = server.client.post(
        "/tools", json={"tools": [{"name": "fine", "namespace": "mail"}, record]}, headers=limited
    )
    lines = server.client.post(
        "/tools", content=json.dumps(record), headers={**limited, "Content-Type": "application/x-ndjson"}
    )
    for answer, where in ((whole, "tools[1]"), (lines, "tools[0]")):
        assert answer.status_code == 422
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["code"] == "origin_refused"
        assert answer.json()["detail"].startswith(f"{where}: a tool may not bring an origin here")
    assert "mail/fine" not in server.scout.store.ids()  # nothing of the upload is taken


@pytest.mark.parametrize("origin", [one for one in ORIGINS if isinstance(one, dict) and one.get("target")], ids=str)
def test_no_dropped_file_says_how_a_tool_is_called(server: Served, origin: Any) -> None:
    record = {"namespace": "mail", "name": "forward", "origin": origin}
    for name, text in (
        ("t.jsonl", json.dumps(record)),
        ("t.json", json.dumps([record])),
        ("t.json", json.dumps(record)),
    ):
        answer = server.post("/page/add", {"name": name, "text": text})
        assert (answer.status_code, answer.json()["code"]) == (422, "origin_refused")
        assert "a tool may not bring an origin here" in answer.json()["detail"]
    assert "mail/forward" not in server.scout.store.ids()


def test_a_dropped_document_is_found_and_not_called(server: Served) -> None:
    document = {
        "openapi": "3.0.0",
        "info": {"title": "tea"},
        "servers": [{"url": "http://169.254.169.254/latest"}],
        "paths": {"/pots": {"post": {"operationId": "brew", "summary": "Brews tea"}}},
    }
    assert server.post("/page/add", {"name": "tea.json", "text": json.dumps(document)}).json()["added"] == 1
    [tool] = server.scout.store.get(["tea/brew"])
    assert tool.description == "Brews tea"
    assert tool.origin is None


def test_how_a_tool_is_called_is_for_those_who_see_everything(server: Served, limited: dict[str, str]) -> None:
    origin = Origin("mcp", "npx server --config /home/me/servers.json")
    server.scout.add([Tool("mail", "forward", "Forwards.", origin=origin)])
    for path in ("/tools/mail/forward", "/tools"):
        assert "servers.json" in server.client.get(path, headers=server.headers("admin")).text
        assert "servers.json" not in server.client.get(path, headers=limited).text


WRITES: list[tuple[str, str, Any]] = [
    ("POST", "/tools", {"tools": [{"namespace": "mail", "name": "x"}]}),
    ("DELETE", "/tools/mail/send_email", None),
    ("POST", "/page/add", {"name": "t.jsonl", "text": '{"name": "x"}'}),
    ("GET", "/metrics", None),
    ("GET", "/page/sources", None),
]


@pytest.mark.parametrize(("method", "path", "body"), WRITES, ids=[path for _, path, _ in WRITES])
def test_a_server_without_keys_is_changed_with_its_token_alone(
    tmp_path: Path, method: str, path: str, body: Any
) -> None:
    with Scout.open(tmp_path / "t.db", "bm25") as scout:
        scout.add([Tool("mail", "send_email", "Sends an email.")])
        app = make_app(scout, Access(scout, token=TOKEN), ServeOptions())
        with TestClient(app, base_url="http://127.0.0.1:8765") as client:

            def ask(headers: dict[str, str]) -> Any:
                return client.request(method, path, json=body, headers=headers)

            for wrong in ({}, {"Authorization": "Bearer ts_guess"}, {"X-API-Key": TOKEN[:-1]}):
                refused = ask(wrong)
                assert refused.status_code == 403
                assert "the token that `toolscout serve` printed" in refused.json()["detail"]
                assert client.post("/search", json={"request": "email"}, headers=wrong).status_code == 200
            assert scout.store.ids() == ["mail/send_email"]
            assert ask({"Authorization": f"Bearer {TOKEN}"}).status_code == 200


@pytest.mark.parametrize("path", ["openapi.json", "mcp"])
@pytest.mark.parametrize(
    "host", ["127.0.0.1:9", "localhost:9", "[::1]:9", "169.254.169.254", "10.0.0.1", "[fd00::1]", "[::ffff:10.0.0.1]"]
)
def test_the_page_adds_from_no_private_address(
    server: Served, monkeypatch: pytest.MonkeyPatch, host: str, path: str
) -> None:
    def connect(*place: Any) -> None:
        raise AssertionError(f"connected to {place}")

    monkeypatch.setattr("socket.socket.connect", connect)
    monkeypatch.setattr("asyncio.base_events.BaseEventLoop.sock_connect", connect)
    answer = server.post("/page/add", {"url": f"http://{host}/{path}"})
    assert answer.status_code == 422
    assert "is not at a public address" in answer.json()["detail"]
