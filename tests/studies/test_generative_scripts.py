"""The scripts behind the studies of generative models, each in miniature with a tiny language model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from studies import catalogue_growth, generative_speed, generative_stages
from tests.retrievers.scenes import scenes
from tests.toys import HashedWords, catalogue
from toolscout.errors import BadDataset, BadModel
from toolscout.evaluation import row as rows
from toolscout.evaluation.row import STUDY
from toolscout.models.decoding.trie import Trie
from toolscout.models.language.base import open_base
from toolscout.papers import labelled_texts, language_measures
from toolscout.retrievers import document_index
from toolscout.retrievers.generative.base import SPECIALS
from toolscout.retrievers.provenance import TrainingSet
from toolscout.retrievers.toolgen import Toolgen, ToolgenOptions

pytest.importorskip("torch", reason="training needs the extra 'train'")

from tests.models.tiny_llama import tiny_llama
from toolscout.models.language.torch_network import TransformerNetwork
from toolscout.training.loop import pick_device

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A dataset, distractors, prompts and a language model, with an encoder that runs anywhere."""
    found = tmp_path_factory.mktemp("generative")
    tiny_llama(found / "llama", max_position_embeddings=512)
    scenes().save(found / "scenes")
    more = [{"name": tool.name, "namespace": f"more{tool.namespace}"} for tool in catalogue(30, seed=1)]
    (found / "more.jsonl").write_text("".join(json.dumps(one | {"description": "x"}) + "\n" for one in more))
    (found / "prompts").mkdir()
    prompts = [
        {"_id": f"p{n}", "text": f"tell me joke {n} of Paris", "split": split, "source": "made up"}
        for n, split in enumerate(["train"] * 6 + ["dev"] * 4 + ["test"] * 4)
    ]
    (found / "prompts" / "prompts.jsonl").write_text("".join(json.dumps(one) + "\n" for one in prompts))
    with pytest.MonkeyPatch.context() as patch:
        for module in (catalogue_growth, generative_stages, document_index):
            patch.setattr(module, "Encoder", HashedWords)
        patch.setenv("TOOLSCOUT_CACHE", str(found / "cache"))
        yield found


def settings(folder: Path, **more: Any) -> tuple[str, ...]:
    chosen = {"base": folder / "llama", "rank": 2, "request_tokens": 16, "rate": 0.01, "batch": 16, "device": "cpu"}
    return tuple(f"{name}={value}" for name, value in (chosen | more).items())


@pytest.fixture(scope="module")
def grown(folder: Path) -> catalogue_growth.GrowthPlan:
    return catalogue_growth.GrowthPlan(
        folder / "growth",
        (20, 80),
        data=str(folder / "scenes"),
        distractors=("more.jsonl",),
        epochs=1,
        settings=(*settings(folder, memorise=0), "toolweaver.code_steps=10"),
    )


def test_a_catalogue_holds_all_smaller_ones_and_gold_comes_first(grown: catalogue_growth.GrowthPlan) -> None:
    order = [tool.id for tool in catalogue_growth.ordered(grown)]
    assert len(order) == len(set(order)) == 80
    whole = catalogue_growth.read(grown)
    gold = {tool_id for found in whole.qrels.values() for few in found.values() for tool_id in few}
    assert set(order[: len(gold)]) == gold
    assert {tool.id for tool in whole.tools} == set(order[:60])
    small, large = catalogue_growth.at(grown, 20), catalogue_growth.at(grown, 80)
    there = {tool.id for tool in small.tools}
    assert set(small.qrels["test"]) == {i for i, few in whole.qrels["test"].items() if there >= set(few)}
    assert 0 < len(small.qrels["test"]) < len(large.qrels["test"]) == 24
    assert len(catalogue_growth.at(replace(grown, requests=7), 80).qrels["train"]) == 7


def test_vectors_are_made_once_and_lent(grown: catalogue_growth.GrowthPlan, folder: Path) -> None:
    files = catalogue_growth.write_vectors(grown, folder / "vectors.npz", 3)
    assert [path.name for path in files] == ["vectors-0.npz", "vectors-1.npz", "vectors-2.npz"]
    encoder = HashedWords()
    known = catalogue_growth.read_vectors(files, encoder.fingerprint)
    tool = catalogue_growth.ordered(grown)[70]
    np.testing.assert_allclose(known[tool.digest()], encoder.encode_request(tool.document()), atol=2e-3)
    with pytest.raises(BadModel, match="another encoder"):
        catalogue_growth.read_vectors(files, "another")
    lent = catalogue_growth.stored(replace(grown, vectors=tuple(files), models=folder))
    catalogue_growth.stored.cache_clear()
    assert isinstance(lent._encoder, HashedWords)
    assert lent._encoder.encoded == 0
    texts = [tool.document() for tool in catalogue_growth.ordered(grown)]
    assert sorted(at for places, _ in lent.encode_documents(texts) for at in places.tolist()) == list(range(80))
    assert lent._encoder.encoded == 0


