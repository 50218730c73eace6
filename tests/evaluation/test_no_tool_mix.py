"""Prompts that need no tool, mixed into the requests of a split."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.evaluation.made_up import dataset
from toolscout.cli.main import app
from toolscout.data.dataset import request_digest
from toolscout.errors import BadDataset, Leak
from toolscout.evaluation import leakage
from toolscout.evaluation.evaluate import evaluate
from toolscout.evaluation.no_tool_mix import prompt_texts, read_mixture
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.provenance import SeenSplit, TrainedOn

TEXTS = ("sing of autumn", "why is the sea salty", "translate good morning", "tell a fable", "define irony")


@pytest.fixture(autouse=True)
def _no_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLSCOUT_ENCODER", str(tmp_path / "no-encoder"))
    monkeypatch.setenv("TOOLSCOUT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    folder = tmp_path / "talk"
    folder.mkdir()
    rows = [
        {"_id": f"p{number}", "text": text, "split": "test" if number < 4 else "dev", "source": "ab"[number % 2]}
        for number, text in enumerate(TEXTS)
    ]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_a_mixed_split_has_a_name_a_digest_and_scenes_of_its_own(prompts: Path) -> None:
    plain = dataset()
    mixed, split = read_mixture(str(prompts)).into(plain, "test")
    assert split == "test+talk.test"
    assert mixed.qrels.keys() == {split}
    assert mixed.split(split).requests == plain.split("test").requests
    added = mixed.goldless(split)[len(plain.goldless("test")) :]
    assert [text for _, text in added] == list(TEXTS[:4])
    assert {mixed.kind(request_id) for request_id, _ in added} == {"no_tool"}
    assert len({mixed.scene(request_id) for request_id, _ in added}) == 4
    assert mixed.digest(split) != plain.digest("test")
    assert (leakage.base(split), leakage.base("test")) == ("test", "test")
    assert leakage.sibling("unseen_tool.test+talk.test") == "unseen_tool.train"


def test_split_and_source_are_named_behind_the_folder(prompts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [one.id for one in read_mixture(f"{prompts}:test:a").prompts] == ["p0", "p2"]
    assert read_mixture(f"{prompts}:test:a").label == "talk.test.a"
    assert [one.id for one in read_mixture(f"{prompts}:dev").prompts] == ["p4"]
    monkeypatch.setenv("TOOLSCOUT_DATA", str(prompts.parent))
    assert read_mixture("talk:dev").words == "talk:dev"
    assert prompt_texts("test+talk.test")["talk.test:p1"] == TEXTS[1]
    assert prompt_texts("test") == prompt_texts("test+nowhere.test") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}:test:c", "no source 'c' in test; it has: a, b"),
        ("{}:later", "no split 'later'; it has: dev, test"),
        ("{}:test:a:b", "write FOLDER, FOLDER:SPLIT or FOLDER:SPLIT:SOURCE"),
        ("{}:", "write FOLDER, FOLDER:SPLIT"),
        ("nowhere", "there is no dataset 'nowhere'"),
    ],
)
def test_what_cannot_be_mixed_in_is_refused(prompts: Path, text: str, message: str) -> None:
    with pytest.raises(BadDataset, match=message):
        read_mixture(text.format(prompts))


def test_a_prompt_that_is_also_a_request_is_left_out(prompts: Path) -> None:
    made = dataset()
    made.requests["r0"] = TEXTS[0].upper()
    mixed, split = read_mixture(str(prompts)).into(made, "test")
    assert sum(key.startswith("talk") for key, _ in mixed.goldless(split)) == 3
    with pytest.raises(BadDataset, match="also a request"):
        read_mixture(f"{prompts}:dev").into(_asking(TEXTS[4]), "test")


def _asking(text: str) -> Any:
    made = dataset()
    made.requests["r0"] = text
    return made


def test_prompts_that_a_model_was_trained_on_are_refused_or_dropped(prompts: Path) -> None:
    mixed, split = read_mixture(str(prompts)).into(dataset(), "test")
    digests = frozenset(map(request_digest, TEXTS[:3]))
    seen = TrainedOn((SeenSplit("talk", "", "train", "train", digests),))
    with pytest.raises(Leak, match=r"shares 3 of its 51 requests.*3 of talk train \(trained on\)"):
        evaluate(mixed, split, Bm25(), seen=seen)
    row = evaluate(mixed, split, Bm25(), seen=seen, drop_seen=True).row
    assert (row.dropped, row.requests) == (3, 48)


def test_evaluate_mixes_and_compare_inspect_and_results_cope(prompts: Path, tmp_path: Path) -> None:
    dataset().save(tmp_path / "made-up")
    out = tmp_path / "results" / "rows.jsonl"
    words = ("evaluate", tmp_path / "made-up", "--retriever", "bm25", "--json", out)
    assert run(*words).exit_code == 0
    done = run(*words, "--no-tool", prompts, "--min", "right@5=0.01")
    assert done.exit_code == 0
    assert "answered right" in done.stdout
    assert run(*words, "--no-tool", prompts, "--option", "names=0").exit_code == 0
    plain, mixed, other = (json.loads(line) for line in out.read_text().splitlines())
    assert (mixed["split"], mixed["requests"]) == ("test+talk.test", plain["requests"] + 4)
    assert mixed["metrics"]["recall@5"] == plain["metrics"]["recall@5"]
    assert 0 < mixed["metrics"]["right@5"] < 1
    assert mixed["intervals"]["right@5"][0] <= mixed["metrics"]["right@5"] <= mixed["intervals"]["right@5"][1]
    assert mixed["command"].endswith("--split test --retriever bm25 --no-tool talk:test")
    assert other["variant"] == "names-0.0"
    compared = run("compare", f"{out}#2", f"{out}#3", "--measure", "right@5")
    assert (compared.exit_code, "right@5" in compared.stdout) == (0, True)
    refused = run("compare", f"{out}#1", f"{out}#2")
    assert (refused.exit_code, "different requests" in refused.stderr) == (2, True)
    looked = run("inspect", f"{out}#2", "-n", "50", "--measure", "right@5", "--data", tmp_path / "made-up")
    assert looked.exit_code == 2  # the prompts are not in $TOOLSCOUT_DATA, so not all texts can be shown
    assert run("inspect", f"{out}#2", "--measure", "right@5").exit_code == 0
    assert run("results", out.parent, "--no-plots").exit_code == 0
    page = (out.parent / "README.md").read_text()
    assert "**test+talk.test**" not in page
    assert "| test+talk.test | bm25 |" in page
