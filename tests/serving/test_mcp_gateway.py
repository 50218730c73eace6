"""The gateway end to end, with the SDK's own client, before real servers over stdio and HTTP."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError, StdioServerParameters

from tests.serving.gateways import QUICK, RAW, called, command, found, gateway, names, serving, small_http, soon, text
from tests.toys import HashedWords
from toolscout.retrievers.dense import Dense
from toolscout.search.live_index import LiveIndex
from toolscout.serving.gateway.server import GatewayOptions
from toolscout.serving.gateway.sources import BackendOptions, _in_daemon_thread
from toolscout.serving.gateway.transports import make_app
from toolscout.serving.limits import ServeOptions

pytestmark = pytest.mark.timing

META = ["search_tools", "describe_tool", "call_tool"]


def test_five_servers_at_once_over_http(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            small_http("mail") as mail,
            small_http("files") as files,
            small_http("bank", old=True) as bank,
            small_http("music", old=True) as music,
        ):
            servers = {"mail": mail, "files": files, "bank": bank, "music": music}
            servers |= {"weather": command("weather", SECRET="sesame")}
            servers |= {"raw": {"command": sys.executable, "args": [str(RAW), "one"]}}
            document = {"mcpServers": servers}
            async with gateway(tmp_path / "t.db", document, audit=tmp_path / "audit") as made:
                assert made.backends.problems() == {}
                async with serving(make_app(made, ServeOptions())) as url:
                    for mode in ("auto", "legacy"):
                        async with Client(url, mode=mode) as client:
                            await everything_works(client, tmp_path)
                    async with Client(url) as client:
                        await a_server_dies_and_comes_back(client)
        lines = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
        assert {line["action"] for line in lines} == {"search", "describe", "call"}
        assert "Rome" not in (tmp_path / "audit").read_text()

    anyio.run(main)


async def everything_works(client: Client, folder: Path) -> None:
    assert [tool.name for tool in (await client.list_tools()).tools] == META
    told = await found(client, "weather forecast")
    assert told["verdict"] == "use"
    assert names(told)[0].startswith("weather/")
    assert told["searched"] == 27
    for server in ("mail", "files", "bank", "weather", "music"):
        answer = await called(client, f"{server}/get_{server}", {"city": "Rome"})
        assert answer.structured_content["city"] == "Rome"
        assert answer.structured_content["secret"] == ("***" if server == "weather" else None)
    described = await client.call_tool("describe_tool", {"name": "mail/count"})
    assert described.structured_content["inputSchema"]["required"] == ["to"]
    await errors_are_passed_on(client)
    seen: list[Any] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        seen.append((done, total, message))

    for server in ("mail", "bank", "weather"):
        seen.clear()
        await called(client, f"{server}/count", {"to": 2}, progress_callback=progress)
        assert seen == [(1, 2, "at 1"), (2, 2, "at 2")]
        note = folder / f"{server}-{client.protocol_version}"
        with anyio.move_on_after(0.3):
            await called(client, f"{server}/count", {"to": 9, "pause": 9, "note": str(note)})
        await soon(note.exists)


async def errors_are_passed_on(client: Client) -> None:
    failed = await called(client, "mail/delete_mail", {"number": 3})
    assert failed.is_error
    assert "delete_mail" in text(failed)
    wrong = await called(client, "mail/count", {"to": "many"})
    assert wrong.is_error
    assert '"to" must be an integer' in text(wrong)
    assert "call it again" in text(wrong)
    unknown = await called(client, "mail/nothing")
    assert unknown.is_error
    assert "search_tools" in text(unknown)
    with pytest.raises(MCPError, match="Unknown tool: nothing"):
        await client.call_tool("nothing", {})
    loose = await client.call_tool("call_tool", {"name": "mail/count", "arguments": '{"to": 1}'})
    assert loose.structured_content == {"counted": 1}
    empty = await client.call_tool("search_tools", {"query": " "})
    assert empty.is_error
    nothing = await found(client, "quantum chromodynamics")
    assert (nothing["verdict"], nothing["tools"]) == ("nothing_fits", [])


async def a_server_dies_and_comes_back(client: Client) -> None:
    ended = await called(client, "weather/die")
    assert ended.is_error
    assert "weather ended during the call" in text(ended)
    told = await found(client, "weather forecast")
    assert "does not answer" in told["tools"][0]["unavailable"]
    answer = await called(client, "weather/get_weather", {"city": "Rome"})  # waits for the new one
    assert answer.structured_content["city"] == "Rome"
    assert "unavailable" not in (await found(client, "weather forecast"))["tools"][0]


def test_the_command_over_stdio_with_a_file_of_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text('def double(n: int) -> int:\n    """Double a number."""\n    return 2 * n\n')
    config = tmp_path / "servers.json"

    async def main() -> None:
        async with small_http("mail") as mail:
            servers = {"mail": mail, "gone": {"command": "no-such-command"}, "off": {"command": "x", "disabled": True}}
            servers["raw"] = {"command": sys.executable, "args": [str(RAW), "one", str(tmp_path)]}
            config.write_text(json.dumps({"mcpServers": servers, "functions": {"mine": "mine.py"}, "theme": "dark"}))
            words = ["-m", "toolscout", "--store", str(tmp_path / "t.db"), "mcp", "--config", str(config)]
            server = StdioServerParameters(command=sys.executable, args=[*words, "--retriever", "bm25"])
            async with Client(server) as client:
                listed = [tool.name for tool in (await client.list_tools()).tools]
                assert listed == [f"mail__{n}" for n in ("change", "count", "delete_mail", "get_mail", "sleep")] + [
                    "mine__double",
                    "raw__alpha",
                ]
                assert text(await client.call_tool("mine__double", {"n": 21})) == "42"
                assert text(await called(client, "mine/double", {"n": 21})) == "42"
                assert (await client.call_tool("mine__double", {"n": "x"})).is_error
                answer = await client.call_tool("mail__get_mail", {"city": "Rome"})
                assert answer.structured_content is not None
                assert answer.structured_content["city"] == "Rome"
                assert names(await found(client, "double a number"))[0] == "mine/double"
                assert runs(str(tmp_path))
        await soon(lambda: not runs(str(tmp_path)), 5)

    anyio.run(main)


def runs(word: str) -> bool:
    """Whether a raw server with this argument runs."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(path.read_bytes().split(b"\0"))
    return any(str(RAW).encode() in words and word.encode() in words for words in found)


