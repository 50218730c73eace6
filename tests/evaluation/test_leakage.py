"""A model is never judged on requests that it has seen, whatever dataset they came in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.evaluation.made_up import dataset
from tests.models.tiny_cross_encoder import cross_encoder
from tests.toys import HashedWords
from toolscout.data.dataset import Dataset
from toolscout.errors import BadDataset, BadModel, Leak
from toolscout.evaluation import leakage
from toolscout.evaluation.evaluate import evaluate, load_split, seen_by
from toolscout.models.encoders.onnx_encoder import package_folder
from toolscout.models.rerankers import opening
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.dense import Dense
from toolscout.retrievers.hybrid.retriever import Hybrid
from toolscout.retrievers.opening import open_retriever
from toolscout.retrievers.provenance import TRAINED_ON_FILE, TrainedOn, TrainingSet
from toolscout.retrievers.rerank.retriever import Rerank, RerankOptions


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "vectors.db"


def halves() -> Dataset:
    """The made-up requests, every other one for training."""
    data = dataset()
    qrels = data.qrels["test"]
    train = {key: gold for number, (key, gold) in enumerate(qrels.items()) if number % 2}
    test = {key: gold for key, gold in qrels.items() if key not in train}
    return replace(data, qrels={"train": train, "test": test})


def other(requests: dict[str, str]) -> Dataset:
    """Another dataset, trained on with these requests."""
    tools = dataset().tools[:5]
    return Dataset("elsewhere", tools, requests, {"fit": dict.fromkeys(requests, (tools[0].id,))})


def test_a_split_that_was_trained_on_is_refused_across_datasets(cache: Path) -> None:
    data = halves()
    texts = [data.requests[key] for key in list(data.qrels["test"])[:3]]
    shared = {"a": texts[0].upper(), "b": f"  {texts[1]} ", "c": "something else", "n": data.requests["n0"]}
    seen = TrainedOn.of([TrainingSet(other(shared), train="fit", dev=""), TrainingSet(data, dev="")])
    with pytest.raises(Leak, match=r"made-up test shares 3 of its 27 requests.*: 3 of elsewhere fit \(trained on\)"):
        evaluate(data, "test", Bm25(), seen=seen, cache=cache)
    with pytest.raises(BadDataset, match="20 of made-up train"):  # a Leak is a BadDataset
        evaluate(data, "train", Bm25(), seen=seen, cache=cache)


def test_selecting_on_a_split_counts_as_seeing_it() -> None:
    data = halves()
    seen = TrainedOn.of([TrainingSet(data, train="train", dev="test")])
    with pytest.raises(Leak, match=r"made-up test \(selected on\); evaluate on another split, or.*--drop-seen"):
        leakage.refuse_seen(data, "test", seen, droppable=True)
    with pytest.raises(Leak, match=r"made-up test \(selected on\); evaluate on another split$"):
        leakage.refuse_seen(data, "test", seen)
    leakage.refuse_seen(data, "test", TrainedOn.of([TrainingSet(data, dev="")]))
    leakage.refuse_seen(data, "test", TrainedOn())


def test_seen_requests_can_be_left_out_and_the_row_says_so(cache: Path) -> None:
    data = halves()
    first = list(data.qrels["test"])[:3]
    shared = {key: data.requests[key] for key in (*first, "n0", "n5")}
    seen = TrainedOn.of([TrainingSet(other(shared), train="fit", dev="")])
    done = evaluate(data, "test", Bm25(), seen=seen, drop_seen=True, cache=cache)
    assert (done.row.dropped, done.row.requests, done.row.variant) == (5, 22, "drop-seen")
    assert done.row.digest == data.digest("test")
    assert not shared.keys() & {one.request_id for one in done.asked}
    whole = evaluate(data, "test", Bm25(), seen=TrainedOn(), drop_seen=True, cache=cache)
    assert (whole.row.dropped, whole.row.variant) == (0, "default")
    kept = [one.ranking for one in whole.asked if one.request_id not in shared]
    assert [one.ranking for one in done.asked] == kept


def test_a_split_that_was_seen_whole_is_refused_even_so(cache: Path) -> None:
    data = halves()
    seen = TrainedOn.of([TrainingSet(data, train="test", dev="")])
    with pytest.raises(Leak, match="every request of made-up test"):
        evaluate(data, "test", Bm25(), seen=seen, drop_seen=True, cache=cache)


def test_tools_that_a_model_was_not_trained_on_are_new_to_it(cache: Path) -> None:
    data = halves()
    seen = TrainedOn.of([TrainingSet(data, dev="")])
    trained = {tool for gold in data.qrels["train"].values() for tool in gold}
    wanted = {tool for gold in data.qrels["test"].values() for tool in gold} - trained
    assert wanted
    done = evaluate(data, "test", Bm25(), seen=seen, cache=cache)
    assert (done.new_tools, done.row.new_tools) == (wanted, len(wanted))
    shares = [
        len(set(one.gold) & wanted & set((one.ranking or ())[:5])) / len(set(one.gold) & wanted)
        for one in done.asked
        if set(one.gold) & wanted
    ]
    assert done.row.metrics["new_recall@5"] == pytest.approx(sum(shares) / len(shares), abs=1e-6)
    plain = evaluate(data, "test", Bm25(), cache=cache).row
    assert (plain.new_tools, "new_recall@5" in plain.metrics) == (None, False)
    everything = TrainedOn(tools=frozenset(tool.digest() for tool in data.tools))
    assert leakage.new_tools(data, "test", everything) is None


def test_a_split_of_unseen_tools_says_itself_which_are_new(tmp_path: Path) -> None:
    data = halves()
    splits = {"train": data.qrels["train"], "test_unseen": data.qrels["test"]}
    Dataset("named", data.tools, data.requests, splits).save(tmp_path / "named")
    loaded = load_split(tmp_path / "named", "test_unseen")
    new = leakage.new_tools(loaded, "test_unseen", TrainedOn())
    assert new == loaded.new_tools("train", "test_unseen")
    assert new
    # A model that was trained elsewhere does not change that; one that was trained on a new tool does.
    assert leakage.new_tools(loaded, "test_unseen", TrainedOn(tools=frozenset(["else"]))) == new
    known = sorted(new)[0]
    digest = next(tool.digest() for tool in loaded.tools if tool.id == known)
    assert leakage.new_tools(loaded, "test_unseen", TrainedOn(tools=frozenset([digest]))) == new - {known}
    assert leakage.sibling("unseen_tool.dev") == "unseen_tool.train"
    assert [leakage.sibling(name) for name in ("unseen_tool.train", "test", "unseen_scene.test")] == [None] * 3


def test_parts_of_a_model_and_its_encoder_have_seen_things_too(tmp_path: Path) -> None:
    data = halves()
    Hybrid(parts=[Bm25(), Bm25()]).save(tmp_path / "model")
    part = next(path.parent for path in (tmp_path / "model").glob("*/model.json"))
    TrainedOn.of([TrainingSet(data, dev="")]).save(part)
    opened, _ = open_retriever(str(tmp_path / "model"))
    assert isinstance(opened, Hybrid)
    opened._parts = [Bm25(), Dense(encoder=trained_encoder(tmp_path / "encoder", data))]
    seen = seen_by(str(tmp_path / "model"), opened)
    assert [(one.split, one.role) for one in seen.splits] == [("train", "train"), ("test", "train")]


def trained_encoder(folder: Path, data: Dataset) -> HashedWords:
    class Kept(HashedWords):
        pass

    folder.mkdir()
    TrainedOn.of([TrainingSet(data, train="test", dev="")]).save(folder)
    encoder = Kept()
    encoder.folder = folder
    return encoder


def test_an_encoder_that_was_trained_refuses_by_itself(tmp_path: Path, cache: Path) -> None:
    data = halves()
    encoder = trained_encoder(tmp_path / "encoder", data)
    with pytest.raises(Leak, match="made-up test"):
        evaluate(data, "test", Dense(encoder=encoder), cache=cache)
    (tmp_path / "encoder" / TRAINED_ON_FILE).write_text("{}")
    with pytest.raises(BadModel, match="train the model again"):
        evaluate(data, "test", Dense(encoder=encoder), cache=cache)


def test_what_a_reranker_was_trained_on_counts(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, folder = halves(), cross_encoder(tmp_path / "mine", where="model.onnx")
    made = Rerank(RerankOptions(reranker=str(folder)), [Bm25()])
    evaluate(data, "test", made, cache=cache)
    TrainedOn.of([TrainingSet(data, train="test", dev="")]).save(folder)
    with pytest.raises(Leak, match="made-up test"):
        evaluate(data, "test", made, cache=cache)
    assert seen_by("rerank", made).splits
    monkeypatch.setattr(opening, "package_folder", lambda: folder)  # as if it came with the package
    assert seen_by("rerank", made).splits == TrainedOn.load(package_folder()).splits
