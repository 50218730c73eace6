"""A tiny generative model through the command line: codes, search -k auto, evaluate; and what help says of them."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_samples import FITTING, Run
from tests.models.tiny_llama import tiny_llama
from tests.retrievers.scenes import scenes
from tests.toys import HashedWords
from toolscout.data.dataset import Dataset
from toolscout.errors import BadModel
from toolscout.retrievers.provenance import TrainingSet
from toolscout.retrievers.registry import available, method

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of a model that writes sets, a moment trained, and of the dataset it is asked about."""
    made = tmp_path_factory.mktemp("generative")
    tiny_llama(made / "base", max_position_embeddings=512, num_hidden_layers=1)
    from toolscout.retrievers.toolweaver import Toolweaver, ToolweaverOptions

    data = scenes()
    few = {split: dict(list(qrels.items())[:6]) for split, qrels in data.qrels.items()}
    data = Dataset(data.name, data.tools, data.requests, few)
    data.save(made / "scenes")
    options = ToolweaverOptions(
        base=str(made / "base"), rank=2, epochs=1, memorise=0, code_steps=5, sets=True, device="cpu"
    )
    Toolweaver(options, HashedWords()).fit([TrainingSet(data, "train", "")], made / "woven")
    return made


@pytest.fixture
def asked(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """As run, with the model's encoder, over the tools of the dataset."""
    monkeypatch.setattr("toolscout.models.encoders.onnx_encoder.Encoder", HashedWords)
    assert run("add", folder / "scenes", "--no-embed").exit_code == 0
    assert run("embed", "--retriever", folder / "woven").exit_code == 0
    return run


def _json(run: Run, *words: Any) -> Any:
    result = run(*words)
    assert result.exit_code in (0, 1), result.stderr
    return json.loads(result.stdout)


def test_the_codes_of_a_trained_model(asked: Run, folder: Path, tmp_path: Path) -> None:
    shown = asked("codes", folder / "woven", "--html", "tree.html")
    assert shown.exit_code == 0, shown.stderr
    assert "collisions" in shown.stdout
    assert "first code" in shown.stdout
    told = _json(asked, "codes", folder / "woven", "--json")
    codes = {tool_id: tuple(code) for tool_id, code in told["codes"].items()}
    assert codes.keys() == {tool.id for tool in Dataset.load(folder / "scenes", ["train"]).tools}
    assert len(set(codes.values())) == len(codes) == told["health"]["tools"]
    assert told["health"]["collisions"] == 0
    assert {len(code) for code in codes.values()} == {told["health"]["levels"]}
    page = (tmp_path / "tree.html").read_text()
    script = re.search(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', page, flags=re.DOTALL)
    assert script is not None
    data = json.loads(script[1])
    assert {tool_id: tuple(code) for tool_id, code in data["tools"]} == codes
    pairs = {frozenset((data["tools"][one][0], data["tools"][other][0])) for one, other, _ in data["uses"]}
    gold = Dataset.load(folder / "scenes", ["train"]).split("train").gold
    assert pairs == {frozenset(few) for few in gold}


def test_search_as_many_as_needed(asked: Run, folder: Path) -> None:
    model = ("--retriever", folder / "woven", "--fit-threshold", "0", "--need-threshold", "0")
    name = "space2/list_order_16"
    found = _json(asked, "search", name, "-k", "auto", *model, "--format", "json")
    assert found["hits"][0]["tool_id"] == name
    assert [hit["tool_id"] for hit in found["hits"]] == [tool["id"] for tool in found["tools"]]
    assert name in asked("search", name, "-k", "AUTO", *model).stdout
    within = _json(asked, "search", name, "-k", "auto", "--namespace", "space5", *model, "--format", "json")
    assert all(hit["tool_id"].startswith("space5/") for hit in within["considered"])


def test_evaluate_measures_sets(asked: Run, folder: Path, tmp_path: Path) -> None:
    shown = asked("evaluate", folder / "scenes", "--retriever", folder / "woven", "--json", "rows.jsonl")
    assert shown.exit_code == 0, shown.stderr
    metrics = json.loads((tmp_path / "rows.jsonl").read_text())["metrics"]
    for name, label in (("exact_set", "exactly the right tools"), ("returned", "tools returned for a request")):
        line = next(line for line in shown.stdout.splitlines() if label in line)
        assert f"{metrics[name]:.4f}" in line
    compared = asked("compare", "rows.jsonl", "rows.jsonl", "--measure", "set_recall")
    assert compared.exit_code == 0, compared.stderr
    plain = asked("evaluate", folder / "scenes", "--retriever", "bm25")
    assert "k=auto" not in plain.stdout


def test_a_language_model_that_was_moved_is_named(
    asked: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, model = "space2/list_order_16", ("--retriever", folder / "woven")
    away = (folder / "base").rename(tmp_path / "away")
    try:
        refused = asked("search", name, *model)
        assert refused.exit_code == 2
        assert "TOOLSCOUT_BASE=PLACE" in refused.stderr
        refused = asked("search", name, *model, "--option", f"base={away}")
        assert refused.exit_code == 2
        assert "leave --option out, and name a language model that was moved with TOOLSCOUT_BASE" in refused.stderr
        monkeypatch.setenv("TOOLSCOUT_BASE", str(away))
        assert name in asked("search", name, *model).stdout
    finally:
        away.rename(folder / "base")


def test_no_tool_is_never_a_tool(folder: Path) -> None:
    from toolscout.retrievers.toolweaver import Toolweaver

    model = Toolweaver.load(folder / "woven", HashedWords())
    model.options = replace(model.options, no_tool="prompts")
    model._special_rows = model._special_rows + 3  # what it says first, whatever is asked
    model._reset()
    model._assign_all_ids()
    requests = ["zorp", "alpha beta", "find a hotel"]
    rankings = model.rank(requests, 3)
    for pairs in (*(ranking.pairs for ranking in rankings), *(model.as_many(rankings) or ())):
        assert {tool_id for tool_id, _ in pairs} <= set(model.ids())
    with pytest.raises(BadModel, match="sets and trajectories cannot be trained together"):
        replace(model.options, trajectories="talks.jsonl")


def test_auto_is_refused_with_what_to_do(filled: Run) -> None:
    refused = filled("search", FITTING, "-k", "auto")
    assert refused.exit_code == 2
    assert "hybrid cannot say how many tools a request needs" in refused.stderr
    assert "--option sets=true" in refused.stderr
    for nonsense in ("many", "", "2.5", "automatic"):
        wrong = filled("search", FITTING, "-k", nonsense)
        assert wrong.exit_code == 2
        assert "neither a number nor auto" in re.sub(r"[\s│]+", " ", wrong.stderr)


def test_help_names_every_method_that_can_be_trained(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    said = run("train", "--help").stdout
    listed = next(line for line in said.splitlines() if "--retriever" in line)
    prompts = next(line for line in said.splitlines() if "--no-tool" in line)
    for name in available():
        if method(name).trainable:
            assert re.search(rf"\b{name}\b", listed), name
    for name in ("masstool", "toolgen", "toolweaver"):
        assert any(field.name == "no_tool" for field in fields(method(name)().options))
        assert name in prompts
    about = {row["name"]: row for row in json.loads(run("retrievers", "--format", "json").stdout)}
    assert about["toolgen"]["options"]["ids"] == "atomic"
    named = {name for name, row in about.items() if row["presets"] == ["published"]}
    assert named == {"dense", "masstool", "colt", "toolgen", "toolweaver"}
    assert about["toolweaver"]["options"]["sets"] is False
    assert "language model" in about["toolgen"]["about"]
