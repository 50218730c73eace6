"""Calls by origin: functions, HTTP services, MCP servers and recordings; whatever happens is a result."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from toolscout import catalogue
from toolscout.calling.dispatch import CallOptions, CallResult, OriginCaller
from toolscout.catalogue.base import ReadOptions
from toolscout.core.tool import Origin, Tool

MODULE = '''
import sys, time

def add(a: int, b: int = 1) -> int:
    """Adds."""
    return a + b

def first(word: str, /, *, loud: bool = False) -> dict:
    """By position."""
    return {"word": word.upper() if loud else word}

async def later(word: str) -> str:
    """Later."""
    return word * 3

def broken() -> None:
    """Breaks."""
    raise KeyError("no")

def leave() -> None:
    """Leaves."""
    sys.exit(3)

def slow() -> None:
    """Takes its time."""
    time.sleep(5)
'''


def calling(tool: Tool, **options: Any) -> OriginCaller:
    """A caller that may call where a tool comes from."""
    assert tool.origin is not None
    return OriginCaller(CallOptions(allow=(tool.origin.target,), **options))


def one(caller: Any, tool: Tool, **arguments: Any) -> CallResult:
    found: list[CallResult] = caller.call([(tool, arguments)])
    return found[0]


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tool]:
    path = tmp_path_factory.mktemp("module") / "made_up_tools.py"
    path.write_text(MODULE)
    return {tool.name: tool for tool in catalogue.read(str(path), ReadOptions())}


@pytest.mark.parametrize(
    ("name", "arguments", "wanted"),
    [
        ("add", {"a": 2}, CallResult(True, "3")),
        ("first", {"word": "x", "loud": True}, CallResult(True, '{"word": "X"}')),
        ("later", {"word": "ab"}, CallResult(True, "ababab")),
        ("broken", {}, CallResult(False, "", "KeyError: 'no'")),
        ("leave", {}, CallResult(False, "", "SystemExit: 3")),
        ("slow", {}, CallResult(False, "", "it did not end within 0.2 s")),
    ],
)
def test_functions(functions: dict[str, Tool], name: str, arguments: dict[str, Any], wanted: CallResult) -> None:
    assert one(calling(functions[name], timeout=0.2), functions[name], **arguments) == wanted


def test_arguments_are_checked_first(functions: dict[str, Tool]) -> None:
    result = one(OriginCaller(), functions["add"], a="many")
    assert not result.ok
    assert "the arguments do not fit" in result.error
    assert "a" in result.error
    assert result.observation.startswith("error: ")


def test_functions_that_cannot_be_found_again() -> None:
    tool = Tool("here", "shout", origin=Origin("function", "nowhere.at.all:shout"))
    assert "cannot be imported" in one(calling(tool), tool).error
    assert one(OriginCaller(functions={tool.id: lambda: "HO"}), tool) == CallResult(True, "HO")
    assert "it is not known how" in one(OriginCaller(), Tool("a", "b")).error


def test_long_answers_are_cut() -> None:
    tool = Tool("here", "long")
    result = one(OriginCaller(CallOptions(max_chars=10), {tool.id: lambda: "x" * 25}), tool)
    assert result.content == result.shortened(10) == "x" * 10 + " … (15 more characters)"
    assert result.missing == 15
    assert result.shortened(4) == "xxxx … (21 more characters)"  # of all that there was, not of what was kept
    failed = CallResult(False, "y" * 30, "no")
    assert failed.shortened(20) == "error: no\n" + "y" * 10 + " … (20 more characters)"
    assert failed.shortened(40) == failed.observation


def test_a_failure_with_a_long_answer_says_how_much_is_missing(operations: dict[str, Tool]) -> None:
    whole = one(calling(operations["missing"]), operations["missing"])
    result = one(calling(operations["missing"], max_chars=50), operations["missing"])
    assert (result.ok, result.missing) == (False, len(whole.content) - 50)
    assert result.shortened(30) == f"{whole.observation[:30]} … ({len(whole.observation) - 30:,} more characters)"


class Echo(BaseHTTPRequestHandler):
    """Tells what it was sent."""

    def answer(self) -> None:
        parts = urlsplit(self.path)
        if parts.path == "/slow":
            time.sleep(0.5)
            return
        if parts.path in ("/drip", "/drip_head"):
            self._drip(b"HTTP/1.0 200 OK\r\n" + (b"\r\n" if parts.path == "/drip" else b"X-Long: "))
            return
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        told = {"method": self.command, "path": parts.path, "query": parse_qsl(parts.query), "body": body}
        told["headers"] = {key.lower(): value for key, value in self.headers.items()}
        text = json.dumps(told).encode()
        if parts.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/picture")
            self.end_headers()
            return
        self.send_response(404 if parts.path == "/missing" else 200)
        kinds = {"/picture": "image/png", "/strange": "text/plain; charset=klingon"}
        self.send_header("Content-Type", kinds.get(parts.path, "application/json"))
        self.send_header("Content-Length", str(len(text) + 100 * (parts.path == "/half")))
        self.end_headers()
        self.wfile.write(text)

    def _drip(self, head: bytes) -> None:
        """Never silent for long, and never done."""
        try:
            self.wfile.write(head)
            for _ in range(40):
                time.sleep(0.05)
                self.wfile.write(b"x")
        except OSError:  # nobody reads any more
            pass

    do_GET = do_POST = do_DELETE = answer

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def web() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    worker = threading.Thread(target=server.serve_forever, daemon=True)
    worker.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    worker.join()


def document(base: str) -> dict[str, Any]:
    """An OpenAPI document with an argument in every place."""

    def parameter(name: str, place: str, kind: str = "string", **more: Any) -> dict[str, Any]:
        return {"name": name, "in": place, "required": place == "path", "schema": {"type": kind}, **more}

    item = {"type": "object", "properties": {"id": {"type": "string"}, "count": {"type": "integer"}}}
    everywhere = [
        parameter("id", "path"),
        parameter("tags", "query", "array"),
        parameter("some", "query", "array", explode=False),
        parameter("deep", "query", "object", style="deepObject"),
        parameter("on", "query", "boolean"),
        parameter("X-Mark", "header"),
        parameter("jar", "cookie"),
    ]
    body = {"content": {"application/json": {"schema": item}}}
    form = {"content": {"application/x-www-form-urlencoded": {"schema": item}}}
    parts = {"content": {"multipart/form-data": {"schema": item}}}
    lines = {"content": {"application/json": {"schema": {"type": "array", "items": {"type": "string"}}}}}
    paths: dict[str, Any] = {
        "/things/{id}": {"post": {"operationId": "put", "parameters": everywhere, "requestBody": body}},
        "/form": {"post": {"operationId": "form", "requestBody": form}},
        "/parts": {"post": {"operationId": "parts", "requestBody": parts}},
        "/lines": {"post": {"operationId": "lines", "requestBody": lines}},
    }
    paths |= {
        f"/{name}": {"get": {"operationId": name}}
        for name in ("missing", "slow", "picture", "strange", "half", "drip", "drip_head")
    }
    paths["/moved"] = {verb: {"operationId": f"{verb}_moved"} for verb in ("get", "post", "delete")}
    return {"openapi": "3.0.0", "info": {"title": "echo"}, "servers": [{"url": base}], "paths": paths}


@pytest.fixture(scope="module")
def operations(web: str) -> dict[str, Tool]:
    return {tool.name: tool for tool in catalogue.read(document(web), ReadOptions())}


def test_every_argument_goes_to_its_place(operations: dict[str, Tool], web: str) -> None:
    caller = OriginCaller(CallOptions(headers={"echo": {"Authorization": "Bearer s3cret"}}, targets={"echo": web}))
    arguments = {"id": "a/b c", "tags": ["x", "y"], "some": ["p", "q"], "deep": {"k": 1}, "on": True}
    result = one(caller, operations["put"], **arguments, **{"X-Mark": "m", "jar": "j k", "id_body": "z", "count": 2})
    told = json.loads(result.content)
    assert (told["method"], told["path"]) == ("POST", "/things/a%2Fb%20c")
    assert told["query"] == [["tags", "x"], ["tags", "y"], ["some", "p,q"], ["deep[k]", "1"], ["on", "true"]]
    assert json.loads(told["body"]) == {"id": "z", "count": 2}
    assert told["headers"]["x-mark"] == "m"
    assert told["headers"]["cookie"] == "jar=j%20k"
    assert told["headers"]["authorization"] == "***"  # it arrived, and the model that reads this does not see it
    assert "s3cret" not in repr(caller.options)


def test_a_header_that_was_given_is_not_the_models_to_write(operations: dict[str, Tool], web: str) -> None:
    caller = OriginCaller(CallOptions(headers={"echo": {"x-mark": "given-by-user"}}, targets={"echo": web}))
    sent = one(caller, operations["put"], id="x", **{"X-Mark": "YOUR_MARK"}).content
    assert "YOUR_MARK" not in sent
    assert json.loads(sent)["headers"]["x-mark"] == "***"  # the user's own, hidden from the model


def test_headers_reach_only_their_namespace(operations: dict[str, Tool]) -> None:
    result = one(calling(operations["form"], headers={"other": {"Authorization": "s3cret"}}), operations["form"])
    assert result.ok
    assert "s3cret" not in result.content


def test_bodies_of_other_kinds(operations: dict[str, Tool]) -> None:
    caller = calling(operations["form"])
    form = json.loads(one(caller, operations["form"], id="a b", count=3).content)
    assert parse_qsl(form["body"]) == [("id", "a b"), ("count", "3")]
    parts = json.loads(one(caller, operations["parts"], id="a b").content)
    assert 'name="id"\r\n\r\na b\r\n' in parts["body"]
    assert parts["headers"]["content-type"].startswith("multipart/form-data; boundary=")
    assert json.loads(json.loads(one(caller, operations["lines"], body=["a"]).content)["body"]) == ["a"]


def test_services_that_fail(operations: dict[str, Tool]) -> None:
    caller = calling(operations["missing"], timeout=0.2, targets={"gone": "http://127.0.0.1:9", "lost": ""})
    missing = one(caller, operations["missing"])
    assert (missing.ok, missing.error) == (False, "404 Not Found")
    assert "did not answer within 0.2 s" in one(caller, operations["slow"]).error
    assert "bytes of image/png" in one(caller, operations["picture"]).content
    get = operations["picture"].origin
    assert "cannot be reached" in one(caller, Tool("gone", "x", origin=get)).error
    assert "give its base URL" in one(caller, Tool("lost", "x", origin=get)).error
    for bad, said in (({"id": ".."}, "may not be"), ({"id": "x", "X-Mark": "a\r\nb: c"}, "one line only")):
        assert said in one(caller, operations["put"], **bad).error


def test_a_response_that_is_too_large_says_that_it_was_not_read_whole(
    operations: dict[str, Tool], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = one(calling(operations["strange"]), operations["strange"]).content
    assert json.loads(whole)["path"] == "/strange"  # a charset that nobody knows is read as UTF-8
    monkeypatch.setattr("toolscout.calling.http_request.MAX_BYTES", 20)
    assert one(calling(operations["strange"]), operations["strange"]).content == (
        f"{whole[:20]}\n(the rest of the response was not read)"
    )
    assert one(calling(operations["picture"]), operations["picture"]).content.startswith(
        "(20 bytes of image/png)\n(the rest"
    )


def test_what_is_written_is_not_sent_elsewhere(operations: dict[str, Tool]) -> None:
    assert "bytes of image/png" in one(calling(operations["get_moved"]), operations["get_moved"]).content
    for name in ("post_moved", "delete_moved"):
        result = one(calling(operations[name]), operations[name])
        assert (result.ok, result.error) == (False, "302 Found (it has moved; give its new address as the target)")


def test_a_response_that_ends_early_says_so(operations: dict[str, Tool]) -> None:
    assert one(calling(operations["half"]), operations["half"]).content.endswith(
        "}\n(the response ended before it was whole)"
    )


@pytest.mark.timing
@pytest.mark.parametrize("name", ["drip", "drip_head"])
def test_a_server_that_drips_does_not_answer_in_time(operations: dict[str, Tool], name: str) -> None:
    began = time.monotonic()
    result = one(calling(operations[name], timeout=0.3), operations[name])
    assert (result.ok, result.error) == (False, "the server did not answer within 0.3 s")
    assert time.monotonic() - began < 1.5


def test_what_a_server_echoes_has_no_secrets(operations: dict[str, Tool], web: str) -> None:
    headers = {"X-Key": "TOPSECRET", "Authorization": "Bearer abc-def-ghi", "X-Odd": 'quote"d-key', "X-Mode": "post"}
    options = CallOptions(headers={"echo": headers}, env={"echo": {"KEY": "variable"}}, targets={"echo": web})
    caller = OriginCaller(options)
    for told in (one(caller, operations["missing"]), one(caller, operations["form"], id="not abc-def-ghi variable")):
        assert not [word for word in ("TOPSECRET", "abc-def-ghi", "d-key", "variable") if word in told.observation]
        assert "***" in told.observation
        assert '"post"' in told.content  # too short to be looked for
    tool = Tool("here", "break")
    broken = OriginCaller(
        CallOptions(env={"here": {"KEY": "TOPSECRET"}}), {tool.id: lambda: {}["x" * 580 + "TOPSECRET"]}
    )
    assert "TOPS" not in one(broken, tool).error


@pytest.mark.parametrize(
    "target",
    [
        "http://user:PASSWORD@localhost",
        "user:PASSWORD@127.0.0.1:8765",
        "http://127.0.0.1:9/key PASSWORD",
        "http://user:PASSWORD@\u2100.example",
        "http://[PASSWORD",
    ],
)
def test_a_malformed_target_is_not_quoted(operations: dict[str, Tool], target: str) -> None:
    error = one(OriginCaller(CallOptions(targets={"echo": target})), operations["form"]).error
    assert "PASSWORD" not in error
    assert "malformed" in error or "give its base URL" in error


@pytest.mark.parametrize("value", ["\u20ac-key", "two\nlines"])
def test_a_malformed_header_is_told_as_such(operations: dict[str, Tool], web: str, value: str) -> None:
    caller = OriginCaller(CallOptions(headers={"echo": {"X-Key": value}}, targets={"echo": web}))
    assert one(caller, operations["form"]).error.startswith("the address or a header is malformed")


SERVER = """
import json, os, sys

