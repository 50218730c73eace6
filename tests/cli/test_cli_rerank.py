"""rerank through the command line: over any retriever, evaluated, trained, and named badly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.cli_samples import Run
from tests.models.tiny_cross_encoder import cross_encoder
from tests.retrievers.scenes import scenes
from toolscout.cli.common import chosen_retriever
from toolscout.models.rerankers.opening import open_reranker
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.hybrid.retriever import Hybrid
from toolscout.retrievers.rerank.retriever import Rerank

REQUEST = "get the weather of a city"


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(cross_encoder(tmp_path / "tiny"))


@pytest.mark.parametrize(
    "words",
    [
        ("--retriever", "bm25", "--rerank", "{}"),
        ("--retriever", "rerank", "--part", "bm25", "--rerank", "{}"),
        ("--retriever", "rerank", "--part", "bm25", "--option", "reranker={}", "--option", "first=3"),
        ("--retriever", "bm25", "--option", "fuzzy=false", "--rerank", "{}?max_tokens=64"),
    ],
)
def test_search_over_any_retriever(filled: Run, folder: str, words: tuple[str, ...]) -> None:
    given = [word.format(folder) for word in words]
    found = filled("search", REQUEST, *given, "--fit-threshold", "0", "--format", "json")
    assert found.exit_code == 0, found.stderr
    kinds = {reason["kind"] for hit in json.loads(found.stdout)["hits"] for reason in hit["reasons"]}
    assert "reranked" in kinds
    shown = filled("search", REQUEST, *given, "--fit-threshold", "0")
    assert "reranked" in shown.stdout


def test_what_is_opened(folder: str, tmp_path: Path) -> None:
    assert chosen_retriever(None, None) == "hybrid"
    assert chosen_retriever("bm25", None) == "bm25"
    over = chosen_retriever(None, folder)
    assert isinstance(over, Rerank)
    assert isinstance(over.part, Hybrid)
    Bm25().save(tmp_path / "model")
    over = chosen_retriever(str(tmp_path / "model"), folder)
    assert isinstance(over, Rerank)
    assert isinstance(over.part, Bm25)
    same = chosen_retriever("rerank", folder, (), ["bm25"])
    assert isinstance(same, Rerank)
    assert (same.options.reranker, type(same.part)) == (folder, Bm25)


@pytest.mark.parametrize("command", ["search", "serve", "mcp"])
def test_a_reranker_that_is_none_ends_every_command(filled: Run, command: str) -> None:
    asked = [REQUEST] if command == "search" else []
    refused = filled(command, *asked, "--retriever", "bm25", "--rerank", "no/such")
    assert refused.exit_code == 2
    assert "there is no reranker 'no/such'" in " ".join(refused.stderr.split())


def test_it_has_to_be_named(filled: Run) -> None:
    refused = filled("search", REQUEST, "--retriever", "rerank", "--part", "bm25")
    assert refused.exit_code == 2
    assert "name a folder with an ONNX cross-encoder" in " ".join(refused.stderr.split())


def test_it_is_listed(run: Run) -> None:
    (row,) = [one for one in json.loads(run("retrievers", "--format", "json").stdout) if one["name"] == "rerank"]
    assert row["about"].startswith("a reranker scores the first tools")
    assert row["options"] == {"reranker": "", "first": 20, "weight": 1.0, "deadline_ms": 0.0}


@pytest.mark.slow
def test_it_is_evaluated_and_trained(run: Run, folder: str, tmp_path: Path) -> None:
    scenes().save(tmp_path / "scenes")
    data, out = str(tmp_path / "scenes"), tmp_path / "out.jsonl"
    option = ("--retriever", "rerank", "--part", "bm25", "--option", f"reranker={folder}")
    done = run("evaluate", data, *option, "--option", "first=5", "--json", str(out))
    assert done.exit_code == 0, done.stderr
    row = json.loads(out.read_text())
    assert (row["retriever"], row["variant"], row["failed"]) == ("rerank", "bm25_reranker-tiny_first-5", 0)
    reranker = open_reranker(folder)
    assert (row["reranker"], row["params"]) == (reranker.fingerprint, reranker.parameters)
    assert row["options"]["reranker"] == "tiny"
    assert str(tmp_path) not in out.read_text()
    trained = run("train", data, *option, "--out", str(tmp_path / "model"))
    assert trained.exit_code == 0, trained.stderr
    assert "ndcg@5, not reranked" in trained.stdout
    again = run("evaluate", data, "--retriever", str(tmp_path / "model"))
    assert again.exit_code == 0, again.stderr
