"""Commands with --ray: the same rows, models and texts as without."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.models.tiny_llama import tiny_llama
from tests.synth.shop import asked
from tests.toys import catalogue
from tests.training.learnable import learnable, tiny_source
from toolscout.cli.main import app
from toolscout.evaluation.row import hardware
from toolscout.index.word_files import WordFiles
from toolscout.models.encoders.export import export
from toolscout.papers import registry
from toolscout.papers.paper import Column, Experiment, Line, Table
from toolscout.retrievers import bm25
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.model_folder import read_model
from toolscout.scout import Scout
from toolscout.search import index_snapshot
from toolscout.stores import open_store

pytestmark = pytest.mark.slow

Run = Callable[..., Result]
OF_A_RUN = ("timing", "date")
TRAINING = ("loss=softmax", "mix=0", "batch=16", "rate=0.003", "epochs=1", "device=cpu")
SMALL = ("epochs=1", "batch=32", "device=cpu", "hidden=8", "neighbours=5")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset (learnable), the tiny BERT (source) and the same to serve (encoder)."""
    folder = tmp_path_factory.mktemp("home")
    learnable().save(folder / "learnable")
    export(tiny_source(folder / "source"), folder / "encoder")
    return folder


@pytest.fixture
def address() -> Iterator[str]:
    """A cluster of two nodes that commands connect to."""
    pytest.importorskip("ray", reason="needs the extra ray")
    from tests.distributed.conftest import Nodes

    made = Nodes(2)
    yield made.address
    made.shutdown()


