"""What was measured, what can be run, and what is missing; experiments are trained and measured once."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.evaluation.report_samples import scored, write_rows
from tests.training.learnable import learnable, tiny_source
from toolscout.data.dataset import Dataset
from toolscout.errors import BadDataset, BadModel, BadRequest
from toolscout.models.encoders.export import export
from toolscout.models.tool_ids.code_tree import health
from toolscout.papers import published_numbers, registry
from toolscout.papers import reproduction as found
from toolscout.papers.masstool.published_ablations import VARIANTS
from toolscout.papers.paper import AgentExperiment, Column, Experiment, Line, Table, Unavailable, Weights
from toolscout.papers.registry import PAPERS, find_paper, find_tables
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.toolweaver import Toolweaver

BM25 = Experiment("default", "bm25", "learnable", train="")
NEAR = Experiment("near", "memory", "learnable", ("neighbours=3",))


@pytest.fixture
def torch_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing is the same where torch is not installed."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "torch" or find(name))


def setup(tmp_path: Path, **changes: Any) -> found.Setup:
    return found.Setup(**{"data": tmp_path, "rows": tmp_path / "rows", "models": tmp_path / "models", **changes})


def every_table() -> list[Table]:
    return [table for paper in PAPERS.values() for table in paper.tables]


def test_every_number_of_theirs_stands_in_the_one_file_of_them() -> None:
    numbers = published_numbers.load()
    for table in every_table():
        for line in table.lines:
            values = [table.theirs(line, column) for column in table.columns]
            if not line.source:
                assert values == [None] * len(values)
                continue
            (own,) = [
                v for name, source, v in numbers[table.numbers].lines if (name, source) == (line.name, line.source)
            ]
            heads = numbers[table.numbers].columns
            assert values == [
                own[heads.index(column.head)] if column.head in heads else None for column in table.columns
            ]
            assert any(value is not None for value in values), f"{table.title}: {line.name} shows no number"


@pytest.mark.parametrize("key", PAPERS)
def test_a_paper_says_what_it_is_and_how_ours_differs(key: str) -> None:
    paper = PAPERS[key]
    assert paper.key == key
    assert paper.link.startswith("https://arxiv.org/abs/")
    assert len(paper.differences) > 3
    assert len({(table.id, table.part) for table in paper.tables}) == len(paper.tables)


def test_experiments_have_one_meaning_each() -> None:
    by_name: dict[tuple[object, ...], Experiment] = {}
    for table in every_table():
        for one in (link for experiment in table.experiments() for link in experiment.chain()):
            assert by_name.setdefault((one.name, one.retriever, one.dataset, one.among), one) == one


@pytest.mark.parametrize("form", ["published", "served"])
def test_what_a_line_names_as_measured_has_rows_in_the_repository(form: str) -> None:
    results = Path(__file__).resolve().parents[2] / "results"
    where = found.Setup(None, results, Path("models"))
    measured = {
        (paper.key, table.title, line.name): found.cell(getattr(line, form), table.columns[0], where).mean
        for paper in PAPERS.values()
        for table in paper.tables
        for line in table.lines
    }
    if form == "served":
        assert measured["colt", "3, ToolLens", "COLT (MiniLM-L6)"] == pytest.approx(0.961, abs=0.001)
        assert measured["toolgen", "toollens", "ToolGen, atomic ids"] == pytest.approx(0.982, abs=0.002)
        assert measured["masstool", "ablation, ToolLens", "w/o SUIM"] is not None
    else:
        assert measured["masstool", "main, ToolLens", "MassTool (MiniLM-L6, stage 1 as served)"] is not None
        assert measured["query-generation", "main, in-domain", "Supervised"] == pytest.approx(0.8285, abs=0.0001)


@pytest.mark.parametrize(("part", "dataset"), [("ToolLens", "toollens"), ("ToolBench G3", "toolbench-g3")])
def test_colts_ablations_change_one_thing_each(part: str, dataset: str) -> None:
    (table,) = find_tables(find_paper("colt"), f"ablation, {part}")
    found_by = {line.name: line.published for line in table.lines if isinstance(line.published, Experiment)}
    full = found_by["COLT (MiniLM-L6)"]
    (main,) = find_tables(find_paper("colt"), f"3, {part}")
    assert full in [line.published for line in main.lines]
    assert {one.dataset for one in found_by.values()} == {dataset}
    assert found_by["w/o collaborative (MiniLM-L6)"] == full.encoder
    for name, change in (("w/o list-wise (pairwise)", "loss=pairwise"), ("w/o contrastive", "beta=0")):
        one = found_by[f"{name} (MiniLM-L6)"]
        assert (one.encoder, one.settings) == (full.encoder, (*full.settings, change))
    semantic = found_by["w/o semantic (MiniLM-L6)"]
    assert (semantic.encoder, semantic.settings) == (None, (*full.settings, "encoder=raw"))


def test_a_cell_is_the_mean_over_the_requests_of_several_splits(tmp_path: Path) -> None:
    for seed, (one, other) in enumerate(((0.2, 0.8), (0.4, 0.6))):
        named = {"dataset": "learnable", "retriever": "memory", "variant": f"near-s{seed}", "seed": seed}
        options = {"neighbours": 3}
        for split, value, requests in (("a", one, 30), ("b", other, 10)):
            row = scored(value, split=split, requests=requests, options=options, **named)
            write_rows(tmp_path / "rows", row | {"metrics": {"recall@5": value}})
    cell = found.cell(NEAR, Column("R@5", "recall@5", ("a", "b")), setup(tmp_path))
    assert cell.values == pytest.approx((0.35, 0.45))
    assert found.cell(NEAR, Column("R@5", "recall@5", ("a", "c")), setup(tmp_path)).values == ()
    assert found.cell(NEAR, Column("SoPR"), setup(tmp_path)).values == ()
    assert found.measured_seeds(NEAR, ["a", "b"], setup(tmp_path)) == [0, 1]
    other_options = replace(NEAR, settings=("neighbours=4",))
    assert found.measured_seeds(other_options, ["a"], setup(tmp_path)) == []
    same = replace(other_options, name="elsewhere", also=("nea*",))
    assert found.measured_seeds(same, ["a"], setup(tmp_path)) == [0, 1]


@pytest.mark.usefixtures("torch_is_here")
def test_what_is_missing_says_what_to_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOOLSCOUT_DATA", raising=False)
    nothing = found.setup_of(None, tmp_path / "rows", tmp_path / "models", [])
    assert found.missing(BM25, ["test"], nothing) == [
        "the dataset learnable: pass --data FOLDER, the folder that has learnable/ in it, or set TOOLSCOUT_DATA"
    ]
    assert "does not have: pass --data" in found.missing(BM25, ["test"], setup(tmp_path))[0]
    learnable().save(tmp_path / "learnable")
    here = setup(tmp_path)
    assert found.missing(BM25, ["test"], here) == []
    (splits,) = found.missing(BM25, ["other", "test", "more"], here)
    assert splits.startswith(f"qrels/other.tsv, qrels/more.tsv in {tmp_path / 'learnable'}: add them")
    weighed = replace(BM25, retriever="dense", weights=Weights("ance", "ANCE", "encoder"))
    assert found.missing(weighed, ["test"], here) == ["the weights of ANCE: pass --model ance=FOLDER"]
    assert found.missing(weighed, ["test"], setup(tmp_path, weights={"ance": "x"})) == []
    (prompts,) = found.missing(replace(NEAR, prompts=True), ["test"], here)
    assert prompts.startswith(f"prompts that need no tool, in {tmp_path / 'no_tool'}: pass --data")
    refused = replace(BM25, settings=("speed=9",))
    assert found.missing(refused, ["test"], here)[-1].endswith("bm25 does not take: speed=9")
    with monkeypatch.context() as without:
        without.setattr(importlib.util, "find_spec", lambda name: None)
        assert found.missing(NEAR, ["test"], here) == ["torch: run pip install 'toolscout[train]'"]
    over = replace(NEAR, encoder=weighed)
    assert found.missing(over, ["test"], here) == ["the weights of ANCE: pass --model ance=FOLDER"]
    why = found.summary(Unavailable("nobody has it"), ["test"], here)
    assert why is not None
    assert (why.kind, why.missing) == ("missing", ("nobody has it",))


@pytest.mark.usefixtures("torch_is_here")
def test_every_missing_thing_is_said_at_once(tmp_path: Path) -> None:
    weights = Weights("llama", "Llama", "base")
    whole = replace(NEAR, weights=weights, prompts=True, trajectories=True, dataset="elsewhere")
    said = found.missing(whole, ["test"], setup(tmp_path))
    assert [one.partition(",")[0].partition(":")[0] for one in said] == [
        "the dataset elsewhere",
        "prompts that need no tool",
        "trajectories of agents",
        "the weights of Llama",
    ]
    assert all("pass --" in one for one in said)
    (tmp_path / "elsewhere").mkdir()
    assert "is only half a dataset: corpus.jsonl" in found.missing(whole, ["test"], setup(tmp_path))[0]
    learnable().save(tmp_path / "learnable")
    (tmp_path / "learnable" / "qrels" / "dev.tsv").unlink()
    assert found.missing(NEAR, ["test"], setup(tmp_path))[0].startswith("qrels/dev.tsv in ")
    assert found.missing(BM25, ["test"], setup(tmp_path)) == []


@pytest.mark.usefixtures("torch_is_here")
def test_the_published_encoder_is_missing_until_it_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLSCOUT_CACHE", str(tmp_path / "cache"))
    learnable().save(tmp_path / "learnable")
    for settings in (("encoder=raw",), ("dense.encoder=raw",)):
        over = replace(NEAR, settings=settings)
        assert any("toolscout encoder export" in one for one in found.missing(over, ["test"], setup(tmp_path)))
    assert found.missing(replace(NEAR, settings=("neighbours=3",)), ["test"], setup(tmp_path)) == []


@pytest.mark.parametrize(
    ("option", "place", "message"),
    [
        ("base", "empty", "no folder of a Hugging Face model: no config.json"),
        ("start", "empty", "not a folder of a Hugging Face model: it has no config.json"),
        ("encoder", "empty", "holds no encoder"),
        ("encoder", "https://host/v1", "needs the name of a model: write https://host/v1\\?model=NAME"),
        ("", "https://host/v1", "needs the name of a model: write https://host/v1\\?model=NAME"),
    ],
)
def test_weights_that_cannot_be_used_are_refused_before_anything_is_run(
    tmp_path: Path, option: str, place: str, message: str
) -> None:
    (tmp_path / "empty").mkdir()
    place = place if "://" in place else str(tmp_path / place)
    model = replace(NEAR, weights=Weights("named", "weights", option))
    agent = AgentExperiment("an", "gold", "learnable", weights=model.weights)
    judged = AgentExperiment("judged", "toolgen", "learnable", model=NEAR, judged="sowr", reference=agent)
    lines = (Line("one", judged if option == "" else replace(NEAR, encoder=model)),)
    table = Table("1", "", "", (Column("R@5", "recall@5"),), lines)
    assert "named" in found.weights_names([table])
    with pytest.raises(BadModel, match=f"--model named={place}: .*{message}"):
        found.check_passed([table], setup(tmp_path, weights={"named": place}))
    found.check_passed([table], setup(tmp_path))


@pytest.mark.parametrize(
    ("weights", "message"),
    [("ance", "pass --model NAME=FOLDER"), ("ance=", "pass --model NAME"), ("ance=/nowhere", "there is nothing at")],
)
def test_weights_that_cannot_be(tmp_path: Path, weights: str, message: str) -> None:
    with pytest.raises(BadDataset, match=message):
        found.setup_of(tmp_path, tmp_path, tmp_path, [weights])
    with pytest.raises(BadDataset, match="there is no folder"):
        found.setup_of(tmp_path / "nowhere", tmp_path, tmp_path, [])


def test_papers_and_tables_that_are_not_there() -> None:
    with pytest.raises(BadRequest, match="name one of masstool, colt, query-generation, toolgen, toolweaver"):
        find_paper("bert")
    with pytest.raises(BadRequest, match="colt has no table '9'; name one of 3, ablation"):
        find_tables(find_paper("colt"), "9")
    assert [table.part for table in find_tables(find_paper("colt"), "3")] == [
        "ToolLens",
        "ToolBench G2",
        "ToolBench G3",
    ]


def test_an_encoder_that_several_use_is_counted_once() -> None:
    first = replace(BM25, name="first", hours=3.0)
    one, other = replace(NEAR, encoder=first, hours=1.0), replace(NEAR, name="far", encoder=first, hours=2.0)
    assert found.hours([one, other]) == 6.0
    elsewhere = replace(one, dataset="elsewhere", encoder=None)
    assert found.hours([one, elsewhere]) == 5.0


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of data with one dataset, and the tiny BERT as the encoder in use."""
    learnable().save(tmp_path / "learnable")
    monkeypatch.setenv("TOOLSCOUT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TOOLSCOUT_ENCODER", str(tmp_path / "no-encoder"))
    return tmp_path


