"""Tiny models that are trained to write ids, or names in plain text, and how often they invent them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.retrievers import generators
from tests.retrievers.scenes import scenes
from toolscout.llm.finetuned import is_finetuned, read_finetuned
from toolscout.papers import generation_runs, name_writer, reproduction
from toolscout.papers.paper import NAMES, Column, Experiment, GenerationExperiment, NamesExperiment
from toolscout.retrievers.provenance import TrainedOn, TrainingSet

pytestmark = pytest.mark.slow

pytest.importorskip("torch", reason="training needs the extra 'train'")
pytest.importorskip("onnx", reason="serving a language model needs the extra 'encoder'")

QUICK = ("memorise=2", "epochs=6", "batch=8", "rate=0.01", "rank=4", "device=cpu", "max_tokens=32")


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> reproduction.Setup:
    monkeypatch.setenv("TOOLSCOUT_CACHE", str(tmp_path / "cache"))
    scenes().save(tmp_path / "scenes")
    return reproduction.Setup(tmp_path, tmp_path / "rows", tmp_path / "models")


def test_the_same_model_is_decoded_both_ways(setup: reproduction.Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    retriever = generators.opened("toolgen-numeric")
    monkeypatch.setattr(generation_runs, "load_model", lambda folder: retriever)
    monkeypatch.setattr(reproduction, "_trained", lambda *_: generators.fitted("toolgen-numeric"))
    model = Experiment("toolgen-numeric", "toolgen", "scenes")
    rows = {}
    for how in ("constrained", "free"):
        one = GenerationExperiment(f"numeric-{how}", "toolgen", "scenes", model=model, decoding=how)  # type: ignore[arg-type]
        (rows[how],) = reproduction.run(one, 0, ["test"], setup, "toolscout reproduce")
        assert reproduction.seeds_to_run(one, 1, ["test"], setup.reread()) == []
        assert reproduction.cell(one, Column("invented", "invented"), setup.reread()).values == (
            rows[how]["metrics"]["invented"],
        )
    assert rows["constrained"]["metrics"]["invented"] == 0.0
    assert rows["free"]["metrics"]["invented"] > 0.0
    assert rows["free"]["metrics"]["recall@5"] <= 1.0
    assert (rows["free"]["options"]["decoding"], rows["free"]["study"]["sequences"]) == ("free", 5)


def test_a_model_learns_to_name_tools_without_ids(setup: reproduction.Setup, tmp_path: Path) -> None:
    names = NamesExperiment("names", NAMES, "scenes", (*QUICK, f"base={generators.base()}"))
    assert reproduction.missing(names, ["test"], setup) == []
    trained = GenerationExperiment("names-free", NAMES, "scenes", model=names, decoding="free")
    (row,) = reproduction.run(trained, 0, ["test"], setup, "")
    folder = tmp_path / "models" / "names-s0"
    assert is_finetuned(folder)
    assert read_finetuned(folder)["task"] == name_writer.TASK
    assert TrainedOn.load(folder).splits
    assert 0.0 <= row["metrics"]["invented@1"] <= 1.0
    assert "recall@5" not in row["metrics"]  # it writes one name
    before = (folder / "generator.json").read_text()
    again = replace(trained, name="again")
    reproduction.run(again, 0, ["test"], setup, "")
    assert (folder / "generator.json").read_text() == before  # trained once


def test_trajectories_are_learned_step_by_step(tmp_path: Path) -> None:
    path = generators.home() / "trajectories.jsonl"
    data = TrainingSet(scenes(), dev="")
    settings = ("memorise=0", "epochs=0", *QUICK[2:], f"base={generators.base()}")
    name_writer.fit(data, path, settings, tmp_path / "m")
    record = read_finetuned(tmp_path / "m")
    assert record["fit"]["examples"] == 10  # an action and its arguments for two calls and three answers
    assert [one.split for one in TrainedOn.load(tmp_path / "m").splits][-1] == "conversations"
