"""The gateway calls services in its callers' names: whose credentials go where, and where they never go."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import jwt
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.serving.gateways import called, gateway, serving, text
from tests.serving.issuer import AUDIENCE, Issuer, issuing
from tests.serving.small_server import make_server
from toolscout.core.permissions import Principal, User, new_key
from toolscout.errors import BadSource
from toolscout.serving.access import Access, Caller
from toolscout.serving.claim_rules import parse_claim_rules
from toolscout.serving.gateway import transports
from toolscout.serving.gateway.config import parse_config
from toolscout.serving.gateway.upstream_auth import Credentials, NoCredentials, UpstreamAuth
from toolscout.serving.issuer_keys import IssuerKeys
from toolscout.serving.limits import ServeOptions
from toolscout.serving.sign_in import SignIn

SECRET = "hunter2-the-client-secret"
ALICE = Caller("post", user=User("post", "https://i.example", "alice"))
BOB = Caller("post", user=User("post", "https://i.example", "bob"))


class Tokens:
    """A token service: it exchanges tokens, and gives its clients tokens of their own."""

    def __init__(self) -> None:
        self.forms: list[dict[str, str]] = []
        self.clients: list[str] = []
        self.seconds: Any = 300
        self.status = 200
        self.app = Starlette(routes=[Route("/token", self.token, methods=["POST"])])

    async def token(self, request: Request) -> Response:
        form = {key: str(value) for key, value in (await request.form()).items()}
        self.forms.append(form)
        self.clients.append(base64.b64decode(request.headers.get("authorization", " ").split()[-1]).decode())
        if self.status != 200:
            return JSONResponse({"error": "invalid_grant", "error_description": form}, self.status)
        number = len(self.forms)
        made = f"exchanged-{number}-{form.get('subject_token', 'gateway')[-20:]}"
        return JSONResponse({"access_token": made, "token_type": "Bearer", "expires_in": self.seconds})


class Service:
    """An OpenAPI service that remembers the headers it was called with, and answers with them."""

    def __init__(self) -> None:
        self.seen: list[dict[str, str]] = []
        self.app = Starlette(routes=[Route("/orders", self.orders)])

    async def orders(self, request: Request) -> Response:
        self.seen.append(dict(request.headers))
        return JSONResponse({"you sent": request.headers.get("authorization") or request.headers.get("x-api-key")})


def document(folder: Path, *urls: str, name: str = "shop") -> str:
    path = folder / f"{name}.json"
    about = {"operationId": "orders", "summary": "List the orders", "responses": {"200": {"description": "ok"}}}
    record = {"openapi": "3.0.0", "info": {"title": name, "version": "1"}, "paths": {"/orders": {"get": about}}}
    path.write_text(json.dumps(record | {"servers": [{"url": url} for url in urls]}))
    return str(path)


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with issuing() as running:
        yield running


@asynccontextmanager
async def signed_in(url: str, token: str) -> AsyncIterator[Client]:
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as web,
        Client(streamable_http_client(url, http_client=web)) as client,
    ):
        yield client


@asynccontextmanager
async def running(store: Path, config: dict[str, Any], issuer: Issuer, audit: Path) -> AsyncIterator[str]:
    """A gateway over HTTP in which whoever is in a team is the principal `post`."""
    async with gateway(store, config, audit=audit) as made:
        made.access.scout.store.put_principal(Principal("post", allow=("*",)))
        rules = {"principals": [{"principal": "post", "claims": {"groups": "team"}}]}
        sign_in = SignIn([IssuerKeys(issuer.url)], AUDIENCE, parse_claim_rules(rules, [issuer.url]))
        made.callers.access = Access(
            made.access.scout, sign_in=sign_in, listed_by_caller=made.backends.listed_by_caller
        )
        async with serving(transports.make_app(made, ServeOptions())) as url:
            yield url


@pytest.mark.parametrize("kind", ["pass-through", "exchange", "key-per-principal", "client-credentials"])
def test_a_service_learns_who_calls(
    issuer: Issuer,
    tmp_path: Path,
    kind: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHOP_SECRET", SECRET)
    monkeypatch.setenv("SHOP_KEY_post", "the-key-of-post")
    tokens, service, other = Tokens(), Service(), Service()
    people = {name: issuer.token(groups=["team"], sub=name) for name in ("alice", "bob")}
    told: list[str] = []

    async def main() -> None:
        async with (
            serving(tokens.app, "/token") as token_url,
            serving(service.app, "") as shop,
            serving(other.app, "") as free,
        ):
            client = {"tokenUrl": token_url, "clientId": "gateway", "clientSecret": "${SHOP_SECRET}"}
            auth: dict[str, Any] = {
                "pass-through": {},
                "exchange": client | {"audience": "shop"},
                "client-credentials": client | {"scope": "orders"},
                "key-per-principal": {"header": "X-Api-Key", "from": "env:SHOP_KEY_"},
            }[kind]
            config = {
                "openapi": {
                    "shop": {
                        "source": document(tmp_path, shop),
                        "headers": {"X-Plain": "same", "authorization": "Bearer of-the-config"},
                        "auth": {"kind": kind, **auth},
                    },
                    "free": {"source": document(tmp_path, free, name="free")},
                }
            }
            async with running(tmp_path / "t.db", config, issuer, tmp_path / "audit") as url:
                for name in ("alice", "bob", "alice"):
                    async with signed_in(url, people[name]) as client_of:
                        for tool in ("shop/orders", "free/orders"):
                            result = await called(client_of, tool)
                            assert not result.is_error, text(result)
                            told.append(text(result))
                        told.append(json.dumps((await client_of.list_tools()).model_dump(mode="json")))

    with caplog.at_level(logging.DEBUG, "toolscout"):
        anyio.run(main)
    assert not any({"authorization", "x-api-key", "x-plain"} & seen.keys() for seen in other.seen)
    sent = [seen.get("authorization") for seen in service.seen]
    assert all(seen["x-plain"] == "same" for seen in service.seen)
    if kind == "pass-through":
        assert sent == [f"Bearer {people[name]}" for name in ("alice", "bob", "alice")]
    elif kind == "exchange":
        ends = [people[name][-20:] for name in ("alice", "bob", "alice")]
        assert sent == [f"Bearer exchanged-{number}-{end}" for number, end in zip((1, 2, 1), ends, strict=True)]
        assert tokens.clients == [f"gateway:{SECRET}"] * 2
        assert [form["subject_token"] for form in tokens.forms] == [people["alice"], people["bob"]]
        assert {form["audience"] for form in tokens.forms} == {"shop"}
        assert {form["grant_type"] for form in tokens.forms} == {"urn:ietf:params:oauth:grant-type:token-exchange"}
    elif kind == "client-credentials":
        assert sent == ["Bearer exchanged-1-gateway"] * 3
        assert [form["grant_type"] for form in tokens.forms] == ["client_credentials"]
    else:
        assert [seen["x-api-key"] for seen in service.seen] == ["the-key-of-post"] * 3
        assert sent == ["Bearer of-the-config"] * 3
    # No secret comes back to a caller, or stays anywhere.
    logged = "".join(one.getMessage() for one in caplog.records)
    audit = (tmp_path / "audit").read_text()
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("t.db*") if path.is_file()).decode("latin-1")
    for secret in (*people.values(), SECRET, "the-key-of-post", "exchanged-1", "exchanged-2"):
        for place in ("".join(told), logged, audit, stored):
            assert secret not in place
    assert '"user": "bob"' in audit


def test_credentials_go_to_their_own_place_alone(issuer: Issuer, tmp_path: Path) -> None:
    """A document that is fetched may name any server, and a tool may lie in a namespace that is not its own."""
    service, chosen = Service(), Service()
    token = issuer.token(groups=["team"])

    async def main() -> None:
        async with serving(chosen.app, "") as elsewhere:
            described = json.loads(Path(document(tmp_path, elsewhere)).read_text())
            service.app.routes.append(Route("/openapi.json", lambda _: JSONResponse(described)))
            async with serving(service.app, "") as shop:
                config = {"openapi": {"shop": {"source": f"{shop}/openapi.json", "auth": {"kind": "pass-through"}}}}
                async with (
                    gateway(tmp_path / "t.db", config, allow=(f"shop={elsewhere}",)) as made,
                ):
                    made.access.scout.store.put_principal(Principal("post", allow=("*",)))
                    [tool] = made.backends.scout.store.get(["shop/orders"])
                    result = await made.backends.call(tool, {}, _silent, ALICE, token)
                    assert not result.is_error, text(result)

    anyio.run(main)
    assert service.seen == []
    assert [seen.get("authorization") for seen in chosen.seen] == [None]


async def _silent(*_: Any) -> None:
    """Report nothing."""


def test_a_key_of_toolscout_is_passed_on_to_nobody(issuer: Issuer, tmp_path: Path) -> None:
    service = Service()

    async def main() -> None:
        async with serving(service.app, "") as shop:
            config = {"openapi": {"shop": {"source": document(tmp_path, shop), "auth": {"kind": "pass-through"}}}}
            async with gateway(tmp_path / "t.db", config) as made:
                store = made.access.scout.store
                store.put_principal(Principal("post", allow=("*",)))
                key, stored = new_key("post")
                store.add_key(stored)
                async with (
                    serving(transports.make_app(made, ServeOptions())) as url,
                    signed_in(url, key) as client,
                ):
                    result = await called(client, "shop/orders")
                    assert result.is_error
                    assert "sign in with your account" in text(result)

    anyio.run(main)
    assert service.seen == []


class Guarded:
    """An MCP server that demands one of some tokens."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.good = {"exchanged-1-gateway", "exchanged-2-gateway"}
        self.seen: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            token = dict(scope["headers"]).get(b"authorization", b"").decode().removeprefix("Bearer ")
            self.seen.append(token)
            if token not in self.good:
                await Response("no", 401)(scope, receive, send)
                return
        await self.app(scope, receive, send)


