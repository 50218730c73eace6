"""The gateway runs what its own configuration names, as the tool that was asked for, with the headers of its source."""

from __future__ import annotations

import json
import logging
import shlex
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client

from tests.serving.gateways import called, gateway, small_http, text
from toolscout import Origin, Scout, Tool
from toolscout.calling.http_request import request
from toolscout.core.targets import Targets, place_of
from toolscout.errors import BadRequest
from toolscout.serving.gateway.sources import BackendOptions


def stored(path: Path, *tools: Tool) -> Path:
    """A catalogue that somebody else has filled."""
    with Scout.open(path, "bm25") as scout:
        scout.add(list(tools))
    return path


def answers(store: Path, asked: list[str], document: Any = None, allow: tuple[str, ...] = ()) -> list[str]:
    """What a gateway answers to these calls."""
    told: list[str] = []

    async def main() -> None:
        async with gateway(store, document, allow=allow) as made, Client(made.server) as client:
            for name in asked:
                told.append(text(await called(client, name)))

    anyio.run(main)
    return told


def test_what_lies_in_a_store_is_not_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    owned = tmp_path / "owned"
    command = f"sh -c {shlex.quote(f'touch {owned}')}"
    store = stored(
        tmp_path / "t.db",
        Tool("mail", "run", "Runs.", origin=Origin("mcp", command, {"tool": "run"})),
        Tool("mail", "system", "Runs.", origin=Origin("function", "os:system")),
        Tool("mail", "fetch", "Fetches.", origin=Origin("http", "http://127.0.0.1:9", {"method": "GET", "path": "/x"})),
        Tool("mail", "ask", "Asks.", origin=Origin("mcp", "http://127.0.0.1:9/mcp")),
    )
    with caplog.at_level(logging.WARNING, "toolscout"):
        told = answers(store, ["mail/run", "mail/system", "mail/fetch", "mail/ask"])
    assert not owned.exists()
    assert all("may not be called from here" in answer for answer in told)
    assert not any("sh -c" in answer or "os:system" in answer or "127.0.0.1" in answer for answer in told)
    # Whoever runs the gateway is told what would allow it.
    assert f"--allow-target {shlex.quote(f'mail={command}')}" in caplog.text
    assert "--allow-target mail=os:system" in caplog.text


