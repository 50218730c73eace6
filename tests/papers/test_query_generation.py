"""Query generation as published: which lines there are, one fine-tuned model for many searches, and a larger model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.llm.fake_endpoint import FakeEndpoint, chat
from tests.training.learnable import learnable
from toolscout.errors import BadModel, BadRequest
from toolscout.papers import query_writers, reproduction
from toolscout.papers.paper import Column, Experiment, Table
from toolscout.papers.registry import PAPERS
from toolscout.papers.reproduction import Setup

PARTS = {
    "ToolLens": ("toollens", "test"),
    "ToolLens, unseen tools": ("toollens", "unseen_tool.test"),
    "ToolBench-G3": ("toolbench-g3", "test"),
    "ToolBench-G3, unseen tools": ("toolbench-g3", "unseen_tool.test"),
    "UltraTool": ("ultratool", "test"),
    "bundled": ("bundled", "test"),
}
LARGER = Experiment(
    "larger", "rewrite", "learnable", ("examples=0",), train="", parts=("bm25",), larger_model=True, hours=1.0
)


def table(id: str, part: str) -> Table:
    (found,) = [one for one in PAPERS["query-generation"].tables if (one.id, one.part) == (id, part)]
    return found


def published(id: str, part: str = "ToolLens") -> dict[str, Experiment]:
    lines = {line.name: line.published for line in table(id, part).lines}
    return {name: one for name, one in lines.items() if isinstance(one, Experiment)}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("id", ["retrievers", "queries", "forms", "targets", "alignment", "larger-model"])
def test_every_table_is_there_for_every_set(id: str, part: str) -> None:
    found = table(id, part)
    dataset, split = PARTS[part]
    assert found.splits() == [split]
    assert {one.dataset for one in found.experiments()} == {dataset} or part == "bundled"
    for one in found.experiments():
        refused = [s for s in one.settings if not reproduction._accepted(one.retriever, one.parts, s)]
        assert refused == []


def test_zero_shot_has_no_worked_examples_and_few_shot_has() -> None:
    forms = published("main", "in-domain")
    assert "examples=0" in forms["Zero-shot"].settings
    assert not any(one.startswith("examples") for one in forms["Few-shot"].settings)
    assert forms["Few-shot"].also[0] == "rewriting-dense-raw-zero"


def test_one_to_eight_queries_of_three_generators() -> None:
    found = published("queries")
    assert len(found) == 24
    for name, one in found.items():
        count = name.split()[-2]
        assert (f"queries={count}" in one.settings) == (count != "4")
    supervised = {one.generator or one for name, one in found.items() if name.startswith("Supervised")}
    assert len(supervised) == 1  # one fine-tuned model for all of them


def test_one_fine_tuned_model_writes_for_all_retrievers_and_for_sets_without_training() -> None:
    dense = published("main", "in-domain")["Supervised"]
    assert dense.train == "train"
    sparse = published("retrievers")["Supervised, sparse (BM25)"]
    assert (sparse.generator, sparse.train, sparse.parts) == (dense, "", ("bm25",))
    bundled = published("main", "bundled")["Supervised"]
    assert (bundled.generator, bundled.dataset, bundled.train) == (dense, "bundled", "")


def test_alignments_go_on_from_a_model_with_tools_held_out_and_without() -> None:
    found = published("alignment")
    assert len(found) == 10
    for rounds in (1, 3, 4):
        held = found[f"{rounds} round{'s' * (rounds > 1)}, tools held out"]
        known = found[f"{rounds} round{'s' * (rounds > 1)}, no tools held out"]
        assert held.generator == found["0 rounds, tools held out"]
        assert known.generator == found["0 rounds, no tools held out"]
        assert "held_out_share=0.15" in held.settings
        assert not any(one.startswith("held_out_share") for one in known.settings)
        assert f"align={rounds}" in held.settings
        assert "epochs=0" in held.settings
    whole = published("targets")["Supervised, whole descriptions"]
    assert "target_words=0" in whole.settings
    served = table("targets", "ToolLens").lines[1].served
    assert isinstance(served, Experiment)
    assert "target_words=0" in served.settings  # it has to be known where long queries are read


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    learnable().save(tmp_path / "learnable")
    return Setup(tmp_path, tmp_path / "rows", tmp_path / "models")


def test_a_larger_model_is_asked_for_and_its_answers_are_replayed(setup: Setup, tmp_path: Path) -> None:
    assert reproduction.missing(LARGER, ["test"], setup) == [
        "a larger language model: pass --llm https://HOST/v1?model=NAME, or --llm FOLDER"
    ]
    with FakeEndpoint(lambda request, number: chat("finds what is wanted")) as server:
        given = replace(setup, llm=f"{server.url}?model=big/one-7b")
        assert reproduction.missing(LARGER, ["test"], given) == []
        assert reproduction.seeds_to_run(LARGER, 3, ["test"], given) == [None]
        (row,) = reproduction.run(LARGER, None, ["test"], given, "toolscout reproduce")
    assert (row["variant"], row["options"]["model"]) == ("larger-by-big-one-7b", "big/one-7b")
    assert server.url not in json.dumps(row)
    assert str(tmp_path) not in json.dumps(row)
    assert row["timing"]["llm_calls"] == row["requests"]
    assert (tmp_path / "models" / query_writers.ANSWERS).is_file()
    column = Column("R@5", "recall@5")
    assert reproduction.cell(LARGER, column, given.reread()).values == (row["metrics"]["recall@5"],)
    # Without the server: its answers are read again. Of another model there are none, and no row is made up.
    offline = replace(given, llm=f"{server.url}?model=big/one-7b&offline=true", rows=tmp_path / "again")
    (again,) = reproduction.run(LARGER, None, ["test"], offline, "toolscout reproduce")
    assert again["metrics"] == row["metrics"]
    assert again["timing"]["llm_cached"] == row["requests"]
    other = replace(offline, llm=f"{server.url}?model=other&offline=true", rows=tmp_path / "none")
    with pytest.raises(BadModel, match="the language model failed for 40 of 40 requests"):
        reproduction.run(LARGER, None, ["test"], other, "toolscout reproduce")
    assert not (tmp_path / "none").exists()
    assert reproduction.cell(LARGER, column, replace(setup, llm="https://host/v1?model=other")).values == ()
    assert reproduction.cell(LARGER, column, setup.reread()).values == ()


@pytest.mark.parametrize(
    ("spec", "message"),
    [("https://host/v1", "pass --llm https://HOST/v1\\?model=NAME"), ("nowhere", "there is no language model at")],
)
def test_language_models_that_cannot_be(tmp_path: Path, spec: str, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        reproduction.setup_of(tmp_path, tmp_path, tmp_path, [], llm=spec)


def test_the_bundled_set_needs_no_data(tmp_path: Path) -> None:
    alone = Experiment("alone", "bm25", "bundled", train="")
    assert reproduction.missing(alone, ["test"], Setup(None, tmp_path, tmp_path)) == []
    (row,) = reproduction.run(alone, None, ["test"], Setup(None, tmp_path, tmp_path), "")
    assert row["dataset"] == "bundled"
