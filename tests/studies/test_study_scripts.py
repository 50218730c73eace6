"""The scripts behind the studies: what comes at each step, what is edited, and that each makes its rows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from studies import continual, document_edits, domain_transfer, masstool_cost
from studies.continual import DOCUMENTS, KEPT, RETRAINED, STEPS, TOLD, TOOLS, ContinualPlan
from tests.retrievers.scenes import scenes
from tests.toys import HashedWords, catalogue
from toolscout.core.tool import Tool
from toolscout.evaluation.row import STUDY, append

SMALL = ("epochs=1", "batch=16", "rate=0.001", "device=cpu")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContinualPlan]:
    folder = tmp_path_factory.mktemp("continual")
    scenes().save(folder / "data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(continual, "Encoder", HashedWords)
        yield ContinualPlan(str(folder / "data"), folder / "models", settings=SMALL)


def test_a_step_adds_tools_and_takes_none_away() -> None:
    found = continual.stages(catalogue(60))
    assert [len(one) for one in found] == [48, 50, 53, 55, 58, 60]
    assert all(one < other for one, other in pairwise(found))
    assert found == continual.stages(list(reversed(catalogue(60))))


def test_requests_are_there_when_all_their_tools_are(plan: ContinualPlan) -> None:
    whole = continual.read(plan)
    first, last = continual.at(plan, TOOLS, 0), continual.at(plan, TOOLS, STEPS)
    there = {tool.id for tool in first.tools}
    assert set(first.qrels["train"]) == {i for i, gold in whole.qrels["train"].items() if there >= set(gold)}
    assert 0 < len(first.qrels["train"]) < len(whole.qrels["train"])
    assert last.qrels == whole.qrels
    groups = {name: (data, new) for name, data, new in continual.grouped(plan, TOOLS, STEPS)}
    old, added = (set(groups[name][0].qrels["test"]) for name in ("old", "added"))
    assert old | added == set(whole.qrels["test"])
    assert all(there >= set(whole.qrels["test"][i]) for i in old)
    assert groups["old"][1] is None
    assert groups["added"][1] == {tool.id for tool in whole.tools} - there
    assert [name for name, _, _ in continual.grouped(plan, TOOLS, 0)] == ["old"]


@pytest.mark.slow
def test_a_model_follows_all_steps_and_its_rows_are_not_made_again(plan: ContinualPlan, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    todo = continual.jobs(plan, ["dense", "masstool"], [0], path)
    names = [job.name for job in todo]
    assert names[:2] == ["dense tools kept 0 s0", "dense documents kept 0 s0"]
    assert len(names) == 2 + 3 + 2 * STEPS
    by_name = {job.name: job for job in todo}
    assert by_name["masstool tools told 0 s0"].after == ("masstool tools kept 0 s0",)
    assert by_name["masstool documents kept 0 s0"].after == (f"masstool tools retrained {STEPS} s0",)
    chosen = ["masstool tools kept 0 s0", "masstool tools told 0 s0", f"masstool tools retrained {STEPS} s0"]
    chosen.append("masstool documents kept 0 s0")
    for name in chosen:
        for one in by_name[name].work(*by_name[name].arguments):
            append(path, one.row)
    rows = {
        (t["change"], t["mode"], t["group"], t["step"]): r for r in continual.rows.read_rows(path) for t in [r[STUDY]]
    }
    recall = {key: row["metrics"]["recall@5"] for key, row in rows.items()}
    assert rows[TOOLS, KEPT, "added", STEPS]["metrics"].keys() >= {"new_recall@5", "recall@5"}
    # Requests have no word in common with their tools: only past ones can tell.
    assert recall[TOOLS, TOLD, "added", STEPS] > recall[TOOLS, KEPT, "added", STEPS]
    assert recall[TOOLS, RETRAINED, "added", STEPS] > recall[TOOLS, KEPT, "added", STEPS]
    assert recall[TOOLS, KEPT, "old", 0] == recall[TOOLS, TOLD, "old", 0]
    assert (DOCUMENTS, KEPT, "edited", STEPS) in rows
    assert str(tmp_path) not in path.read_text()
    left = [job.name for job in continual.jobs(plan, ["dense", "masstool"], [0], path)]
    assert set(left) == set(names) - set(chosen)
    other = tmp_path / "other.jsonl"  # rows of the encoder that the package had before are not this plan's
    for row in continual.rows.read_rows(path):
        append(other, row | {"encoder": "another"})
    assert [job.name for job in continual.jobs(plan, ["dense", "masstool"], [0], other)] == names
    trained = ContinualPlan(plan.data, plan.models, train_dense=True)
    after = {job.name: job.after for job in continual.jobs(trained, ["dense", "colt"], [0], path)}
    assert after["colt tools retrained 2 s0"] == ("dense tools retrained 2 s0",)
    assert "dense tools kept 0 s0" in after["colt tools kept 0 s0"]


def test_edits_change_one_document_in_ten_and_are_always_the_same() -> None:
    tools = [
        Tool("n", f"t{n}", f"Get the data of {n}. Returns all.", input_schema={"properties": {"a": {}, "b": {}}})
        for n in range(50)
    ]
    once, thrice = document_edits.edited(tools, 1), document_edits.edited(tools, 3)
    changed = [tool.id for tool, other in zip(tools, once, strict=True) if tool.document() != other.document()]
    assert len(changed) == 5
    assert [tool.id for tool in once] == [tool.id for tool in tools]
    assert document_edits.edited(tools, 3) == thrice
    assert document_edits.edited(tools, 0) == tools
    rng = np.random.default_rng(0)
    assert document_edits._reworded(tools[0], rng).description == "Fetch the records of 0. Gives back every."
    assert document_edits._without_a_sentence(tools[0], rng).description in ("Get the data of 0.", "Returns all.")
    bare = Tool("n", "t", "xyz")
    assert document_edits.edit(bare, rng) is bare


def test_transfer_asks_models_that_are_there_about_sets_that_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "toollens-s0").mkdir()
    (tmp_path / "toollens-s0" / "model.json").write_text("{}")
    path = tmp_path / "rows.jsonl"
    append(path, {"variant": "toollens-s0", "dataset": "ultratool", "split": "test"})
    found = domain_transfer.jobs(tmp_path, ["toollens", "colt-toollens"], [0], ["ultratool:test", "bundled:test"], path)
    assert [job.name for job in found] == ["toollens-s0 bundled:test"]
    assert "there is no model" in capsys.readouterr().err


@pytest.mark.slow
def test_made_up_requests_lie_near_their_tools_and_cost_is_measured(tmp_path: Path) -> None:
    assert masstool_cost.sizes([10, 1000, 100], [50, 500]) == [(50, 10), (50, 100), (50, 1000), (500, 100)]
    encoder = masstool_cost.Numbered(40, 700)
    data = encoder.dataset()
    assert [len(data.split(name)) for name in ("train", "dev", "test")] == [200, 200, 300]
    scores = encoder.encode([text for _, text in data.split("test").requests]) @ encoder.documents.T
    best = [{f"made/t{at}" for at in row.argsort()[-3:]} for row in scores]
    assert (
        np.mean([len(top & set(gold)) / len(gold) for top, gold in zip(best, data.split("test").gold, strict=True)])
        > 0.9
    )
    found = masstool_cost.fit(40, 200, tmp_path, [*SMALL])
    assert found["values"]["fit_s"] > 0
    asked = masstool_cost.ask(40, 200, tmp_path)["values"]
    assert asked["more_ms"] == pytest.approx(asked["masstool_p50_ms"] - asked["dense_p50_ms"], abs=1e-3)