def test_a_method_that_is_not_trained_is_measured_once(home: Path) -> None:
    here = setup(home)
    (row,) = found.run(BM25, None, ["test"], here, "toolscout reproduce x")
    assert (row["variant"], row["command"], row["requests"]) == ("default", "toolscout reproduce x", 40)
    assert found.seeds_to_run(BM25, 3, ["test"], here.reread()) == []
    assert found.seeds_to_run(BM25, 3, ["dev"], here.reread()) == [None]
    assert found.splits_to_run(BM25, None, ["test", "dev"], here.reread()) == ["dev"]
    data = Dataset.load(home / "learnable", ["test"])
    assert row["metrics"]["recall@gold"] >= row["metrics"]["comp@gold"]
    assert row["metrics"]["recall@gold"] <= row["metrics"]["recall@3"]
    assert max(len(gold) for gold in data.qrels["test"].values()) == 2


def test_an_experiment_among_the_tools_of_some_splits_has_rows_of_its_own(home: Path) -> None:
    here, among = setup(home), replace(BM25, among=("test", "dev"))
    assert found.missing(among, ["test"], here) == []
    assert found.missing(replace(among, among=("g3_test",)), ["test"], here)[0].startswith("qrels/g3_test.tsv in ")
    (whole,) = found.run(BM25, None, ["test"], here, "toolscout reproduce x")
    assert found.seeds_to_run(among, 3, ["test"], here.reread()) == [None]
    (row,) = found.run(among, None, ["test"], here, "toolscout reproduce x")
    data = Dataset.load(home / "learnable")
    used = {tool_id for split in among.among for gold in data.qrels[split].values() for tool_id in gold}
    assert (row["variant"], row["among"]["tools"]) == ("among-dev+test", len(used))
    now, column = here.reread(), Column("R@5", "recall@5")
    assert found.seeds_to_run(among, 3, ["test"], now) == []
    assert found.cell(among, column, now).values == (row["metrics"]["recall@5"],)
    assert found.cell(BM25, column, now).values == (whole["metrics"]["recall@5"],)
    everything = replace(BM25, also=("*",), name="elsewhere")
    assert found.cell(everything, column, now).values == (whole["metrics"]["recall@5"],)
    assert found.cell(replace(among, among=("test",)), column, now).values == ()


