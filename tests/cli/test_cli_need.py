"""toolscout need, and what search says of need: exit codes, formats, thresholds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.cli.cli_samples import FITTING, Run
from tests.toys import HashedWords
from toolscout.models.need_head import NeedHead
from toolscout.search.tool_need import NeedOptions

POEM = "write a poem about the weather forecast for the city of Paris"


@pytest.fixture
def telling(run: Run, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A catalogue of five tools with a toy encoder: whatever has the word "poem" in it needs no tool."""
    toy = HashedWords()
    toy.folder = tmp_path / "encoder"  # type: ignore[attr-defined]
    poem, nothing = toy.encode_request("poem"), np.zeros(1, dtype=np.float32)
    NeedHead(poem[None], nothing, np.array([-60], dtype=np.float32), 3.0, 1.0, 0.0, toy.fingerprint).save(
        tmp_path / "encoder"
    )
    monkeypatch.setattr("toolscout.retrievers.dense.Encoder.load", lambda folder=None: toy)
    assert run("add", source).exit_code == 0
    return run


def test_need_says_what_it_forecasts(telling: Run) -> None:
    needed = telling("need", FITTING)
    assert needed.exit_code == 0
    assert "a tool is needed" in needed.stdout
    assert FITTING in needed.stdout
    talk = telling("need", "write a poem")
    assert talk.exit_code == 1
    assert "no tool needed" in talk.stdout


def test_need_takes_several_requests_and_stdin(telling: Run) -> None:
    several = telling("need", "a poem", FITTING, "--format", "json")
    assert several.exit_code == 0
    rows = json.loads(several.stdout)
    assert [(row["request"], row["needed"]) for row in rows] == [("a poem", False), (FITTING, True)]
    assert rows[0]["need"] < 0.2 < rows[1]["need"]
    piped = telling("need", "-", "--format", "json", input=f"a poem\n\n{FITTING}\n")
    assert json.loads(piped.stdout) == rows
    assert telling("need", "a poem", "another poem").exit_code == 1


def test_need_needs_no_catalogue(telling: Run, tmp_path: Path) -> None:
    (tmp_path / "tools.db").unlink()
    assert telling("need", FITTING).exit_code == 0


def test_need_threshold(telling: Run) -> None:
    for command in ("need", "search"):
        assert f"[default: ({NeedOptions().threshold})]" in telling(command, "--help").stdout
    assert telling("need", "a poem", "--threshold", "0").exit_code == 0
    assert telling("need", FITTING, "--threshold", "1").exit_code == 1
    assert telling("need", FITTING, "--threshold", "1.5").exit_code == 2


@pytest.mark.parametrize("text", ["", "  ", "\x1b[31m"])
def test_an_empty_request_is_bad_input(telling: Run, text: str) -> None:
    for result in (telling("need", text), telling("need", "-", input=text)):
        assert result.exit_code == 2
        assert result.stderr.startswith("error: the request is empty")


def test_what_cannot_tell_is_an_error(telling: Run, tmp_path: Path) -> None:
    words = telling("need", FITTING, "--retriever", "bm25")
    assert words.exit_code == 2
    assert "no need head" in words.stderr
    (tmp_path / "encoder" / "need.npz").unlink()
    assert telling("need", FITTING).exit_code == 2
    (tmp_path / "encoder" / "need.npz").write_bytes(b"nonsense")
    broken = telling("need", FITTING)
    assert broken.exit_code == 2
    assert "train it again" in broken.stderr


def test_a_missing_encoder_says_what_to_do(run: Run) -> None:
    result = run("need", FITTING)
    assert result.exit_code == 2
    assert "error: " in result.stderr


def test_need_of_a_model_folder(telling: Run, tmp_path: Path) -> None:
    from toolscout.retrievers.registry import method

    method("hybrid")().save(tmp_path / "model")
    assert telling("need", FITTING, "--retriever", tmp_path / "model").exit_code == 0
    assert telling("need", "a poem", "--retriever", "hybrid").exit_code == 1


def test_search_says_that_no_tool_is_needed(telling: Run) -> None:
    talk = telling("search", POEM)
    assert talk.exit_code == 1
    assert talk.stdout.startswith("no tool needed · tool need 0.0")
    assert " · catalogue fit " in talk.stdout
    assert re.search(r" · use 0\.\d+ < 0\.\d+ · ", " ".join(talk.stdout.split()))  # the default level has no name here
    own = telling("search", POEM, "--need-threshold", "0.2")  # thresholds of one's own are shown where they decide
    assert " < 0.2 · catalogue fit " in own.stdout
    assert "closest: weather/get_forecast" in talk.stdout
    assert telling("search", FITTING).stdout.startswith("use · tool need 0.")
    as_json = json.loads(telling("search", POEM, "--format", "json").stdout)
    assert (as_json["verdict"], as_json["hits"]) == ("no_tool_needed", [])
    assert json.loads(telling("search", POEM, "--format", "openai").stdout) == []


def test_levels_of_a_search(telling: Run) -> None:
    for level in ("lenient", "balanced", "strict"):
        found = json.loads(telling("search", FITTING, "--level", level, "--format", "json").stdout)
        assert found["verdict_level"] == level
        assert 0 <= found["use"] <= 1
        assert (f"({level})" in telling("search", POEM, "--level", level).stdout) == (level != "balanced")
    wrong = telling("search", FITTING, "--level", "sloppy")
    assert wrong.exit_code == 2
    assert all(level in wrong.stderr for level in ("lenient", "balanced", "strict"))
    both = telling("search", FITTING, "--level", "strict", "--need-threshold", "0.5")
    assert both.exit_code == 2
    assert "in place of a level" in " ".join(both.stderr.split())
    for command in ("agent", "serve", "mcp"):
        assert "--level" in telling(command, "--help").stdout


def test_thresholds_of_a_search(telling: Run) -> None:
    assert telling("search", POEM, "--need-threshold", "0").stdout.startswith("use · ")
    assert telling("search", FITTING, "--need-threshold", "1").stdout.startswith("no tool needed · ")
    assert telling("search", FITTING, "--fit-threshold", "1").stdout.startswith("nothing fits · ")
    assert telling("search", FITTING, "--fit-threshold", "2").exit_code == 2


def test_a_language_that_the_head_does_not_know(telling: Run) -> None:
    german = "Wie wird das Wetter morgen in Berlin, und was ist mit dem Regen?"
    alone = telling("need", german)
    assert alone.exit_code == 0
    assert "cannot tell in this language" in alone.stdout
    rows = json.loads(telling("need", "a poem", german, "--format", "json").stdout)
    assert rows[1] == {"request": german, "need": None, "needed": None}
    assert telling("need", "a poem", german).exit_code == 0
    found = telling("search", german, "--need-threshold", "0.5")
    assert "tool need" not in found.stdout
    assert "note: the request is not in English, the only language that the need head knows" in " ".join(
        found.stdout.split()
    )
    assert "--need-threshold had no effect" not in found.stderr
