"""dense learns what requests mean, leaves a whole model that knows what it has seen, and goes on after a kill."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.toys import HashedWords
from tests.training import killed
from tests.training.learnable import TOOLS, learnable, options, recall, tiny_source
from toolscout.core.tool import Tool
from toolscout.data.dataset import Dataset
from toolscout.errors import BadModel, Leak, MissingEncoder, MissingExtra, TrainingStopped
from toolscout.evaluation.evaluate import evaluate, seen_by
from toolscout.evaluation.fit_record import read_fit_record
from toolscout.models.encoders.export import default_source, export
from toolscout.models.encoders.onnx_encoder import Encoder
from toolscout.retrievers.base import FitReport
from toolscout.retrievers.dense import Dense, DenseOptions
from toolscout.retrievers.memory import Memory, MemoryOptions
from toolscout.retrievers.model_folder import read_model, trained_on
from toolscout.retrievers.opening import open_retriever
from toolscout.retrievers.provenance import TrainedOn, TrainingSet
from toolscout.retrievers.registry import load_model
from toolscout.scout import Scout

pytestmark = pytest.mark.slow

DATA = learnable()


@dataclass(frozen=True)
class Trained:
    source: Path
    folder: Path
    model: Dense
    report: FitReport
    said: list[tuple[str, int, int]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A model trained on the learnable set, which searched its tools untrained before."""
    home = tmp_path_factory.mktemp("dense")
    source = tiny_source(home / "source")
    model = Dense(options(source), Encoder.load(export(source, home / "raw")))
    model.add(DATA.tools)
    assert recall(model, DATA, "test") < 0.35
    said: list[tuple[str, int, int]] = []
    report = model.fit([TrainingSet(DATA)], home / "model", lambda *now: said.append(now))
    return Trained(source, home / "model", model, report, said)


def opened(folder: Path) -> Dense:
    loaded = load_model(folder)
    assert isinstance(loaded, Dense)
    loaded.add(DATA.tools)
    return loaded


def test_it_learns_what_no_word_tells(trained: Trained) -> None:
    assert recall(opened(trained.folder), DATA, "test") > 0.7
    assert trained.report.dev["recall@5"] > 0.7
    assert (trained.report.device, trained.report.parameters > 10_000) == ("cpu", True)
    assert not (trained.folder / "training").exists()


def test_it_learns_from_pairs_and_in_batch_negatives(tmp_path: Path) -> None:
    source = tiny_source(tmp_path / "source")
    Dense(replace(options(source), loss="mnrl")).fit([TrainingSet(DATA)], tmp_path / "model")
    learned = opened(tmp_path / "model")
    assert recall(learned, DATA, "test") > 0.7
    assert learned.options.loss == "mnrl"


def test_progress_tells_epoch_loss_and_dev_score(trained: Trained) -> None:
    assert trained.said[-1][1:] == (80, 80)
    assert [done for _, done, _ in trained.said] == sorted(done for _, done, _ in trained.said)
    assert trained.said[-1][0].startswith("training, epoch 8, loss ")
    assert "dev ndcg@5 0." in trained.said[-1][0]


def test_what_was_trained_is_what_is_opened_everywhere(trained: Trained, tmp_path: Path) -> None:
    asked = [text for _, text in DATA.split("test").requests]
    ranked = [[hit.tool_id for hit in hits] for hits in opened(trained.folder).search(asked, 5)]
    trained.model.remove(trained.model.ids())
    trained.model.add(DATA.tools)  # the object itself: no vector of the untrained encoder is left in it
    assert [[hit.tool_id for hit in hits] for hits in trained.model.search(asked, 5)] == ranked
    with Scout.open(tmp_path / "tools.db", trained.folder) as scout:
        scout.add(DATA.tools)
        found = [scout.search(text, 5).considered for text in asked]
    assert [[hit.tool_id for hit in hits] for hits in found] == ranked
    model, variant = open_retriever(str(trained.folder))
    seen = seen_by(str(trained.folder), model)
    done = evaluate(DATA, "test", model, variant=variant, seen=seen, cache=tmp_path / "vectors.db")
    assert [list(one.ranking or ())[:5] for one in done.asked] == ranked
    assert read_fit_record(trained.folder).seconds == round(trained.report.seconds, 3)


def test_a_saved_copy_is_whole(trained: Trained, tmp_path: Path) -> None:
    model = opened(trained.folder)
    model.save(tmp_path / "copy")
    copy = load_model(tmp_path / "copy")
    asked = [text for _, text in DATA.split("test").requests]
    assert copy.search(asked, 5) == model.search(asked, 5)
    assert trained_on(tmp_path / "copy") == trained_on(trained.folder)
    raw = Dense(encoder=Encoder.load(export(trained.source, tmp_path / "raw")))
    raw.add(TOOLS)
    raw.save(tmp_path / "other")
    Dense.load(trained.folder).save(tmp_path / "other")  # over another model
    assert load_model(tmp_path / "other").ids() == []


