"""MCP servers, real and misbehaving, over stdio and HTTP, and the files that name them."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import http.server
import json
import shlex
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.catalogue.importer_samples import RAW_SERVER
from tests.security.hostile_backend import ODD, USABLE
from toolscout import catalogue
from toolscout.catalogue import ReadOptions
from toolscout.catalogue.importers.mcp import McpImporter
from toolscout.catalogue.mcp import client
from toolscout.catalogue.mcp.client import McpServer, call_tool
from toolscout.core.vendor_formats import to_wire
from toolscout.errors import BadSource, DuplicateTool, MissingExtra

pytestmark = pytest.mark.slow

REAL_SERVER = '''
from mcp.server import MCPServer

server = MCPServer("weather", description="Weather of the world.")

@server.tool(title="Forecast")
def forecast(city: str, days: int = 3) -> dict[str, str]:
    """The forecast for a city."""
    return {}

if __name__ == "__main__":
    server.run()
'''


def raw(mode: str, *more: str) -> list[str]:
    return [sys.executable, str(RAW_SERVER), mode, *more]


def names(source: Any, **options: Any) -> list[str]:
    return [tool.name for tool in catalogue.read(source, ReadOptions(timeout=10, **options))]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("server") / "weather_server.py"
    path.write_text(REAL_SERVER, encoding="utf-8")
    return path


def test_a_server_of_the_sdk_over_stdio(real: Path) -> None:
    (tool,) = catalogue.read(f"{shlex.quote(sys.executable)} {shlex.quote(str(real))}")
    assert (tool.id, tool.title, tool.description) == ("weather/forecast", "Forecast", "The forecast for a city.")
    assert tool.service == "Weather of the world."
    assert tool.input_schema["properties"]["days"] == {"default": 3, "title": "Days", "type": "integer"}
    assert tool.output_schema is not None
    assert tool.origin is not None
    assert tool.origin.to_record() == {
        "kind": "mcp",
        "target": f"{sys.executable} {real}",
        "details": {"tool": "forecast", "transport": "stdio"},
    }


@pytest.fixture(scope="module")
def web() -> Iterator[str]:
    import uvicorn
    from mcp.server import MCPServer

    server = MCPServer("weather on the web", log_level="ERROR")

    @server.tool()
    def forecast(city: str) -> dict[str, str]:
        """The forecast for a city."""
        return {}

    @server.tool(description="long " * 600_000)  # more than the SDK takes in one event unless told otherwise
    def long() -> dict[str, str]:
        return {}

    asked: list[Any] = []

    app = server.streamable_http_app()

    async def noting(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            asked.append({key.decode(): value.decode() for key, value in scope["headers"]})
        await app(scope, receive, send)

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    running = uvicorn.Server(uvicorn.Config(noting, log_level="error"))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
    thread.start()
    while not running.started:
        time.sleep(0.01)
    ASKED.append(asked)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    running.should_exit = True
    thread.join()
    listener.close()


ASKED: list[list[Any]] = []


@pytest.mark.parametrize("prefix", ["", "mcp:", "mcp+"])
def test_a_server_of_the_sdk_over_http(web: str, prefix: str) -> None:
    source = prefix + web.replace("://", "://me:pw@") + "?api_key=hidden"
    forecast, long = catalogue.read(source, ReadOptions(headers={"X-Secret": "s"}))
    assert forecast.id == "weather on the web/forecast"
    assert len(long.description) == 3_000_000
    assert forecast.origin is not None
    assert forecast.origin.target == catalogue.describe(source) == web
    assert "hidden" not in json.dumps(forecast.to_record())
    assert ASKED[-1][-1]["x-secret"] == "s"


def test_pages_are_followed_to_the_end() -> None:
    assert names(raw("pages")) == ["a", "b", "c", "d"]
    assert names(raw("empty")) == []


def test_namespace_of_the_option_or_the_server() -> None:
    (tool,) = catalogue.read(raw("one"))
    assert (tool.namespace, tool.service) == ("one server", "A server for tests")
    assert next(catalogue.read(raw("one"), ReadOptions(namespace="mine"))).id == "mine/alpha"


def test_a_server_cannot_speak_for_another() -> None:
    (tool,) = catalogue.read(raw("thief"))
    assert tool.id == "thief server/a"
    assert tool.origin is not None
    assert tool.origin.kind == "mcp"


def test_words_on_stdout_and_escapes_do_no_harm(capfd: pytest.CaptureFixture[str]) -> None:
    (tool,) = catalogue.read(raw("noisy"))
    assert tool.description == "\x1b]0;title\x07 \x00 text"
    assert "\x1b" not in tool.document()
    assert capfd.readouterr() == ("", "")


def test_a_name_listed_twice() -> None:
    with pytest.raises(DuplicateTool, match=r"twice, tool 3: tool twice server/a differs .* twice, tool 1; rename"):
        names(raw("twice"))
    problems: list[str] = []
    assert names(raw("twice"), keep_going=True, problems=problems) == ["a", "b"]
    assert len(problems) == 1
    assert names(raw("same_twice")) == ["a", "b"]


def test_one_bad_tool_does_not_spoil_the_others() -> None:
    with pytest.raises(BadSource, match=r"bad_tool, tool 2: a tool needs a name: .*; report it to the server's makers"):
        names(raw("bad_tool"))
    problems: list[str] = []
    assert names(raw("bad_tool"), keep_going=True, problems=problems) == ["a", "red name", "bare"]
    assert len(problems) == 2
    tools = list(catalogue.read(raw("bad_tool"), ReadOptions(keep_going=True)))
    assert tools[1].origin is not None
    assert tools[1].origin.details["tool"] == "\x1b[31mred\n name "  # what the server knows it by


def hostile(mode: str, *more: str) -> list[str]:
    return [sys.executable, str(Path(__file__).parents[1] / "security" / "hostile_backend.py"), mode, *more]


def test_an_odd_schema_costs_its_tool_and_no_other(tmp_path: Path) -> None:
    file = tmp_path / "tools.json"
    file.write_text(json.dumps(ODD[:13] + ODD[15:18]), encoding="utf-8")
    problems: list[str] = []
    tools = list(catalogue.read(hostile("file", str(file)), ReadOptions(timeout=20, problems=problems)))
    assert [tool.name for tool in tools] == USABLE
    assert [problem.partition("tool ")[2].partition(";")[0] for problem in problems] == [
        "14: nothing has an inputSchema that is no JSON object but false",
        '15: text has an inputSchema of type ["string"], but arguments are an object',
        '16: words has an inputSchema that is no JSON object but "an object"',
    ]
    shown = {tool.name: to_wire(tool, "mcp")["inputSchema"] for tool in tools}
    assert all(schema["type"] == "object" for schema in shown.values())
    problems.clear()
    found = names(hostile("odd"), keep_going=True, problems=problems)
    assert found == USABLE
    assert len(problems) == 10
    assert any("deep: nested deeper than" in problem for problem in problems)


@pytest.mark.parametrize("name", ["empty", "untyped", "listed", "anything", "odd_output", "plain"])
def test_a_tool_of_a_server_with_odd_tools_is_called(name: str) -> None:
    answer = asyncio.run(call_tool(McpServer(command=tuple(hostile("odd"))), name, {}, 20))
    assert answer.content[0].text == name


@pytest.mark.parametrize(
    ("mode", "limit", "said"),
    [
        ("pages", ("MAX_PAGES", 30), "never ends its list of tools: it goes on with the cursor '31'"),
        ("tools", ("MAX_TOOLS", 5_000), "lists more than 5,000 tools"),
        ("bytes", ("MAX_LIST_CHARS", 10_000_000), "say more than 9 MiB"),
        ("cursor", ("MAX_CURSOR_CHARS", 10_000), "never ends its list of tools"),
        ("values", ("MAX_PAGES", 30), "did not list its tools: its answer was refused: it has more than"),
    ],
)
def test_lists_without_end_are_refused(
    mode: str, limit: tuple[str, int], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, *limit)
    with pytest.raises(BadSource, match=f"hostile_backend.py {mode} .*{said}"):
        list(catalogue.read(hostile(mode), ReadOptions(timeout=60)))


def test_what_a_server_says_of_itself_is_cut() -> None:
    assert {len(tool.service) for tool in catalogue.read(hostile("names"), ReadOptions(timeout=30))} == {300}


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("die", r"die ended before it listed its tools; .* It wrote: no API key : set EXAMPLE_KEY$"),
        ("error", r"error did not list its tools: the database is down; check that it is an MCP server"),
        ("no_list", r"no_list did not list its tools: 1 validation error"),
        ("loop", r"loop never ends its list of tools: it repeats the cursor '0'"),
    ],
)
def test_servers_that_fail(mode: str, said: str) -> None:
    for keep_going in (False, True):
        with pytest.raises(BadSource, match=said):
            names(raw(mode), keep_going=keep_going)


@pytest.mark.timing
def test_a_server_that_hangs() -> None:
    start = time.monotonic()
    with pytest.raises(BadSource, match=r"hang did not answer within 0\.5 s; check .* longer timeout"):
        list(catalogue.read(raw("hang"), ReadOptions(timeout=0.5)))
    assert time.monotonic() - start < 6


def is_running(pid: int) -> bool:
    """Whether a process does anything; a dead one that nobody has asked for its exit code yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
