"""Messages of every broken kind: each that can be answered is, and the gateway lives on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import IO, Any

import anyio
import mcp_types as types
import pytest
from mcp.server.stdio import stdio_server

from tests.serving.gateways import gateway
from tests.serving.mcp_fuzz import lines, opening
from toolscout.serving.gateway.transports import serve_streams

SOURCE = 'def double(n: int) -> int:\n    """Double a number."""\n    return 2 * n\n'
CLOSING = {"jsonrpc": "2.0", "id": "last", "method": "tools/list", "params": {}}


def config(folder: Path) -> dict[str, Any]:
    (folder / "toys_here.py").write_text(SOURCE)
    return {"functions": {"toys": str(folder / "toys_here.py")}}


def expected(sent: list[str]) -> tuple[Counter[str], int]:
    """How many answers each id must get, and how many lines are no messages, by the SDK's own reading."""
    ids: Counter[str] = Counter()
    unreadable = 0
    for line in sent:
        try:
            message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            unreadable += 1
            continue
        if isinstance(message, types.JSONRPCRequest):
            ids[repr(message.id)] += 1
    return ids, unreadable


def check(sent: list[str], received: list[dict[str, Any]]) -> None:
    ids, unreadable = expected(sent)
    answers = Counter(repr(message["id"]) for message in received if message.get("id") is not None)
    cancelled = {repr(message["params"].get("requestId")) for message in map(parsed, sent) if cancels(message)}
    missing = [key for key in ids if answers[key] < ids[key] and key not in cancelled]
    assert not missing
    refused = [message for message in received if message.get("id", "") is None]
    assert len(refused) >= unreadable
    for message in received:
        if "error" in message:
            assert message["error"]["message"]
            assert message["error"]["code"] != types.INTERNAL_ERROR, message
    assert "tools" in next(message["result"] for message in received if message.get("id") == "last")


def parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def cancels(message: Any) -> bool:
    return (
        isinstance(message, dict)
        and message.get("method") == "notifications/cancelled"
        and isinstance(message.get("params"), dict)
    )


def conversation(count: int, seed: int, modern: bool) -> list[str]:
    first = opening(modern)
    last = {**CLOSING, "params": {"_meta": first["params"]["_meta"]}} if modern else CLOSING
    greeting = [] if modern else [json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"})]
    return [json.dumps(first), *greeting, *lines(count, seed, modern), json.dumps(last)]


def say(mouth: IO[str], sent: list[str]) -> None:
    mouth.write("".join(line + "\n" for line in sent[:-1]))
    mouth.flush()
    time.sleep(0.5)  # what was asked before is answered when the last is
    mouth.write(sent[-1] + "\n")
    mouth.flush()


@pytest.mark.parametrize("modern", [False, True], ids=["handshake", "modern"])
def test_broken_messages_are_answered(tmp_path: Path, modern: bool) -> None:
    sent = conversation(500, 7, modern)

    async def main() -> list[str]:
        ours, theirs = os.pipe(), os.pipe()
        got: list[str] = []

        def talk() -> None:
            mouth = os.fdopen(ours[1], "w")
            speaker = threading.Thread(target=say, args=(mouth, sent))
            speaker.start()
            with mouth, os.fdopen(theirs[0]) as ear:
                for line in ear:
                    got.append(line)
                    if '"id":"last"' in line:
                        break
                speaker.join()

        async with gateway(tmp_path / "t.db", config(tmp_path)) as made:
            incoming = anyio.wrap_file(os.fdopen(ours[0], encoding="utf-8", errors="replace"))
            outgoing = anyio.wrap_file(os.fdopen(theirs[1], "w", encoding="utf-8"))
            with anyio.fail_after(20):
                async with stdio_server(incoming, outgoing) as streams, anyio.create_task_group() as tasks:
                    tasks.start_soon(serve_streams, made, *streams)
                    await anyio.to_thread.run_sync(talk, abandon_on_cancel=True)
            await incoming.aclose()
            await outgoing.aclose()
        return got

    received = [json.loads(line) for line in anyio.run(main)]
    check(sent, received)


@pytest.mark.slow
@pytest.mark.parametrize("modern", [False, True], ids=["handshake", "modern"])
def test_ten_thousand_broken_messages_over_stdio(tmp_path: Path, modern: bool) -> None:
    sent = conversation(5_000, 11 + modern, modern)
    (tmp_path / "c.json").write_text(json.dumps(config(tmp_path)))
    words = ["--store", str(tmp_path / "t.db"), "mcp", "--config", str(tmp_path / "c.json"), "--retriever", "bm25"]
    with subprocess.Popen(
        [sys.executable, "-m", "toolscout", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        mouth = process.stdin
        killer = threading.Timer(300, process.kill)
        killer.start()

        speaker = threading.Thread(target=say, args=(mouth, sent))
        speaker.start()
        received = []
        for line in process.stdout:
            received.append(json.loads(line))
            if received[-1].get("id") == "last":
                break
        speaker.join()
        mouth.close()
        assert process.wait(30) == 0
        killer.cancel()
    check(sent, received)
