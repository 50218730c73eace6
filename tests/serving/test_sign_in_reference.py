"""The official MCP client signs in by itself, at an authorization server that others wrote (oidc-provider from npm)."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken

from tests.serving.gateways import called, small_http, soon, text
from toolscout.core.permissions import Principal
from toolscout.stores.sqlite.store import SqliteStore

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("authorization_server.mjs")
CALLBACK = "http://127.0.0.1:9/callback"


@pytest.fixture(scope="module")
def modules() -> Path:
    """The folder that oidc-provider is installed in, once for all runs."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "toolscout-tests" / "oidc-provider"
    cache.mkdir(parents=True, exist_ok=True)
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("npm is not installed")
    if not (cache / "done").exists():
        try:
            words = ["npm", "install", "--silent", "--prefix", str(cache), "oidc-provider@9.13"]
            subprocess.run(words, check=True, capture_output=True, timeout=300)
        except (subprocess.SubprocessError, OSError) as error:
            pytest.skip(f"oidc-provider cannot be installed here: {error}")
        (cache / "done").touch()
    return cache


@pytest.fixture
def issuer(modules: Path) -> Iterator[str]:
    port = free_port()
    command = ["node", str(SCRIPT), str(port), str(modules)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


class Memory:
    """What a client keeps between its requests."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


class Browser:
    """Somebody at a browser, who logs in as `person` and agrees to everything."""

    def __init__(self, person: str) -> None:
        self.person = person
        self.landed = ""

    async def open(self, url: str) -> None:
        async with httpx2.AsyncClient() as web:
            answer = await web.get(url)
            for _ in range(20):
                if answer.is_redirect:
                    url = urljoin(url, answer.headers["location"])
                    if url.startswith(CALLBACK):
                        self.landed = url
                        return
                    answer = await web.get(url)
                else:
                    assert answer.status_code == 200, answer.text
                    prompt = "login" if 'value="login"' in answer.text else "consent"
                    form = {"prompt": prompt, "login": self.person, "password": "any"}
                    answer = await web.post(url, data=form)
        raise AssertionError("the sign-in does not end")

    async def result(self) -> AuthorizationCodeResult:
        asked = parse_qs(urlsplit(self.landed).query)
        return AuthorizationCodeResult(code=asked["code"][0], state=asked["state"][0], iss=asked.get("iss", [None])[0])


def signing_in(url: str, person: str, memory: Memory) -> OAuthClientProvider:
    browser = Browser(person)
    about = OAuthClientMetadata(client_name="test", redirect_uris=[CALLBACK], token_endpoint_auth_method="none")
    return OAuthClientProvider(url, about, memory, browser.open, browser.result)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_client_signs_in_by_itself(issuer: str, tmp_path: Path, mode: str) -> None:
    port = free_port()
    url, store = f"http://127.0.0.1:{port}/mcp", tmp_path / "t.db"
    (tmp_path / "claims.yaml").write_text(
        "scopes: [tools]\n"
        "principals:\n"
        "  - {principal: post, claims: {groups: 'team-*'}}\n"
        "  - {principal: ops, claims: {groups: admins}}\n"
    )
    with SqliteStore(store) as opened:
        opened.put_principal(Principal("post", allow=("mail/*",)))
        opened.put_principal(Principal("ops", allow=("*",)))

    statuses: list[int] = []

    async def noted(response: httpx2.Response) -> None:
        statuses.append(response.status_code)

    async def listed(person: str) -> tuple[list[str], Any, Memory]:
        memory = Memory()
        async with (
            httpx2.AsyncClient(auth=signing_in(url, person, memory), event_hooks={"response": [noted]}) as web,
            Client(streamable_http_client(url, http_client=web), mode=mode) as client,
        ):
            tools = [tool.name for tool in (await client.list_tools()).tools]
            return tools, await called(client, "mail/get_mail", {"city": "Oslo"}), memory

    async def main() -> None:
        async with small_http("mail") as mail, small_http("bank") as bank:
            (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": {"mail": mail, "bank": bank}}))
            words = ["-m", "toolscout", "--store", str(store), "mcp", "--retriever", "bm25", "--http", str(port)]
            words += ["--config", str(tmp_path / "servers.json"), "--audit", str(tmp_path / "audit.log")]
            words += ["--oidc-issuer", issuer, "--oidc-audience", url, "--oidc-claims", str(tmp_path / "claims.yaml")]
            with subprocess.Popen([sys.executable, *words], stderr=subprocess.PIPE, text=True) as process:
                try:
                    await soon(lambda: listens(port), 30)
                    tools, result, alice = await listed("alice")
                    assert tools
                    assert all(name.startswith("mail__") for name in tools)
                    assert "Oslo" in text(result)
                    tools, _, root = await listed("root")
                    assert "search_tools" in tools
                    with pytest.raises(BaseExceptionGroup):
                        await listed("mallory")
                    assert statuses[-1] == 403
                finally:
                    process.terminate()
                log = process.stderr.read() if process.stderr else ""
            written = log + (tmp_path / "audit.log").read_text()
            for memory in (alice, root):
                assert memory.tokens is not None
                assert memory.tokens.access_token not in written
            assert '"user": "alice"' in written

    anyio.run(main)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
