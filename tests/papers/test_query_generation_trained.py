"""A tiny model is fine-tuned to write queries once; other searches and alignments go on with it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.retrievers import generators
from tests.retrievers.scenes import scenes
from toolscout.papers import reproduction
from toolscout.papers.paper import Experiment
from toolscout.retrievers.provenance import TrainingSet
from toolscout.retrievers.rewrite import query_text
from toolscout.retrievers.rewrite.retriever import _pairs

pytestmark = pytest.mark.slow

pytest.importorskip("torch", reason="training needs the extra 'train'")
pytest.importorskip("onnx", reason="serving a language model needs the extra 'encoder'")

QUICK = ("rank=2", "epochs=1", "batch=5", "device=cpu", "max_tokens=8", "request_words=20")


def test_a_fine_tuned_model_is_trained_once_and_used_elsewhere(tmp_path: Path) -> None:
    data = scenes()
    few = {name: dict(list(qrels.items())[:6]) for name, qrels in data.qrels.items()}
    replace(data, qrels=few).save(tmp_path / "scenes")
    setup = reproduction.Setup(tmp_path, tmp_path / "rows", tmp_path / "models")
    settings = (*QUICK, f"base={generators.base()}")
    first = Experiment("supervised", "rewrite", "scenes", settings, parts=("bm25",))
    elsewhere = Experiment(
        "elsewhere", "rewrite", "scenes", ("queries=1", "max_tokens=8"), train="", parts=("bm25",), generator=first
    )
    assert reproduction.missing(elsewhere, ["test"], setup) == []
    assert reproduction.seeds_to_run(elsewhere, 2, ["test"], setup) == [0, 1]
    (row,) = reproduction.run(elsewhere, 1, ["test"], setup, "")
    assert (row["variant"], row["seed"], row["options"]["llm"]) == ("elsewhere-s1", 1, "generator")
    assert row["timing"]["fit_params"]  # how its language model was trained
    assert reproduction.seeds_to_run(elsewhere, 2, ["test"], setup.reread()) == [0]
    made = tmp_path / "models" / "supervised-s1" / "generator" / "generator.json"
    before = made.read_text()
    more = ("samples=2", "align_requests=4", "margin=0.0", "align=1", "epochs=0")
    aligned = replace(first, name="aligned", settings=(*settings, *more), generator=first)
    reproduction.run(aligned, 1, ["test"], setup, "")
    assert made.read_text() == before
    fit = json.loads((tmp_path / "models" / "aligned-s1" / "model.json").read_text())["fit"]
    assert [one["round"] for one in fit["align"]] == [0, 1]
    assert fit["supervised"]["history"] == []  # it went on from the model that was there


@pytest.mark.parametrize("words", [0, 3, 16])
def test_targets_are_as_long_as_wanted(words: int) -> None:
    data = scenes()
    pairs = _pairs(query_text.learned_prompt, [TrainingSet(data)], target_words=words)
    gold = data.split("train").gold[0]
    by_id = {tool.id: tool for tool in data.tools}
    for line, tool_id in zip(pairs[0][1].splitlines(), sorted(gold), strict=True):
        whole = query_text.whole_description(by_id[tool_id])
        assert line == whole if not words else len(line.split()) <= words
        assert whole.startswith(" ".join(line.split()[:3]))
