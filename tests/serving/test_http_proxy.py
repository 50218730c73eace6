"""The proxy: fewer tools go to the model, everything else passes as it is, in both directions."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.serving.http_app import TOOLS, Served, served
from tests.toys import HashedWords
from toolscout import Scout, Tool
from toolscout.core import vendor_formats
from toolscout.errors import BadRequest
from toolscout.serving import vendor_tool_search
from toolscout.serving.limits import ServeOptions
from toolscout.serving.llm_proxy import last_words, named, read_tool

STREAM = [b'data: {"choices":\xc3', b"\xa9}\r\n\r\n", b"data: [DONE]\n\n"]


class Model(BaseHTTPRequestHandler):
    """Stands in for a model's server: remembers what it is sent, and streams bytes that are no whole characters."""

    seen: list[tuple[str, dict[str, str], bytes]] = []  # noqa: RUF012

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
        refused = b"refuse me" in body
        self.send_response(429 if refused else 200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("X-Request-Id", "abc")
        self.send_header("Connection", "close")
        self.end_headers()
        for part in [b'{"error": "slow down"}'] if refused else STREAM:
            self.wfile.write(part)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Model) as listening:
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}/v1"
        listening.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def server(upstream: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    options = ServeOptions(rate=0, upstream=upstream, upstream_key="sk-ours", keep=3, pinned=("tool_1",))
    with served(tmp_path_factory.mktemp("proxy"), options) as running:
        yield running


def openai_tools() -> list[dict[str, Any]]:
    made = [{"type": "function", "function": {"name": f"tool_{n}", "description": f"number {n}"}} for n in range(20)]
    lion = {"type": "function", "function": {"name": "feed_lion", "description": "gives the lion its dinner"}}
    return [*made, lion, {"type": "web_search"}]


def sent() -> dict[str, Any]:
    return dict(json.loads(Model.seen[-1][2]))


def names(tools: list[dict[str, Any]]) -> list[str]:
    return [tool.get("function", tool).get("name", tool.get("type")) for tool in tools]


def test_openai_requests_keep_the_right_tools(server: Served) -> None:
    history = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "tool_7"}}]}
    body = {
        "model": "m",
        "messages": [history, {"role": "user", "content": [{"type": "text", "text": "gives the lion dinner"}]}],
        "tools": openai_tools(),
        "tool_choice": {"type": "function", "function": {"name": "tool_9"}},
        "stream": True,
        "unknown": {"kept": 1.5},
    }
    answer = server.post("/v1/chat/completions?beta=1", body)
    assert (answer.status_code, answer.content) == (200, b"".join(STREAM))
    assert (answer.headers["content-type"], answer.headers["x-request-id"]) == ("text/event-stream", "abc")
    assert Model.seen[-1][0] == "/v1/chat/completions?beta=1"
    kept = names(sent()["tools"])
    assert {"feed_lion", "tool_1", "tool_7", "tool_9", "web_search"} <= set(kept)
    assert len(kept) <= 3 + 4
    assert kept == [name for name in names(openai_tools()) if name in kept]  # in their order, for the prompt cache
    assert {**sent(), "tools": 0} == {**body, "tools": 0}


def test_anthropic_requests_too(server: Served) -> None:
    tools = [{"name": f"tool_{n}", "description": "x", "input_schema": {"type": "object"}} for n in range(20)]
    tools.append({"name": "feed_lion", "description": "gives the lion its dinner", "input_schema": {"type": "object"}})
    messages = [
        {"role": "user", "content": "gives the lion dinner"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "tool_4", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "done"}]},
    ]
    body = {"model": "m", "messages": messages, "tools": tools, "tool_choice": {"type": "tool", "name": "tool_9"}}
    assert server.post("/v1/messages", body).status_code == 200
    kept = names(sent()["tools"])
    assert {"feed_lion", "tool_4", "tool_9", "tool_1"} <= set(kept)
    assert len(kept) <= 6


def test_what_needs_no_cutting_passes_byte_for_byte(server: Served) -> None:
    few, many = openai_tools()[:10], openai_tools()
    for body in (
        {"tools": few, "messages": [{"role": "user", "content": "lion"}]},
        {"tools": many, "messages": []},
        {},
    ):
        raw = json.dumps(body, indent=3).encode()
        headers = {"Content-Type": "application/json", **server.headers("user")}
        assert server.client.post("/v1/chat/completions", content=raw, headers=headers).status_code == 200
        assert Model.seen[-1][2] == raw


