"""The script behind training on written requests, in miniature."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from studies import rewriting_models, synthetic
from studies.synthetic import HeldOutSet, SyntheticPlan
from tests.models.tiny_llama import tiny_llama
from tests.synth.shop import IDS, TOOLS, asked, writer
from tests.toys import HashedWords
from tests.training.learnable import tiny_source
from toolscout.data.dataset import Dataset
from toolscout.evaluation import row as rows
from toolscout.evaluation.row import STUDY
from toolscout.papers.jobs import run_jobs
from toolscout.retrievers.model_folder import trained_on
from toolscout.retrievers.provenance import TrainedOn
from toolscout.synth import RequestWriter

pytestmark = pytest.mark.slow


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SyntheticPlan:
    """A shop whose other tools nobody asked for, a tiny generator that is trained, and one that writes by rule."""
    pytest.importorskip("torch", reason="training needs the extra 'train'").set_num_threads(1)
    asked().save(tmp_path / "shop")
    tiny_llama(tmp_path / "llama", max_position_embeddings=512, num_hidden_layers=1)
    monkeypatch.setattr(rewriting_models, "Encoder", HashedWords)
    rewriting_models.raw.cache_clear()
    monkeypatch.setenv("TOOLSCOUT_CACHE", str(tmp_path / "cache"))

    def opened(folder: str, seed: int, batch: int | None) -> RequestWriter:
        return RequestWriter(writer(), {"sizes": {"1": 1.0}}, TrainedOn.load(Path(folder)))

    monkeypatch.setattr(synthetic, "RequestWriter", type("RequestWriter", (), {"open": staticmethod(opened)}))
    tiny = {"base": tmp_path / "llama", "rank": 2, "epochs": 1, "batch": 4, "device": "cpu"}
    learning = {"start": tiny_source(tmp_path / "source"), "epochs": 1, "batch": 8, "device": "cpu", "average": 1}
    told = {f"synth.{key}": value for key, value in (tiny | {"request_tokens": 480}).items()}
    told |= {f"dense.{key}": value for key, value in learning.items()} | {"writing.round_trip": 0}
    told |= {"masstool.device": "cpu", "masstool.epochs": 1}
    told |= {f"toolgen.{key}": value for key, value in (tiny | {"request_tokens": 64, "memorise": 0}).items()}
    return SyntheticPlan(
        tmp_path / "models",
        tmp_path / "rows.jsonl",
        (HeldOutSet("shop", f"{tmp_path / 'shop'}:unseen_tool"),),
        (0, 1, 3),
        tuple(f"{key}={value}" for key, value in told.items()),
    )


def done(jobs: list[Any]) -> list[str]:
    found = list(run_jobs(jobs, 1))
    assert [one.error for one in found if one.error] == []
    return [one.name for one in found]


def test_held_out_tools_get_requests_and_models_learn_from_them(plan: SyntheticPlan) -> None:
    assert done(synthetic.jobs(plan, ["dense"], [0], "texts")) == ["writer shop s0", "written shop s0"]
    made = Dataset.load(plan.written("shop", 0), ["train"])
    for_whom = {str(made.metadata[one]["for"]) for one in made.qrels["train"]}
    known = {tool_id for gold in asked().qrels["unseen_tool.train"].values() for tool_id in gold}
    assert for_whom == {tool.id for tool in TOOLS} - known
    plan = replace(plan, per_tool=(0, 3))
    assert done(synthetic.jobs(plan, ["dense", "toolgen"], [0])) == [
        "dense shop 0 s0",
        "row dense shop 0 s0",
        "toolgen shop 0 s0",
        "row toolgen shop 0 s0",
        "dense shop 3 s0",
        "row dense shop 3 s0",
        "toolgen shop 3 s0",
        "row toolgen shop 3 s0",
    ]
    assert synthetic.jobs(plan, ["dense", "toolgen"], [0]) == []
    assert len(synthetic.jobs(replace(plan, per_tool=(1,)), ["dense"], [0])) == 2
    assert done(synthetic.jobs(replace(plan, per_tool=(3,)), ["masstool", "hybrid"], [0])) == [
        "masstool shop 3 s0",
        "row masstool shop 3 s0",
        "hybrid shop 3 s0",
        "row hybrid shop 3 s0",
    ]
    bench, *measured = rows.read_rows(plan.out)
    assert (bench["bench"], bench["values"]["anchors"], bench["tools"]) == ("synthetic", 3, 6)
    assert bench["writer"]["learned_from"] == ["shop:unseen_tool.train"]
    told = [(row["variant"], row[STUDY]["per_tool"], row[STUDY]["real"], row[STUDY]["written"]) for row in measured]
    written = sum(made.metadata[one]["place"] < 3 for one in made.qrels["train"])
    assert told == [
        ("synthetic-dense-0-s0", 0, 3, 0),
        ("synthetic-toolgen-0-s0", 0, 3, 0),
        ("synthetic-dense-3-s0", 3, 3, written),
        ("synthetic-toolgen-3-s0", 3, 3, written),
        ("synthetic-masstool-3-s0", 3, 3, written),
        ("synthetic-hybrid-3-s0", 3, 3, written),
    ]
    # A tool that only written requests ask for is still new.
    assert all(row["new_tools"] == 1 and "new_recall@5" in row["metrics"] for row in measured)
    seen = trained_on(plan.model("shop", "dense", 3, 0))
    assert {one.dataset for one in seen.splits} == {"shop", "written-shop-s0"}
    assert str(plan.models) not in plan.out.read_text()


def test_the_default_encoder_gets_requests_for_documents_alone(plan: SyntheticPlan) -> None:
    whole = replace(plan, per_tool=(3,), pool=Path("pool"), catalogue="toolbench")
    todo = synthetic.default_jobs(whole, 0)
    assert [job.name for job in todo] == [
        "writer toolbench s0",
        "written toolbench s0",
        "before",
        "default",
        "after",
        *(f"{word} {one}" for one in synthetic.ELSEWHERE for word in ("before", "after")),
    ]
    assert todo[0].arguments[2] == ["ultratool", "sealtools:dev:", "pool/calls"]
    assert todo[1].arguments[2:5] == ("toolbench", "all", 3)
    assert todo[4].after == ("writer toolbench s0", "written toolbench s0", "default")
    assert [job.name for job in synthetic.default_jobs(whole, 0, "texts")] == [job.name for job in todo[:2]]
    assert synthetic.recipe(whole)[-1] == "pool/openapi"


def test_one_product_ranks_as_dense_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(rewriting_models, "Encoder", HashedWords)
    monkeypatch.setenv("TOOLSCOUT_CACHE", str(tmp_path / "cache"))
    rewriting_models.raw.cache_clear()
    usual = rewriting_models.filled(rewriting_models.dense_raw(), TOOLS)
    texts = ["finds where a city is", "beds for the night", "rain"]
    found = synthetic.judge(TOOLS).rank(texts, 4)
    assert isinstance(usual, rewriting_models.Dense)
    assert [one.ids() for one in found] == [one.ids() for one in usual.rank(texts, 4)]
    assert found[0].ids()[0] == IDS["locate_city"]
    assert len(synthetic.judge(TOOLS[:2]).rank(texts, 4)[0].pairs) == 2
