"""rewrite through the command line: by rules, by a script, by an endpoint that is down; evaluated and trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.cli_samples import Run
from tests.retrievers.scenes import scenes
from toolscout.core import vendor_formats

pytestmark = pytest.mark.slow

REQUEST = "weather forecast for the city of Paris, and then create an issue in the repository"
WORDS = ("--part", "bm25", "--fit-threshold", "0")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    scenes().save(tmp_path / "scenes")
    return tmp_path / "scenes"


def test_search_by_rules(filled: Run) -> None:
    shown = filled("search", REQUEST, "--llm", "rules", *WORDS)
    assert shown.exit_code == 0, shown.stderr
    assert "asked: “weather forecast for the city of Paris” · “create an issue in the repository”" in shown.stdout
    found = json.loads(filled("search", REQUEST, "--llm", "rules", *WORDS, "--format", "json").stdout)
    assert found["asked"] == ["weather forecast for the city of Paris", "create an issue in the repository"]
    kinds = {reason["kind"] for hit in found["hits"] for reason in hit["reasons"]}
    assert "asked" in kinds
    grouped = filled("search", REQUEST, "--llm", "rules", *WORDS, "--grouped").stdout
    assert grouped.index("create an issue in the repository") < grouped.index("github/")
    assert filled("search", REQUEST, "--llm", "rules", "--fit-threshold", "0").exit_code == 0  # over hybrid


def test_each_sub_request_has_a_group(filled: Run) -> None:
    request = f"{REQUEST}; also search the mailbox for messages"
    asked = ("search", request, "--llm", "rules", *WORDS, "-k", "2", "--grouped")
    shown = filled(*asked).stdout
    pieces = [
        "weather forecast for the city of Paris",
        "create an issue in the repository",
        "search the mailbox for messages",
    ]
    assert all(f"\n{piece}\n" in shown for piece in pieces)
    assert "nothing among the first 2" in shown
    found = json.loads(filled(*asked, "--format", "json").stdout)
    assert [one["asked"] for one in found["groups"] if one["asked"]] == pieces
    assert sorted(one for group in found["groups"] for one in group["hits"]) == sorted(
        hit["tool_id"] for hit in found["hits"]
    )
    assert "groups" not in json.loads(filled(*asked[:-1], "--format", "json").stdout)
    refused = filled("search", request, "--retriever", "bm25", "--grouped")
    assert (refused.exit_code, "--retriever rewrite" in refused.stderr) == (2, True)


@pytest.mark.parametrize("format", vendor_formats.FORMATS)
@pytest.mark.parametrize("budget", [(), ("--budget", "500")])
def test_groups_are_refused_where_nothing_can_hold_them(run: Run, format: str, budget: tuple[str, ...]) -> None:
    asked = ("search", REQUEST, "--llm", "rules", *WORDS, "--format", format, *budget)
    refused = run(*asked, "--grouped")
    said = " ".join(refused.stderr.replace("│", " ").split())
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert f"a list of tools for {format} holds no groups; use --format table or json" in said
    assert "there is no catalogue" in run(*asked).stderr  # it was refused before anything was opened


def test_what_was_asked_is_said_where_nothing_fits(filled: Run) -> None:
    none = ("search", "knit quilted trousers, and then bake gluten free muffins", "--llm", "rules", "--part", "bm25")
    shown = filled(*none, "--grouped")
    assert shown.exit_code == 1
    assert "asked: “knit quilted trousers” · “bake gluten free muffins”" in shown.stdout
    groups = json.loads(filled(*none, "--grouped", "--format", "json").stdout)["groups"]
    assert groups == [{"asked": one, "hits": []} for one in ("knit quilted trousers", "bake gluten free muffins")]


def test_search_with_a_script(filled: Run, tmp_path: Path) -> None:
    (tmp_path / "script.jsonl").write_text('{"when": "", "text": "searches the mailbox"}\n')
    shown = filled("search", "Paris forecast", "--llm", "scripted:script.jsonl", "--option", "examples=0", *WORDS)
    assert "mail/search_emails" in shown.stdout
    assert "asked “searches the mailbox”" in " ".join(shown.stdout.replace("│", " ").split())


def test_an_endpoint_that_is_down_is_told_and_tools_are_found(filled: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("toolscout.llm.client.time.sleep", lambda _: None)
    shown = filled("search", REQUEST, "--llm", "http://127.0.0.1:9/v1", "--model", "m", *WORDS)
    assert shown.exit_code == 0
    assert "weather/get_forecast" in shown.stdout
    said = " ".join(shown.output.split())
    assert "note: the request alone was searched: http://127.0.0.1:9/v1 cannot be reached" in said


def test_what_is_wrong_is_said(filled: Run, data: Path) -> None:
    refused = filled("search", REQUEST, "--llm", "http://127.0.0.1:9/v1")
    assert (refused.exit_code, "name of a model" in refused.stderr) == (2, True)
    refused = filled("search", REQUEST, "--retriever", "bm25", "--llm", "rules")
    assert (refused.exit_code, "--retriever rewrite" in refused.stderr) == (2, True)
    refused = filled("search", REQUEST, "--retriever", "bm25", "--part", "dense")
    assert (refused.exit_code, "bm25 has no parts" in refused.stderr) == (2, True)
    refused = filled("evaluate", data, "--retriever", "bm25", "--retriever", "rewrite", "--llm", "rules")
    assert (refused.exit_code, "name one" in refused.stderr) == (2, True)
    refused = filled("train", data, "--retriever", "rewrite", "--part", "bm25", "--part", "dense", "--out", "m")
    assert (refused.exit_code, "one part" in refused.stderr) == (2, True)


def test_evaluate_says_what_it_cost(run: Run, data: Path, tmp_path: Path) -> None:
    (tmp_path / "script.jsonl").write_text('{"when": "", "text": "create the issue\\nsearch mail"}\n')
    llm = ("--llm", "scripted:script.jsonl", "--option", "examples=0", "--option", "bm25.fuzzy=false")
    done = run("evaluate", data, "--part", "bm25", *llm, "--json", "rows.jsonl")
    assert done.exit_code == 0, done.output
    assert "24 calls" in done.stderr
    row = json.loads((tmp_path / "rows.jsonl").read_text())
    assert row["retriever"] == "rewrite"
    assert row["variant"].startswith("bm25_llm-scripted")
    assert "--retriever rewrite --part bm25 --option examples=0" in row["command"]
    assert (row["timing"]["llm_calls"], row["timing"]["rewritten"]) == (24, 24)


def test_a_model_without_training(run: Run, data: Path, tmp_path: Path) -> None:
    plain = ("--option", "llm=rules", "--option", "epochs=0")
    done = run("train", data, "--retriever", "rewrite", "--part", "bm25", *plain, "--out", "m")
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "m" / "model.json").read_text())["parts"] == {"0-bm25": "bm25"}
    assert run("evaluate", data, "--retriever", "m").exit_code == 0
