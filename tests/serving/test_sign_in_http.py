"""Sign-in over HTTP: both faces accept tokens beside keys, and tell clients where to sign in."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from starlette.testclient import TestClient
from typer.testing import CliRunner

from tests.serving.gateways import found, gateway, serving, small_http
from tests.serving.http_app import TOOLS
from tests.serving.issuer import AUDIENCE, Issuer, issuing, new_key
from toolscout import Scout
from toolscout.cli.main import app as command_line
from toolscout.core.permissions import Principal
from toolscout.core.permissions import new_key as new_api_key
from toolscout.serving.access import Access
from toolscout.serving.app import make_app
from toolscout.serving.audit import Audit
from toolscout.serving.claim_rules import parse_claim_rules
from toolscout.serving.gateway import transports
from toolscout.serving.issuer_keys import IssuerKeys
from toolscout.serving.limits import ServeOptions
from toolscout.serving.sign_in import SignIn

RULES: dict[str, Any] = {
    "principals": [
        {"principal": "ops", "claims": {"groups": "admins"}},
        {"principal": "post", "claims": {"groups": "team-*"}},
        {"principal": "nobody-made-this-one", "claims": {"groups": "new"}},
    ],
    "scopes": ["tools"],
    "tenant": "org",
}


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with issuing() as running:
        yield running


def sign_in_with(issuer: Issuer, audience: str = AUDIENCE, resource: str = "") -> SignIn:
    return SignIn([IssuerKeys(issuer.url)], audience, parse_claim_rules(RULES, [issuer.url]), resource)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def token_for(issuer: Issuer, *groups: str, **more: Any) -> str:
    return issuer.token(**{"groups": list(groups), "scope": "tools", "org": "acme", **more})


class Server:
    """A server over five tools, with an issuer and two principals, one of which has a key too."""

    def __init__(self, issuer: Issuer, folder: Path) -> None:
        self.audit = folder / "audit.log"
        self.scout = Scout.open(folder / "tools.db", "bm25")
        self.scout.add(TOOLS)
        self.scout.store.put_principal(Principal("ops", allow=("*",), admin=True))
        self.scout.store.put_principal(Principal("post", allow=("mail/*",), tenant="post"))
        self.key, stored = new_api_key("post")
        self.scout.store.add_key(stored)
        self.access = Access(self.scout, sign_in=sign_in_with(issuer))
        self.app = make_app(self.scout, self.access, ServeOptions(rate=0, audit=self.audit))


@pytest.fixture
def server(issuer: Issuer, tmp_path: Path) -> Iterator[Server]:
    made = Server(issuer, tmp_path)
    yield made
    made.scout.close()


@pytest.fixture
def client(server: Server) -> Iterator[TestClient]:
    with TestClient(server.app, base_url="http://127.0.0.1:8765", raise_server_exceptions=False) as made:
        yield made


def test_a_token_sees_what_its_principal_may(issuer: Issuer, server: Server, client: TestClient) -> None:
    def ids(token: str) -> list[str]:
        answer = client.get("/tools", headers=bearer(token))
        assert answer.status_code == 200, answer.text
        return [tool["id"] for tool in answer.json()["tools"]]

    mail = ["mail/search_email", "mail/send_email"]
    assert ids(token_for(issuer, "team-a")) == ids(server.key) == mail
    assert len(ids(token_for(issuer, "admins"))) == len(TOOLS)
    assert ids(token_for(issuer, "new")) == []
    assert client.get("/tools", headers={"X-Toolscout-Key": token_for(issuer, "team-a")}).json()["total"] == 2
    record = {"tools": [{"namespace": "mail", "name": "new", "description": "x"}]}
    assert client.post("/tools", json=record, headers=bearer(token_for(issuer, "team-a"))).status_code == 403
    assert client.post("/tools", json=record, headers=bearer(token_for(issuer, "admins"))).status_code == 200


def test_feedback_goes_to_the_tenant_of_the_token(issuer: Issuer, server: Server, client: TestClient) -> None:
    body = {"request": "write to Bob", "used": ["mail/send_email"]}
    for org in ("acme", "umbrella"):
        answer = client.post("/feedback", json=body, headers=bearer(token_for(issuer, "team-a", org=org)))
        assert answer.status_code == 200
    assert client.post("/feedback", json=body, headers=bearer(server.key)).status_code == 200
    assert [one.tenant for _, one in server.scout.store.feedback()] == ["acme", "umbrella", "post"]
    assert client.get("/tools", headers=bearer(token_for(issuer, "team-a", org=None))).status_code == 403


@pytest.mark.parametrize(
    ("groups", "claims", "status", "challenge"),
    [
        (["team-a"], {"exp": 1}, 401, 'error="invalid_token"'),
        (["team-a"], {"aud": "x"}, 401, 'error="invalid_token"'),
        (["team-a"], {"scope": "openid"}, 403, 'error="insufficient_scope", scope="tools"'),
        (["stranger"], {}, 403, None),
    ],
)
def test_what_a_refused_token_is_told(
    issuer: Issuer, client: TestClient, groups: list[str], claims: dict[str, Any], status: int, challenge: str | None
) -> None:
    token = token_for(issuer, *groups, **claims)
    answer = client.get("/tools", headers=bearer(token))
    assert answer.status_code == status
    assert answer.headers.get("www-authenticate", "").startswith("Bearer ") is (challenge is not None)
    if challenge:
        told = answer.headers["www-authenticate"]
        assert challenge in told
        assert 'resource_metadata="http://127.0.0.1:8765/.well-known/oauth-protected-resource"' in told
        assert told.count("scope=") == 1
    assert token not in answer.text + str(answer.headers)


def test_a_client_without_a_token_learns_where_to_sign_in(issuer: Issuer, client: TestClient) -> None:
    for path in ("/tools", "/tools/mail/send_email"):
        answer = client.get(path)
        assert answer.status_code == 401
        assert "error=" not in answer.headers["www-authenticate"]
        url = answer.headers["www-authenticate"].partition('resource_metadata="')[2].partition('"')[0]
        told = client.get(url.removeprefix("http://127.0.0.1:8765")).json()
        assert told["authorization_servers"] == [issuer.url]
        assert told["resource"] == "http://127.0.0.1:8765"
        assert told["scopes_supported"] == ["tools"]
    assert client.get("/.well-known/oauth-protected-resource/mcp").json()["resource"] == "http://127.0.0.1:8765/mcp"
    assert "/.well-known/oauth-protected-resource" in client.get("/openapi.json").json()["paths"]


def test_the_address_that_clients_know_is_told(issuer: Issuer, server: Server) -> None:
    for sign_in in (sign_in_with(issuer, "https://t.example/mcp"), sign_in_with(issuer, "x", "https://t.example/mcp")):
        app = make_app(server.scout, Access(server.scout, sign_in=sign_in), ServeOptions(rate=0))
        with TestClient(app, base_url="http://127.0.0.1:8765") as client:
            assert client.get("/.well-known/oauth-protected-resource").json()["resource"] == "https://t.example/mcp"
            challenge = client.get("/tools").headers["www-authenticate"]
            assert 'resource_metadata="https://t.example/.well-known/oauth-protected-resource"' in challenge


def test_without_sign_in_nothing_is_there(server: Server) -> None:
    with TestClient(make_app(server.scout, Access(server.scout)), base_url="http://127.0.0.1:8765") as client:
        assert client.get("/.well-known/oauth-protected-resource").status_code == 404
        assert client.get("/tools").headers["www-authenticate"] == "Bearer"


def test_while_the_issuer_is_down(issuer: Issuer, client: TestClient, server: Server) -> None:
    issuer.down = True
    answer = client.get("/tools", headers=bearer(token_for(issuer, "team-a")))
    assert answer.status_code == 503
    assert 1 <= int(answer.headers["retry-after"]) <= 10
    assert issuer.url not in answer.text
    assert client.get("/tools", headers=bearer(server.key)).status_code == 200


def test_an_unasked_sign_in_needs_no_key_and_leaves_no_anonymous_caller(issuer: Issuer, tmp_path: Path) -> None:
    with Scout.open(tmp_path / "t.db", "bm25") as scout:
        access = Access(scout, token="ts_" + "x" * 43, sign_in=sign_in_with(issuer))
        assert access.has_keys()
        with TestClient(make_app(scout, access), base_url="http://127.0.0.1:8765") as client:
            assert client.get("/tools").status_code == 401
            assert client.get("/tools", headers=bearer("ts_" + "x" * 43)).status_code == 401


def test_nothing_of_a_token_is_written_down(
    issuer: Issuer, client: TestClient, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = token_for(issuer, "team-a", email="alice@acme.example"), token_for(issuer, "team-a", exp=1)
    issuer.keys["k2"] = (new_key(), "RS256")
    with caplog.at_level(logging.DEBUG, "toolscout"):
        for token in (good, bad, token_for(issuer, "stranger"), token_for(issuer, "team-a")[:-4] + "AAAA"):
            client.get("/tools", headers=bearer(token))
            client.get(f"/tools/mail/{token}", headers=bearer(token))
    lines = [json.loads(line) for line in server.audit.read_text().splitlines()]
    assert {(line["principal"], line.get("user")) for line in lines} == {("post", "alice"), ("?", None)}
    signature = good.rpartition(".")[2]
    store = b"".join(path.read_bytes() for path in server.audit.parent.glob("tools.db*") if path.is_file())
    logged = "".join(one.getMessage() for one in caplog.records if not one.name.startswith(("httpx2", "httpcore2")))
    assert signature not in logged + server.audit.read_text()
    assert signature.encode() not in store
    assert "alice@acme" not in logged + server.audit.read_text()


def test_people_who_share_a_principal_have_limits_of_their_own(issuer: Issuer, server: Server) -> None:
    app = make_app(server.scout, server.access, ServeOptions(rate=0.001, burst=2))
    with TestClient(app, base_url="http://127.0.0.1:8765") as client:

        def statuses(subject: str) -> list[int]:
            token = token_for(issuer, "team-a", sub=subject)
            return [client.get("/tools", headers=bearer(token)).status_code for _ in range(3)]

        assert statuses("alice") == statuses("bob") == [200, 200, 429]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_gateway_takes_tokens(issuer: Issuer, tmp_path: Path, mode: str) -> None:
    async def main() -> None:
        async with small_http("mail") as mail, small_http("bank") as bank:
            document = {"mcpServers": {"mail": mail, "bank": bank}}
            async with gateway(tmp_path / "t.db", document, audit=tmp_path / "audit") as made:
                made.callers.access = Access(made.access.scout, sign_in=sign_in_with(issuer))
                made.access.scout.store.put_principal(Principal("post", allow=("mail/*",)))
                async with serving(transports.make_app(made, ServeOptions())) as url:
                    token = token_for(issuer, "team-a")
                    async with (
                        httpx2.AsyncClient(headers=bearer(token)) as web,
                        Client(streamable_http_client(url, http_client=web), mode=mode) as client,
                    ):
                        assert len((await client.list_tools()).tools) == 5
                        assert (await found(client, "a bank account"))["searched"] == 5
                    async with httpx2.AsyncClient() as web:
                        refused = await web.post(url, json={})
                        assert refused.status_code == 401
                        told = refused.headers["www-authenticate"]
                        assert f'resource_metadata="{url.removesuffix("/mcp")}/.well-known' in told
                        assert 'oauth-protected-resource/mcp"' in told
                        where = await web.get(told.partition('resource_metadata="')[2].partition('"')[0])
                        assert where.json()["resource"] == url
                        assert where.json()["authorization_servers"] == [issuer.url]
        assert token not in (tmp_path / "audit").read_text()

    anyio.run(main)


def test_a_session_belongs_to_one_person(issuer: Issuer, tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path / "t.db") as made:
            made.callers.access = Access(made.access.scout, sign_in=sign_in_with(issuer))
            async with serving(transports.make_app(made, ServeOptions())) as url, httpx2.AsyncClient() as web:
                start = {
                    "jsonrpc": "2.0", "id": 1, "method": "initialize",
                    "params": {"protocolVersion": "2025-06-18", "capabilities": {},
                               "clientInfo": {"name": "x", "version": "1"}},
                }  # fmt: skip
                accept = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
                alice, bob = (bearer(token_for(issuer, "team-a", sub=name)) for name in ("alice", "bob"))
                opened = await web.post(url, json=start, headers=accept | alice)
                session = {"mcp-session-id": opened.headers["mcp-session-id"]}
                listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
                assert (await web.post(url, json=listing, headers=accept | alice | session)).status_code == 200
                assert (await web.post(url, json=listing, headers=accept | bob | session)).status_code == 404

    anyio.run(main)


def test_options_that_belong_together(tmp_path: Path) -> None:
    rules = tmp_path / "claims.yaml"
    rules.write_text("principals: [{principal: x, claims: {sub: y}}]")
    given = ["--oidc-issuer", "http://127.0.0.1:9", "--oidc-audience", "a", "--oidc-claims", str(rules)]
    store = ["--store", str(tmp_path / "t.db")]

    def told(*words: str) -> str:
        outcome = CliRunner().invoke(command_line, [*store, *words])
        assert outcome.exit_code != 0
        return " ".join((str(outcome.exception) + outcome.output).split())

    assert "sign-in takes all of" in told("mcp", "--http", "8722", *given[:2])
    assert "people sign in over --http" in told("mcp", *given)
    rules.write_text("{")
    assert "neither YAML nor JSON" in told("mcp", "--http", "8722", *given)
    rules.unlink()
    assert "cannot be read" in told("mcp", "--http", "8722", *given)


def test_the_audit_log_names_a_person_as_configured(tmp_path: Path, issuer: Issuer) -> None:
    rules = parse_claim_rules({**RULES, "user": "email"}, [issuer.url])
    sign_in = SignIn([IssuerKeys(issuer.url)], AUDIENCE, rules)
    sign_in.warm_up()
    with Scout.open(tmp_path / "t.db", "bm25") as scout:
        caller = Access(scout, sign_in=sign_in).caller(token_for(issuer, "team-a", email="alice@acme.example"))
    log = Audit(tmp_path / "audit")
    log.record(caller, "call", "x/y", ok=True, ms=1)
    log.close()
    line = json.loads((tmp_path / "audit").read_text())
    assert (line["principal"], line["user"]) == ("post", "alice@acme.example")
