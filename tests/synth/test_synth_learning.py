"""A generator of requests, taught on known ones; and what is trained on its requests knows what it has seen."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.models.tiny_llama import tiny_llama
from tests.synth.shop import IDS, TOOLS, asked, writer
from tests.toys import HashedWords
from toolscout.data.dataset import Dataset
from toolscout.errors import BadDataset, BadModel, BadRequest, Leak
from toolscout.evaluation import leakage
from toolscout.llm.options import EndpointOptions
from toolscout.retrievers.memory import Memory
from toolscout.retrievers.provenance import TrainedOn, TrainingSet
from toolscout.retrievers.training_setup import training_sets
from toolscout.synth import RequestWriter, SynthOptions, SynthSource, WriterTrainingOptions, synthesise, train_synth
from toolscout.synth.writer_training import RequestExamples

KNOWN = TrainingSet(asked(), "unseen_tool.train", "unseen_tool.dev")
ALONE = SynthOptions(round_trip=0, combinations=0, per_tool=3)


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny generator after a moment of training."""
    pytest.importorskip("torch", reason="training needs the extra 'train'")
    home = tmp_path_factory.mktemp("taught")
    tiny_llama(home / "base", max_position_embeddings=512, num_hidden_layers=1)
    options = WriterTrainingOptions(
        base=str(home / "base"), rank=2, epochs=1, batch=2, request_tokens=480, device="cpu"
    )
    report = train_synth([KNOWN], home / "generator", options)
    assert report.parameters > 0
    return home / "generator"


@pytest.mark.slow
def test_a_generator_remembers_what_it_learned_from(taught: Path) -> None:
    about = json.loads((taught / "generator.json").read_text())
    assert (about["task"], about["data"], about["settings"]["base"]) == ("synth", ["shop:unseen_tool.train"], "base")
    assert about["sizes"] == {"1": 0.6667, "2": 0.3333}
    assert about["kinds"] == {"chain": 1.0}
    assert TrainedOn.load(taught) == TrainedOn.of([replace(KNOWN, dev="")])
    assert [(one.split, one.role) for one in TrainedOn.load(taught).splits] == [("unseen_tool.train", "train")]


@pytest.mark.slow
def test_it_writes_through_the_same_door_as_any_model(taught: Path) -> None:
    opened = RequestWriter.open(str(taught))
    assert opened.trained
    options = SynthOptions(round_trip=0, per_tool=1, tries=1, max_tokens=4, filtered=False)
    made = synthesise(SynthSource("shop", TOOLS[:2]), opened, options)
    assert made.usage["llm_calls"] == 2
    assert made.seen == TrainedOn.load(taught)
    assert opened.fingerprint != RequestWriter(writer()).fingerprint
    with pytest.raises(BadRequest, match="is shown none; leave examples out"):
        synthesise(SynthSource("shop", TOOLS[:2], KNOWN), opened, replace(options, examples=2))
    with pytest.raises(BadRequest, match="are for an endpoint"):
        RequestWriter.open(str(taught), options=EndpointOptions(timeout=1.0))


def test_lessons_leave_out_what_would_not_be_kept_and_go_round_large_scenes() -> None:
    data = asked()
    texts = {f"r{number}": f"where does Porto lie on map {number} of mine" for number in range(5)}
    texts |= {"leak": "please locate city Porto now", "many": "do everything at once for me"}
    gold = dict.fromkeys(texts, (IDS["locate_city"], IDS["find_rooms"])) | {"many": tuple(IDS.values())}
    made = RequestExamples(
        [TrainingSet(Dataset("d", data.tools, texts, {"train": gold}), "train", "")], WriterTrainingOptions(per_scene=2)
    )
    assert made.left_out == {"names a tool": 1, "too many tools": 1}
    epochs = [made.pairs(epoch) for epoch in range(3)]
    assert [len(pairs) for pairs in epochs] == [2, 2, 2]
    assert {text for pairs in epochs for _, text in pairs} == {text for key, text in texts.items() if key[0] == "r"}
    prompts = {
        messages[0].content
        for pairs in [*epochs, *(made.pairs(epoch) for epoch in range(3, 12))]
        for messages, _ in pairs
    }
    assert {prompt[:15] for prompt in prompts} == {'1. "locate city', '1. "find rooms"'}
    assert made.pairs(1) == epochs[1]
    with pytest.raises(BadDataset, match="no request is fit to learn from"):
        RequestExamples(
            [TrainingSet(Dataset("d", data.tools, texts, {"x": {"leak": gold["leak"]}}), "x", "")],
            WriterTrainingOptions(),
        )
    with pytest.raises(BadModel, match="per_scene and most_tools"):
        WriterTrainingOptions(per_scene=0)


@pytest.mark.slow
def test_a_training_without_epochs_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="training needs the extra 'train'")
    with pytest.raises(BadModel, match="set epochs above 0, or name a model to start from"):
        train_synth([KNOWN], tmp_path / "generator", WriterTrainingOptions(epochs=0))
    assert not (tmp_path / "generator").exists()


def test_tools_that_only_written_requests_need_stay_new(tmp_path: Path) -> None:
    source = SynthSource("shop", TOOLS, replace(KNOWN, dev=""))
    made = synthesise(source, RequestWriter(writer(), seen=TrainedOn.of([replace(KNOWN, dev="")])), ALONE, "new")
    made.write(tmp_path / "synth")
    asked().save(tmp_path / "shop")
    sets = training_sets([f"{tmp_path / 'shop'}:unseen_tool", f"{tmp_path / 'synth'}:train"])
    seen = TrainedOn.of(sets)
    digests = {one.id: one.digest() for one in TOOLS}
    assert seen.tools == set(digests.values())
    assert seen.written == {digests[IDS[name]] for name in ("list_regions", "cancel_stay", "headlines")}
    data = asked()
    assert leakage.new_tools(data, "unseen_tool.test", seen) == frozenset([IDS["cancel_stay"]])
    asked_too = TrainedOn.of([replace(KNOWN, train="unseen_tool.dev")])
    assert leakage.new_tools(data, "unseen_tool.test", seen | asked_too) is None
    leakage.refuse_seen(data, "unseen_tool.test", seen)
    with pytest.raises(Leak):
        leakage.refuse_seen(data, "unseen_tool.train", TrainedOn.of(sets[1:]))
    Memory(encoder=HashedWords()).fit(sets, tmp_path / "model")
    assert TrainedOn.load(tmp_path / "model") == seen


def test_what_the_writer_knows_by_heart_is_no_new_request() -> None:
    learned = "find me a bed in Faro"
    seen = TrainedOn.of([TrainingSet(asked(), "unseen_tool.train", "")])
    made = synthesise(
        SynthSource("shop", TOOLS), RequestWriter(writer(lambda _: learned, numbered=False), seen=seen), ALONE
    )
    assert not made.requests
    assert made.dropped["duplicate"] == made.usage["llm_calls"]


def test_selecting_on_what_the_writer_learned_from_is_refused(tmp_path: Path) -> None:
    source = SynthSource("shop", TOOLS)
    all_seen = TrainedOn.of([TrainingSet(asked(), "unseen_tool.dev", "")])
    synthesise(source, RequestWriter(writer(), seen=all_seen), ALONE).write(tmp_path / "synth")
    asked().save(tmp_path / "shop")
    with pytest.raises(Leak, match="select on others than you train on"):
        training_sets([f"{tmp_path / 'shop'}:unseen_tool", f"{tmp_path / 'synth'}:train"])