@pytest.mark.slow
def test_an_mcp_server_gets_the_gateways_own_token(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, issuer: Issuer
) -> None:
    tokens, guarded = Tokens(), Guarded(make_server("mail").streamable_http_app())
    person = issuer.token(groups=["team"])

    async def main() -> None:
        async with serving(tokens.app, "/token") as token_url, serving(guarded) as mail:
            auth = {"kind": "client-credentials", "tokenUrl": token_url, "clientId": "g", "clientSecret": SECRET}
            config = {"mcpServers": {"mail": {"url": mail, "auth": auth}}}
            async with (
                running(tmp_path / "t.db", config, issuer, tmp_path / "audit") as url,
                signed_in(url, person) as client,
            ):
                assert not (await called(client, "mail/get_mail", {"city": "Oslo"})).is_error
                guarded.good.discard("exchanged-1-gateway")  # revoked before its time
                assert not (await called(client, "mail/get_mail", {"city": "Oslo"})).is_error

    with caplog.at_level(logging.DEBUG, "toolscout"):
        anyio.run(main)
    assert set(guarded.seen) == {"exchanged-1-gateway", "exchanged-2-gateway"}
    logged = "".join(one.getMessage() for one in caplog.records) + (tmp_path / "audit").read_text()
    assert not any(secret in logged for secret in (SECRET, "exchanged-1", "exchanged-2", person))


