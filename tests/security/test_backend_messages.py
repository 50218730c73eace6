"""Messages of MCP servers: large ones are parsed in pieces and as json would, and what is too much is refused."""

from __future__ import annotations

import json
import math
import random
import threading
import time
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp.shared.inbound import find_invalid_x_mcp_header, x_mcp_header_map
from mcp.shared.message import SessionMessage

from toolscout.catalogue.mcp import messages as messages
from toolscout.catalogue.mcp.messages import Guard, Throttle, count_values, loads, parse_message, trim_message

pytestmark = pytest.mark.timing


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "LARGE", 0)
    monkeypatch.setattr(messages, "_PIECES", (4, 12))
    monkeypatch.setattr(messages, "_MAX_FAILURES", 10_000_000)


def made_up(dice: random.Random, depth: int = 0) -> Any:
    kind = dice.randrange(9 if depth < 6 else 6)
    if kind == 0:
        return dice.choice([None, True, False])
    if kind == 1:
        return dice.randrange(-(10**6), 10**6)
    if kind == 2:
        return dice.uniform(-1e9, 1e9)
    if kind in (3, 4, 5):
        return "".join(dice.choice('ab,:"\\[]{}\n é漢😀') for _ in range(dice.randrange(12)))
    count = dice.randrange(7)
    if kind == 6:
        return [made_up(dice, depth + 1) for _ in range(count)]
    return {f"{made_up(dice, 9)}{number}": made_up(dice, depth + 1) for number in range(count)}


@pytest.mark.usefixtures("small_pieces")
def test_pieces_are_read_as_json_reads_the_whole() -> None:
    dice = random.Random(19)
    for _ in range(1_500):
        value = made_up(dice)
        text = json.dumps(value, ensure_ascii=dice.random() < 0.5, indent=dice.choice([None, None, 1]))
        assert loads(text) == value
        assert loads(text.encode()) == value


@pytest.mark.usefixtures("small_pieces")
def test_broken_pieces_are_refused_as_json_refuses_them() -> None:
    dice = random.Random(20)
    refused = 0
    for _ in range(3_000):
        text = list(json.dumps(made_up(dice)))
        for _ in range(dice.randrange(1, 4)):
            place = dice.randrange(len(text) + 1)
            text[place : place + dice.randrange(2)] = dice.choice([*'{}[],:"1 ', ""])
        broken = "".join(text)
        try:
            expected = json.loads(broken, strict=False)
        except ValueError:
            refused += 1
            with pytest.raises(ValueError):  # noqa: PT011 - its words differ from place to place
                loads(broken)
        else:
            assert loads(broken) == expected
    assert refused > 1_000


@pytest.mark.parametrize(
    "data",
    [
        b"[" + b"[]," * 5_000_000 + b"1]",
        b"[" * 5_000_000,
        b'{"a":' * 2_000_000,
        ("[" + ",".join(["[" * 110 + '"' + "y" * 20_000 + '"' + "]" * 110] * 700) + "]").encode(),
        json.dumps({f"k{number}": 1 for number in range(900_000)}).encode(),
        b'["' + b"x" * 15_000_000,
    ],
    ids=["lists", "brackets", "objects", "chains", "keys", "unended"],
)
def test_other_threads_run_while_a_large_message_is_parsed(data: bytes) -> None:
    failures: list[str] = []

    def parse() -> None:
        try:
            loads(data)
        except ValueError as error:
            failures.append(str(error))

    def stalled() -> float:
        worker = threading.Thread(target=parse)
        began, stall = time.monotonic(), 0.0
        worker.start()
        while worker.is_alive():
            before = time.monotonic()
            time.sleep(0.005)
            stall = max(stall, time.monotonic() - before)
        assert time.monotonic() - began < 30
        return stall

    # Other tests run on this machine and take its cores now and then, though not three times in a row.
    assert stalled() < 0.6 or stalled() < 0.6 or stalled() < 0.6
    assert failures


def test_numbers_that_python_cannot_hold_do_not_spoil_a_message() -> None:
    assert loads('{"a": 1' + "0" * 5_000 + ', "b": NaN, "c": 1e999, "d": 7}')["d"] == 7


def test_large_messages_other_than_results_are_reduced() -> None:
    note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "x"}}
    assert trim_message(note) is None
    assert trim_message({**note, "id": 1}) == {"jsonrpc": "2.0", "id": 1, "method": "notifications/message"}
    failed = trim_message({"jsonrpc": "2.0", "id": 1, "error": {"code": 5, "message": "m" * 99_999, "data": [1]}})
    assert failed["error"] == {"code": 5, "message": "m" * messages.MAX_ERROR_CHARS}
    result = {"jsonrpc": "2.0", "id": 1, "result": {"a": 1}}
    assert trim_message(result) is result


