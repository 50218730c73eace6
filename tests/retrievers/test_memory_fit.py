"""memory is fitted by remembering; what it leaves is a whole model that knows what it has seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.retrievers.scenes import Killed, recall, scenes
from tests.toys import HashedWords
from toolscout.core.answer import Example
from toolscout.data.dataset import request_digest
from toolscout.errors import BadModel
from toolscout.retrievers.memory import Memory, MemoryOptions
from toolscout.retrievers.model_folder import read_model, trained_on
from toolscout.retrievers.provenance import TrainedOn, TrainingSet
from toolscout.retrievers.registry import load_model


def test_fit_remembers_the_train_split_and_leaves_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolscout.models.encoders.onnx_encoder.Encoder.load", HashedWords.load)
    data = scenes()
    made, untaught = Memory(encoder=HashedWords()), Memory(encoder=HashedWords())
    untaught.add(data.tools)
    report = made.fit([TrainingSet(data)], tmp_path / "model")
    assert made.learned() == 60
    assert report.parameters == 60 * HashedWords.dimension
    assert report.dev == {"recall@5": recall(made, data, "dev")}
    assert recall(made, data, "test") > 0.9
    assert recall(made, data, "test") > recall(untaught, data, "test") + 0.5
    loaded = load_model(tmp_path / "model")
    assert isinstance(loaded, Memory)
    assert loaded.options == made.options
    assert recall(loaded, data, "test") == recall(made, data, "test")
    fit = read_model(tmp_path / "model")["fit"]
    about = {"seconds": report.seconds, "device": "cpu", "parameters": report.parameters, "dev": report.dev}
    assert fit == {**about, "notes": []}
    assert not (tmp_path / "model" / "encoded").exists()


def test_a_fitted_memory_knows_what_it_has_seen_wherever_it_goes(tmp_path: Path) -> None:
    data = scenes()
    made = Memory(encoder=HashedWords())
    made.fit([TrainingSet(data)], tmp_path / "model")
    assert trained_on(tmp_path / "model") == TrainedOn.of([TrainingSet(data)])
    loaded = Memory.load(tmp_path / "model", HashedWords())
    loaded.learn([Example("roars", used=("zoo/feed_lion",))])
    loaded.save(tmp_path / "later")
    later = trained_on(tmp_path / "later")
    assert later.splits[:2] == TrainedOn.of([TrainingSet(data)]).splits
    assert later.splits[2].requests == {request_digest("roars")}
    assert read_model(tmp_path / "later")["fit"] == read_model(tmp_path / "model")["fit"]


def test_a_fitted_memory_outlives_the_catalogue_it_was_fitted_with(tmp_path: Path) -> None:
    data = scenes()
    made = Memory(encoder=HashedWords())
    made.fit([TrainingSet(data)], tmp_path / "model")
    loaded = Memory.load(tmp_path / "model", HashedWords())
    loaded.remove(loaded.ids())
    assert loaded.search(["zorp"], 3) == [[]]
    loaded.add(data.tools)
    assert recall(loaded, data, "test") == recall(made, data, "test")


def test_several_datasets_do_not_crowd_each_other_out(tmp_path: Path) -> None:
    first, second = scenes(), scenes("other", seed=5)
    made = Memory(encoder=HashedWords())
    report = made.fit([TrainingSet(first), TrainingSet(second)], tmp_path)
    assert made.learned() == 120
    assert report.dev["recall@5"] == (recall(made, first, "dev") + recall(made, second, "dev")) / 2
    assert min(recall(made, first, "test"), recall(made, second, "test")) > 0.9


def test_an_interrupted_fit_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolscout.retrievers.encoded_requests._CHUNK", 16)
    data = scenes()
    with pytest.raises(KeyboardInterrupt):
        Memory(encoder=Killed(50)).fit([TrainingSet(data)], tmp_path)
    encoder = Killed(1000)
    said: list[tuple[str, int, int]] = []
    again = Memory(encoder=encoder)
    again.fit([TrainingSet(data)], tmp_path, lambda *now: said.append(now))
    assert 1000 - encoder.left == 60 + 60 + 24 * 2 - 48 - 24  # 48 requests were encoded before; dev vectors are kept
    assert said[0] == ("encoding requests", 16, 60)
    assert ("encoding documents", 60, 60) in said
    assert said[-1] == ("choosing", 24, 24)
    made = Memory(encoder=HashedWords())
    made.fit([TrainingSet(data)], tmp_path / "straight")
    assert recall(again, data, "test") == recall(made, data, "test")


def test_fit_without_dev_keeps_the_options(tmp_path: Path) -> None:
    made = Memory(MemoryOptions(votes=0.7), HashedWords())
    report = made.fit([TrainingSet(scenes(), dev="")], tmp_path)
    assert (report.dev, made.options.votes) == ({}, 0.7)


def test_fit_refuses_to_forget(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="keep"):
        Memory(MemoryOptions(keep=59), HashedWords()).fit([TrainingSet(scenes())], tmp_path)