def test_growth_measures_both_methods_and_makes_no_row_twice(
    grown: catalogue_growth.GrowthPlan, tmp_path: Path
) -> None:
    grown.models.mkdir(exist_ok=True)
    path = tmp_path / "rows.jsonl"
    todo = catalogue_growth.jobs(grown, ["toolgen", "toolweaver"], [0], path)
    assert [job.name for job in todo] == ["toolgen-20-s0", "toolweaver-20-s0", "toolgen-80-s0", "toolweaver-80-s0"]
    for job in (todo[0], todo[2], todo[3]):
        rows.append(path, job.work(*job.arguments).row)
    small, large, woven = rows.read_rows(path)
    assert small["metrics"]["ndcg@5"] == small["metrics"]["same_ndcg@5"]
    assert {"same_recall@5", "recall@5", "ndcg@1", "ndcg@3"} <= large["metrics"].keys()
    assert small["requests"] < large["requests"] == 24
    assert large["new_tools"] == 0
    costs = [row[STUDY]["costs"] for row in (small, large, woven)]
    assert [one["vocabulary"] for one in costs[:2]] == [20 + 2, 80 + 2]
    assert costs[1]["trained_rows"] == len({t for few in scenes().qrels["train"].values() for t in few})
    names = {"tokens_per_s", "requests_per_s", "host_peak_mb", "model_mb", "rows_mb", "add_s", "add_id_s", "fit_s"}
    assert all(one[name] > 0 for one in costs for name in names)
    assert [job.name for job in catalogue_growth.jobs(grown, ["toolgen", "toolweaver"], [0], path)] == [
        "toolweaver-20-s0"
    ]
    assert len(catalogue_growth.jobs(replace(grown, epochs=2), ["toolgen"], [0], path)) == 2


