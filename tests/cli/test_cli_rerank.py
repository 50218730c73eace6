"""rerank through the command line: over any retriever, evaluated, trained, and named badly."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.cli_samples import Run
from tests.models.tiny_cross_encoder import cross_encoder
from tests.retrievers.scenes import scenes
from toolscout.cli.common import chosen_retriever, reranker_or_default, retriever_to_open
from toolscout.errors import BadRequest
from toolscout.models.rerankers import opening
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


def test_it_has_to_be_named(filled: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "package_folder", lambda: tmp_path / "absent")  # as if none came with the package
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


def test_the_package_s_is_named_default(
    filled: Run, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = tmp_path / "ours"
    shutil.copytree(folder, ours)
    (ours / "onnx" / "model.onnx").rename(ours / "model.onnx")
    about = json.loads((ours / "config.json").read_text())
    (ours / "config.json").write_text(json.dumps(about | {"rerank": {"first": 3, "weight": 0.5}, "max_tokens": 32}))
    monkeypatch.setattr(opening, "package_folder", lambda: ours)
    found = filled("search", REQUEST, "--retriever", "bm25", "--rerank", "default", "--fit-threshold", "0")
    assert found.exit_code == 0, found.stderr
    assert "reranked" in found.stdout
    over = chosen_retriever("bm25", "default")
    assert isinstance(over, Rerank)
    assert (over.options.reranker, over.options.first, over.options.weight) == ("default", 3, 0.5)
    plain = filled("search", REQUEST, "--retriever", "bm25", "--fit-threshold", "0")
    assert "reranked" not in plain.stdout  # off in search, unless asked
    assert open_reranker().fingerprint == open_reranker("default").fingerprint
    assert open_reranker("default?max_tokens=64").fingerprint != open_reranker("default").fingerprint


def test_where_it_is_on_by_default(folder: str) -> None:
    assert reranker_or_default(None, None) == "default"
    assert reranker_or_default("hybrid", None) == "default"
    assert reranker_or_default("toolgen", None) is None
    assert reranker_or_default("models/mine", None) is None
    assert reranker_or_default(None, folder) == folder
    assert reranker_or_default(None, "none") == "none"
    assert retriever_to_open(None, "none") == "hybrid"


def test_mcp_and_agent_rerank_by_default(filled: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = cross_encoder(tmp_path / "ours", where="model.onnx")
    monkeypatch.setattr(opening, "package_folder", lambda: ours)
    opened: list[object] = []

    def watch(path: Path, retriever: object, **_: object) -> object:
        opened.append(retriever() if callable(retriever) else retriever)
        raise BadRequest("seen")

    monkeypatch.setattr("toolscout.scout.Scout.open", watch)
    for command in (["mcp"], ["agent", REQUEST]):
        opened.clear()
        filled(*command)
        filled(*command, "--rerank", "none")
        filled(*command, "--retriever", "bm25")
        first, *others = opened
        assert isinstance(first, Rerank)
        assert first.reranker.name == "ours"
        assert others == ["hybrid", "bm25"]
