"""What no tool may do to a terminal, and what no run of the program may do to a shell."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from toolscout.cli import output
from toolscout.cli.main import app

pytestmark = pytest.mark.slow

ESCAPES = "\x1b[31mred\x1b]0;title\x07\x1b[2J\x9b1m\x7f\u202ebidi\u2066 [bold red]markup[/] [/] :smile: \r overwritten"
RAW = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
HEAVY = ("onnxruntime", "tantivy", "usearch", "tokenizers", "mcp", "torch", "onnx", "asyncio")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """No encoder, a store of its own."""
    variables = {"TOOLSCOUT_ENCODER": str(tmp_path / "none"), "TOOLSCOUT_STORE": str(tmp_path / "tools.db")}
    return {**os.environ, **variables, "PYTHONIOENCODING": "utf-8"}


@pytest.fixture
def hostile(tmp_path: Path, environment: dict[str, str]) -> dict[str, str]:
    """A catalogue whose every text attacks the terminal."""
    schema = {
        "type": "object",
        "properties": {f"city{ESCAPES}": {"type": f"string{ESCAPES}", "description": ESCAPES, "enum": [ESCAPES]}},
    }
    tool = {
        "namespace": f"weather{ESCAPES}",
        "name": f"forecast{ESCAPES}",
        "title": ESCAPES,
        "description": f"Weather forecast {ESCAPES}\nsecond line {ESCAPES}",
        "service": ESCAPES,
        "inputSchema": schema,
        "annotations": {ESCAPES: ESCAPES},
        "tags": [ESCAPES],
        "aliases": [f"oracle{ESCAPES}"],
        "origin": {"kind": "mcp", "target": ESCAPES, "details": {}},
        "_meta": {ESCAPES: ESCAPES},
    }
    large = {"namespace": "big", "name": "large", "description": "weather " * 1_000 + ESCAPES}
    lines = [json.dumps(tool), json.dumps(large), "{broken " + ESCAPES.replace("\r", "")]
    path = tmp_path / "hostile.jsonl"
    path.write_text("\n".join(lines))
    result = invoke(environment, "add", str(path), "--keep-going", "--no-embed")
    assert result.exit_code == 0, result.stderr
    check(result)
    return environment


def invoke(environment: dict[str, str], *args: str) -> Result:
    return CliRunner(env=environment).invoke(app, args)


def check(result: Result) -> None:
    for text in (result.stdout, result.stderr):
        assert not RAW.search(text), ascii(RAW.findall(text))


def python(environment: dict[str, str], code: str, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def toolscout(environment: dict[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "toolscout", *args]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


# the terminal


def test_nothing_raw_reaches_the_terminal(hostile: dict[str, str]) -> None:
    listed = json.loads(invoke(hostile, "list", "--format", "json").stdout)
    namespace = next(name for name in listed["namespaces"] if name != "big")
    tools = json.loads(invoke(hostile, "list", "--namespace", namespace, "--format", "json").stdout)["tools"]
    (tool_id,) = (tool["id"] for tool in tools)
    shapes = ("table", "json", "openai", "openai-responses", "anthropic", "mcp")
    commands: list[Sequence[str]] = [("list",), ("list", "--namespace", namespace), ("show", "big/large")]
    commands += [("show", tool_id, "--format", shape) for shape in shapes]
    commands += [("search", f"weather forecast {ESCAPES}", "--format", shape) for shape in shapes]
    commands += [("alias", tool_id, f"name{ESCAPES}"), ("grant", f"ann{ESCAPES}", "--namespace", ESCAPES)]
    for command in commands:
        result = invoke(hostile, *command)
        assert result.exit_code == 0, (command, result.stderr)
        check(result)
        if command[-1] in shapes[1:]:
            json.loads(result.stdout)


def test_markup_is_shown_as_it_is_written(hostile: dict[str, str]) -> None:
    found = invoke(hostile, "search", "weather forecast", "-k", "1").stdout
    assert "[bold red]markup[/]" in " ".join(found.split())


def test_json_keeps_what_the_tool_says(hostile: dict[str, str]) -> None:
    answer = json.loads(invoke(hostile, "search", "weather forecast", "--format", "json").stdout)
    assert ESCAPES in [tool["title"] for tool in answer["tools"] if tool["id"] != "big/large"]


def test_a_large_description_is_cut_for_people(environment: dict[str, str], tmp_path: Path) -> None:
    record = {"namespace": "big", "name": "large", "description": "weather " * 1_300_000 + ESCAPES}
    (tmp_path / "large.jsonl").write_text(json.dumps(record))
    assert invoke(environment, "add", str(tmp_path / "large.jsonl")).exit_code == 0
    assert len(invoke(environment, "search", "weather").stdout) < 10_000
    shown = invoke(environment, "show", "big/large").stdout
    assert len(shown) < 10_000
    assert "characters)" in shown


@pytest.mark.parametrize(
    "args",
    [
        ("show", ESCAPES),
        ("add", f"{ESCAPES}.jsonl"),
        ("search", "weather", "--retriever", ESCAPES),
        ("search", "weather", "--namespace", ESCAPES),
        ("search", "weather", "--\x1b[31mred\x07 [/] \x9b1m"),
        ("list", "--store", f"no{ESCAPES}.db"),
        ("--debug", "show", ESCAPES),
        (ESCAPES,),
    ],
)
def test_errors_are_clean_too(hostile: dict[str, str], args: Sequence[str]) -> None:
    result = invoke(hostile, *args)
    assert result.exit_code == 2
    assert result.stderr
    check(result)


def test_a_terminal_without_unicode_gets_question_marks(hostile: dict[str, str]) -> None:
    result = toolscout({**hostile, "PYTHONIOENCODING": "ascii"}, "search", "weather forecast")
    assert result.returncode == 0, result.stderr
    assert result.stdout.isascii()


def test_progress_shows_count_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with output.progress() as report:
        assert report is not None
        report("reading", 500, 0)
        report("embedding", 0, 1000)
        for done in (200, 400):
            time.sleep(0.15)
            report("embedding", done, 1000)
        time.sleep(0.3)
    shown = re.sub("\x1b\\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    assert "embedding" in shown
    assert "400 of 1,000" in shown
    assert re.search(r"[1-9][\d,]*/s", shown)
    assert re.search(r"\d:\d\d:\d\d", shown)


def test_no_progress_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with output.progress() as report:
        assert report is None
    assert capsys.readouterr().err == ""


# the shell


def test_exit_codes_of_the_real_program(tmp_path: Path, environment: dict[str, str]) -> None:
    source = tmp_path / "tools.jsonl"
    source.write_text('{"namespace": "mail", "name": "send", "description": "Sends an email."}\n')
    assert toolscout(environment, "list").returncode == 2
    added = toolscout(environment, "add", str(source))
    assert (added.returncode, added.stdout[:8]) == (0, "1 added,")
    assert toolscout(environment, "search", "send an email").returncode == 0
    assert toolscout(environment, "search", "knit quilted trousers").returncode == 1
    assert toolscout(environment, "search").returncode == 2


@pytest.mark.parametrize("args", [("list",), ("list", "--format", "json"), ("retrievers",), ("--help",)])
def test_a_closed_pipe_is_silent(hostile: dict[str, str], args: Sequence[str]) -> None:
    command = [sys.executable, "-m", "toolscout", *args]
    process = subprocess.Popen(command, env=hostile, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0 or args == ("--help",)


# Says when it comes to wait for what is typed: on a busy machine that takes a while. Tests that run in the background
# may have been started with Ctrl-C ignored, which programs inherit.
WATCHED = """
import signal
import sys
from toolscout.cli.main import main