def test_errors_of_the_model_pass_too(server: Served) -> None:
    answer = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "refuse me"}]})
    assert (answer.status_code, answer.content) == (429, b'{"error": "slow down"}')


def test_a_key_of_ours_never_leaves(server: Served) -> None:
    server.post("/v1/messages", {}, **{"X-Custom": "1"})
    headers = Model.seen[-1][1]
    assert (headers["authorization"], headers["x-api-key"], headers["x-custom"]) == ("Bearer sk-ours", "sk-ours", "1")
    assert not any(key in str(headers) for key in server.keys.values())
    own = {"X-Toolscout-Key": server.keys["user"], "Authorization": "Bearer sk-theirs"}
    assert server.client.post("/v1/messages", json={}, headers=own).status_code == 200
    headers = Model.seen[-1][1]
    assert headers["authorization"] == "Bearer sk-theirs"
    assert not any(key in str(headers) for key in server.keys.values())
    twice = {"X-Toolscout-Key": server.keys["user"], "Authorization": f"Bearer {server.keys['user']}"}
    assert server.client.post("/v1/messages", json={}, headers=twice).status_code == 200
    assert not any(key in str(Model.seen[-1][1]) for key in server.keys.values())
    assert server.client.post("/v1/messages", json={}).status_code == 401


@pytest.mark.parametrize("odd", [
    {"tools": 5},
    {"tools": [1] * 30, "messages": 3},
    {"tools": [{}] * 30, "messages": [{"role": "user", "content": 7}]},
    {"tools": [{"name": 3}] * 30, "messages": [{"role": "user", "content": "x"}], "tool_choice": {"allowed_tools": 4}},
    {"tools": [{"type": [], "name": "\x00"}] * 30, "messages": ["x", {"role": "user", "content": [{"type": "text"}]}]},
])  # fmt: skip
def test_odd_requests_are_for_the_model_to_judge(server: Served, odd: dict[str, Any]) -> None:
    assert server.post("/v1/chat/completions", odd).status_code == 200
    assert sent() == odd


def test_an_unreachable_model_is_a_problem(tmp_path: Path) -> None:
    with served(tmp_path, ServeOptions(rate=0, upstream="http://127.0.0.1:9/v1"), keyed=False) as server:
        answer = server.post("/v1/messages", {})
        assert (answer.status_code, answer.json()["code"]) == (502, "bad_gateway")


def test_reading_a_request() -> None:
    assert last_words({"messages": [{"role": "user", "content": "one"}, {"role": "user", "content": []}]}) == "one"
    assert last_words({"messages": None}) == ""
    assert list(named({"tool_choice": "auto", "messages": 1})) == []
    assert read_tool({"type": "computer_2026", "name": "computer"}) is None


def test_client_executed_search_of_both_vendors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolscout.models.encoders.onnx_encoder.Encoder", HashedWords)
    with Scout.open(tmp_path / "tools.db") as scout:
        scout.add(TOOLS)
        offered = vendor_tool_search.anthropic_tools(scout.store.tools())
        assert (offered[0]["name"], "defer_loading" in offered[0]) == ("search_tools", False)
        assert all(tool["defer_loading"] for tool in offered[1:])
        use = {"type": "tool_use", "id": "toolu_1", "name": "search_tools", "input": {"query": "feed the lion dinner"}}
        result = vendor_tool_search.anthropic_result(scout, use, 1)
        reference = {"type": "tool_reference", "tool_name": vendor_formats.wire_name("zoo/feed_lion")}
        assert result == {"type": "tool_result", "tool_use_id": "toolu_1", "content": [reference]}
        assert reference["tool_name"] in {tool["name"] for tool in offered}
        call = {"type": "tool_search_call", "call_id": "call_1", "arguments": {"query": "feed the lion dinner"}}
        output = vendor_tool_search.openai_output(scout, call, 1)
        assert (output["type"], output["call_id"], output["execution"]) == ("tool_search_output", "call_1", "client")
        assert [tool["name"] for tool in output["tools"]] == [reference["tool_name"]]
        assert vendor_tool_search.openai_tool()["execution"] == "client"
        scout.remove([tool.id for tool in TOOLS])
        nothing = vendor_tool_search.anthropic_result(scout, use)
        assert nothing["content"][0]["type"] == "text"
        for wrong in ({}, {"input": {"query": 1}}, {"input": []}):
            with pytest.raises(BadRequest):
                vendor_tool_search.anthropic_result(scout, wrong)


def test_tools_of_a_request_are_read() -> None:
    made = read_tool({"name": "a", "input_schema": {"type": "object"}})
    assert isinstance(made, Tool)
