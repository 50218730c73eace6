"""Messages of every broken kind: each that can be answered is, and the gateway lives on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
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


class Received:
    """The answers to a conversation so far."""

    def __init__(self, sent: list[str]) -> None:
        self._ids, self._unreadable = expected(sent)
        self._cancelled = {
            repr(message["params"].get("requestId")) for message in map(parsed, sent) if cancels(message)
        }
        self.messages: list[dict[str, Any]] = []
        self._answers: Counter[str] = Counter()
        self._refused = 0

    def read(self, ear: IO[str]) -> None:
        """Take answers until all that are due have come, or until there are no more."""
        for line in ear:
            message = json.loads(line)
            self.messages.append(message)
            if message.get("id") is not None:
                self._answers[repr(message["id"])] += 1
            elif "id" in message:
                self._refused += 1
            if "'last'" in self._answers and self._refused >= self._unreadable and not self.missing():
                return

    def missing(self) -> list[str]:
        """The ids that wait for an answer; a request that was cancelled may get one or none."""
        ids = self._ids.items()
        return [key for key, count in ids if self._answers[key] < count and key not in self._cancelled]

    def check(self) -> None:
        assert not self.missing()
        assert self._refused >= self._unreadable
        for message in self.messages:
            if "error" in message:
                assert message["error"]["message"]
                assert message["error"]["code"] != types.INTERNAL_ERROR, message
        assert "tools" in next(message["result"] for message in self.messages if message.get("id") == "last")


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
    mouth.write("".join(line + "\n" for line in sent))
    mouth.flush()


@pytest.mark.parametrize("modern", [False, True], ids=["handshake", "modern"])
def test_broken_messages_are_answered(tmp_path: Path, modern: bool) -> None:
    sent = conversation(500, 7, modern)

    received = Received(sent)

    async def main() -> None:
        ours, theirs = os.pipe(), os.pipe()

        def talk() -> None:
            with os.fdopen(ours[1], "w") as mouth:
                speaker = threading.Thread(target=say, args=(mouth, sent))
                speaker.start()
                received.read(ear)
                speaker.join()

        with os.fdopen(theirs[0]) as ear:  # open until the last word: nobody may be cut short
            async with gateway(tmp_path / "t.db", config(tmp_path)) as made:
                incoming = anyio.wrap_file(os.fdopen(ours[0], encoding="utf-8", errors="replace"))
                outgoing = anyio.wrap_file(os.fdopen(theirs[1], "w", encoding="utf-8"))
                with anyio.fail_after(20):
                    async with stdio_server(incoming, outgoing) as streams, anyio.create_task_group() as tasks:
                        tasks.start_soon(serve_streams, made, *streams)
                        await anyio.to_thread.run_sync(talk, abandon_on_cancel=True)
                await incoming.aclose()
                await outgoing.aclose()

    anyio.run(main)
    received.check()


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
        received = Received(sent)
        received.read(process.stdout)
        speaker.join()
        mouth.close()
        assert process.wait(30) == 0
        killer.cancel()
    received.check()
