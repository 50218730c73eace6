"""A command line of its own for each test: no encoder, a new store, an empty folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.cli.cli_samples import TOOLS, Run, record
from toolscout.cli.main import app


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A JSONL file of five tools."""
    path = tmp_path / "tools.jsonl"
    path.write_text("".join(json.dumps(record(*tool)) + "\n" for tool in TOOLS))
    return path


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command; there is no encoder."""
    monkeypatch.setenv("TOOLSCOUT_ENCODER", str(tmp_path / "no-encoder"))
    monkeypatch.setenv("TOOLSCOUT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TOOLSCOUT_STORE", str(tmp_path / "tools.db"))
    monkeypatch.chdir(tmp_path)

    def invoke(*args: object, input: str | bytes | None = None) -> Result:
        return CliRunner().invoke(app, [str(arg) for arg in args], input=input)

    return invoke


@pytest.fixture
def filled(run: Run, source: Path) -> Run:
    """As run, over a catalogue of the five tools."""
    assert run("add", source, "--no-embed").exit_code == 0
    return run