@pytest.mark.parametrize("paper", ["toolgen", "toolweaver"])
def test_tables_of_one_part_rank_the_tools_of_that_part(paper: str) -> None:
    (table,) = [one for one in PAPERS[paper].tables if one.title == "1, in-domain, G3"]
    assert table.splits() == ["test_G3_instruction"]
    experiments = table.experiments()
    assert experiments
    assert {one.among for one in experiments} == {("train", "dev", "g3_test", "test_G3_instruction")}
    assert {one.dataset for one in experiments} == {"toolbench"}
    (others,) = [one for one in PAPERS[paper].tables if one.title == "1, in-domain, G1 and G2"]
    assert all(isinstance(line.published, Unavailable) for line in others.lines)


@pytest.mark.slow
def test_stages_are_trained_one_on_the_other(home: Path) -> None:
    source = tiny_source(home / "source")
    export(source, home / "encoder")
    first = Experiment(
        "first",
        "dense",
        "learnable",
        ("epochs=1", "batch=16", "device=cpu"),
        weights=Weights("tiny", "the tiny BERT", "start"),
    )
    here = setup(home, weights={"tiny": str(source)})
    published = Experiment(
        "network",
        "masstool_published",
        "learnable",
        ("epochs=1", "batch=40", "epsilon=0.3", "device=cpu"),
        encoder=first,
    )
    (row,) = found.run(published, 1, ["test"], here, "toolscout reproduce x")
    assert (row["variant"], row["seed"], row["options"]["encoder"]) == ("network-s1", 1, "encoder")
    assert (home / "models" / "first-s1" / "model.json").is_file()
    assert str(home) not in json.dumps(row)
    assert found.seeds_to_run(published, 3, ["test"], here.reread()) == [0, 2]
    table = Table("1", "", "", (Column("R@5", "recall@5"),), (Line("one", published),))
    assert found.cell(table.lines[0].published, table.columns[0], here.reread()).values == (row["metrics"]["recall@5"],)
    assert registry.find_tables(replace(find_paper("colt"), tables=(table,)), "1") == [table]