signal.signal(signal.SIGINT, signal.default_int_handler)

class Watched:
    def __getattr__(self, name):
        if name == "buffer":
            print("reading", flush=True)
        return getattr(sys.__stdin__, name)

sys.stdin = Watched()
main()
"""


def test_ctrl_c_of_the_real_program(hostile: dict[str, str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WATCHED, "search", "-"],
        env=hostile,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"reading\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"nothing is lost" in complaint
    assert b"Traceback" not in complaint


# what is imported

LOADED = """
import sys
from toolscout.cli.main import app
try:
    app(sys.argv[1:])
except SystemExit as ended:
    print(ended.code, *[name for name in sys.modules if "." not in name], file=sys.stderr)
"""


@pytest.mark.parametrize("args", [("--help",), ("--version",), ("list",), ("show", "big/large", "--format", "openai")])
def test_light_commands_import_nothing_heavy(hostile: dict[str, str], args: Sequence[str]) -> None:
    code, *loaded = python(hostile, LOADED, *args).stderr.split()
    assert code == "0"
    assert not set(HEAVY) & set(loaded)


def test_searching_never_imports_torch(hostile: dict[str, str]) -> None:
    environment = {key: value for key, value in hostile.items() if key != "TOOLSCOUT_ENCODER"}
    assert toolscout(environment, "embed").returncode == 0
    code, *loaded = python(environment, LOADED, "search", "weather forecast").stderr.split()
    assert code == "0"
    assert "onnxruntime" in loaded
    assert "torch" not in loaded
    assert "onnx" not in loaded
