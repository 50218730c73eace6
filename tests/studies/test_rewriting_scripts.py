"""The script behind the table of rewriting, in miniature with a tiny language model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from studies import rewriting, rewriting_models, rewriting_speed, running
from studies.exposure import by_namespace, exposure, gini
from studies.recorded_llm import RecordedModel
from studies.rewriting_models import Family, RewritingPlan
from tests.retrievers import generators
from tests.retrievers.scenes import scenes
from tests.toys import HashedWords
from toolscout.core.tool import Tool
from toolscout.data.dataset import Dataset
from toolscout.errors import BadCompletion, BadModel
from toolscout.evaluation import row as rows
from toolscout.evaluation.request_result import DEPTH, RequestResult
from toolscout.evaluation.row import STUDY
from toolscout.llm.base import LanguageModel, Message
from toolscout.llm.scripted import Scripted, ScriptedReply
from toolscout.retrievers import document_index
from toolscout.retrievers.rewrite.retriever import Rewrite, RewriteOptions

pytestmark = pytest.mark.slow

FORMS = ["alone", "rules", "zero", "supervised", "decompose-supervised", "aligned", "aligned-share50"]


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RewritingPlan:
    """A small set, and trainings of a moment."""
    pytest.importorskip("torch", reason="training needs the extra 'train'").set_num_threads(1)
    data = scenes()
    kept = {
        split: {one: gold for one, gold in qrels.items() if int(one.split("-")[1]) < 2}
        for split, qrels in data.qrels.items()
    }
    Dataset(data.name, data.tools, data.requests, kept).save(tmp_path / "scenes")
    for module in (rewriting_models, document_index):
        monkeypatch.setattr(module, "Encoder", HashedWords)
    monkeypatch.setenv("TOOLSCOUT_CACHE", str(tmp_path / "cache"))
    chosen = {"base": generators.base(), "rank": 2, "batch": 5, "device": "cpu", "max_tokens": 8, "epochs": 1}
    chosen |= {"samples": 2, "align_requests": 4, "align": 1, "request_words": 20}
    family = Family("scenes", str(tmp_path / "scenes"), ("test",))
    settings = tuple(f"{name}={value}" for name, value in chosen.items())
    for cached in (rewriting_models.read, rewriting_models.raw, rewriting_models.recorded):
        cached.cache_clear()
    return RewritingPlan(
        tmp_path / "models", tmp_path / "rows.jsonl", (family,), ("bm25", "dense-raw", "hybrid"), settings=settings
    )


def run(jobs: list[Any]) -> list[str]:
    for job in jobs:
        job.work(*job.arguments)
    return [job.name for job in jobs]


def test_one_generator_serves_all_retrievers_and_no_row_is_made_twice(plan: RewritingPlan) -> None:
    todo = rewriting.jobs(plan, [0], FORMS, "texts")
    names = [f"{what} scenes s0" for what in ("supervised", "taught", "aligned")]
    assert [job.name for job in todo] == [
        *names,
        "texts scenes zero s0",
        "texts scenes supervised s0",
        "texts scenes aligned s0",
    ]
    assert todo[2].after == (names[1],)
    assert set(todo[5].after) == set(names[1:])
    run(todo)
    written = {path.name for path in (plan.models / "written").iterdir()}
    assert written == {"scenes-zero.jsonl", "scenes-supervised-s0.jsonl", "scenes-aligned-s0.jsonl"}
    # The weights are not needed any more: all that is asked has been written.
    for path in plan.models.rglob("adapter.npz"):
        path.unlink()
    rewriting_models.recorded.cache_clear()
    assert run(rewriting.jobs(plan, [0], FORMS)) == [
        "rows scenes alone s0",
        "rows scenes zero s0",
        "rows scenes supervised s0",
        "rows scenes aligned s0",
    ]
    assert rewriting.jobs(plan, [0], FORMS) == []
    assert [job.name for job in rewriting.jobs(plan, [0, 1], ["alone", "supervised"])] == [
        "supervised scenes s1",
        "rows scenes supervised s1",
    ]
    made = {row["variant"]: row for row in rows.read_rows(plan.out)}
    assert len(made) == 3 * 6 + 1
    for over in plan.retrievers:
        told = made[f"rewriting-{over}-supervised-s0"]
        assert (told[STUDY]["over"], told["seed"], told["retriever"]) == (over, 0, "rewrite")
        assert told["timing"]["fit_s"] > 0
        assert told["options"]["align"] == 0
        assert told[STUDY]["costs"]["llm_calls"] == told["requests"] == 4
        assert {"gini@5", "gini_gold", "coverage@5", "recall@5", "comp@5"} <= told["metrics"].keys()
        assert made[f"rewriting-{over}-alone"][STUDY]["costs"]["llm_calls"] == 0
    assert made["rewriting-bm25-alone"]["seed"] is None
    told = made["rewriting-dense-raw-aligned-s0"]
    assert [one["round"] for one in told[STUDY]["history"]] == [0, 1]
    taught = rewriting_models.read_model(plan.folder(plan.families[0], "taught", 0))["fit"]["seconds"]
    assert told["timing"]["fit_s"] > taught
    assert "history" not in made["rewriting-bm25-aligned-s0"][STUDY]
    assert {name: told["options"][name] for name in ("align", "epochs", "init_from", "llm")} == {
        "align": 1,
        "epochs": 0,
        "init_from": "generator",
        "llm": "generator",
    }
    assert made["rewriting-dense-raw-aligned-share50-s0"]["options"]["share"] == 0.5
    assert str(plan.models) not in plan.out.read_text()


def test_an_endpoint_writes_for_the_untrained_forms(plan: RewritingPlan) -> None:
    asked = replace(plan, llm="http://127.0.0.1:9/v1", model="strong/one")
    assert rewriting.variant(asked, "zero", "bm25", 0) == "rewriting-bm25-zero-strong-one"
    priced = replace(asked, settings=("queries=1", "input_price=1", "output_price=2"))
    options = rewriting_models.options_of(priced, rewriting.FORMS["iterate"], None)
    assert (options.llm, options.model, options.form) == (asked.llm, asked.model, "iterate")
    assert (options.queries, options.input_price, options.output_price) == (1, 1.0, 2.0)
    assert rewriting.jobs(asked, [0], ["zero"], "texts") == []
    assert [job.name for job in rewriting.jobs(asked, [0], ["zero"])] == ["rows scenes zero s0"]
    assert "--llm URL --model strong/one" in rewriting._command(asked, plan.families[0], "zero", "bm25", None)


def test_forms_are_named_alone_or_together() -> None:
    assert set(rewriting.form_names("table,ablations")) == set(rewriting.FORMS)
    assert rewriting.form_names("zero,alone") == ["zero", "alone"]
    with pytest.raises(BadModel, match="no form 'other'"):
        rewriting.form_names("other")
    assert {option for told in rewriting_models.ALIGNED.values() for option in told} == {
        "reward", "margin", "samples", "align", "reset", "loss", "utterance", "preset",
        "held_out_share", "align_evenly",
    }  # fmt: skip


def test_a_generator_is_taught_by_written_requests_too(plan: RewritingPlan) -> None:
    (train, _) = rewriting.jobs(replace(plan, retrievers=("bm25",)), [0], ["supervised-written"], "texts")
    with pytest.raises(BadModel, match=r"run: python -m studies\.synthetic texts --only scenes"):
        train.work(*train.arguments)
    more = scenes("more")
    kept = {"train": {one: gold for one, gold in more.qrels["train"].items() if int(one.split("-")[1]) < 1}}
    Dataset("more", more.tools, more.requests, kept).save(plan.models.parent / "synthetic" / "written-scenes-s0")
    train.work(*train.arguments)
    told = rewriting_models.read_model(plan.folder(plan.families[0], "supervised-written", 0))
    assert told["fit"]["supervised"]["examples"] == 10 + 5
    (align, _) = rewriting.jobs(replace(plan, retrievers=("bm25",)), [0], ["aligned-written"], "texts")
    align.work(*align.arguments)
    told = rewriting_models.read_model(plan.folder(plan.families[0], "aligned-written", 0))
    assert (told["options"]["align_on"], told["options"]["init_from"]) == ("", "generator")
    supervise, align, _ = rewriting.jobs(replace(plan, retrievers=("bm25",)), [0], ["aligned-new"], "texts")
    assert supervise.name == "supervised scenes s0"
    supervise.work(*supervise.arguments)
    align.work(*align.arguments)
    told = rewriting_models.read_model(plan.folder(plan.families[0], "aligned-new", 0))
    assert told["options"]["align_on"] == "written-scenes-s0"


def test_what_is_measured_is_what_search_finds() -> None:
    data = scenes()
    llm = Scripted([ScriptedReply("rooms like it\nspace weather")] * 200)
    rewrite = Rewrite(RewriteOptions(), [rewriting_models.Bm25()], llm)
    rewrite.add(data.tools)
    found, costs = rewriting.answered(rewrite, data, "test")
    texts = [text for _, text in data.split("test").requests]
    hits = rewrite.search(texts, DEPTH)
    assert [list(one.ranking or ()) for one in found] == [[hit.tool_id for hit in few] for few in hits]
    assert costs["queries"] == 2 * len(texts)
    dumb = Rewrite(RewriteOptions(), [rewrite.part], Scripted([]))
    with pytest.raises(BadModel, match="failed for 24 of 24 requests"):
        rewriting.answered(dumb, data, "test")


def test_what_was_written_is_not_asked_again(tmp_path: Path) -> None:
    asked: list[int] = []

    class Model(LanguageModel):
        name = "m"

        def complete(self, conversations: Any, **settings: Any) -> Any:
            asked.append(len(conversations))
            return Scripted([ScriptedReply(one[0].content.upper()) for one in conversations]).complete(
                conversations, **settings
            )

    first = RecordedModel(tmp_path / "x" / "w.jsonl", "m", Model)
    turns = [[Message("user", word)] for word in ("a", "b", "a")]
    assert [one[0].text for one in first.complete(turns)] == ["A", "B", "A"]
    again = RecordedModel(tmp_path / "x" / "w.jsonl", "m", Model)
    assert again.complete(turns) == [[replace(one, cost=0.0) for one in few] for few in first.complete(turns)]
    assert asked == [2]
    again.complete(turns, max_tokens=7)
    assert asked == [2, 2]
    with pytest.raises(BadCompletion, match="temperature 0"):
        again.complete(turns, temperature=1.0)
    assert len((tmp_path / "x" / "w.jsonl").read_text().splitlines()) == 4
    assert json.loads((tmp_path / "x" / "w.jsonl").read_text().splitlines()[0])["text"] == "A"


def test_exposure_is_even_or_not() -> None:
    assert gini([1, 1, 1, 1]) == pytest.approx(0)
    assert gini([0, 0, 0, 1]) == pytest.approx(0.75)
    assert gini([]) == gini([0, 0]) == 0
    values = np.random.default_rng(0).integers(0, 9, 30)
    apart = np.abs(values[:, None] - values[None]).sum() / (2 * len(values) ** 2 * values.mean())
    assert gini(values) == pytest.approx(apart)
    tools = [Tool("one", "a", "x"), Tool("one", "b", "x"), Tool("two", "c", "x")]
    a, b, c = (tool.id for tool in tools)
    answers = [RequestResult(str(n), "", "use", (a, c), (a, b), 0.0, None, 0.0) for n in range(5)]
    assert exposure(answers, tools) == {
        "gini@5": pytest.approx(1 / 3),
        "gini_gold": pytest.approx(1 / 3),
        "coverage@5": pytest.approx(2 / 3, abs=1e-6),
    }
    assert by_namespace(answers, tools) == {"one": [5, 5], "two": [5, 0]}
    assert by_namespace(answers[:4], tools) == {}


def test_speed_of_single_requests(plan: RewritingPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewriting_speed, "Encoder", HashedWords)
    monkeypatch.delenv("TOOLSCOUT_DEVICE", raising=False)
    family, plan = plan.families[0], replace(plan, requests=2)
    names = rewriting_speed.todo(plan, family, ["alone", "zero", "supervised"], "hybrid", 0)
    assert names == ["alone", "zero"]
    for name in names:
        row = rewriting_speed.measure(plan, family, name, "hybrid", 0)
        rows.append(plan.out, row)
        assert 0 < row["values"]["p50_ms"] <= row["values"]["p95_ms"]
        assert row["values"]["failed"] == 0
        assert (row["values"]["read"] > 0) is (name == "zero")
    assert rewriting_speed.todo(plan, family, names, "hybrid", 0) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--retrievers nope", "no retriever 'nope'"),
        ("--only nothing", "fits none of toollens-unseen_tool"),
        ("--requests -4", "0 (all) or more"),
        ("--forms other", "no form 'other'"),
        ("--seeds x", "invalid literal"),
        ("--option nonsense=1", "nonsense"),
        ("--llm http://127.0.0.1:9/v1", "needs --model"),
        ("texts --llm http://127.0.0.1:9/v1 --model m", "writes for rows"),
        ("--llm http://127.0.0.1:9/v1 --model m --forms supervised", "zero, decompose and iterate alone"),
    ],
)
def test_what_there_is_nothing_to_do_for_is_said(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["rewriting", *words.split(), "--out", str(tmp_path / "rows.jsonl")])
    with pytest.raises(SystemExit) as ended:
        rewriting.main()
    assert (ended.value.code, said in " ".join(capsys.readouterr().err.split())) == (2, True)


def test_a_job_that_fails_ends_the_run_with_1(plan: RewritingPlan) -> None:
    todo = rewriting.jobs(replace(plan, retrievers=("bm25",)), [0], ["supervised-written"], "texts")
    with pytest.raises(SystemExit) as ended:
        running.run(todo, 1, float("inf"))
    assert ended.value.code == 1
