"""Ablations: what a variant differs in, what is written of it, and that nothing is made twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.retrievers.scenes import scenes
from tests.toys import HashedWords
from toolscout.core.scope import EVERYTHING
from toolscout.errors import BadModel, BadRequest, Leak
from toolscout.evaluation.row import STUDY, read_rows, read_scores, scores_path
from toolscout.models.tower import Tower
from toolscout.papers.masstool import ablations, noisy_detector
from toolscout.papers.masstool.ablations import FULL, VARIANTS, AblationPlan, AblationWriter, jobs, sample, variants
from toolscout.retrievers.encoded_requests import train_examples
from toolscout.retrievers.masstool import Masstool
from toolscout.retrievers.provenance import TrainingSet

SMALL = ("epochs=2", "batch=16", "rate=0.001", "device=cpu", "hidden=16", "neighbours=5", "epsilon=0.2")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset and a folder of prompts in words that no request has."""
    folder = tmp_path_factory.mktemp("ablation")
    scenes().save(folder / "data")
    (folder / "no_tool").mkdir()
    with (folder / "no_tool" / "prompts.jsonl").open("w") as stream:
        for number in range(40):
            split = "train" if number < 20 else "dev" if number < 30 else "test"
            text = f"poem verse rhyme {number} song"
            stream.write(json.dumps({"_id": f"p{number}", "text": text, "split": split, "source": "songs"}) + "\n")
    return folder


