"""OpenAPI documents that are broken or half right, and those that come from the web."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.catalogue.importer_samples import PETSTORE
from toolscout import catalogue
from toolscout.catalogue import ReadOptions
from toolscout.catalogue.openapi.document import parse
from toolscout.errors import BadSource


def spec(paths: Any) -> dict[str, Any]:
    return {"openapi": "3.1.0", "info": {"title": "T"}, "paths": paths}


def test_yaml_is_read_as_json_would_be(tmp_path: Path) -> None:
    text = """
openapi: 3.0.0
info: {title: Yaml API, version: 2020-01-02}
paths:
  /days:
    get:
      operationId: days
      parameters:
        - name: from
          in: query
          schema: {type: string, default: 2020-01-02, enum: [2020-01-02, no, on, 12:30:45, 007, ~, 1e3, 0x1F]}
      responses:
        200: {description: fine}
        true: {description: odd}
"""
    path = tmp_path / "api.yaml"
    path.write_text(text, encoding="utf-8")
    (tool,) = catalogue.read(path)
    schema = tool.input_schema["properties"]["from"]
    assert schema["enum"] == ["2020-01-02", "no", "on", "12:30:45", "007", None, 1000.0, "0x1F"]
    assert schema["default"] == "2020-01-02"
    assert list(parse(text, "")["paths"]["/days"]["get"]["responses"]) == ["200", "true"]
    gz = tmp_path / "api.yaml.gz"
    gz.write_bytes(gzip.compress(text.encode()))
    assert list(catalogue.read(gz)) == [tool]


def test_yaml_anchors_tags_and_control_characters() -> None:
    assert parse("a: &x {b: 1}\nc: {<<: *x, 5: 2}", "") == {"a": {"b": 1}, "c": {"b": 1, "5": 2}}
    assert parse("a: !!timestamp 2020-01-02\nb: !!binary aGk=", "") == {"a": "2020-01-02", "b": "aGk="}
    assert parse("a: 'x\x1by'", "") == {"a": "x y"}
    assert parse("{a: 1}", "") == {"a": 1}
    for wrong in ("a: !!python/object:os.system x", "a: !!set {x}", "? [a]\n: b", "a: [", "a: &a [*a]", "[" * 3000):
        with pytest.raises(BadSource, match=r"t: |t line"):
            parse(wrong, "t")


def test_many_aliases_of_one_schema_stay_small(tmp_path: Path) -> None:
    lines = ["x0: &x0 {type: object, properties: {a: {type: string}}}"]
    for number in range(1, 16):
        inner = f"*x{number - 1}"
        lines.append(f"x{number}: &x{number} {{type: object, properties: {{a: {inner}, b: {inner}}}}}")
    text = "\n".join(["openapi: 3.0.0", "info: {title: bomb}", *lines, "paths:", "  /a:", "    post:"])
    text += "\n      requestBody: {content: {application/json: {schema: *x15}}}"
    path = tmp_path / "bomb.yaml"
    path.write_text(text, encoding="utf-8")
    (tool,) = catalogue.read(path)
    assert len(json.dumps(tool.to_record())) < 2_000_000


BAD_DOCUMENTS: list[tuple[Any, str]] = [
    ({"openapi": "3.0.0", "info": {}}, "describes no operations: it has no 'paths'"),
    ({"openapi": "3.0.0", "paths": []}, "describes no operations: 'paths' is list"),
    ({"openapi": "4.0.0", "paths": {}}, "is of version 4.0.0; OpenAPI 3.x and Swagger 2.0 are read"),
    ({"swagger": "1.2", "paths": {}}, "is of version 1.2"),
    ({"paths": {}}, "it has no 'openapi' or 'swagger' version"),
    ({"openapi": "3.0.0", "paths": {1: object()}}, "not a JSON value"),
]


@pytest.mark.parametrize(("document", "said"), BAD_DOCUMENTS)
def test_documents_that_cannot_be_read_at_all(document: Any, said: str) -> None:
    for keep_going in (False, True):
        with pytest.raises(BadSource, match=said):
            list(catalogue.read(document, ReadOptions(kind="openapi", keep_going=keep_going)))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<!doctype html><p>Not found", "is an HTML or XML page"),
        ("openapi: [", r"line \d column \d+: neither JSON nor YAML"),
        ('{"openapi": "3.0.0",', "not JSON: Expecting property name"),
        ("just some words", "has no 'openapi' or 'swagger' version"),
    ],
)
def test_texts_that_are_no_document(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "api.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadSource, match=f"^{path}.*{said}"):
        list(catalogue.read(path))


HALF_VALID: list[tuple[str, Any, str]] = [
    ("/b", 5, "path /b: a path must be an object, got int"),
    ("/b", {"$ref": "#/nowhere"}, r"path /b: \$ref '#/nowhere' points nowhere"),
    ("/b", {"$ref": "#/paths/~1b"}, r"path /b: \$ref '#/paths/~1b' leads back to itself"),
    ("/b", {"get": []}, "GET /b: an operation must be an object, got list"),
    ("/b", {"get": {"parameters": {}}, "parameters": 5}, "GET /b: parameters must be a list, got int"),
    ("/b", {"get": {"parameters": [{"in": "query"}]}}, "GET /b: parameter 1 has no name"),
    ("/b", {"get": {"parameters": [{"name": "x", "in": "dreams"}]}}, "GET /b: parameter x has no valid 'in'"),
    ("/b", {"get": {"parameters": [{"$ref": "#/x/0"}]}}, r"GET /b: \$ref '#/x/0' points nowhere"),
    ("/b", {"get": {"parameters": [{"$ref": "#anchor"}]}}, r"GET /b: \$ref '#anchor' points nowhere"),
    ("/b", {"get": {"requestBody": "x"}}, "GET /b: requestBody must be an object with 'content'"),
]


@pytest.mark.parametrize(("path", "item", "said"), HALF_VALID)
def test_half_valid_documents_lose_only_the_broken_operation(path: str, item: Any, said: str) -> None:
    document = spec({"/a": {"get": {}}, path: item, "/c": {"get": {}}, "x-notes": "free text"})
    with pytest.raises(BadSource, match=f"^the given document: {said}"):
        list(catalogue.read(document))
    options = ReadOptions(keep_going=True)
    assert [tool.name for tool in catalogue.read(document, options)] == ["get_a", "get_c"]
    assert len(options.problems) == 1
    assert re.match(f"the given document: {said}", options.problems[0])


def test_namespace_falls_back_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "My_API.v2.json"
    path.write_text(json.dumps({"openapi": "3.0.0", "paths": {"/a": {"get": {}}}}), encoding="utf-8")
    assert next(catalogue.read(path)).namespace == "my-api-v2"
    assert next(catalogue.read(path, ReadOptions(namespace="given"))).namespace == "given"


class _Handler(http.server.BaseHTTPRequestHandler):
    seen: list[dict[str, str]] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.seen.append({name.lower(): value for name, value in self.headers.items()})
        status, headers, data = 200, {}, json.dumps(PETSTORE | {"servers": [{"url": "/v1"}]}).encode()
        path = self.path.partition("?")[0]
        if path == "/moved":
            status, headers, data = 302, {"Location": "/api.json"}, b""
        elif path == "/html":
            data = b"<html>Hello"
        elif path == "/gz":
            data = gzip.compress(data)
        elif path == "/slow":
            time.sleep(1)
        elif path == "/drip":
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):
                for _ in range(20):
                    self.wfile.write(b" ")
                    time.sleep(0.1)
            return
        elif path[1:].isdigit():
            status = int(path[1:])
        with contextlib.suppress(OSError):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture(scope="module")
def web() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_document_on_the_web(web: str) -> None:
    _Handler.seen.clear()
    address = web.replace("://", "://me:pw@") + "/api.json?key=hidden"
    options = ReadOptions(headers={"X-Secret": "s"})
    tools = list(catalogue.read(address, options))
    assert len(tools) == 3
    assert tools[0].origin is not None
    assert tools[0].origin.target == f"{web}/v1"
    assert "hidden" not in json.dumps([tool.to_record() for tool in tools])
    assert _Handler.seen[0]["x-secret"] == "s"
    assert _Handler.seen[0]["authorization"] == "Basic bWU6cHc="
    assert [tool.id for tool in catalogue.read(f"{web}/gz")] == [tool.id for tool in tools]


def test_headers_do_not_follow_a_redirect(web: str) -> None:
    _Handler.seen.clear()
    assert len(list(catalogue.read(f"{web}/moved", ReadOptions(headers={"X-Secret": "s"})))) == 3
    assert ["x-secret" in headers for headers in _Handler.seen] == [True, False]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/html", "is an HTML or XML page"),
        ("/404", "answered 404 Not Found; check the address"),
        ("/405", "answered 405 Method Not Allowed; check the address; for an MCP server, write mcp: before it"),
        ("/401", "answered 401 Unauthorized; give the headers"),
        ("/slow", r"did not answer within 0\.4 s"),
        ("/drip", r"did not answer within 0\.4 s"),
    ],
)
def test_what_the_web_answers_instead(web: str, path: str, said: str) -> None:
    with pytest.raises(BadSource, match=f"^{web}{path} {said}"):
        list(catalogue.read(f"{web}{path}?key=hidden", ReadOptions(timeout=0.4)))


def test_downloads_have_a_limit(web: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolscout.catalogue.openapi.document.MAX_DOWNLOAD", 100)
    with pytest.raises(BadSource, match="is larger than 0 MB; download it"):
        list(catalogue.read(f"{web}/api.json"))


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/x", "http://", "http://a b/", f"http://{'a' * 70}.invalid/"])
def test_addresses_that_lead_nowhere(url: str) -> None:
    with pytest.raises(BadSource, match=r"cannot be fetched: .*; check the address"):
        list(catalogue.read(url, ReadOptions(timeout=5)))


def test_a_host_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(BadSource, match=r"cannot be fetched: .*Name or service not known; check the address"):
        list(catalogue.read("http://no.such.host.invalid/x", ReadOptions(timeout=5)))


def test_a_malformed_header_is_not_quoted(web: str) -> None:
    with pytest.raises(BadSource, match="a header is malformed") as caught:
        list(catalogue.read(f"{web}/api.json", ReadOptions(headers={"X-Secret": "sesame\nopen"})))
    assert "sesame" not in str(caught.value)