def test_no_process_is_left_behind() -> None:
    with pytest.raises(BadSource, match=r"stubborn did not answer within 2 s.*It wrote: pids") as caught:
        list(catalogue.read(raw("stubborn"), ReadOptions(timeout=2)))
    pids = [int(pid) for pid in str(caught.value).split("pids ")[1].split()]
    assert len(pids) == 2
    assert not any(map(is_running, pids))


def test_environment_reaches_the_server_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "not asked for")
    assert names(raw("env")) == ["unset"]
    (tool,) = catalogue.read(raw("env", "--token", "sesame"), ReadOptions(env={"SECRET_TOKEN": "given"}))
    assert (tool.name, tool.description) == ("given", "--token sesame")
    assert tool.origin is not None
    assert tool.origin.target.endswith("env --token '***'")


def test_parameters_of_the_sdk() -> None:
    from mcp import StdioServerParameters

    command, *arguments = raw("env", "x")
    parameters = StdioServerParameters(command=command, args=arguments, env={"SECRET_TOKEN": "inside"}, cwd="/")
    (tool,) = catalogue.read(parameters)
    assert tool.name == "inside"
    assert tool.origin is not None
    assert tool.origin.details["cwd"] == "/"
    assert "inside" not in catalogue.describe(parameters)


def test_what_is_a_command_and_what_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    accepts = McpImporter().accepts
    script = tmp_path / "server.sh"
    script.write_text(f"#!/bin/sh\nexec {shlex.join(raw('one'))}\n", encoding="utf-8")
    assert not accepts(script)
    script.chmod(0o755)
    (tmp_path / "cat tools").mkdir()
    (tmp_path / "data.jsonl").touch(0o755)
    (tmp_path / "code.py").touch(0o755)
    (tmp_path / "env x.json").write_text("[]", encoding="utf-8")
    assert accepts(script)
    assert accepts("./server.sh")
    assert accepts("env FOO=1 something")
    assert accepts("mcp:whatever")
    others = [
        "cat",
        "cat tools",
        "nocommand x",
        "data.jsonl",
        "code.py",
        "env x.json",
        "env 'unbalanced",
        "https://x/y z",
    ]
    assert [source for source in others if accepts(source)] == []
    assert names(script) == names("./server.sh") == names("stdio:./server.sh") == ["alpha"]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("mcp:no-such-command-anywhere x", "there is no command 'no-such-command-anywhere'; install it"),
        ("mcp:'unbalanced", "cannot be split into words: No closing quotation"),
        ("mcp:", "an MCP server: a command line, a URL, .* is needed"),
        (["/etc"], "there is no command '/etc'"),
        (["true"], "ended before it listed its tools"),
    ],
)
def test_commands_that_cannot_be_run(source: Any, said: str) -> None:
    with pytest.raises(BadSource, match=said):
        names(source)


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.path.startswith("/hang/mcp"):
            time.sleep(1)
        status = int(self.path[1:4]) if self.path[1:4].isdigit() else 200
        with contextlib.suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", "5")
            self.end_headers()
            self.wfile.write(b"<html")

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture(scope="module")
def bad_web() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/404/mcp", "answered 404 Not Found; check the address"),
        ("/401/mcp", "answered 401 Unauthorized; give the headers it asks for"),
        ("/500/mcp", "answered 500 Internal Server Error"),
        ("/html/mcp", "could not be read: Unexpected content type: text/html"),
        ("/hang/mcp", r"did not answer within 0\.5 s"),
    ],
)
def test_addresses_that_are_no_server(bad_web: str, path: str, said: str) -> None:
    with pytest.raises(BadSource, match=f"^{bad_web}{path} {said}"):
        list(catalogue.read(f"{bad_web}{path}?key=hidden", ReadOptions(timeout=0.5 if "hang" in path else 10)))