@pytest.fixture(scope="module")
def plan(data: Path) -> Iterator[AblationPlan]:
    """The full model is trained once for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ablations, "Encoder", HashedWords)
        yield AblationPlan(str(data / "data"), "test", data / "out", no_tool=str(data / "no_tool"), settings=SMALL)


def run(plan: AblationPlan, only: str, path: Path) -> list[str]:
    """Run all jobs one after the other; their names."""
    todo, writer = jobs(plan, variants(plan, only), [0], path), AblationWriter(path)
    for job in todo:
        writer.add(job.work(*job.arguments))
    return [job.name for job in todo]


def test_the_variants_are_those_of_the_paper_less_the_full_model(plan: AblationPlan) -> None:
    base = plan.options(0)
    found = variants(plan)
    assert found[0].name == FULL
    assert len({one.name for one in VARIANTS}) == len(VARIANTS)
    assert all(replace(base, **one.changes) != base for one in found[1:] if one.trained)
    names = {one.name for one in VARIANTS} - {one.name for one in found}
    assert names == {"transfer-gating", "layers-1_edges-1"}
    assert {one.name for one in variants(plan, "epsilon")} == {FULL} | {
        f"epsilon-{value}" for value in ("0", "0.4", "0.6", "0.7", "0.8", "0.9", "1")
    }
    deaf = replace(plan, no_tool="")
    assert not [one for one in variants(deaf) if one.part in ("lambda", "detector") or one.name == "without-detection"]
    with pytest.raises(BadRequest, match="no variant has 'nonsense'"):
        variants(plan, "nonsense")
    with pytest.raises(BadModel, match="name it by --encoder"):
        variants(replace(plan, settings=("train_encoder=true",)))


@pytest.mark.slow
def test_rows_say_what_differs_and_are_made_once(plan: AblationPlan, tmp_path: Path) -> None:
    path = tmp_path / "ablations.jsonl"
    assert run(plan, "without-adakt", path) == [f"{FULL} s0", "without-adakt s0"]
    rows = read_rows(path)
    of = ablations.cached_data(plan).identity
    assert [row["variant"] for row in rows] == [
        f"{name}-{weights}-{of}-s0" for name in (FULL, "without-adakt") for weights in ("chosen", "learned")
    ]
    full, lacking = rows[1], rows[3]
    assert (full["options"]["transfer"], lacking["options"]["transfer"]) == ("gating", "none")
    assert full["options"]["neighbour_weight"] == 1.0
    assert full["options"]["no_tool"] == "no_tool"
    assert "need_auroc" in full["metrics"]
    assert "fit_use" not in full["metrics"]
    assert "against" not in full[STUDY]
    lines = [read_scores(scores_path(path, row)) for row in (full, lacking)]
    mean = [np.mean([sum(rank <= 5 for rank in line["ranks"]) / line["gold"] for line in few]) for few in lines]
    assert mean[0] == pytest.approx(full["metrics"]["recall@5"], abs=1e-6)
    assert lacking[STUDY]["against"]["recall@5"][0] == pytest.approx(mean[1] - mean[0], abs=1e-6)
    assert (plan.out / of / f"{FULL}-s0" / "model.json").is_file()
    assert not (plan.out / of / "without-adakt-s0").exists()
    assert str(tmp_path) not in path.read_text()
    assert run(plan, "without-adakt", path) == []
    changed = replace(plan, settings=(*SMALL, "votes=0.2"))
    assert [job.name for job in jobs(changed, variants(changed, FULL), [0], path)] == [f"{FULL} s0"]


@pytest.mark.slow
def test_serving_variants_use_the_full_model_as_it_was_trained(plan: AblationPlan, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    run(plan, "pool", path)
    rows = {(row[STUDY]["variant"], row[STUDY]["weights"]): row for row in read_rows(path)}
    assert {row["timing"]["fit_s"] for row in rows.values()} == {rows[FULL, "chosen"]["timing"]["fit_s"]}
    recalls = [rows[name, "learned"]["metrics"]["recall@5"] for name in (FULL, "pool-0.5", "pool-0")]
    assert recalls[0] >= recalls[1] >= recalls[2]
    assert recalls[0] > recalls[2]  # requests share no word with their tools: without past ones nothing is known
    (tmp_path / "rows.jsonl").write_text(
        "".join(line for line in path.read_text().splitlines(keepends=True) if "pool-0.5" not in line)
    )
    assert run(plan, "pool", path) == ["pool-0.5 s0"]


@pytest.mark.slow
def test_attention_and_votes_are_left_out_of_the_full_model_one_at_a_time(plan: AblationPlan, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    run(plan, "without-attention", path)
    run(plan, "without-votes", path)
    rows = {(row[STUDY]["variant"], row[STUDY]["weights"]): row for row in read_rows(path)}
    for weights in ("chosen", "learned"):
        full = rows[FULL, weights]
        for name, weight in (("attention", "neighbour_weight"), ("votes", "votes")):
            row = rows[f"without-{name}", weights]
            assert row["options"] == full["options"] | {weight: 0.0}
            assert row[STUDY]["changes"] == {weight: 0.0}
            assert row["timing"]["fit_s"] == full["timing"]["fit_s"]  # nothing was trained again
            assert "ndcg@5" in row[STUDY]["against"]


@pytest.mark.slow
def test_rows_wait_for_the_full_model_to_be_compared_with(plan: AblationPlan, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    todo, writer = jobs(plan, variants(plan, "epsilon-0.4"), [0], path), AblationWriter(path)
    assert [job.name for job in todo] == [f"{FULL} s0", "epsilon-0.4 s0"]
    full, other = (job.work(*job.arguments) for job in todo)
    writer.add(other)
    assert not path.exists()
    writer.add(full)
    assert [row[STUDY]["variant"] for row in read_rows(path)] == [FULL] * 2 + ["epsilon-0.4"] * 2
    assert all("against" in row[STUDY] for row in read_rows(path)[2:])


def test_a_smaller_pool_is_part_of_a_larger_one() -> None:
    examples = train_examples([TrainingSet(scenes(), "train", "")])
    half, tenth = ({one.request for one in sample(examples, share)} for share in (0.5, 0.1))
    assert (len(half), len(tenth), len(sample(examples, 0.0))) == (30, 6, 0)
    assert tenth < half


@pytest.mark.slow
def test_a_misled_tower_errs_as_often_as_asked(plan: AblationPlan) -> None:
    found = ablations.cached_data(plan)
    folder = plan.out / "model"
    settings = replace(plan.options(0), epochs=20, rate=0.01)
    Masstool(settings, found.encoder).fit([found.data], folder)
    model = Masstool.load(folder, found.encoder)
    tower = model.tower
    assert tower is not None
    texts = [text for name in ("train", "dev", "test") for _, text in scenes().split(name).requests]
    assert np.mean(np.array(model.need(texts)) >= 0.5) > 0.95
    vectors, before = found.encoder.encode(texts), set[int]()
    own = Tower.states(tower, vectors)
    assert own is not None
    for accuracy in (0.9, 0.8, 0.7, 0.6):
        made = noisy_detector.add_errors(tower, model, texts, found.prompts, accuracy)
        assert made.accuracy == pytest.approx(accuracy, abs=0.5 / len(texts) + 1e-9)
        states = made.tower.states(vectors)
        assert states is not None
        # An independent count: what the head says of the states that are served.
        judged = states @ tower.numbers["output"] + tower.numbers["output_bias"]
        scale, shift = (getattr(model._head, name) for name in ("scale", "shift"))
        assert np.mean(scale * judged + shift >= 0) == pytest.approx(made.accuracy)
        changed = set(np.flatnonzero(np.abs(own - states).sum(1)).tolist())
        assert before < changed
        before = changed
    model.retune({"neighbour_weight": 1.0}, made.tower)
    model.add(found.test.tools)
    asked = [model._evidence(vector, EVERYTHING).vector for vector in vectors]
    model.retune({"neighbour_weight": 1.0}, tower)
    model.add(found.test.tools)
    heeded = [model._evidence(vector, EVERYTHING) for vector in vectors]
    moved = {at for at, vector in enumerate(asked) if np.abs(vector - heeded[at].vector).max() > 1e-6}
    assert moved == {at for at in changed if heeded[at].recalled.neighbours}  # who has neighbours feels the gate
    kind = noisy_detector.add_errors(tower, model, texts, found.prompts, 1.0)
    assert (kind.tower.share, kind.accuracy) == (0.0, np.mean(np.array(model.need(texts)) >= 0.5))


def test_a_split_that_was_trained_on_is_refused(plan: AblationPlan, tmp_path: Path) -> None:
    with pytest.raises(Leak, match="trained on"):
        jobs(replace(plan, test="train"), variants(plan), [0], tmp_path / "rows.jsonl")