def test_train_and_dev_may_not_judge_it(trained: Trained, tmp_path: Path) -> None:
    assert trained_on(trained.folder) == TrainedOn.of([TrainingSet(DATA)])
    record = json.loads((trained.folder / "trained_on.json").read_text())
    assert [(one["split"], one["role"], len(one["requests"])) for one in record["splits"]] == [
        ("train", "train", 160),
        ("dev", "dev", 40),
    ]
    for split in ("train", "dev"):
        model = load_model(trained.folder)
        with pytest.raises(Leak, match=f"learnable {split}"):
            evaluate(DATA, split, model, seen=trained_on(trained.folder), cache=tmp_path / "v.db")


def test_its_encoder_and_its_weights_know_what_they_have_seen_too(trained: Trained, tmp_path: Path) -> None:
    memory = Memory(MemoryOptions(encoder=str(trained.folder / "encoder")))
    with pytest.raises(Leak, match="learnable dev"):
        evaluate(DATA, "dev", memory, cache=tmp_path / "v.db")
    more = Dataset("more", TOOLS, {"x": "w50 w51"}, {"train": {"x": (TOOLS[0].id,)}})
    further = Dense(options(trained.folder / "weights", epochs=1))
    further.fit([TrainingSet(more, dev="")], tmp_path / "further")
    assert [one.dataset for one in trained_on(tmp_path / "further").splits] == ["more", "learnable", "learnable"]


def test_a_seed_gives_the_same_model_and_another_seed_another(trained: Trained, tmp_path: Path) -> None:
    dropping = tiny_source(tmp_path / "source", 0.1)
    bytes_of = []
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        Dense(options(dropping, epochs=1, mix=0.3, seed=seed)).fit([TrainingSet(DATA)], tmp_path / name)
        files = ("weights/model.safetensors", "encoder/model.onnx")
        bytes_of.append([(tmp_path / name / file).read_bytes() for file in files])
    assert bytes_of[0] == bytes_of[1]
    assert bytes_of[0][0] != bytes_of[2][0]


