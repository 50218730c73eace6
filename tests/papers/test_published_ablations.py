"""Ablations of masstool_published: the options of a variant, what is written of it, and that nothing is made twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from studies import masstool_published
from tests.retrievers.scenes import scenes
from tests.toys import HashedWords
from toolscout.errors import BadModel, BadRequest, Leak
from toolscout.evaluation.report.rows import read_folder
from toolscout.evaluation.row import STUDY, read_rows, scores_path
from toolscout.papers.masstool import ablations, published_report
from toolscout.papers.masstool.ablations import FULL, AblationWriter
from toolscout.papers.masstool.published import MasstoolPublished
from toolscout.papers.masstool.published_ablations import NAME, SETTINGS, VARIANTS, PublishedPlan, jobs, run_variant
from toolscout.retrievers.option_values import with_settings
from toolscout.retrievers.provenance import TrainingSet

pytestmark = pytest.mark.slow
SMALL = ("epochs=2", "batch=20", "rate=0.01", "epsilon=0.4", "neighbours=5", "device=cpu")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PublishedPlan]:
    folder = tmp_path_factory.mktemp("published")
    scenes().save(folder / "data")
    (folder / "chat").mkdir()
    with (folder / "chat" / "prompts.jsonl").open("w") as stream:
        for number in range(40):
            split = "train" if number < 20 else "dev" if number < 30 else "test"
            text = f"poem verse rhyme {number} song"
            stream.write(json.dumps({"_id": f"p{number}", "text": text, "split": split, "source": "songs"}) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ablations, "Encoder", HashedWords)
        yield PublishedPlan(str(folder / "data"), "test", folder / "out", no_tool=str(folder / "chat"), settings=SMALL)


def test_a_variant_has_the_settings_of_its_dataset_and_its_one_change(plan: PublishedPlan) -> None:
    full = plan.options(FULL, 3)
    assert (full.epochs, full.neighbours, full.seed, full.transfer) == (2, 5, 3, "gating")
    for name, changes in VARIANTS.items():
        assert plan.options(name, 3) == replace(full, **changes)
    published = with_settings(MasstoolPublished().options, NAME, SETTINGS["toolbench-g3"])
    assert (published.epsilon, published.rate, published.weight_detection, published.temperature) == (
        0.87, 0.005, 0.05, 0.05,
    )  # fmt: skip


def test_an_encoder_is_called_by_its_folder_or_its_model(plan: PublishedPlan) -> None:
    places = ("", "somewhere/minilm", "models/stage1/encoder", "models/stage1/encoder/")
    names = [replace(plan, encoder=place).encoder_name() for place in places]
    assert names == ["default", "minilm", "stage1", "stage1"]


def test_what_cannot_be_run_is_refused(plan: PublishedPlan, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="no variant 'without-everything'; there are: full, without-detection"):
        run_variant(plan, "without-everything", 0)
    with pytest.raises(BadModel, match="name a folder of prompts"):
        run_variant(replace(plan, no_tool=""), FULL, 0)
    with pytest.raises(BadModel, match="one frozen encoder"):
        run_variant(replace(plan, settings=("encoder=somewhere",)), FULL, 0)
    with pytest.raises(Leak):
        jobs(replace(plan, test="train"), [FULL], [0], tmp_path / "rows.jsonl")


def test_rows_are_written_once_and_tested_against_the_full_network(plan: PublishedPlan, tmp_path: Path) -> None:
    path, chosen = tmp_path / "rows.jsonl", [FULL, "without-suim", "density-0.5", "without-detection"]
    writer = AblationWriter(path, NAME)
    todo = jobs(plan, chosen, [0], path)
    assert [job.name for job in todo] == [f"{name} s0" for name in chosen]
    for job in todo:
        writer.add([job.work(*job.arguments)])
    assert jobs(plan, chosen, [0], path) == []
    assert [job.name for job in jobs(plan, chosen, [0, 1], path)] == [f"{name} s1" for name in chosen]
    assert [job.name for job in jobs(plan, ["without-adakt"], [0], path)] == ["without-adakt s0"]
    assert [job.name for job in jobs(plan, ["without-adakt"], [1], path)] == ["full s1", "without-adakt s1"]
    rows = {row[STUDY]["variant"]: row for row in read_rows(path)}
    assert list(rows) == chosen
    assert {(row["dataset"], row["split"], row["retriever"], row["requests"]) for row in rows.values()} == {
        ("data", "test", "masstool_published", 24)
    }
    assert rows["without-suim"]["options"]["neighbours"] == 0
    assert rows["without-suim"][STUDY]["changes"] == {"neighbours": 0}
    assert rows[FULL][STUDY]["epochs"] == 2
    assert "against" not in rows[FULL][STUDY]
    assert all("ndcg@5" in row[STUDY]["against"] for name, row in rows.items() if name != FULL)
    assert "need_auroc" in rows[FULL]["metrics"]
    assert "need_auroc" not in rows["without-detection"]["metrics"]
    assert rows["density-0.5"]["timing"]["fit_params"] < rows[FULL]["timing"]["fit_params"]
    assert rows[FULL]["command"].startswith("python -m studies.masstool_published data --test test --no-tool chat")
    assert str(tmp_path.parent) not in path.read_text()
    scores_path(path, rows[FULL]).unlink()  # nothing to test others against
    assert [job.name for job in jobs(plan, ["without-adakt"], [0], path)] == ["full s0", "without-adakt s0"]
    assert jobs(plan, chosen, [0], path) == []
    lines = published_report.lines_of(read_folder(tmp_path)[0])
    text = "\n".join(published_report.section(lines, {}))
    assert "**data test**, 24 requests" in text
    assert "without SUIM (neighbours)" in text
    assert "50 % of the training requests" in text
    ((drawn,),) = [figure.panels for figure in published_report.figures(lines).values()]
    ((label, parts, heights, errors),) = [(one.label, one.x, one.y, one.error) for one in drawn.series]
    assert label.startswith("data, ")
    assert parts == ("the detection loss", "SUIM (neighbours)")
    for height, error, name in zip(heights, errors, ("without-detection", "without-suim"), strict=True):
        difference, low, high, _ = rows[name][STUDY]["against"]["ndcg@5"]
        assert height == pytest.approx(100 * difference, abs=0.006)
        assert error == pytest.approx(50 * (high - low), abs=0.006)


def test_a_larger_share_includes_the_requests_of_a_smaller_one(plan: PublishedPlan, tmp_path: Path) -> None:
    encoder, pools = HashedWords(), []
    for share in (0.2, 0.5, 1.0):
        options = replace(plan.options(FULL, 0), train_share=share, no_tool="", epochs=1)
        model = MasstoolPublished(options, encoder)
        model.fit([TrainingSet(scenes())], tmp_path / str(share))
        pools.append({row.tobytes() for row in model._pool.rows(range(len(model._pool)))})
        assert len(model._pool) == round(share * 60)
    assert pools[0] <= pools[1] <= pools[2]


@pytest.mark.parametrize("variant", ["without-suim", "without-adakt", "without-qc-gcn", "transfer-attention"])
def test_a_saved_variant_ranks_as_the_fitted_one(plan: PublishedPlan, tmp_path: Path, variant: str) -> None:
    model = MasstoolPublished(plan.options(variant, 0), HashedWords())
    model.fit([TrainingSet(scenes())], tmp_path)
    requests = [text for _, text in scenes().split("test").requests]
    loaded = MasstoolPublished.load(tmp_path, HashedWords())
    assert loaded.search(requests, 60) == model.search(requests, 60)
    assert loaded.need(requests) == model.need(requests)


def test_the_script_makes_the_rows_that_are_named(
    plan: PublishedPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.jsonl"
    words = ["script", plan.data, "--no-tool", plan.no_tool, "--only", "full,without-adakt", "--seeds", "1"]
    words += ["--out", str(plan.out), "--rows", str(path), *(word for one in SMALL for word in ("--option", one))]
    monkeypatch.setattr("sys.argv", words)
    masstool_published.main()
    masstool_published.main()  # nothing is left to do
    assert [(row[STUDY]["variant"], row["seed"]) for row in read_rows(path)] == [("full", 1), ("without-adakt", 1)]