def echoing(header: str = "authorization") -> Starlette:
    """An MCP server that quotes the credentials it was sent: in a description, a report, a result and an error."""
    server: Any = MCPServer("echo")

    def sent(ctx: Context) -> str:
        return str((ctx.headers or {}).get(header))

    @server.tool(description="Says what it was sent")
    async def say(ctx: Context) -> dict[str, Any]:
        await ctx.report_progress(1, 2, f"got {sent(ctx)}")
        return {"you": {"sent": sent(ctx)}}

    @server.tool(description="Fails")
    async def fail(ctx: Context) -> dict[str, Any]:
        raise ValueError(f"{sent(ctx)} is not accepted")

    @server.tool(description="Breaks the protocol")
    async def refuse(ctx: Context) -> dict[str, Any]:
        raise MCPError(-32000, f"{sent(ctx)} is refused", {"token": sent(ctx)})

    app: Starlette = server.streamable_http_app()
    return app


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["headers", "pass-through", "client-credentials", "key-per-principal"])
def test_what_a_server_was_sent_comes_back_to_nobody(
    issuer: Issuer, tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ECHO_KEY_post", "the-key-of-post")
    tokens, token = Tokens(), issuer.token(groups=["team"], sub="alice")
    told: list[str] = []

    async def main() -> None:
        async with serving(tokens.app, "/token") as token_url, serving(echoing()) as url:
            auth: dict[str, Any] = {
                "headers": {"headers": {"Authorization": f"Bearer {SECRET}"}},
                "pass-through": {"auth": {"kind": kind}},
                "client-credentials": {
                    "auth": {"kind": kind, "tokenUrl": token_url, "clientId": "g", "clientSecret": SECRET}
                },
                "key-per-principal": {"auth": {"kind": kind, "from": "env:ECHO_KEY_"}},
            }[kind]
            config = {"mcpServers": {"echo": {"url": url, **auth}}}

            async def report(done: float, total: float | None, message: str | None) -> None:
                told.append(str(message))

            async with (
                running(tmp_path / "t.db", config, issuer, tmp_path / "audit") as gateway_url,
                signed_in(gateway_url, token) as client,
            ):
                await client.list_tools()
                for tool in ("say", "fail", "refuse"):
                    try:
                        result = await called(client, f"echo/{tool}", progress_callback=report)
                        told.append(result.model_dump_json())
                    except MCPError as error:
                        told.append(f"{error.message} {error.data}")

    with caplog.at_level(logging.DEBUG, "toolscout"):
        anyio.run(main)
    logged = [one.getMessage() for one in caplog.records if one.name.startswith("toolscout")]
    everything = "".join((*told, *logged, (tmp_path / "audit").read_text()))
    assert "".join(told).count("***") >= 2, told
    for secret in (token[:60], SECRET, "the-key-of-post", "exchanged-1"):
        assert secret not in everything


def by_person(apps: dict[str, Starlette], seen: list[tuple[str, str]]) -> Starlette:
    """An MCP server that gives each person another list of tools; others get 401. `seen`: person and method."""

    async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
        token = dict(scope["headers"]).get(b"authorization", b"").decode().removeprefix("Bearer ")
        try:
            person = jwt.decode(token, options={"verify_signature": False})["sub"]
        except jwt.PyJWTError:
            person = ""
        body = await Request(scope, receive).body() if scope["method"] == "POST" else b"{}"
        seen.append((person, str(json.loads(body).get("method"))))
        if person not in apps:
            await Response("no", 401)(scope, receive, send)
            return
        first = [{"type": "http.request", "body": body, "more_body": False}]

        async def replayed() -> Any:
            return first.pop() if first else await receive()

        await apps[person](scope, replayed, send)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for app in apps.values():
                await stack.enter_async_context(app.router.lifespan_context(app))
            yield

    made = Starlette(lifespan=lifespan)
    made.router.routes.append(Mount("/", app=dispatch))
    return made


@pytest.mark.slow
def test_tools_of_a_personal_server_are_seen_by_those_it_lists_them_for(
    issuer: Issuer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    apps = {"alice": make_server("mail").streamable_http_app(), "bob": make_server("bank").streamable_http_app()}
    seen: list[tuple[str, str]] = []
    people = {name: issuer.token(groups=["team"], sub=name) for name in ("alice", "bob", "carol")}
    told: list[str] = []

    async def main() -> None:
        async with serving(by_person(apps, seen)) as work:
            config = {"mcpServers": {"work": {"url": work, "auth": {"kind": "pass-through"}}}}
            async with gateway(tmp_path / "t.db", config, audit=tmp_path / "audit") as made:
                assert made.backends.problems() == {"work": "wants a sign-in before it lists its tools"}
                assert made.backends.scout.store.count() == 0
                store = made.access.scout.store
                store.put_principal(Principal("post", allow=("*",)))
                store.put_principal(Principal("boss", allow=("*",), admin=True))
                key, stored = new_key("boss")
                store.add_key(stored)
                rules = {"principals": [{"principal": "post", "claims": {"groups": "team"}}]}
                sign_in = SignIn([IssuerKeys(issuer.url)], AUDIENCE, parse_claim_rules(rules, [issuer.url]))
                made.callers.access = Access(
                    made.access.scout, sign_in=sign_in, listed_by_caller=made.backends.listed_by_caller
                )
                async with serving(transports.make_app(made, ServeOptions())) as url:
                    for _ in range(2):
                        async with signed_in(url, people["alice"]) as alice:
                            listed = {tool.name for tool in (await alice.list_tools()).tools}
                            assert "work__get_mail" in listed
                            assert "work__get_bank" not in listed
                            assert not (await called(alice, "work/get_mail", {"city": "Oslo"})).is_error
                            hidden = await called(alice, "work/get_bank", {"city": "Oslo"})
                            assert "there is no tool" in text(hidden)
                        async with signed_in(url, people["bob"]) as bob:
                            listed = {tool.name for tool in (await bob.list_tools()).tools}
                            assert "work__get_bank" in listed
                            assert "work__get_mail" not in listed
                            answer = await bob.call_tool("search_tools", {"query": "get mail of a city", "k": 10})
                            assert "work/get_mail" not in text(answer)
                            told.append(text(answer))
                            assert not (await called(bob, "work/get_bank", {"city": "Oslo"})).is_error
                            assert (await called(bob, "work/get_mail", {"city": "Oslo"})).is_error
                    for stranger in (people["carol"], key):
                        async with signed_in(url, stranger) as client:
                            assert (await client.list_tools()).tools == []
                            assert "there is no tool" in text(await called(client, "work/get_mail", {"city": "O"}))
                    assert made.backends.problems() == {}

    with caplog.at_level(logging.DEBUG, "toolscout"):
        anyio.run(main)
    calls = [person for person, method in seen if method == "tools/call"]
    assert calls == ["alice", "bob", "alice", "bob"]
    logged = "".join(one.getMessage() for one in caplog.records) + (tmp_path / "audit").read_text()
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("t.db*") if path.is_file()).decode("latin-1")
    assert not any(token in logged + stored + "".join(told) for token in people.values())


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def exchange(answers: list[Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Credentials, Clock, list[Any]]:
    asked: list[Any] = []

    def fetch(url: str, addresses: Any, *, form: Any, headers: Any) -> Any:
        asked.append(form)
        return answers[min(len(asked), len(answers)) - 1]

    monkeypatch.setattr("toolscout.serving.gateway.upstream_auth.fetch_json", fetch)
    clock = Clock()
    return Credentials("shop", UpstreamAuth("exchange", {"tokenUrl": "https://t.example"}), clock), clock, asked


def test_tokens_are_kept_until_shortly_before_they_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [{"access_token": f"t{number}", "token_type": "bearer", "expires_in": 100} for number in range(9)]
    credentials, clock, asked = exchange(answers, monkeypatch)
    assert credentials.headers(ALICE, "A") == {"Authorization": "Bearer t0"}
    assert credentials.headers(BOB, "B") == {"Authorization": "Bearer t1"}
    clock.now = 69
    assert credentials.headers(ALICE, "A") == {"Authorization": "Bearer t0"}
    clock.now = 70
    assert credentials.headers(ALICE, "A") == {"Authorization": "Bearer t2"}
    # Another token of the same person may have other rights, and the same token says nothing of another person.
    assert credentials.headers(ALICE, "A2") == {"Authorization": "Bearer t3"}
    assert credentials.headers(BOB, "A") == {"Authorization": "Bearer t4"}
    assert len(asked) == 5


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"access_token": "x\r\nEvil: 1", "token_type": "Bearer"},
        {"access_token": "x", "token_type": "mac"},
        {"access_token": 5, "token_type": "Bearer"},
        {"access_token": "x" * 20_000, "token_type": "Bearer"},
    ],
)
def test_answers_that_are_no_token(answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    credentials, _, _ = exchange([answer], monkeypatch)
    with pytest.raises(NoCredentials, match="none that can be used"):
        credentials.headers(ALICE, "A")


@pytest.mark.parametrize("seconds", [0, -5, "soon", None, float("nan")])
def test_a_token_without_a_time_is_not_kept(seconds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    credentials, _, asked = exchange(
        [{"access_token": "x", "token_type": "Bearer", "expires_in": seconds}], monkeypatch
    )
    credentials.headers(ALICE, "A")
    credentials.headers(ALICE, "A")
    assert len(asked) == 2


def test_a_token_service_that_refuses_quotes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    tokens = Tokens()
    tokens.status = 400

    async def main() -> None:
        async with serving(tokens.app, "/token") as url:
            settings = {"tokenUrl": url, "clientId": "g", "clientSecret": SECRET}
            credentials = Credentials("shop", UpstreamAuth("exchange", settings))
            assert SECRET not in repr(credentials.auth)
            for status, told in ((400, "gives none for you"), (503, "does not answer now")):
                tokens.status = status
                with pytest.raises(NoCredentials, match=told) as raised:
                    await anyio.to_thread.run_sync(credentials.headers, ALICE, "the-token-of-alice")
                assert "the-token" not in str(raised.value)

    anyio.run(main)
    assert SECRET not in caplog.text
    assert "the-token-of-alice" not in caplog.text


def test_keys_of_a_file_belong_to_just_the_principal_that_is_named(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"team-a": "key-a", "Team-A": "key-b", "odd": "a\nb", "list": ["x"]}))
    config = parse_config(
        {"openapi": {"shop": {"source": "x.json", "auth": {"kind": "key-per-principal", "from": "keys.json"}}}},
        "test",
        tmp_path / "servers.json",
    )
    credentials = Credentials("shop", config.auth["shop"])
    assert credentials.headers(Caller("team-a"), None) == {"Authorization": "Bearer key-a"}
    for name in ("team_a", "TEAM-A", "odd", "list", "", "nobody"):
        with pytest.raises(NoCredentials, match="no key for you"):
            credentials.headers(Caller(name), None)
    path.write_text(json.dumps({"nobody": "now"}))  # a change counts at once
    assert credentials.headers(Caller("nobody"), None) == {"Authorization": "Bearer now"}
    path.unlink()
    with pytest.raises(NoCredentials):
        credentials.headers(Caller("nobody"), None)


