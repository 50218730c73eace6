"""toolscout split and toolscout log export."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.cli_samples import TOOLS, Run
from toolscout.core.answer import Example
from toolscout.core.tool import Tool
from toolscout.data.dataset import Dataset
from toolscout.data.splits import cut
from toolscout.stores import open_store

pytestmark = pytest.mark.slow

IDS = [f"{namespace}/{name}" for namespace, name, *_ in TOOLS]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dataset of ten tools and a hundred requests, two of which have no gold."""
    tools = [Tool("n", f"t{i}") for i in range(10)]
    requests = {f"r{i}": f"Text {i}" for i in range(100)} | {"b": "Hello", "u": "Whatever"}
    gold = {f"r{i}": (f"n/t{i % 10}", f"n/t{i * 3 % 10}") for i in range(100)}
    qrels = {"one": dict(list(gold.items())[:60]), "two": dict(list(gold.items())[60:])}
    path = tmp_path / "made"
    Dataset("made", tools, requests, qrels, {"b": {"expects": "no_tool", "split": "one"}}).save(path)
    return path


def test_split_writes_nine_splits_and_prints_what_is_in_them(run: Run, folder: Path, tmp_path: Path) -> None:
    done = run("split", folder, "--out", tmp_path / "cut", "--seed", 3)
    assert done.exit_code == 0, done.output
    expected = cut(Dataset.load(folder), seed=3)
    made = Dataset.load(tmp_path / "cut")
    assert made.qrels == {split: expected.dataset.qrels[split] for split in made.splits}
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0] == ["split", "requests", "scenes", "tools", "new", "tools"]
    assert lines[2:] == [
        [line.split, *map(str, (line.requests, line.scenes, line.tools, line.new_tools))] for line in expected.counts()
    ]
    assert "left out: 1 request with neither gold tools nor a kind" in done.stderr
    assert "spread over train, dev and test: 1 request without gold" in done.stderr
    assert (tmp_path / "cut" / "unseen_tools.tsv").is_file()
    assert (tmp_path / "cut" / "unseen_scenes.tsv").is_file()


def test_split_takes_one_split_and_shares(run: Run, folder: Path, tmp_path: Path) -> None:
    done = run("split", folder, "--out", tmp_path / "cut", "--from", "one", "--test", 0.2, "--dev", 0.3)
    assert done.exit_code == 0, done.output
    made = Dataset.load(tmp_path / "cut")
    assert [len(made.split(part)) for part in ("train", "dev", "test")] == [30, 18, 12]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--from", "three"], "has no split three; it has: one, two"),
        (["--test", "0.6", "--dev", "0.6"], "test and dev must be above 0 and together below 1, got 0.6 and 0.6"),
        (["--test", "0"], "test and dev must be above 0"),
    ],
)
def test_split_refuses_what_it_cannot_do_and_writes_nothing(
    run: Run, folder: Path, tmp_path: Path, words: list[str], message: str
) -> None:
    done = run("split", folder, "--out", tmp_path / "cut", *words)
    assert done.exit_code == 2
    assert message in done.stderr
    assert not (tmp_path / "cut").exists()


def test_split_refuses_a_folder_in_use_half_a_dataset_and_too_little(run: Run, folder: Path, tmp_path: Path) -> None:
    done = run("split", folder, "--out", folder)
    assert (done.exit_code, "is not an empty folder" in done.stderr) == (2, True)
    few = Dataset("few", [Tool("n", "t")], {"r": "Text"}, {"log": {"r": ("n/t",)}})
    few.save(tmp_path / "few")
    done = run("split", tmp_path / "few", "--out", tmp_path / "cut")
    assert (done.exit_code, "at least 3 of each are needed" in done.stderr) == (2, True)
    (folder / "queries.jsonl").unlink()
    done = run("split", folder, "--out", tmp_path / "cut")
    assert (done.exit_code, "only half a dataset: queries.jsonl" in done.stderr) == (2, True)
    done = run("split", tmp_path / "nowhere", "--out", tmp_path / "cut")
    assert (done.exit_code, "there is no dataset" in done.stderr) == (2, True)


def test_split_writes_the_same_bytes_in_every_process(folder: Path, tmp_path: Path) -> None:
    written = []
    for seed in ("1", "2"):
        out = tmp_path / seed
        words = [sys.executable, "-m", "toolscout", "split", str(folder), "--out", str(out)]
        subprocess.run(words, check=True, capture_output=True, env={**os.environ, "PYTHONHASHSEED": seed})
        written.append({path.relative_to(out): path.read_bytes() for path in out.rglob("*.*sv*")})
        written[-1] |= {path.relative_to(out): path.read_bytes() for path in out.rglob("*.jsonl")}
    assert len(written[0]) == 14
    assert written[0] == written[1]


def test_log_export_writes_what_feedback_recorded(filled: Run, tmp_path: Path) -> None:
    for text in ("Mail Ann", "mail ann"):
        assert filled("feedback", text, "--used", IDS[0], "--rejected", IDS[1], "--as", "ann").exit_code == 0
    assert filled("feedback", "Nothing of these", "--rejected", IDS[3]).exit_code == 0
    assert filled("feedback", "Will it rain?", "--used", IDS[2]).exit_code == 0
    assert filled("remove", IDS[2]).exit_code == 0
    done = filled("log", "export", "--out", tmp_path / "mine")
    assert done.exit_code == 0, done.output
    assert done.stdout == "4 examples of 3 requests: 1 with tools, 2 without; 4 tools\n"
    assert f"no longer in the catalogue: 1 tool that requests named: {IDS[2]}" in done.stderr
    data = Dataset.load(tmp_path / "mine")
    assert data.split("log").gold == [(IDS[0],)]
    (request_id, text), *_ = data.split("log").requests
    about = data.metadata[request_id]
    assert (text, about["times"], about["tenants"], about["sources"]) == ("Mail Ann", 2, ["ann"], ["cli"])
    assert about["rejected"] == [IDS[1]]
    assert {tool.id for tool in data.tools} == set(IDS) - {IDS[2]}


def test_an_exported_log_can_be_split(filled: Run, tmp_path: Path) -> None:
    with open_store(tmp_path / "tools.db") as store:
        store.add_feedback(Example(f"Request {i}", (IDS[i % 5],)) for i in range(50))
        store.add_feedback([Example("  ", (IDS[0],))])
    done = filled("log", "export", "--out", tmp_path / "mine", "--store", tmp_path / "tools.db")
    assert (done.exit_code, "left out: 1 example without any text" in done.stderr) == (0, True)
    done = filled("split", tmp_path / "mine", "--out", tmp_path / "cut")
    assert done.exit_code == 0, done.output
    assert len(Dataset.load(tmp_path / "cut").splits) == 9


def test_log_export_refuses_an_empty_log_and_a_missing_store(filled: Run, tmp_path: Path) -> None:
    done = filled("log", "export", "--out", tmp_path / "mine")
    assert (done.exit_code, "nothing is recorded yet" in done.stderr) == (2, True)
    assert not (tmp_path / "mine").exists()
    done = filled("log", "export", "--out", tmp_path / "mine", "--store", tmp_path / "nowhere.db")
    assert (done.exit_code, "there is no catalogue" in done.stderr) == (2, True)
    assert filled("log").exit_code == 2
