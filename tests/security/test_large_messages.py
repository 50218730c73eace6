"""Large messages are read in their caller's turn and hold a bounded number of values; sessions are all counted."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tests.serving.http_app import served
from toolscout.serving import request_bodies
from toolscout.serving.gateway.transports import MAX_VALUES, PATH, _Sessions, values_in
from toolscout.serving.limits import ServeOptions


@pytest.mark.parametrize(("size", "aside"), [(10, False), (100_000, True)])
def test_a_large_body_is_read_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, aside: bool
) -> None:
    read, threads = request_bodies.record, []

    def noted(body: bytes) -> dict[str, Any]:
        threads.append(threading.current_thread().name)
        return read(body)

    monkeypatch.setattr(request_bodies, "record", noted)
    with served(tmp_path) as server:
        for path in ("/search", "/page/search"):
            assert server.post(path, {"request": "email " * size}).status_code == 200
    assert [name.startswith("toolscout-serve") for name in threads] == [aside, aside]


def test_a_tool_may_not_be_larger_than_others_wait_for(tmp_path: Path) -> None:
    many = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(20_000)}}
    large = {"namespace": "mail", "name": "large", "inputSchema": many}
    with served(tmp_path) as server:
        answers = [
            server.post("/tools", {"tools": [large]}),
            server.post("/page/add", {"name": "t.jsonl", "text": json.dumps(large)}),
        ]
        assert "mail/large" not in server.scout.store.ids()
    for answer in answers:
        assert answer.status_code == 422
        assert f"{request_bodies.MAX_TOOL_CHARS:,} characters" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("body", "values"),
    [
        (json.dumps({"text": 'a,b,[c]{d},"e\\,' * 1000}), 1),
        (json.dumps([0] * 1000), 1000),
        (json.dumps([[]] * 1000), 2000),
        (json.dumps({"a": [{"b": 1}, {"c": 2}]}), 5),
    ],
)
def test_values_are_counted_outside_of_texts(body: str, values: int) -> None:
    assert values_in(body.encode()) == values


@pytest.mark.timing
@pytest.mark.parametrize("body", [b'"\\"' * 300_000, b'\\"' * 400_000, b'"' * 1_000_001, b'{"a' + b"\\" * 1_000_000])
def test_values_are_counted_in_linear_time(body: bytes) -> None:
    began = time.perf_counter()
    values_in(body)
    assert time.perf_counter() - began < 1


def test_a_message_may_not_hold_any_number_of_values() -> None:
    assert values_in(json.dumps({"cells": [[1, 2, 3]] * 5_000}).encode()) < MAX_VALUES
    assert values_in(json.dumps({"x": [[]] * 300_000}).encode()) > MAX_VALUES


def test_a_session_is_forgotten_when_it_ends_and_not_before() -> None:
    """A 404 of another address, or of another caller's session, would make room for sessions that are not counted."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        ended = scope["path"] == PATH and scope["method"] == "DELETE"
        await Response(status_code=200 if ended else 404)(scope, receive, send)

    async def main() -> list[bool]:
        sessions = _Sessions(app, ServeOptions())
        kept = []

        async def nothing(_: Any = None) -> dict[str, Any]:
            return {"type": "http.disconnect"}

        async def ask(who: str, method: str, path: str) -> None:
            headers = [(b"mcp-session-id", b"mine")]
            scope = {"type": "http", "method": method, "path": path, "headers": headers, "user": None}
            await sessions(who, scope, nothing, nothing)  # type: ignore[arg-type]
            kept.append("mine" in sessions._by_id)

        from toolscout.serving.gateway.transports import _Session

        sessions._by_id["mine"] = _Session("ann", None)
        await ask("ann", "GET", "/nope")
        await ask("bob", "DELETE", PATH)
        await ask("ann", "DELETE", PATH)
        return kept

    assert anyio.run(main) == [True, True, False]
