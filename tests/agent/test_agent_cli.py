"""toolscout agent: through Scout's verdicts, asking before it changes things."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from toolscout.cli import agent as command
from toolscout.cli.main import app
from toolscout.core.tool import Tool
from toolscout.stores.sqlite.store import SqliteStore

pytestmark = pytest.mark.slow

MODULE = '''
"""Weather and letters."""
from pathlib import Path

def forecast(city: str, days: int = 1) -> str:
    """The weather forecast of a city."""
    print("looking at the sky")
    return f"{days} days of sun in {city}"
'''
Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("TOOLSCOUT_ENCODER", str(tmp_path / "no-encoder"))
    monkeypatch.setenv("TOOLSCOUT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TOOLSCOUT_STORE", str(tmp_path / "tools.db"))
    module, lines = tmp_path / "sky.py", tmp_path / "script.jsonl"
    module.write_text(MODULE)
    told = [
        {"text": "I look it up."},
        {"text": '{"tool": "forecast"}'},
        {"text": '{"city": "Rome"}'},
        {"text": "I know it."},
        {"text": '{"tool": "finish"}'},
        {"text": '{"return_type": "give_answer", "final_answer": "Sun in \\u001b[31mRome."}'},
    ]
    lines.write_text("".join(json.dumps(line) + "\n" for line in told))

    def invoke(*words: object) -> Result:
        return CliRunner().invoke(app, [str(word) for word in words])

    assert invoke("add", module, "--no-embed").exit_code == 0
    asked = ("agent", "weather forecast of the city Rome", "--llm", f"scripted:{lines}")
    return lambda *words, allow=f"{module}:*": invoke(*asked, "--allow-target", allow, *words)


def test_it_calls_and_answers(run: Run) -> None:
    done = run("--yes")
    assert done.exit_code == 0, done.output
    assert done.stdout == "Sun in Rome.\n"
    assert "call: sky/forecast" in done.stderr
    assert "observation: 1 days of sun in Rome" in done.stderr


def test_a_target_that_is_not_allowed_is_not_called(run: Run, tmp_path: Path) -> None:
    done = run("--yes", allow="other:*")
    assert "looking at the sky" not in done.stderr
    assert "observation: error: sky/forecast may not be called from here" in done.stderr
    assert f"--allow-target sky={tmp_path / 'sky.py'}:forecast" in done.stderr


def test_the_trace_as_json(run: Run) -> None:
    done = run("--yes", "--json")
    assert "looking at the sky" in done.stderr  # a tool may print what it likes
    trace: dict[str, Any] = json.loads(done.stdout)
    assert (trace["verdict"], trace["finish"]) == ("use", "answered")
    assert trace["steps"][0]["arguments"] == {"city": "Rome"}


def test_a_long_response_is_stated_in_full(run: Run, tmp_path: Path) -> None:
    module = tmp_path / "sky.py"
    module.write_text(module.read_text().replace('f"{days} days of sun in {city}"', '"A" * 10_000_000'))
    told = "A" * 1_000 + " … (9,999,000 more characters)"
    assert json.loads(run("--yes", "--json").stdout)["steps"][0]["observation"] == told
    assert f"observation: {told}\n" in run("--yes").stderr


def test_the_trace_says_what_was_repaired(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "script.jsonl"
    script.write_text(script.read_text().replace('\\"Rome\\"', '\\"Rome\\", \\"days\\": \\"2\\"'))
    (step,) = json.loads(run("--yes", "--json").stdout)["steps"]
    assert step["arguments"] == {"city": "Rome", "days": 2}
    assert (step["valid"], step["called"], len(step["repairs"])) == (False, True, 1)
    assert 'repaired: "days"' in run("--yes").stderr


def test_nobody_to_ask_is_a_refusal(run: Run) -> None:
    trace = json.loads(run("--json").stdout)
    assert trace["steps"][0]["called"] is False
    assert "run it with --yes" in trace["steps"][0]["refusals"][0]


def test_a_person_is_asked(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    tool, arguments = Tool("a", "b", annotations={"destructiveHint": True}), {"x": 1}
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    for said, wanted in ((True, ""), (False, "the user did not allow it")):
        monkeypatch.setattr("typer.confirm", lambda *_, said=said, **__: said)
        assert command._ask(tool, arguments) == wanted
    assert command._ask(Tool("a", "b", annotations={"readOnlyHint": True}), arguments) == ""
    assert not command.is_read_only(Tool("a", "b", annotations={"readOnlyHint": True, "destructiveHint": True}))


def test_a_dry_run_calls_nothing(run: Run) -> None:
    done = run("--dry-run")
    assert done.exit_code == 0
    assert done.stdout == 'sky/forecast {"city": "Rome"}\n'
    assert "days of sun" not in done.output


ANSWER = {"text": '{"return_type": "give_answer", "final_answer": "Sun."}'}
FAILURES = [
    ([{"text": "no JSON"}], "ended: model failed"),
    ([{"text": '{"tool": "finish"}'}, ANSWER], "ended: it picked no tool"),
    ([{"text": '{"tool": "forecast"}'}, {"text": "{}"}, {"text": "{}"}, ANSWER],
     "ended: no usable arguments for sky/forecast"),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "said"), FAILURES)
def test_a_dry_run_without_a_call_says_why(run: Run, tmp_path: Path, lines: list[dict[str, str]], said: str) -> None:
    (tmp_path / "script.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = run("--dry-run", "--no-thoughts")
    assert (done.exit_code, done.stdout) == (1, "")
    assert said in done.stderr
    assert run("--dry-run", "--no-thoughts", "--json").exit_code == 1


def test_a_pick_that_fails_says_why(run: Run, tmp_path: Path) -> None:
    (tmp_path / "script.jsonl").write_text("")
    done = run("--no-thoughts", "--yes")
    assert done.exit_code == 1
    assert "ended: model failed: " in done.stderr


def test_without_tools(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def search(words: str) -> Result:
        return CliRunner().invoke(app, ["agent", words, "--llm", f"scripted:{tmp_path / 'script.jsonl'}"])

    done = search("zzz qqq")
    assert done.exit_code == 1
    assert "nothing in the catalogue fits" in done.stderr
    monkeypatch.setattr("toolscout.search.tool_need.NeedEstimator.need_of", lambda *_: 0.0)
    done = search("hello there")
    assert (done.exit_code, done.stdout) == (0, "I look it up.\n")
    (tmp_path / "script.jsonl").write_text('{"text": ""}\n')
    done = search("hello there")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "no tool is needed, but the model answered nothing" in done.stderr
    assert "nothing in the catalogue fits" not in done.stderr


def test_an_empty_catalogue_is_told_as_search_tells_it(run: Run, tmp_path: Path) -> None:
    SqliteStore(tmp_path / "empty.db").close()
    empty = ("--store", tmp_path / "empty.db")
    done = run(*empty)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "note: the catalogue is empty; add tools with: toolscout add SOURCE\n"
    told = json.loads(run("--json", *empty).stdout)
    assert told["notes"] == ["the catalogue is empty; add tools with: toolscout add SOURCE"]


@pytest.mark.parametrize("words", [("--header", "x=y"), ("--env", "no"), ("--target", "x")])
def test_wrong_use(run: Run, words: tuple[str, str]) -> None:
    assert run(*words).exit_code == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--model", "m"), "it is for an endpoint"),
        (("--header", "skies:Key=1"), "there is no namespace 'skies'"),
        (("--env", "skies:KEY=1"), "there is no namespace 'skies'"),
        (("--target", "skies=http://127.0.0.1:9"), "there is no namespace 'skies'"),
    ],
)
def test_what_would_have_no_effect_is_refused(run: Run, words: tuple[str, str], said: str) -> None:
    done = run("--yes", *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in " ".join(done.stderr.replace("│", " ").split())


def test_a_model_that_picks_tools_itself_is_shown_none(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("--yes", "-k", "2").exit_code == 0
    monkeypatch.setattr("toolscout.agent.pickers.picks_itself", lambda _: True)
    done = run("--yes", "-k", "2")
    assert (done.exit_code, "pick tools itself" in done.stderr) == (2, True)


def test_secrets_by_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "s3cret")
    assert command._by_namespace(["a:b:MY_KEY", "a:b:X=1=2"], "--env") == {"a:b": {"MY_KEY": "s3cret", "X": "1=2"}}