def test_a_target_that_is_allowed_is_called(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text('def double(n: int = 2) -> int:\n    """Doubles."""\n    return 2 * n\n')
    target = f"{tmp_path / 'mine.py'}:double"
    store = stored(
        tmp_path / "t.db",
        Tool("mine", "double", "Doubles.", origin=Origin("function", target)),
        Tool("mine", "other", "Does something else.", origin=Origin("function", target)),
    )
    assert answers(store, ["mine/double"], allow=(target,)) == ["4"]
    own, alias = answers(store, ["mine/double", "mine/other"], allow=(f"{tmp_path / 'mine.py'}:*",))
    assert own == "4"
    assert "may not be called" in alias  # a whole module is allowed under its functions' own names


@pytest.mark.parametrize(
    ("allowed", "target", "may"),
    [
        ("https://shop.example", "https://shop.example/v2", True),
        ("https://shop.example/", "https://SHOP.example:443", True),
        ("https://shop.example/v2", "https://shop.example/v2/x", True),
        ("https://shop.example/v2", "https://shop.example/v20", False),
        ("https://shop.example/v2", "https://shop.example/v2/../admin", False),
        ("https://shop.example/v2", "https://shop.example/v2/%2e%2e/admin", False),
        ("https://shop.example", "http://shop.example", False),
        ("https://shop.example", "https://shop.example:8443", False),
        ("https://shop.example", "https://shop.example.evil.example", False),
        ("https://shop.example", "https://shop.example@evil.example", False),
        ("https://shop.example", "https://user:pass@shop.example", False),
        ("https://shop.example", "https://evil.example\\@shop.example", False),
        ("https://shop.example", "https://[", False),
        ("server --read", "server --read", True),
        ("server --read", "server --read --write", False),
        ("server", "server --write", False),
    ],
)
def test_which_targets_are_allowed(allowed: str, target: str, may: bool) -> None:
    tool = Tool("a", "b", origin=Origin("mcp", target))
    assert Targets([allowed]).permit(tool) is may
    folder = Tool("a", "b", origin=Origin("mcp", target, {"cwd": "/tmp"}))
    assert Targets([allowed]).permit(folder) is (may and target.startswith("http"))


@pytest.mark.parametrize("nothing", ["", " ", "*", "https://", "http://user@host", "mail=*", "mail=https://"])
def test_what_allows_nothing_is_refused(nothing: str) -> None:
    with pytest.raises(BadRequest, match="names no target"):
        Targets([nothing])


MODULE = """
import os
import subprocess
from os import system
from subprocess import getoutput as listing

def double(n: int = 2) -> int:
    return 2 * n

def danger() -> str:
    return "danger was run"
"""


@pytest.mark.parametrize(
    "attribute",
    ["os.system", "subprocess.getoutput", "system", "listing", "__builtins__.eval", "double.__call__", "danger"],
)
def test_a_module_that_is_allowed_offers_its_own_functions_alone(tmp_path: Path, attribute: str) -> None:
    """Nothing that it imports, and each by a tool of its own name."""
    (tmp_path / "offering.py").write_text(MODULE)
    file, name = tmp_path / "offering.py", attribute.rpartition(".")[2]
    tools = [
        Tool("mail", name, "Runs.", origin=Origin("function", f"{file}:{attribute}")),
        Tool("mail", "harmless", "Runs.", origin=Origin("function", f"{file}:{attribute}")),
    ]
    store = stored(tmp_path / "t.db", *tools)
    own, alias = answers(store, [f"mail/{name}", "mail/harmless"], allow=(f"{file}:*",))
    assert (own == "danger was run") is (attribute == "danger")
    assert "may not be called" in alias
    [exact] = answers(store, ["mail/harmless"], allow=(f"{file}:{attribute}",))
    assert "may not be called" in exact


def test_a_target_is_allowed_for_one_namespace(tmp_path: Path) -> None:
    (tmp_path / "offering.py").write_text(MODULE)
    target = f"{tmp_path / 'offering.py'}:double"
    tools = [Tool(space, "double", "Doubles.", origin=Origin("function", target)) for space in ("mine", "mail")]
    store = stored(tmp_path / "t.db", *tools)
    mine, mail = answers(store, ["mine/double", "mail/double"], allow=(f"mine={target}",))
    assert mine == "4"
    assert "may not be called" in mail
    for allowed in ("shop=https://shop.example", "shop=server --read"):
        kept = Origin("mcp", allowed.partition("=")[2])
        assert Targets([allowed]).permit(Tool("shop", "x", origin=kept))
        assert not Targets([allowed]).permit(Tool("mail", "x", origin=kept))


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("header", "X-Key "),
        ("header", "x_key"),
        ("header", "Host "),
        ("header", "Transfer_Encoding"),
        ("cookie", "a; b"),
    ],
)
def test_arguments_do_not_take_the_place_of_given_headers(place: str, name: str) -> None:
    origin = Origin("http", "http://shop.example", {"method": "GET", "path": "/x", "in": {name: place}})
    made = request(origin, {name: "evil"}, origin.target, {"X-Key": "given", "Cookie": "session=given"})
    assert made.headers == {"X-Key": "given", "Cookie": "session=given"}


@pytest.mark.parametrize("details", [{"method": "GET /x HTTP/1.1"}, {"method": ""}, {"path": "/..;/admin"}])
def test_an_operation_that_no_document_has_is_not_sent(details: dict[str, str]) -> None:
    origin = Origin("http", "http://shop.example/v2", {"method": "GET", "path": "/x", **details})
    with pytest.raises(BadRequest):
        request(origin, {}, origin.target, SECRET)


def test_an_alias_does_not_run_another_tool(tmp_path: Path) -> None:
    """Both of a configured server and of one that is allowed: permissions were checked for the alias."""
    script = Path(__file__).with_name("small_server.py")
    command = f"{shlex.quote(sys.executable)} {shlex.quote(str(script))} mail"
    store = stored(
        tmp_path / "t.db",
        Tool("mail", "harmless", "Reads.", origin=Origin("mcp", command, {"tool": "get_mail"})),
        Tool("post", "harmless", "Reads.", origin=Origin("mcp", command, {"tool": "get_mail"})),
    )

    async def main() -> None:
        async with small_http("mail") as mail:
            document = {"mcpServers": {"mail": mail}}
            async with gateway(store, document, allow=(command,)) as made, Client(made.server) as client:
                for name in ("mail/harmless", "post/harmless"):
                    answer = await called(client, name, {"city": "Rome"})
                    assert answer.is_error
                    assert "Rome" not in text(answer)
                assert not (await called(client, "mail/get_mail", {"city": "Rome"})).is_error

    anyio.run(main)