def test_tables_of_masstool_have_every_variant_and_find_the_rows_of_its_study(tmp_path: Path) -> None:
    tables = [
        table for id in ("ablation", "sensitivity", "density") for table in find_tables(find_paper("masstool"), id)
    ]
    names = {one.name for table in tables for one in table.experiments() if one.retriever == "masstool_published"}
    full = "masstool_published-published-toollens-minilml6"
    assert names >= {f"{full}-{variant}" for variant in VARIANTS}
    lines = {line.name: line.published for table in tables if table.part == "ToolLens" for line in table.lines}
    named = {"dataset": "toollens", "retriever": "masstool_published", "split": "test", "seed": 0}
    rows = [
        scored(0.2, variant="without-suim-0123456789abcdef-s0", **named),
        scored(0.4, variant="epsilon-0.9-0123456789abcdef-s0", **named),
        scored(0.6, variant="full-chosen-0123456789abcdef-s0", **named),  # of toolscout ablate
    ]
    write_rows(tmp_path / "rows", *[row | {"metrics": {"recall@5": row["metrics"]["recall@5"]}} for row in rows])
    column, here = Column("R@5", "recall@5"), setup(tmp_path)
    assert found.cell(lines["w/o SUIM"], column, here).values == (rows[0]["metrics"]["recall@5"],)
    assert found.cell(lines["ε 0.9"], column, here).values == (rows[1]["metrics"]["recall@5"],)
    assert found.cell(lines["full"], column, here).values == ()


def test_rows_say_how_tools_share_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = [(0, 0), (0, 1), (1, 0), (2, 0)]
    figures = health(codes, 4, np.array([(0, 1), (1, 2)]))
    monkeypatch.setattr(Toolweaver, "health", lambda model: figures.as_dict())
    # Three of four first codes and two of four second ones; one of two pairs, and one of six, share the first.
    assert found.code_measures(Toolweaver()) == {
        "codes_used": 0.625,
        "co_used_together": 0.5,
        "any_together": pytest.approx(1 / 6, abs=1e-6),
    }
    assert found.code_measures(Bm25()) == {}