@pytest.fixture
def run(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("TOOLSCOUT_ENCODER", str(home / "encoder"))
    monkeypatch.setenv("TOOLSCOUT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def invoke(*words: object) -> Result:
        done = CliRunner().invoke(app, [str(word) for word in words])
        assert done.exit_code == 0, done.output
        return done

    return invoke


def rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file without what differs each time, in one order."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    kept = ({key: value for key, value in row.items() if key not in OF_A_RUN} for row in found)
    return sorted(kept, key=lambda row: json.dumps(row, sort_keys=True))


def test_rows_of_an_evaluation_are_those_without_ray(run: Run, home: Path, address: str, tmp_path: Path) -> None:
    words = ("evaluate", f"{home / 'learnable'}:dev", f"{home / 'learnable'}:test")
    words = (*words, "--retriever", "bm25", "--retriever", "dense")
    run(*words, "--json", "here.jsonl")
    done = run(*words, "--json", "there.jsonl", "--ray", address)
    assert f"ray: connected to the cluster at {address}: 3 nodes, 2 CPUs, 0 GPUs" in " ".join(done.stderr.split())
    assert "4 of 4: " in done.stderr
    found = rows(tmp_path / "there.jsonl")
    assert len(found) == 4
    assert found == rows(tmp_path / "here.jsonl")
    assert found[0]["hardware"] == hardware()
    for path in (tmp_path / "here.scores").iterdir():
        assert (tmp_path / "there.scores" / path.name).read_bytes() == path.read_bytes()


def test_variants_of_an_ablation_are_those_without_ray(run: Run, home: Path, address: str, tmp_path: Path) -> None:
    settings = [word for one in SMALL for word in ("--option", one)]
    words = ("ablate", "masstool", home / "learnable", "--test", "test", "--encoder", home / "encoder", *settings)
    words = (*words, "--only", "without-adakt")
    run(*words, "--out", "here", "--json", "here.jsonl")
    done = run(*words, "--out", "there", "--json", "there.jsonl", "--ray", address)
    assert "2 of 2: " in done.stderr
    metrics = [
        [(row["study"], row["metrics"]) for row in rows(tmp_path / f"{name}.jsonl")] for name in ("here", "there")
    ]
    assert len(metrics[0]) == 4
    assert metrics[0] == metrics[1]


def test_seeds_are_trained_into_folders_of_their_own(run: Run, home: Path, address: str, tmp_path: Path) -> None:
    chosen = (f"start={home / 'source'}", *TRAINING)
    words = ("train", home / "learnable", "--retriever", "dense", *(w for one in chosen for w in ("--option", one)))
    run(*words, "--out", "here", "--seeds", "1")
    done = run(*words, "--out", "there", "--seeds", "0,1", "--ray", address)
    assert "written: there-s0" in done.stderr
    weights = [path.relative_to(tmp_path / "here-s1") for path in (tmp_path / "here-s1").rglob("*.onnx")]
    assert weights
    for path in weights:
        assert (tmp_path / "there-s1" / path).read_bytes() == (tmp_path / "here-s1" / path).read_bytes()
        assert (tmp_path / "there-s0" / path).read_bytes() != (tmp_path / "here-s1" / path).read_bytes()
    assert "written" not in run(*words, "--out", "there", "--seeds", "0,1").stderr


def test_one_model_is_trained_by_several_processes(run: Run, home: Path, address: str, tmp_path: Path) -> None:
    chosen = (f"start={home / 'source'}", *TRAINING)
    words = ("train", home / "learnable", "--retriever", "dense", *(w for one in chosen for w in ("--option", one)))
    run(*words, "--out", "here")
    done = run(*words, "--out", "there", "--processes", "2", "--ray", address)
    assert "written: there" in done.stderr
    assert not (tmp_path / "there" / "training").exists()
    losses = [read_model(tmp_path / name)["fit"]["history"][0]["loss"] for name in ("here", "there")]
    assert losses[0] == pytest.approx(losses[1], abs=2e-3)
    refused = CliRunner().invoke(app, [*map(str, words), "--out", "many", "--processes", "3", "--ray", address])
    assert (refused.exit_code, "2 CPUs, and 3 processes need one each" in refused.stderr) == (2, True), refused.output


def test_a_reproduction_writes_its_rows_here(
    run: Run, home: Path, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (
        Line("BM25", Experiment("default", "bm25", "learnable", train="")),
        Line("words", Experiment("fuzzy-false", "bm25", "learnable", ("fuzzy=false",), train="")),
    )
    table = Table("3", "made up", "made up", (Column("R@3", "recall@3"),), lines, "toollens", ())
    monkeypatch.setattr(registry, "PAPERS", {"colt": replace(registry.PAPERS["colt"], tables=(table,))})
    run("reproduce", "colt", "--data", home, "--results", "here")
    done = run("reproduce", "colt", "--data", home, "--results", "there", "--ray", address)
    assert "2 of 2: " in done.stderr
    found = rows(tmp_path / "there" / "reproduce.jsonl")
    assert len(found) == 2
    assert found == rows(tmp_path / "here" / "reproduce.jsonl")
    again = run("reproduce", "colt", "--data", home, "--results", "there", "--ray", address)
    assert "colt: 0 runs to make" in again.stderr


def test_texts_are_written_as_without_ray(run: Run, address: str, tmp_path: Path) -> None:
    tiny_llama(tmp_path / "llama", max_position_embeddings=1024, num_hidden_layers=1)
    asked().save(tmp_path / "shop")
    words = ("synth", "shop", "--llm", tmp_path / "llama", "--per-tool", "20", "--combinations", "0", "--no-filter")
    run(*words, "--out", "here")
    run(*words, "--out", "there", "--ray", address)
    here, there = ((tmp_path / name / "queries.jsonl").read_text() for name in ("here", "there"))
    assert len(here.splitlines()) > 64
    assert here == there


def test_an_endpoint_is_not_asked_from_everywhere(run: Run, address: str, tmp_path: Path) -> None:
    asked().save(tmp_path / "shop")
    words = ["synth", "shop", "--llm", "http://127.0.0.1:9/v1", "--model", "m", "--out", "made", "--ray", address]
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, "an endpoint is asked by one process" in done.stderr) == (2, True), done.output


def test_tools_are_embedded_as_without_ray(run: Run, home: Path, address: str, tmp_path: Path) -> None:
    for name, more in (("here", ()), ("there", ("--ray", address))):
        run("--store", f"{name}.db", "add", home / "learnable", *more)
    assert "0 texts embedded" in run("--store", "there.db", "embed", "--ray", address).stdout
    stored = []
    for name in ("here", "there"):
        with open_store(tmp_path / f"{name}.db") as store:
            (fingerprint,) = store.models()
            found = store.vectors_after(fingerprint)
            stored.append({key: row.tobytes() for key, row in zip(found.digests, found.vectors, strict=True)})
    assert len(stored[0]) >= 20
    assert stored[0] == stored[1]


def test_an_index_is_packed_of_shards(run: Run, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bm25, "_LEAST_SHARD", 20)
    monkeypatch.setattr(index_snapshot, "WORTH_KEEPING", 10)
    requests = ("search issue mail", "serch the isue", "list mails", "space3/list_issue_21")
    joined: list[int] = []
    join = WordFiles.add_shard
    monkeypatch.setattr(WordFiles, "add_shard", lambda files, shard: (joined.append(len(shard)), join(files, shard))[1])
    with open_store(tmp_path / "tools.db") as store:
        store.add(catalogue(600), "tests")
    shutil.copy("tools.db", "replica.db")
    done = run("--store", "tools.db", "index", "pack", "packed.tar", "--retriever", "bm25", "--ray", address)
    assert "written: packed.tar" in done.stderr
    assert len(joined) == 2
    run("--store", "replica.db", "index", "fetch", "packed.tar")
    with Scout.open("replica.db", "bm25") as scout, Scout.open("tools.db", Bm25()) as built_here:
        for text in requests:
            assert scout.search(text, k=50).hits == built_here.search(text, k=50).hits
    assert len(joined) == 2