def test_what_is_no_message_fails_the_request_that_it_answers() -> None:
    assert parse_message({"id": 1, "level": "info"}) is None  # a log line
    assert parse_message([]) is None
    answer = parse_message({"jsonrpc": "2.0", "id": 1, "result": []})
    assert isinstance(answer, types.JSONRPCError)
    assert (answer.id, answer.error.code) == (1, messages.REFUSED)


def taken(guard: Guard, message: dict[str, Any]) -> Any:
    async def main() -> Any:
        made = parse_message(message)
        assert made is not None
        item = await guard.incoming(SessionMessage(made))
        return item and item.message

    return anyio.run(main)


def test_the_sdk_gets_no_tool_that_it_could_stumble_over() -> None:
    odd: list[Any] = [7, {"name": 5}, {"name": "a", "inputSchema": True}, {"name": "b", "inputSchema": {"type": []}}]
    headed = {"type": "string", "x-mcp-header": "Region", "pattern": "(a+)+$"}
    inner = {"type": "object", "properties": {"place": headed, "other": True}, "required": 5}
    odd.append({"name": "c", "inputSchema": {"properties": {"in": inner, "bad": {"x-mcp-header": 5}}}})
    guard = Guard()
    result = {"tools": odd, "nextCursor": "2", "_meta": {"toolscout/page": "forged", "kept": 1}}
    answer = taken(guard, {"jsonrpc": "2.0", "id": 1, "result": result})
    place = {"type": "string", "x-mcp-header": "Region"}
    properties = {"in": {"type": "object", "properties": {"place": place}}}
    assert answer.result["tools"] == [{"name": "c", "inputSchema": {"type": "object", "properties": properties}}]
    assert answer.result["_meta"]["kept"] == 1
    page = types.ListToolsResult.model_validate(answer.result)
    assert guard.tools_of(page) == odd
    assert guard.tools_of(page) == []  # once


def test_parameters_that_are_sent_as_headers_stay_known() -> None:
    region = {"type": "string", "x-mcp-header": "Region", "description": "where"}
    inner = {"type": "object", "properties": {"n": {"type": "integer", "x-mcp-header": "N"}, "m": {"type": "number"}}}
    schema = {"type": "object", "properties": {"region": region, "inner": inner, "other": {"type": "array"}}}
    (sent,) = messages._tools_with_headers([{"name": "a", "inputSchema": schema}, {"name": "b", "inputSchema": {}}])
    assert find_invalid_x_mcp_header(sent["inputSchema"]) is None
    assert x_mcp_header_map(sent["inputSchema"]) == x_mcp_header_map(schema) != {}


def test_pages_that_nobody_claims_are_forgotten() -> None:
    guard = Guard()
    for number in range(50):
        taken(guard, {"jsonrpc": "2.0", "id": number, "result": {"tools": [{}] * 10}})
    assert len(guard._pages) <= 4


def test_requests_of_a_server_that_does_not_read_the_answers_are_dropped() -> None:
    guard = Guard()
    asked = [taken(guard, {"jsonrpc": "2.0", "id": f"s{number}", "method": "ping"}) for number in range(300)]
    assert sum(one is not None for one in asked) == messages.MAX_SERVER_REQUESTS
    guard.sent(SessionMessage(types.JSONRPCResponse(jsonrpc="2.0", id="s0", result={})))
    assert taken(guard, {"jsonrpc": "2.0", "id": "again", "method": "ping"}) is not None


def test_values_are_counted_no_further_than_needed() -> None:
    assert count_values({"a": [1, 2, {"b": None}]}, 100) == 6
    assert count_values([[]] * 1_000_000, 100) == 101


def test_a_server_that_sends_too_fast_is_slowed() -> None:
    async def main() -> None:
        throttle = Throttle(messages=100, size=math.inf)
        began = anyio.current_time()
        for _ in range(100):
            await throttle.spend(messages=1)
        assert anyio.current_time() - began < 0.5  # a second's worth is free
        for _ in range(50):
            await throttle.spend(messages=1)
        assert anyio.current_time() - began > 0.4
        throttle.owe(0.3)
        began = anyio.current_time()
        await throttle.spend()
        assert anyio.current_time() - began >= 0.29

    anyio.run(main)