@pytest.mark.parametrize(
    ("auth", "problem"),
    [
        ("pass-through", "'kind' is one of"),
        ({"kind": "magic"}, "'kind' is one of"),
        ({"kind": ["x"]}, "'kind' is one of"),
        ({"kind": "pass-through", "tokenUrl": "https://x.example"}, "'tokenUrl'; it takes list"),
        ({"kind": "pass-through", "list": "private"}, "'list' must be 'public'"),
        ({"kind": "exchange"}, "needs 'tokenUrl'"),
        ({"kind": "exchange", "tokenUrl": "http://t.example"}, "must be an https address"),
        ({"kind": "exchange", "tokenUrl": "https://t.example", "clientId": "x"}, "go together"),
        ({"kind": "client-credentials", "tokenUrl": "https://t.example"}, "needs 'clientId'"),
        ({"kind": "key-per-principal", "from": "env:X_", "header": "a: b"}, "name of a header"),
        ({"kind": "exchange", "tokenUrl": 5}, "must be a text"),
        ({"kind": "exchange", "tokenUrl": "${NOT_SET_ANYWHERE}"}, "has no value"),
    ],
)
def test_settings_that_are_wrong_leave_the_server_out(auth: Any, problem: str) -> None:
    found = parse_config({"openapi": {"shop": {"source": "x.json", "auth": auth}, "other": "y.json"}}, "test")
    assert [source.name for source in found.sources] == ["other"]
    assert len(found.problems) == 1
    assert problem in found.problems[0]


def test_programs_and_functions_have_no_credentials() -> None:
    auth = {"kind": "pass-through"}
    document = {
        "mcpServers": {"local": {"command": "x", "auth": auth}},
        "functions": {"mine": {"source": "tools.py", "auth": auth}},
    }
    found = parse_config(document, "test")
    assert (found.servers, found.sources) == ((), ())
    assert all("at an address" in problem for problem in found.problems)
    with pytest.raises(BadSource):
        parse_config({"openapi": []}, "test")
