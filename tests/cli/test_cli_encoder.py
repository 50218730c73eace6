"""The commands that need the encoder, and the demo."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from toolscout.cli.demo import REQUESTS
from toolscout.cli.main import app
from toolscout.models.encoders.onnx_encoder import Encoder
from toolscout.search.score_share import EXPLANATION

RECORDS = (
    {"namespace": "mail", "name": "send_email", "description": "Sends an email message."},
    {"namespace": "weather", "name": "get_forecast", "description": "Gets the weather forecast for a city."},
)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of its own, with the encoder that comes with the package, and two tools to add."""
    monkeypatch.delenv("TOOLSCOUT_ENCODER", raising=False)
    monkeypatch.setenv("TOOLSCOUT_STORE", str(tmp_path / "tools.db"))
    (tmp_path / "tools.jsonl").write_text("\n".join(map(json.dumps, RECORDS)))
    return tmp_path / "tools.db"


def run(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.mark.usefixtures("store")
def test_add_embeds_once(tmp_path: Path) -> None:
    first = run("add", tmp_path / "tools.jsonl")
    assert "2 added" in first.stdout
    assert "2 embedded" in first.stdout
    assert first.stderr == ""
    assert "2 unchanged, 0 removed, 0 embedded" in run("add", tmp_path / "tools.jsonl").stdout
    answer = json.loads(run("search", "is rain coming to Paris?", "--format", "json").stdout)
    assert answer["considered"][0]["tool_id"] == "weather/get_forecast"
    assert "similarity" in [reason["kind"] for reason in answer["considered"][0]["reasons"]]
    assert (answer["words_only"], answer["notes"]) == (0, [])


@pytest.mark.usefixtures("store")
def test_embed_finishes_what_was_left(tmp_path: Path) -> None:
    assert "0 embedded" in run("add", tmp_path / "tools.jsonl", "--no-embed").stdout
    waiting = run("search", "weather forecast")
    assert "2 of 2 tools are not embedded yet" in waiting.stdout
    assert "toolscout embed" in run("doctor").stdout
    done = run("embed")
    assert (done.exit_code, done.stdout) == (0, "2 texts embedded; 0 of 2 tools found by words only\n")
    checked = run("doctor")
    assert checked.exit_code == 0
    fingerprint = Encoder.load().fingerprint
    assert fingerprint in "".join(checked.stdout.split())
    assert "0 not embedded yet" in " ".join(checked.stdout.split())


@pytest.mark.slow
@pytest.mark.usefixtures("encoder_folder")  # skips where there are no weights
def test_export_writes_what_encoder_opens(tmp_path: Path) -> None:
    result = run("encoder", "export", "--out", tmp_path / "made")
    assert result.exit_code == 0
    assert Path(result.stdout.strip()) == tmp_path / "made"
    assert Encoder.load(tmp_path / "made").fingerprint in result.stderr


def test_export_of_something_else_is_bad_input(tmp_path: Path) -> None:
    result = run("encoder", "export", "--source", tmp_path)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")


def test_a_damaged_encoder_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "encoder.json").write_text("{}")
    monkeypatch.setenv("TOOLSCOUT_ENCODER", str(tmp_path))
    result = run("doctor")
    assert result.exit_code == 1
    assert "unset TOOLSCOUT_ENCODER" in result.stdout
    assert result.stdout.endswith("Something is broken.\n")


def test_the_demo_answers_six_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLSCOUT_ENCODER", str(tmp_path / "none"))  # words alone: it must say so and go on
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = run("demo")
    assert result.exit_code == 0
    assert "no encoder is installed" in result.stdout
    assert result.stdout.startswith("455 tools indexed")
    for number, (about, request) in enumerate(REQUESTS, 1):
        assert f"{number}. {about}" in result.stdout
        assert request in " ".join(result.stdout.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("store")
def test_the_demo_answers_as_its_headings_say() -> None:
    first, *shown = run("demo").stdout.split("\n\n")
    assert EXPLANATION in first
    headings, verdicts = [answer.splitlines()[0] for answer in shown], [answer.splitlines()[2] for answer in shown]
    for number, ((about, _), heading, verdict) in enumerate(zip(REQUESTS, headings, verdicts, strict=True), 1):
        assert heading.startswith(f"{number}. {about} · ")
        assert verdict.startswith("nothing fits · " if about == "nothing fits" else "use · ")
    assert headings[-1].startswith("6. nothing fits · ")
    best = [answer.splitlines()[5].split()[2] for answer in shown[:5]]
    assert best == ["100", "100", "named", "100", "100"]  # per cent of the best score, which is the first one's
    wanted = ("banking/freeze_card", "payments/create_refund", "github/rerun_workflow", "github/list_pull_requests")
    for answer, tool in zip(shown, (*wanted, "currency/convert_amount"), strict=False):
        assert f"1   {tool}" in answer
    assert all(tool in shown[1] for tool in ("crm/logActivity", "helpdesk/reply_to_ticket"))
