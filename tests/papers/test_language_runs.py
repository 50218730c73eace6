"""What a language model keeps beside tools: perplexity and a task, before and after it learned to write ids."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.retrievers import generators
from tests.retrievers.towers import write_prompts
from toolscout.data.no_tool_prompts import read_prompts
from toolscout.errors import BadDataset
from toolscout.models.language.base import open_base
from toolscout.papers import language_measures, language_runs, reproduction
from toolscout.papers.paper import AgentExperiment, Column, Experiment, LanguageExperiment
from toolscout.papers.registry import PAPERS

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch", reason="training needs the extra 'train'")

MODEL = Experiment("toolgen", "toolgen", "scenes")
TRAINED = LanguageExperiment("toolgen-perplexity", "toolgen", "no_tool", model=MODEL)
BASE = LanguageExperiment("smollm2-perplexity", "smollm2", "no_tool")
TASK = LanguageExperiment("toolgen-task", "toolgen", "labelled-texts", model=MODEL, task=True)


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> reproduction.Setup:
    write_prompts(tmp_path / "no_tool")
    monkeypatch.setattr(language_runs, "SPLIT", "dev")  # the tiny prompts have no test split
    retriever = generators.opened("toolgen")
    monkeypatch.setattr(reproduction, "_trained", lambda *_: generators.fitted("toolgen"))
    monkeypatch.setattr(language_runs, "load_model", lambda folder: retriever)
    monkeypatch.setattr(language_runs, "open_base", lambda: open_base(str(generators.base())))
    rows = [{"text": f"A text of number {number}:", "label": ("good", "bad")[number % 2]} for number in range(6)]
    (tmp_path / "glue.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return reproduction.Setup(tmp_path, tmp_path / "rows", tmp_path / "models", task=tmp_path / "glue.jsonl")


def test_perplexity_before_and_after_training(setup: reproduction.Setup, tmp_path: Path) -> None:
    before, after = (reproduction.run(one, seed, ["dev"], setup, "")[0] for one, seed in ((BASE, None), (TRAINED, 0)))
    assert (before["variant"], after["variant"], after["dataset"]) == (
        "smollm2-perplexity",
        "toolgen-perplexity-s0",
        "no_tool",
    )
    assert before["metrics"]["perplexity"] == before["metrics"]["perplexity_words"]  # it has no tokens for tools
    assert after["metrics"]["perplexity"] > after["metrics"]["perplexity_words"]
    assert after["metrics"]["perplexity_words"] != before["metrics"]["perplexity_words"]
    # The base, by the network alone.
    from toolscout.models.language.torch_network import TransformerNetwork

    base = open_base(str(generators.base()))
    network = TransformerNetwork(base.architecture, base.weights(), 1, torch.device("cpu"))
    texts = [one.text for one in read_prompts(tmp_path / "no_tool", "dev")]
    none = np.zeros((0, base.architecture.hidden), np.float32)
    expected = language_measures.perplexity(network, none, base, texts)
    assert before["metrics"]["perplexity"] == pytest.approx(expected["perplexity"], rel=1e-4)
    column = Column("perplexity", "perplexity", ("dev",), percent=False)
    assert reproduction.cell(TRAINED, column, setup.reread()).values == (after["metrics"]["perplexity"],)
    assert reproduction.seeds_to_run(BASE, 3, ["dev"], setup.reread()) == []
    assert reproduction.seeds_to_run(TRAINED, 2, ["dev"], setup.reread()) == [1]


def test_a_task_by_path(setup: reproduction.Setup, tmp_path: Path) -> None:
    (row,) = reproduction.run(TASK, 0, ["dev"], setup, "")
    assert (row["variant"], row["requests"]) == ("toolgen-task-glue-s0", 6)
    assert 0.0 <= row["metrics"]["task_accuracy"] <= 1.0
    assert reproduction.seeds_to_run(TASK, 1, ["dev"], setup.reread()) == []
    other = replace(setup, task=tmp_path / "other.jsonl")  # rows are of one task
    assert reproduction.seeds_to_run(TASK, 1, ["dev"], other) == [0]
    (tmp_path / "one.jsonl").write_text('{"text": "a", "label": "b"}\n')
    with pytest.raises(BadDataset, match="fewer than two labels"):
        reproduction.setup_of(tmp_path, tmp_path, tmp_path, [], task=tmp_path / "one.jsonl")
    with pytest.raises(BadDataset, match="cannot be read"):
        reproduction.setup_of(tmp_path, tmp_path, tmp_path, [], task=tmp_path / "nowhere.jsonl")


def test_what_is_missing_is_named(setup: reproduction.Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = replace(TASK, model=None, retriever="x")
    assert reproduction.missing(plain, ["dev"], setup) == []
    (task,) = reproduction.missing(plain, ["dev"], replace(setup, task=None))
    assert task.startswith("a task: pass --task FILE")
    prompted = replace(BASE, retriever="x")
    assert reproduction.missing(prompted, ["dev"], setup) == []
    (prompts,) = reproduction.missing(prompted, ["dev"], replace(setup, data=None))
    assert prompts.startswith("prompts that need no tool: pass --data")


def test_both_methods_are_trained_alike() -> None:
    tables = {table.part: table for table in PAPERS["toolweaver"].tables if table.id == "equal"}
    assert list(tables) == ["retrieval", "agent", "SoPR", "SoWR", "perplexity", "task"]
    toolgen, weaver = (line.published for line in tables["retrieval"].lines)
    assert isinstance(toolgen, Experiment)
    assert isinstance(weaver, Experiment)
    assert (toolgen.retriever, weaver.retriever) == ("toolgen", "toolweaver")
    assert (toolgen.settings, toolgen.dataset, toolgen.trajectories) == (weaver.settings, weaver.dataset, True)
    for part in ("agent", "perplexity", "task"):
        used = [line.published for line in tables[part].lines]
        models = [one.model for one in used if isinstance(one, AgentExperiment | LanguageExperiment) and one.model]
        assert models == [toolgen, weaver]  # the same models throughout
    from toolscout.retrievers import opening

    ours, theirs = (opening.made(one.retriever, (), one.settings).options for one in (toolgen, weaver))
    alike = ("memorise", "epochs", "agent_epochs", "batch", "rate", "rank", "decay", "warmup", "request_tokens")
    assert [getattr(ours, name) for name in alike] == [getattr(theirs, name) for name in alike]