def test_nobody_listens() -> None:
    with pytest.raises(BadSource, match=r"^http://127\.0\.0\.1:1/mcp could not be read: .*; check the address"):
        names("http://127.0.0.1:1/mcp")


def config(tmp_path: Path, servers: Any, key: str = "mcpServers") -> Path:
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({key: servers}), encoding="utf-8")
    return path


def entry(mode: str, **more: Any) -> dict[str, Any]:
    command, *arguments = raw(mode)
    return {"command": command, "args": arguments, **more}


def test_a_file_of_servers(tmp_path: Path, web: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "from outside")
    servers = {
        "first": entry("one"),
        "second": entry("env", env={"SECRET_TOKEN": "${env:MY_TOKEN}"}),
        "third": entry("env", env={"SECRET_TOKEN": "${NOT_SET:-fallback}"}, type="stdio"),
        "off": entry("die", disabled=True),
        "web": {"type": "http", "url": web, "headers": {"Authorization": "Bearer ${MY_TOKEN}"}},
    }
    path = config(tmp_path, servers)
    tools = list(catalogue.read(path))
    expected = ["first/alpha", "second/from outside", "third/fallback", "web/forecast", "web/long"]
    assert [tool.id for tool in tools] == expected
    assert ASKED[-1][-1]["authorization"] == "Bearer from outside"
    assert "Bearer" not in json.dumps([tool.to_record() for tool in tools])
    assert catalogue.describe(path) == catalogue.describe(f"mcp:{path}") == str(path)
    assert next(catalogue.read(path, ReadOptions(namespace="n"))).id == "n/first/alpha"
    assert [tool.id for tool in catalogue.read({"mcpServers": {"x": entry("one")}})] == ["x/alpha"]