class Heard(BaseHTTPRequestHandler):
    """Keeps what it was sent."""

    def do_GET(self) -> None:
        self.server.heard.append((self.path, dict(self.headers)))  # type: ignore[attr-defined]
        body = getattr(self.server, "document", b"{}") if self.path.endswith("openapi.json") else b"{}"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def listening() -> Iterator[Any]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Heard) as server:
        server.heard = []  # type: ignore[attr-defined]
        server.url = f"http://127.0.0.1:{server.server_address[1]}"  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def operation(name: str, path: str, servers: list[str] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"get": {"operationId": name, "summary": name}}
    if servers:
        found["get"]["servers"] = [{"url": url} for url in servers]
    return {path: found}


def document(base: str, *operations: dict[str, Any]) -> bytes:
    paths = {path: item for one in operations for path, item in one.items()}
    return json.dumps(
        {"openapi": "3.0.0", "info": {"title": "shop"}, "servers": [{"url": base}], "paths": paths}
    ).encode()


SECRET = {"Authorization": "Bearer s3cret-of-the-shop"}


def test_headers_are_sent_to_the_configured_host_alone(tmp_path: Path) -> None:
    """Neither a tool that landed in the namespace nor another host that the document names gets them."""
    with listening() as shop, listening() as foreign:
        shop.document = document(shop.url, operation("order", "/order"), operation("track", "/track", [foreign.url]))
        store = stored(
            tmp_path / "t.db",
            Tool("shop", "stray", "Strays.", origin=Origin("http", foreign.url, {"method": "GET", "path": "/stray"})),
            Tool("shop", "wipe", "Wipes.", origin=Origin("http", shop.url, {"method": "GET", "path": "/wipe"})),
        )
        config = {"openapi": {"shop": {"source": f"{shop.url}/openapi.json", "headers": SECRET}}}
        order, wipe, *_ = answers(
            store, ["shop/order", "shop/wipe", "shop/track", "shop/stray"], config, allow=(foreign.url,)
        )
    assert not order.startswith("error")
    assert [headers.get("Authorization") for path, headers in shop.heard if path == "/order"] == [
        SECRET["Authorization"]
    ]
    assert "may not be called" in wipe  # the same host and namespace, but no tool of the configured document
    assert not [path for path, _ in shop.heard if path == "/wipe"]
    assert not any("Authorization" in headers for _, headers in foreign.heard)
    assert "/stray" in [path for path, _ in foreign.heard]  # allowed by itself, with none of the shop's headers


def test_a_base_url_says_where_headers_go(tmp_path: Path) -> None:
    with listening() as shop, listening() as foreign:
        file = tmp_path / "shop.json"
        file.write_bytes(document(foreign.url, operation("order", "/order")))
        entry = {"source": str(file), "baseUrl": shop.url, "headers": SECRET}
        answers(tmp_path / "t.db", ["shop/order"], {"openapi": {"shop": entry}})
        assert [headers["Authorization"] for _, headers in shop.heard] == [SECRET["Authorization"]]
        assert foreign.heard == []
        # A document on this machine is part of the configuration, and so are the servers that it names.
        answers(tmp_path / "u.db", ["shop/order"], {"openapi": {"shop": {"source": str(file), "headers": SECRET}}})
        assert [headers["Authorization"] for _, headers in foreign.heard] == [SECRET["Authorization"]]


@pytest.mark.parametrize("path", ["@127.0.0.1:9/x", "/../x", "/%2e%2e/x", "/a/..%2f..%2fx", "//127.0.0.1:9/x", "x"])
def test_a_path_does_not_lead_to_another_host(path: str) -> None:
    origin = Origin("http", "http://shop.example/v2", {"method": "GET", "path": path})
    try:
        made = request(origin, {}, origin.target, SECRET)
    except BadRequest:
        return
    assert place_of(made.url) == place_of(origin.target)
    assert made.url.startswith("http://shop.example/v2/")


def test_a_source_that_failed_at_the_start_is_read_again(tmp_path: Path) -> None:
    async def main() -> None:
        with listening() as shop:
            shop.document = b"not yet"
            config = {"openapi": {"shop": {"source": f"{shop.url}/openapi.json"}}}
            quick = BackendOptions(timeout=5, relist=0.05)
            async with gateway(tmp_path / "t.db", config, backend=quick) as made, Client(made.server) as client:
                assert (await called(client, "shop/order")).is_error
                shop.document = document(shop.url, operation("order", "/order"))
                with anyio.fail_after(10):
                    while (await called(client, "shop/order")).is_error:
                        await anyio.sleep(0.05)

    anyio.run(main)
