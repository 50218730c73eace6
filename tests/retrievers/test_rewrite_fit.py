"""rewrite is trained: it learns to describe the tools that requests need, is aligned, and refuses what it has seen."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.retrievers import generators
from tests.retrievers.scenes import recall, scenes
from toolscout.data.dataset import Dataset
from toolscout.errors import BadDataset, BadModel, Leak
from toolscout.evaluation.evaluate import evaluate, seen_by
from toolscout.llm.scripted import Scripted, ScriptedReply
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.model_folder import trained_on
from toolscout.retrievers.provenance import TrainedOn, TrainingSet
from toolscout.retrievers.registry import load_model
from toolscout.retrievers.rewrite.retriever import Rewrite, RewriteOptions, _DatasetSearch, _notes

pytestmark = pytest.mark.slow


def few(count: int = 3) -> Dataset:
    """The first scenes."""
    data = scenes()
    kept = {
        split: {one: gold for one, gold in qrels.items() if int(one.split("-")[1]) < count}
        for split, qrels in data.qrels.items()
    }
    return Dataset(data.name, data.tools, data.requests, kept)


def made(**changed: Any) -> Rewrite:
    pytest.importorskip("torch", reason="training needs the extra 'train'").set_num_threads(1)
    options = {"rank": 0, "batch": 5, "rate": 1e-2, "device": "cpu", "max_tokens": 48, "request_words": 20, **changed}
    return Rewrite(RewriteOptions(base=str(generators.base()), **options), [Bm25()])


def test_it_learns_to_describe_the_tools_that_requests_need(tmp_path: Path) -> None:
    data, rewrite = few(2), made(epochs=12, batch=2)
    told: list[str] = []
    report = rewrite.fit([TrainingSet(data, dev="")], tmp_path / "m", lambda text, *_: told.append(text))
    assert told
    assert report.parameters > 1000
    opened = load_model(tmp_path / "m")
    assert isinstance(opened, Rewrite)
    opened.add(data.tools)
    assert recall(opened, data, "test") > 0.8
    opened.options = replace(opened.options, share=0.0)
    assert recall(opened, data, "test") < 0.2
    assert {one.role for one in trained_on(tmp_path / "m").splits} == {"train"}
    assert TrainedOn.load(tmp_path / "m" / "generator") == trained_on(tmp_path / "m")
    with pytest.raises(Leak):
        evaluate(data, "train", opened, seen=seen_by(str(tmp_path / "m"), opened))
    # The generator serves alone too, and what it has seen goes with it.
    elsewhere = Rewrite(RewriteOptions(llm=str(tmp_path / "m" / "generator")), [Bm25()])
    assert seen_by("rewrite", elsewhere) == trained_on(tmp_path / "m")
    elsewhere.add(data.tools)
    assert recall(elsewhere, data, "test") > 0.8
    opened.save(tmp_path / "copy")
    assert (tmp_path / "copy" / "generator" / "generator.json").is_file()


@pytest.mark.parametrize("changed", [{"loss": "dpo"}, {"preset": "qta"}])
def test_it_is_aligned_with_its_part(tmp_path: Path, changed: dict[str, Any]) -> None:
    rewrite = made(epochs=1, align=1, samples=2, align_requests=4, margin=0.0, rank=2, max_tokens=8, **changed)
    report = rewrite.fit([TrainingSet(few(2))], tmp_path)
    fit = json.loads((tmp_path / "model.json").read_text())["fit"]
    assert [one["round"] for one in fit["align"]] == [0, 1]
    assert fit["supervised"]["examples"] == 10
    assert set(report.dev) >= {"recall@5", "recall@5, request alone"}
    assert rewrite.options.utterance is ("preset" not in changed)
    assert rewrite.router is not None
    assert load_model(tmp_path).router == rewrite.router  # type: ignore[attr-defined]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "0-bm25",
        "generator",
        "model.json",
        "texts.json",
        "trained_on.json",
    ]


def test_it_is_aligned_on_requests_for_tools_that_it_was_not_taught(tmp_path: Path) -> None:
    # Two scenes of two tools: one tool of the four is kept back, and with it the five requests of its scene.
    rewrite = made(epochs=1, align=1, samples=2, align_requests=0, rank=2, max_tokens=8, held_out_share=0.25)
    rewrite.fit([TrainingSet(few(2))], tmp_path)
    fit = json.loads((tmp_path / "model.json").read_text())["fit"]
    assert fit["supervised"]["examples"] == 5
    assert [one.get("requests") for one in fit["align"]] == [None, 5]
    assert rewrite.options.held_out_share == 0.25
    with pytest.raises(BadDataset, match="lower held_out_share"):
        made(epochs=1, align=1, held_out_share=0.9).fit([TrainingSet(few(1))], tmp_path / "all")
    with pytest.raises(BadModel, match="held_out_share must be from 0 to below 1"):
        RewriteOptions(held_out_share=1.0)


def test_without_training_there_is_a_model_at_once(tmp_path: Path) -> None:
    rewrite = Rewrite(RewriteOptions(llm="rules", epochs=0), [Bm25()])
    report = rewrite.fit([TrainingSet(few())], tmp_path / "rules")
    assert (report.parameters, report.notes) == (0, ())
    assert trained_on(tmp_path / "rules") == TrainedOn()
    assert load_model(tmp_path / "rules").options == rewrite.options
    missing = Rewrite(RewriteOptions(llm=str(tmp_path / "nowhere"), epochs=0), [Bm25()])
    report = missing.fit([TrainingSet(few())], tmp_path / "missing")
    assert "is no language model" in report.notes[0]


def test_it_says_so_where_rewriting_loses() -> None:
    measured = {"recall@5": 0.3, "recall@5, request alone": 0.4}
    (note,) = _notes("", measured)
    assert "the request alone finds more (recall@5 0.4000, rewritten 0.3000)" in note
    assert list(_notes("", dict.fromkeys(measured, 0.4))) == []
    assert list(_notes("no model", {})) == ["requests will be searched alone: no model"]


def test_which_requests_gain_is_learned_on_dev_alone(tmp_path: Path) -> None:
    data = few()
    gold = next(tool for tool in data.tools if tool.id == data.split("dev").gold[0][0])
    rewrite = Rewrite(
        RewriteOptions(epochs=0, share=0.5, examples=0), [Bm25()], Scripted([ScriptedReply(f"use {gold.name}", "")])
    )
    rewrite.fit([TrainingSet(data)], tmp_path)
    assert rewrite.router is not None
    assert {one.role for one in trained_on(tmp_path).splits} == {"dev"}
    assert rewrite.options.share == 0.5


def test_two_sets_are_searched_among_their_own_tools(tmp_path: Path) -> None:
    other = Dataset("other", few().tools[:5], {"q": "something else"}, {"train": {"q": (few().tools[0].id,)}})
    rewrite = made(epochs=1, align=1, samples=2, align_requests=4, rank=2, max_tokens=4)
    rewrite.fit([TrainingSet(few(1)), TrainingSet(other, dev="")], tmp_path)
    assert {one.dataset for one in trained_on(tmp_path).splits} == {"scenes", "other"}


def test_it_is_aligned_on_the_requests_of_the_set_that_is_named(tmp_path: Path) -> None:
    other = Dataset("other", few().tools[:5], {"q": "something else"}, {"train": {"q": (few().tools[0].id,)}})
    sets = [TrainingSet(few(1)), TrainingSet(other, dev="")]
    rewrite = made(epochs=1, align=1, samples=2, align_requests=4, rank=2, max_tokens=4, align_on="other")
    rewrite.fit(sets, tmp_path / "model")
    fit = json.loads((tmp_path / "model" / "model.json").read_text())["fit"]
    assert [one.get("requests") for one in fit["align"]] == [None, 1]
    with pytest.raises(BadModel, match="names no dataset that is trained on: 'another'; choose from other, scenes"):
        made(epochs=1, align=1, align_on="another").fit(sets, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_what_cannot_be_trained_is_refused(tmp_path: Path) -> None:
    data = [TrainingSet(few(), dev="")]
    with pytest.raises(BadModel, match="leave llm out"):
        Rewrite(RewriteOptions(llm="rules"), [Bm25()]).fit(data, tmp_path)
    with pytest.raises(BadDataset, match="learned on dev"):
        Rewrite(RewriteOptions(llm="rules", epochs=0, share=0.5), [Bm25()]).fit(data, tmp_path)
    with pytest.raises(BadModel, match="set align above 0 to align it"):
        Rewrite(RewriteOptions(init_from=str(tmp_path / "nowhere"), epochs=0), [Bm25()]).fit(data, tmp_path / "m")
    assert not (tmp_path / "m").exists()
    with pytest.raises(BadModel, match="at least one dataset"):
        Rewrite(None, [Bm25()]).fit([], tmp_path)


def test_a_generator_of_another_task_is_refused(tmp_path: Path) -> None:
    def named(task: str) -> Rewrite:
        told = {"format": 1, "base": "b", "language": "l", "task": task}
        (tmp_path / "generator.json").write_text(json.dumps(told))
        return Rewrite(RewriteOptions(llm=str(tmp_path)), [Bm25()])

    assert named("describe").rewriter.taught
    with pytest.raises(BadModel, match=r"another task \('request'\).*train --retriever rewrite"):
        named("request")


def test_a_request_is_searched_in_its_own_set_whatever_others_ask(tmp_path: Path) -> None:
    # Two sets over other tools, with a request of the same words.
    tools = few().tools
    one = Dataset("one", tools[:4], {"q": "something"}, {"train": {"q": (tools[0].id,)}})
    other = Dataset("other", tools[4:8], {"q": "something"}, {"train": {"q": (tools[4].id,)}})
    sets = _DatasetSearch(
        Rewrite(RewriteOptions(), [Bm25()]), [TrainingSet(x, dev="") for x in (one, other)], tmp_path, None
    )
    asked = sets.asked("train")
    assert asked.homes == [0, 1]
    found = sets.ask(asked.requests, [[tool.name for tool in tools]] * 2, asked.homes)
    assert [set(own) <= {tool.id for tool in x.tools} for own, x in zip(found, (one, other), strict=True)] == [True] * 2
    assert all(found)


def test_a_router_is_not_fitted_on_a_model_that_is_not_there(tmp_path: Path) -> None:
    options = RewriteOptions(llm="http://127.0.0.1:9/v1", model="m", epochs=0, share=0.5, timeout=0.5)
    with pytest.raises(BadModel, match=r"failed for \d+ of \d+ dev requests \(.*\), so which requests gain"):
        Rewrite(options, [Bm25()]).fit([TrainingSet(few(1))], tmp_path / "m")
    assert not (tmp_path / "m" / "model.json").exists()


def test_what_would_have_no_effect_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="set align above 0, or leave them out"):
        made(epochs=1, align_evenly=True).fit([TrainingSet(few(1))], tmp_path / "m")
    (tmp_path / "writer").mkdir()
    about = {"format": 1, "base": "", "language": "x", "task": "synth"}
    (tmp_path / "writer" / "generator.json").write_text(json.dumps(about))
    with pytest.raises(BadModel, match="fine-tuned for another task"):
        made(epochs=0, align=1, init_from=str(tmp_path / "writer")).fit([TrainingSet(few(1))], tmp_path / "m")