def test_a_file_of_vs_code(tmp_path: Path) -> None:
    servers = {"x": entry("env", env={"SECRET_TOKEN": "${input:token}"})}
    assert names(config(tmp_path, servers, "servers"), env={"token": "typed"}) == ["typed"]
    assert names(config(tmp_path, {"servers": {"x": entry("one")}}, "mcp")) == ["alpha"]
    with pytest.raises(BadSource, match=r"server x: \$\{input:token\} has no value; set token in the environment"):
        names(config(tmp_path, servers, "servers"))
    assert not McpImporter().accepts({"asyncapi": "2", "servers": {"x": {"url": "y", "protocol": "ws"}}})


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (5, "server bad: it must be an object, got int"),
        ({}, "server bad: it has neither 'command' nor 'url'"),
        ({"command": "x", "args": "y"}, "server bad: 'args' must be a list of texts"),
        ({"command": "x", "env": {"A": []}}, "server bad: 'env' must be an object of texts"),
        ({"url": "https://x/sse", "type": "sse"}, "server bad: it speaks the old SSE transport"),
        (entry("die"), "die ended before it listed its tools"),
    ],
)
def test_one_bad_server_does_not_spoil_the_others(tmp_path: Path, wrong: Any, said: str) -> None:
    path = config(tmp_path, {"bad": wrong, "good": entry("one")})
    with pytest.raises(BadSource, match=said):
        names(path)
    problems: list[str] = []
    assert names(path, keep_going=True, problems=problems) == ["alpha"]
    assert len(problems) == 1


def test_without_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name == "mcp":
            raise ImportError(name)
        return original(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtra, match=r"pip install 'toolscout\[serve\]'"):
        list(catalogue.read(raw("one")))
