"""toolscout search and retrievers: every format and exit code, with words alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.cli_samples import FITTING, TOOLS, UNFITTING, Run, record
from toolscout import Tool
from toolscout.core import vendor_formats


def test_search_as_a_table(filled: Run) -> None:
    result = filled("search", FITTING)
    assert result.exit_code == 0
    head, *rows = result.stdout.splitlines()
    assert head.startswith("use · catalogue fit 1.00 ≥ 0.19 · ")
    assert head.endswith("5 tools searched · version 1")
    assert "words alone" in rows[0]
    assert rows[3].split()[:2] == ["1", "weather/get_forecast"]
    assert "words: " in result.stdout
    assert "Gets the weather forecast for a city." in result.stdout


def test_search_says_that_nothing_fits(filled: Run) -> None:
    result = filled("search", UNFITTING)
    assert result.exit_code == 1
    assert result.stdout.startswith("nothing fits · catalogue fit 0.00 < 0.19 · ")
    assert json.loads(filled("search", UNFITTING, "--format", "json").stdout)["verdict"] == "nothing_fits"
    for format in vendor_formats.FORMATS:
        empty = filled("search", UNFITTING, "--format", format)
        assert (empty.exit_code, json.loads(empty.stdout)) == (1, [])


def test_search_as_json_carries_the_whole_answer_and_the_tools(filled: Run) -> None:
    answer = json.loads(filled("search", "-", "-k", "2", "--format", "json", input=FITTING).stdout)
    assert answer["request"] == FITTING
    assert answer["verdict"] == "use"
    assert (answer["searched"], answer["version"], answer["words_only"]) == (5, 1, 5)
    assert [hit["tool_id"] for hit in answer["hits"]] == [tool["id"] for tool in answer["tools"]]
    assert len(answer["hits"]) <= 2
    assert answer["tools"][0]["inputSchema"]["required"] == ["city"]


@pytest.mark.parametrize("format", vendor_formats.FORMATS)
def test_search_in_a_vendors_shape(filled: Run, format: vendor_formats.Format) -> None:
    result = filled("search", FITTING, "-k", "1", "--format", format)
    assert result.exit_code == 0
    assert json.loads(result.stdout) == [vendor_formats.to_wire(Tool.from_record(record(*TOOLS[2])), format)]


def test_a_budget_slims_the_schemas(filled: Run) -> None:
    full = len(filled("search", FITTING, "--format", "openai").stdout)
    slim = filled("search", FITTING, "--format", "openai", "--budget", "50")
    assert slim.exit_code == 0
    assert len(slim.stdout) < full
    assert "of 50 tokens" in slim.stderr
    impossible = filled("search", FITTING, "--format", "openai", "--budget", "1")
    assert impossible.exit_code == 2
    assert "raise it to" in impossible.stderr
    for refused in (("--budget", "100"), ("--budget", "100", "--format", "json"), ("--budget", "0", "--format", "mcp")):
        assert filled("search", FITTING, *refused).exit_code == 2  # a table has no budget


def test_a_threshold_that_nothing_is_held_against_is_told(filled: Run) -> None:
    told = filled("search", FITTING, "--need-threshold", "0.5")
    assert told.exit_code == 0
    assert "so --need-threshold had no effect" in " ".join(told.stderr.split())
    for words in ((FITTING, "--need-threshold", "0"), ("get_forecast", "--need-threshold", "0.5")):
        done = filled("search", *words)  # nothing is below it; a name is needed for certain
        assert (done.exit_code, "had no effect" in done.stderr) == (0, False)


def test_search_within_namespaces(filled: Run) -> None:
    ids = json.loads(filled("search", "issues repository", "--namespace", "github", "--format", "json").stdout)
    assert ids["searched"] == 2
    assert {hit["tool_id"] for hit in ids["considered"]} <= {"github/list_issues", "github/create_issue"}
    unknown = filled("search", "issues", "--namespace", "gitlab")
    assert unknown.exit_code == 2
    assert "no namespace 'gitlab'" in unknown.stderr


@pytest.mark.parametrize("request_text", ["", "   ", "\x1b[31m\x00"])
def test_an_empty_request_is_bad_input(filled: Run, request_text: str) -> None:
    result = filled("search", request_text)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: the request is empty")


def test_k(filled: Run) -> None:
    for k in (0, -3):
        result = filled("search", FITTING, "-k", k)
        assert result.exit_code == 2
        assert result.stderr == f"error: k must be at least 1, got {k}\n"
    assert filled("search", FITTING, "-k", "many").exit_code == 2
    assert filled("search", FITTING, "-k", "5000").exit_code == 0


def test_retrievers_by_name_and_by_folder(filled: Run, tmp_path: Path) -> None:
    from toolscout.retrievers.registry import method

    method("bm25")().save(tmp_path / "model")
    answers = [
        json.loads(filled("search", FITTING, "--retriever", retriever, "--format", "json").stdout)
        for retriever in ("bm25", tmp_path / "model")
    ]
    assert answers[0] == answers[1]
    assert answers[0]["hits"][0]["tool_id"] == "weather/get_forecast"
    unknown = filled("search", FITTING, "--retriever", "psychic")
    assert unknown.exit_code == 2
    assert "bm25" in unknown.stderr


def test_the_retrievers_are_listed(run: Run) -> None:
    listed = json.loads(run("retrievers", "--format", "json").stdout)
    assert {"bm25", "dense", "hybrid"} <= {row["name"] for row in listed}
    hybrid = next(row for row in listed if row["name"] == "hybrid")
    assert hybrid["options"]["constant"] == 60
    assert hybrid["about"]
    assert "constant=60" in run("retrievers").stdout