def test_a_list_that_changes_is_found_at_once_and_nothing_is_embedded_twice(tmp_path: Path) -> None:
    async def main() -> None:
        encoder = HashedWords()
        async with small_http("mail") as mail, small_http("bank", old=True) as bank:
            document = {"mcpServers": {"mail": mail, "bank": bank}}
            async with (
                gateway(tmp_path / "t.db", document, retriever=Dense(encoder=encoder)) as made,
                Client(made.server) as client,
            ):
                store = made.backends.scout.store
                await soon(lambda: encoder.encoded == 10)
                for server in ("mail", "bank"):
                    add = {"add": "fly", "description": f"Fly a rocket of {server} to the moon"}
                    await called(client, f"{server}/change", add)

                    async def is_found(server: str = server) -> bool:
                        return f"{server}/fly" in names(await found(client, f"rocket of {server} to the moon"))

                    assert await soon(is_found) < 2
                    before = encoder.encoded
                    change = {"remove": "fly", "add": "fly", "description": f"Dance with {server}"}
                    await called(client, f"{server}/change", change)
                    await soon(lambda s=server: store.get([f"{s}/fly"])[0].description == f"Dance with {s}")
                    await soon(lambda b=before: encoder.encoded == b + 1)
                    await called(client, f"{server}/change", {"remove": "fly"})
                    await soon(lambda s=server: f"{s}/fly" not in store.ids())
                await anyio.sleep(0.2)
                assert encoder.encoded == 14

    anyio.run(main)


def test_a_client_is_told_when_its_list_grows_and_the_list_only_grows(tmp_path: Path) -> None:
    async def main() -> None:
        async with small_http("mail") as mail, small_http("bank", old=True) as bank:
            document = {"mcpServers": {"mail": mail, "bank": bank}}
            few = GatewayOptions(pass_through=12, pins=("bank/count", "not/there"))
            told: list[Any] = []

            async def heard(message: Any) -> None:
                told.append(message)

            async with (
                gateway(tmp_path / "t.db", document, options=few) as made,
                Client(made.server) as client,
                Client(made.server, mode="legacy", message_handler=heard) as old,
                client.listen(tools_list_changed=True) as events,
            ):
                first = [tool.name for tool in (await client.list_tools(cache_mode="refresh")).tools]
                assert [tool.name for tool in (await old.list_tools()).tools] == first
                assert first[0] == "bank__change"
                assert len(first) == 10
                for number, expected in ((1, ["bank__a1"]), (2, ["bank__a1", *META])):
                    await called(client, "bank/change", {"add": f"a{number}", "description": "More"})
                    with anyio.fail_after(2):
                        await anext(events)
                    await soon(lambda n=number: len(told) >= n)
                    listed = [tool.name for tool in (await client.list_tools(cache_mode="refresh")).tools]
                    assert listed == first + expected

    anyio.run(main)


