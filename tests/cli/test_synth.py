"""toolscout synth and synth-train: from a catalogue to a dataset that every method can be trained on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.cli_samples import Run
from tests.models.tiny_llama import tiny_llama
from tests.synth.shop import IDS, WORDS, asked
from tests.toys import HashedWords
from tests.training.learnable import tiny_source
from toolscout.cli.output import Report
from toolscout.data.dataset import Dataset
from toolscout.retrievers.model_folder import trained_on
from toolscout.retrievers.provenance import TrainedOn
from toolscout.retrievers.training_setup import training_sets

pytestmark = pytest.mark.slow

SCRIPT = [{"when": f'1. "{name}" of', "text": f"{words}, my friend"} for name, words in WORDS.items()]


@pytest.fixture
def ready(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """As run, with an encoder that runs anywhere, a dataset `shop` and a script that writes."""
    monkeypatch.setattr("toolscout.models.encoders.onnx_encoder.Encoder.load", HashedWords.load)
    asked().save(tmp_path / "shop")
    (tmp_path / "script.jsonl").write_text("".join(json.dumps(line) + "\n" for line in SCRIPT))
    return run


def written(run: Run, *words: object, out: str = "synth") -> str:
    done = run("synth", *words, "--llm", "scripted:script.jsonl", "--out", out)
    assert done.exit_code == 0, done.output
    return done.stdout + done.stderr


def test_requests_for_new_tools(ready: Run, tmp_path: Path) -> None:
    said = written(ready, "shop:unseen_tool", "--for", "new", "--per-tool", "1", "--round-trip", "0", "--tries", "1")
    made = Dataset.load(tmp_path / "synth")
    new = {IDS[name] for name in ("list_regions", "cancel_stay", "headlines")}
    assert {about["for"] for about in made.metadata.values()} == new
    assert "train on it: toolscout train shop:unseen_tool synth --retriever dense --out MODEL" in " ".join(said.split())
    assert "sample: " in said
    assert not list(tmp_path.glob("*.partial.jsonl"))
    again = ready("synth", "shop", "--llm", "scripted:script.jsonl", "--out", "synth")
    assert (again.exit_code, "is not an empty folder" in again.stderr) == (2, True)


def test_a_catalogue_and_filters(ready: Run, tmp_path: Path) -> None:
    assert ready("add", "shop", "--no-embed").exit_code == 0
    alone = ("tools.db", "--combinations", "0", "--per-tool", "2")
    said = written(ready, *alone, "--round-trip", "1", "--retriever", "bm25")
    assert "left out: not found again" in said
    assert "got no request; see --no-filter" in said
    written(ready, *alone, "--no-filter", out="all")
    assert len(Dataset.load(tmp_path / "all").requests) == 12


def test_how_far_it_is_is_shown(ready: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, tuple[int, int]] = {}

    @contextmanager
    def progress() -> Iterator[Report]:
        yield lambda stage, done, total: told.update({stage: (done, total)})

    monkeypatch.setattr("toolscout.cli.output.progress", progress)
    written(ready, "shop", "--per-tool", "2", "--tries", "1", "--round-trip", "6", "--retriever", "bm25")
    assert list(told) == [
        "encoding documents",
        "comparing meanings",
        "planning",
        "preparing prompts",
        "writing",
        "checking",
        "round trip",
        "comparing",
    ]
    assert told["encoding documents"] == (6, 6)
    assert told["checking"] == (12, 12)
    assert all(done == total for done, total in told.values())


def test_into_the_folder_where_it_is_run(ready: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    done = ready("synth", "../shop", "--no-filter", "--llm", "scripted:../script.jsonl", "--out", ".")
    assert done.exit_code == 0, done.output
    assert Dataset.load(here).requests
    assert not list(tmp_path.glob("*.partial.jsonl"))


def test_why_a_model_gave_no_answer_is_said(ready: Run, tmp_path: Path) -> None:
    alone = ("shop", "--no-filter", "--combinations", "0", "--per-tool", "1", "--tries", "1")
    (tmp_path / "script.jsonl").write_text("".join(json.dumps(line) + "\n" for line in SCRIPT[1:]))
    assert "the model gave no answer to some: the script has no line left" in " ".join(written(ready, *alone).split())
    (tmp_path / "script.jsonl").write_text("")
    done = ready("synth", *alone, "--llm", "scripted:script.jsonl", "--out", "none")
    said = " ".join(done.stderr.split())
    assert (done.exit_code, "the model gave no answer: the script has no line left" in said) == (2, True), said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("shop", "--for", "new"), "name the split that tells which tools have requests"),
        (("shop", "--examples", "2"), "name the split that has them"),
        (("shop", "--no-filter", "--round-trip", "3"), "it is a filter"),
        (("shop", "--no-filter", "--retriever", "bm25"), "--retriever is what the round trip asks"),
        (("shop", "--model", "m"), "it is for an endpoint"),
        (("nowhere",), "and there is no dataset of that name"),
        (("shop", "--llm", "nothing"), "nothing is no language model"),
        (("shop", "--llm", "smollm2", "--timeout", "5"), "are for an endpoint"),
        (("shop", "--llm", "http://127.0.0.1:9/v1", "--model", "m", "--requests-per-minute", "0"), "above 0"),
        (("shop", "--retriever", "bm25", "--round-trip", "0"), "--retriever is what the round trip asks"),
    ],
)
def test_what_cannot_be_done_says_what_to_do(ready: Run, tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    llm = () if "--llm" in words else ("--llm", "scripted:script.jsonl")
    done = ready("synth", *words, *llm, "--out", "synth")
    assert (done.exit_code, said in " ".join(done.stderr.split())) == (2, True), done.stderr
    assert not (tmp_path / "synth").exists()


def test_without_an_encoder_words_judge(run: Run, tmp_path: Path) -> None:
    asked().save(tmp_path / "shop")
    (tmp_path / "script.jsonl").write_text(json.dumps({"when": "", "text": "finds beds for many nights"}) + "\n")
    said = written(run, "shop", "--per-tool", "1", "--combinations", "0", "--tries", "1")
    assert "no sentence encoder" in said
    assert "bm25, first 20" in (tmp_path / "synth" / "README.md").read_text()


def test_a_generator_and_a_model_trained_on_real_and_written_requests(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="training needs the extra 'train'")
    asked().save(tmp_path / "shop")
    tiny_llama(tmp_path / "base", max_position_embeddings=512, num_hidden_layers=1)
    settings = [f"base={tmp_path / 'base'}", "rank=2", "epochs=1", "request_tokens=480", "device=cpu"]
    options = [word for setting in settings for word in ("--option", setting)]
    done = run("synth-train", "shop:unseen_tool", "--out", "generator", *options)
    assert done.exit_code == 0, done.output
    assert "write with it: toolscout synth SOURCE --llm generator" in " ".join(done.stderr.split())
    assert run("synth-train", "shop:unseen_tool", "--out", "generator").exit_code == 2
    wild = run("synth", "shop:unseen_tool", "--for", "new", "--llm", "generator", "--no-filter", "--out", "synth")
    assert wild.exit_code == 0, wild.output
    tiny_source(tmp_path / "source")
    fit = [f"start={tmp_path / 'source'}", "epochs=1", "batch=4", "device=cpu"]
    words = [word for setting in fit for word in ("--option", setting)]
    done = run("train", "shop:unseen_tool", "synth:train", "--retriever", "dense", *words, "--out", "model")
    assert done.exit_code == 0, done.output
    seen = trained_on(tmp_path / "model")
    assert [one.dataset for one in seen.splits] == ["shop", "shop", "synth"]
    assert len(seen.written) == 3


def test_what_the_default_encoder_filtered_can_be_trained_on(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TOOLSCOUT_ENCODER")
    asked().save(tmp_path / "shop")
    (tmp_path / "script.jsonl").write_text("".join(json.dumps(line) + "\n" for line in SCRIPT))
    written(run, "shop", "--per-tool", "2")
    assert any(split.role == "dev" for split in TrainedOn.load(tmp_path / "synth").splits)
    (own,) = training_sets([str(tmp_path / "synth")])
    assert len(own.dataset.split(own.train)) > 0
    assert run("train", "synth", "--retriever", "memory", "--out", "model").exit_code == 0