def answer(method, params):
    if method == "initialize":
        about = {"name": "adder", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": about}
    if method == "tools/list":
        return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("add", "shape", "fail")]}
    if method == "tools/call" and params["name"] == "add":
        return {"content": [{"type": "text", "text": str(params["arguments"]["a"] + params["arguments"]["b"])}]}
    if method == "tools/call" and params["name"] == "shape":
        return {"content": [], "structuredContent": {"sides": 3}}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": "no luck " + os.environ["LUCK"]}], "isError": True}

for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        found = answer(asked["method"], asked.get("params") or {})
        told = {"result": found} if found else {"error": {"code": -32601, "message": "unknown"}}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **told}), flush=True)
"""


def test_an_mcp_server_is_called(tmp_path: Path) -> None:
    path = tmp_path / "server.py"
    path.write_text(SERVER)
    origin = Origin("mcp", f"{sys.executable} {path}", {"tool": "add", "transport": "stdio"})
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    caller = OriginCaller(CallOptions(env={"adder": {"LUCK": "today"}}, targets={"adder": origin.target}))
    assert one(caller, Tool("adder", "add", input_schema=schema, origin=origin), a=2, b=3) == CallResult(True, "5")
    failed = one(caller, Tool("adder", "fail", origin=Origin("mcp", origin.target)))
    assert failed == CallResult(False, "", "no luck today")
    assert one(caller, Tool("adder", "shape", origin=Origin("mcp", origin.target))).content == '{"sides": 3}'


def test_mcp_servers_that_cannot_be_called() -> None:
    hidden = Tool("a", "b", origin=Origin("mcp", "server --token ***"))
    assert "give it again" in one(calling(hidden, timeout=5), hidden).error
    ends = Tool("a", "b", origin=Origin("mcp", f"{sys.executable} -c 'import sys; sys.exit(\"no key\")'"))
    result = one(calling(ends, timeout=5), ends)
    assert not result.ok
    assert "no key" in result.error
    missing = Tool("a", "b", origin=Origin("mcp", "no-such-command-here"))
    assert "no command" in one(calling(missing), missing).error