def test_each_stage_is_measured_and_a_row_is_not_made_again(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = tmp_path / "task.jsonl"
    task.write_text('{"text": "Find me a hotel", "label": "yes"}\n{"text": "What will", "label": "no"}\n')
    plan = generative_stages.StagesPlan(
        folder / "stages",
        tmp_path / "rows.jsonl",
        data=str(folder / "scenes"),
        no_tool=str(folder / "prompts"),
        epochs=2,
        dev=12,
        glue=str(task),
        settings=settings(folder),
    )
    todo = generative_stages.jobs(plan, ["full-mixed", "without-retrieve"], [0])
    assert [job.name for job in todo] == ["base", "full-mixed s0", "without-retrieve s0"]
    for job in todo:
        job.work(*job.arguments)
    found = {(row[STUDY]["variant"], row[STUDY]["stage"]): row for row in rows.read_rows(plan.out)}
    assert list(found) == [
        ("base", "base"),
        ("full-mixed", "memorise"),
        ("full-mixed", "retrieve"),
        ("without-retrieve", "memorise"),
    ]
    base, after = found["base", "base"]["metrics"], found["full-mixed", "retrieve"]["metrics"]
    assert base.keys() == {"perplexity", "perplexity_words", "task_accuracy"}
    assert base["perplexity"] == base["perplexity_words"]
    assert after["perplexity"] > after["perplexity_words"]
    assert after["spoiled"] == 0
    assert sum(after[f"free_{kind}"] for kind in generative_stages.KINDS) == pytest.approx(1)
    assert {"recall@5", "ndcg@5", "document_accuracy", "first_right", "mended", "task_accuracy"} <= after.keys()
    assert found["full-mixed", "retrieve"]["requests"] == 12
    assert generative_stages.jobs(plan, ["full-mixed", "without-retrieve"], [0]) == []
    assert [job.name for job in generative_stages.jobs(plan, ["full"], [0])] == ["full s0"]
    assert "full-mixed retrieve: document_accuracy" in capsys.readouterr().err


def test_only_one_variant_rehearses(folder: Path, tmp_path: Path) -> None:
    plan = generative_stages.StagesPlan(
        folder / "stages", tmp_path / "rows.jsonl", str(folder / "scenes"), settings=settings(folder)
    )
    plan = replace(plan, no_tool=str(folder / "prompts"))
    names = generative_stages.DEFAULT.split(",")
    assert {name: generative_stages.untrained(plan, name, 0).options.rehearse for name in names} == {
        name: float(name.startswith("rehearsed")) for name in names
    }
    assert "rehearsed s0" not in [job.name for job in generative_stages.jobs(plan, names, [0])]
    assert "rehearsed s0" in [
        job.name for job in generative_stages.jobs(replace(plan, trajectories="some.jsonl"), names, [0])
    ]


def test_perplexity_is_what_the_oracle_says(tmp_path: Path) -> None:
    import torch

    oracle = tiny_llama(tmp_path)
    base = open_base(str(tmp_path))
    network = TransformerNetwork(base.architecture, base.weights(), 1, pick_device("cpu"))
    texts = ["Find me a hotel in Paris", "What will the weather be", "a"]
    losses, count = 0.0, 0
    with torch.no_grad():
        for tokens in filter(lambda few: len(few) > 1, map(base.encode, texts)):
            batch = torch.tensor([tokens])
            losses += float(oracle(batch, labels=batch).loss) * (len(tokens) - 1)
            count += len(tokens) - 1
    found = language_measures.perplexity(network, np.zeros((0, 32), np.float32), base, texts)
    assert found["perplexity"] == pytest.approx(np.exp(losses / count), rel=1e-4)
    (tmp_path / "task.jsonl").write_text('{"text": "a", "label": "b"}\n')
    with pytest.raises(BadDataset, match="two labels"):
        labelled_texts.read_labelled(tmp_path / "task.jsonl")


class Written:
    """A model that is nothing but its ids."""

    def __init__(self, ids: dict[str, tuple[int, ...]]) -> None:
        self._trie = Trie()
        for key, tokens in ids.items():
            self._trie.insert(key, tokens)

    def base(self) -> Any:
        return type("Base", (), {"architecture": type("Size", (), {"vocabulary": 100})})

    def token(self, special: str) -> int:
        return 100 + SPECIALS.index(special)


@pytest.mark.parametrize(
    ("tokens", "kind"),
    [
        ((110, 120), "right"),
        ((110, 120, 7), "right"),
        ((110, 121), "other"),
        ((110, 122), "invented"),
        ((110,), "invented"),
        ((111, 120), "invented"),
        ((7, 8), "words"),
        ((), "nothing"),
        ((100,), "nothing"),
    ],
)
def test_what_is_written_freely_is_told_apart(tokens: tuple[int, ...], kind: str) -> None:
    model: Any = Written({"right": (110, 120), "wrong": (110, 121)})
    assert generative_stages.kind(model, tokens, ("right",)) == kind


def test_speed_of_a_trained_model(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options = ToolgenOptions(
        base=str(folder / "llama"), rank=2, request_tokens=16, epochs=1, memorise=0, batch=16, device="cpu"
    )
    Toolgen(options).fit([TrainingSet(scenes(), "train", "")], tmp_path / "model")
    monkeypatch.delenv("TOOLSCOUT_DEVICE", raising=False)
    out, data = tmp_path / "rows.jsonl", str(folder / "scenes")
    row = generative_speed.measure(tmp_path / "model", data, "dev", 10, 4)
    values = row["values"]
    assert (row["tools"], row["requests"], row["ids"]) == (60, "model scenes dev", "atomic")
    assert 0 < values["reading_p50_ms"] <= values["search_p95_ms"]
    assert 0.5 <= values["top1"] <= 1
    assert 0.5 <= values["top5"] <= 1
    rows.append(out, row)
    assert generative_speed.todo([tmp_path / "model"], data, "dev", out) == []
    monkeypatch.setenv("TOOLSCOUT_DEVICE", "cpu")
    assert generative_speed.todo([tmp_path / "model"], data, "dev", out) == [tmp_path / "model"]
    assert generative_speed.measure(tmp_path / "model", data, "dev", 10, 4)["values"]["requests_per_s"] > 0


def test_agreement_counts_first_tools_and_shares() -> None:
    found = generative_speed.agreement([["a", "b"], ["c", "d"]], [["a", "c"], ["d", "c"]])
    assert found == {"top1": 0.5, "top5": 0.75}