@pytest.fixture(scope="module")
def after_a_kill(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source, and a folder of trainings that were killed in many places."""
    home = tmp_path_factory.mktemp("killed")
    source = tiny_source(home / "source", 0.1)
    words = [sys.executable, "-m", "tests.training.killed", str(home), str(source)]
    subprocess.run(words, check=True, cwd=Path(__file__).parents[2])
    return source, home


@pytest.fixture
def mined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolscout.training.bi_encoder._MINED_FROM", killed.MINED)


@pytest.mark.usefixtures("mined")
def test_killed_anywhere_it_goes_on_to_the_same_model(after_a_kill: tuple[Path, Path], tmp_path: Path) -> None:
    source, home = after_a_kill
    data = [TrainingSet(learnable(train=4 * killed.STEPS))]
    chosen = options(source, **killed.HARD)
    straight = Dense(chosen)
    straight.fit(data, tmp_path)
    for place in killed.PLACES:
        folder, steps = home / place, []
        again = Dense(chosen)
        again.fit(data, folder, lambda text, done, total: steps.append(done))  # noqa: B023
        assert again.options == straight.options, place
        for file in ("weights/model.safetensors", "encoder/model.onnx"):
            assert (folder / file).read_bytes() == (tmp_path / file).read_bytes(), place
        assert bool(steps) == (place not in ("export", "before-the-model", "before-clean-up")), place
        history = [read_model(one)["fit"]["history"] for one in (folder, tmp_path)]
        assert [one["ndcg@5"] for one in history[0]] == [one["ndcg@5"] for one in history[1]]


def test_an_interrupted_training_is_not_mixed_with_another(trained: Trained, tmp_path: Path) -> None:
    def interrupted(text: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Dense(options(trained.source, epochs=2)).fit([TrainingSet(DATA)], tmp_path, interrupted)
    for changed, data in (
        (options(trained.source, epochs=3), DATA),
        (options(trained.source, epochs=2), learnable("o")),
    ):
        with pytest.raises(BadModel, match="other data or with other options that was interrupted"):
            Dense(changed).fit([TrainingSet(data)], tmp_path)


def test_a_training_that_bursts_says_so_and_keeps_what_it_had(trained: Trained, tmp_path: Path) -> None:
    with pytest.raises(TrainingStopped, match="lower --option rate"):
        Dense(options(trained.source, rate=1e30)).fit([TrainingSet(DATA)], tmp_path / "burst")
    assert not (tmp_path / "burst" / "model.json").exists()


def test_more_tools_than_candidates(trained: Trained, tmp_path: Path) -> None:
    model = Dense(options(trained.source, candidates=8))
    model.fit([TrainingSet(DATA)], tmp_path)
    model.add(DATA.tools)
    assert recall(model, DATA, "test") > 0.5


def test_the_bonus_chosen_on_dev_goes_to_tools_that_training_has_not_seen(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolscout.training.bi_encoder.EncoderTask.new_bonus", lambda task: 0.07)
    data = learnable(used=14)
    model = Dense(options(trained.source, epochs=1))
    model.fit([TrainingSet(data)], tmp_path)
    raised, plain = load_model(tmp_path), Dense(encoder=model.encoder)
    asked = [text for _, text in data.split("test").requests]
    gains = set()
    for one in (raised, plain):
        one.add(TOOLS)
    for with_bonus, without in zip(raised.search(asked, 20), plain.search(asked, 20), strict=True):
        before = {hit.tool_id: hit.score for hit in without}
        gains |= {(hit.tool_id, round(hit.score - before[hit.tool_id], 5)) for hit in with_bonus}
    assert gains == {(tool.id, 0.0 if number < 14 else 0.07) for number, tool in enumerate(TOOLS)}


def test_several_sets_are_learned_at_once(trained: Trained, tmp_path: Path) -> None:
    """The second set has its own tools, and words of the first mean them: what is selected is good for both."""
    other = Dataset(
        "few", TOOLS[:3], {"a": "w59 w59 w58", "b": "w57 w57 w58"}, {"train": {"a": ("n/t1",), "b": ("n/t2",)}}
    )
    model = Dense(options(trained.source, epochs=4))
    model.fit([TrainingSet(DATA), TrainingSet(other, dev="")], tmp_path)
    assert [one.dataset for one in trained_on(tmp_path).splits] == ["learnable", "learnable", "few"]
    model.add(DATA.tools)
    assert recall(model, DATA, "test") > 0.4


def test_another_catalogue_and_another_dimension(trained: Trained, tmp_path: Path) -> None:
    other = [Tool("other", f"x{number}", f"w{number} w{number + 1}") for number in range(7)]
    strange = load_model(trained.folder)
    strange.add(other)
    assert len(strange.search(["w3 w4"], 7)[0]) == 7
    raw = Encoder.load(export(trained.source, tmp_path / "raw"))
    with pytest.raises(BadModel, match="made with another encoder"):
        Dense.load(trained.folder, raw)
    gone = Dense(DenseOptions(encoder=str(export(trained.source, tmp_path / "gone"))))
    gone.add(other)
    gone.save(tmp_path / "index")
    shutil.rmtree(tmp_path / "gone")
    with pytest.raises(BadModel, match=r"index needs the encoder .*gone, which is not there: put it back"):
        load_model(tmp_path / "index")
    model = Dense(options(trained.source, epochs=1), HashedWords())
    model.add(TOOLS)
    model.fit([TrainingSet(DATA)], tmp_path / "model")  # from 256 numbers to 32
    model.add(TOOLS)
    assert len(model.search(["w3"], 3)[0]) == 3


def test_bad_input_is_refused_before_anything_is_trained(trained: Trained, tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="at least one dataset"):
        Dense().fit([], tmp_path)
    with pytest.raises(BadModel, match="name the weights to begin with by start"):
        Dense(DenseOptions(encoder="somewhere")).fit([TrainingSet(DATA)], tmp_path)
    with pytest.raises(BadModel, match="is not a folder of a Hugging Face model"):
        Dense(options(tmp_path / "nowhere")).fit([TrainingSet(DATA)], tmp_path)
    with pytest.raises(BadModel, match="device 'tpu9' cannot be used"):
        Dense(options(trained.source, device="tpu9")).fit([TrainingSet(DATA)], tmp_path)
    with pytest.raises(BadModel, match="new_bonus must be 0 or more"):
        DenseOptions(new_bonus=-0.1)
    assert list(tmp_path.iterdir()) == []


def test_without_torch_the_pip_line_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "toolscout.training.bi_encoder", None)  # as if its import of torch failed
    with pytest.raises(MissingExtra, match=r"pip install 'toolscout\[train\]'"):
        Dense().fit([TrainingSet(DATA)], tmp_path)


def test_int8_loses_next_to_nothing_against_the_trained_weights(shared_data: Path, tmp_path: Path) -> None:
    """In full precision the served encoder gives the vectors of torch (tests/models/test_trainable.py), and is
    quicker."""
    try:
        default_source()
    except MissingEncoder as error:
        pytest.skip(str(error))
    data = Dataset.load(shared_data / "ultratool", ["train", "test"])
    few = dict(list(data.qrels["train"].items())[:6])
    chosen = DenseOptions(epochs=1, batch=2, rate=3e-4, average=1.0, mix=0.0, device="cpu")
    int8 = Dense(chosen)
    int8.fit([TrainingSet(replace(data, qrels={"train": few}), dev="")], tmp_path)
    fp32 = Dense(encoder=Encoder.load(export(tmp_path / "weights", tmp_path / "fp32", "fp32")))
    recalls = []
    for model in (int8, fp32):
        model.add(data.tools)
        recalls.append(recall(model, data, "test"))
    assert recalls[1] > 0.3
    assert recalls[0] >= recalls[1] - 0.005