def test_the_same_search_is_the_same_text(tmp_path: Path) -> None:
    async def main() -> None:
        async with small_http("mail") as mail, gateway(tmp_path / "t.db", {"mcpServers": {"mail": mail}}) as made:
            ask = {"query": "letters in the mailbox"}
            async with Client(made.server) as one, Client(made.server, mode="legacy") as two:
                first = text(await one.call_tool("search_tools", ask))
                assert text(await two.call_tool("search_tools", ask)) == first
                assert text(await one.call_tool("search_tools", {**ask, "k": 1})).count('inputSchema"') == 1

    anyio.run(main)


def test_tools_that_are_not_embedded_yet_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with small_http("mail") as mail, gateway(tmp_path / "t.db", {"mcpServers": {"mail": mail}}) as made:
            monkeypatch.setattr(LiveIndex, "words_only", lambda self, allowed=None: 1)
            async with Client(made.server) as client:
                told = json.loads(text(await client.call_tool("search_tools", {"query": "letters in the mailbox"})))
                assert told["notes"][0].startswith(f"1 of {told['searched']} tools have just come and are found by")

    anyio.run(main)


def test_a_flood_is_answered(tmp_path: Path) -> None:
    async def main() -> None:
        async with small_http("mail") as mail, gateway(tmp_path / "t.db", {"mcpServers": {"mail": mail}}) as made:
            told: list[str] = []

            async def ask(client: Client) -> None:
                told.append(text(await client.call_tool("search_tools", {"query": "letters in the mailbox"})))

            async with Client(made.server) as client:
                with anyio.fail_after(10):
                    async with anyio.create_task_group() as tasks:
                        for _ in range(150):
                            tasks.start_soon(ask, client)
                assert len(told) == 150
                assert 64 <= sum('"verdict": "use"' in one for one in told) < 150
                assert all('"verdict"' in one or "too many requests" in one for one in told)
                assert names(await found(client, "letters in the mailbox"))

    anyio.run(main)


SLOW = 'import time\n\ndef slow(n: int) -> int:\n    """Wait long."""\n    time.sleep(60)\n    return n\n'


def test_functions_that_do_not_end_keep_no_one_waiting(tmp_path: Path) -> None:
    (tmp_path / "slow_here.py").write_text(SLOW)
    document = {"functions": {"toys": str(tmp_path / "slow_here.py")}}

    async def main() -> None:
        async with (
            gateway(tmp_path / "t.db", document, backend=replace(QUICK, timeout=30)) as made,
            serving(make_app(made, ServeOptions())) as url,
            Client(url) as client,
            anyio.create_task_group() as tasks,
        ):
            for number in range(50):
                tasks.start_soon(called, client, "toys/slow", {"n": number})
            await soon(lambda: made.backends._call_limiter.statistics().tasks_waiting, 10)
            with anyio.fail_after(5):
                async with Client(url) as other:
                    assert names(await found(other, "wait long")) == ["toys/slow"]
            tasks.cancel_scope.cancel()

    anyio.run(main)


@pytest.mark.parametrize(("name", "arguments"), [("toys/slow", {"n": 1}), ("mail/sleep", {"seconds": 60})])
def test_a_client_that_goes_during_a_call(tmp_path: Path, name: str, arguments: dict[str, Any]) -> None:
    (tmp_path / "slow_here.py").write_text(SLOW)
    document = {"functions": {"toys": "slow_here.py"}, "mcpServers": {"mail": command("mail")}}
    (tmp_path / "c.json").write_text(json.dumps(document))
    words = ["--store", str(tmp_path / "t.db"), "mcp", "--config", str(tmp_path / "c.json"), "--retriever", "bm25"]
    about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    call = {"name": "call_tool", "arguments": {"name": name, "arguments": arguments}}
    with subprocess.Popen(
        [sys.executable, "-m", "toolscout", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin and process.stdout and process.stderr  # noqa: PT018 - for the types alone
        for number, method, params in ((1, "initialize", about), (2, "tools/list", {}), (3, "tools/call", call)):
            message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()
            if number < 3:
                process.stdout.readline()
        time.sleep(0.5)
        process.stdout.close()
        process.stdin.close()
        assert process.wait(10) == 0
        assert process.stderr.read() == b""


def test_what_fails_beside_the_loop_fails_here_too() -> None:
    async def main() -> None:
        limiter = anyio.CapacityLimiter(1)
        with pytest.raises(ZeroDivisionError):
            await _in_daemon_thread(lambda: 1 // 0, limiter)
        assert await _in_daemon_thread(lambda: "done", limiter) == "done"

    anyio.run(main)


def test_a_pin_that_names_no_tool_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        options = GatewayOptions(pins=("raw/alpha", "raw/alhpa"))
        document = {"mcpServers": {"raw": {"command": sys.executable, "args": [str(RAW), "one"]}}}
        async with gateway(tmp_path / "t.db", document, options=options) as made, Client(made.server) as client:
            for _ in range(2):
                await client.list_tools()

    anyio.run(main)
    assert [line for line in caplog.messages if "--pin" in line] == [
        "--pin raw/alhpa: there is no such tool now; give its id, namespace/name"
    ]


def test_a_backend_that_never_answers_and_one_that_never_starts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        quick = BackendOptions(timeout=1, connect=1, heartbeat=0.2, pause=0.05, grace=0.2)
        async with small_http("mail") as mail:
            hangs = {"command": sys.executable, "args": ["-c", "import sys; sys.stdin.read()"]}
            broken = {"command": sys.executable, "args": ["-c", "raise SystemExit('no licence')"]}
            document = {"mcpServers": {"mail": mail, "hangs": hangs, "broken": broken}}
            async with gateway(tmp_path / "t.db", document, backend=quick) as made, Client(made.server) as client:
                problems = made.backends.problems()
                assert "did not answer within 1 s" in problems["hangs"] or "being started" in problems["hangs"]
                assert problems["broken"].startswith("ended before it answered")
                assert "no licence" in caplog.text
                began = time.monotonic()
                answer = await called(client, "mail/sleep", {"seconds": 30})
                assert answer.is_error
                assert "did not answer within 1 s" in text(answer)
                assert time.monotonic() - began < 2
                slow = await called(client, "mail/count", {"to": 7, "pause": 0.2})  # progress winds the clock up
                assert not slow.is_error

    anyio.run(main)


@pytest.mark.parametrize("old", [False, True], ids=["modern", "old"])
def test_a_server_over_http_ends_and_begins_again(tmp_path: Path, old: bool) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        document = {"mcpServers": {"mail": {"url": f"http://127.0.0.1:{port}/mcp"}}}
        quick = replace(QUICK, longest_pause=0.5)
        async with gateway(tmp_path / "t.db", document, backend=quick) as made, Client(made.server) as client:
            assert "could not be read" in made.backends.problems()["mail"]

            async def available() -> bool:
                tools = (await found(client, "letters in the mailbox"))["tools"]
                return bool(tools) and "unavailable" not in tools[0]

            async def unavailable() -> bool:
                return not await available()

            for _ in range(2):
                async with small_http("mail", old, port):
                    await soon(available)
                    answer = await called(client, "mail/get_mail", {"city": "Rome"})
                    assert answer.structured_content["city"] == "Rome"
                await soon(unavailable)

    anyio.run(main)


def test_a_server_that_leaves_the_file_leaves_the_catalogue(tmp_path: Path) -> None:
    async def main() -> None:
        raw = {"command": sys.executable, "args": [str(RAW), "one"]}
        async with gateway(tmp_path / "t.db", {"mcpServers": {"a": raw, "b": raw}}) as made:
            assert made.backends.scout.store.ids() == ["a/alpha", "b/alpha"]
        async with gateway(tmp_path / "t.db", {"mcpServers": {"b": raw}}) as made:
            await soon(lambda: made.backends.scout.store.ids() == ["b/alpha"])

    anyio.run(main)
