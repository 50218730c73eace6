"""masstool as a part of a hybrid: one encoder for all parts, its forecast of need, and feedback that reaches it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.retrievers.scenes import scenes
from tests.retrievers.towers import colt, masstool, write_prompts
from tests.toys import HashedWords
from tests.training.learnable import TOOLS, learnable, options, recall, tiny_source
from toolscout.core.answer import Example
from toolscout.errors import BadModel
from toolscout.models.encoders.onnx_encoder import Encoder
from toolscout.retrievers.base import Retriever
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.dense import Dense
from toolscout.retrievers.hybrid.retriever import Hybrid
from toolscout.retrievers.masstool import Masstool
from toolscout.retrievers.memory import Memory
from toolscout.retrievers.model_folder import trained_on
from toolscout.retrievers.provenance import TrainingSet
from toolscout.retrievers.registry import load_model
from toolscout.retrievers.tower.options import MasstoolOptions
from toolscout.scout import Scout

pytestmark = pytest.mark.slow

DATA = scenes()
TEST = [text for _, text in DATA.split("test").requests]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Words and a masstool with detection, trained together."""
    home = tmp_path_factory.mktemp("hybrid")
    made = Hybrid(parts=[Bm25(), masstool(no_tool=str(write_prompts(home / "chat")), epochs=4)])
    report = made.fit([TrainingSet(DATA)], home / "model")
    assert [note.partition(":")[0] for note in report.notes] == ["graph"]
    return home / "model"


@pytest.fixture
def opened(model: Path, monkeypatch: pytest.MonkeyPatch) -> Hybrid:
    monkeypatch.setattr("toolscout.models.encoders.onnx_encoder.Encoder.load", HashedWords.load)
    loaded = load_model(model)
    assert isinstance(loaded, Hybrid)
    loaded.add(DATA.tools)
    return loaded


def needs(retriever: Retriever, requests: Sequence[str]) -> list[float]:
    found = [ranking.need for ranking in retriever.rank(requests, 5)]
    assert None not in found
    return [need for need in found if need is not None]


def test_it_forecasts_need_by_the_part_that_can(opened: Hybrid) -> None:
    needed, chat = needs(opened, TEST), needs(opened, ["tell me a song", "write how you feel"])
    assert min(needed) > 0.5 > max(chat)
    assert {one.need for one in Hybrid(parts=[Bm25(), masstool()]).rank(TEST, 5)} == {None}


def test_it_finds_and_says_what_it_has_seen(opened: Hybrid, model: Path) -> None:
    assert recall(opened, DATA, "test") > 0.9
    assert {one.dataset for one in trained_on(model).splits} == {"scenes", "chat"}
    assert {one.dataset for one in opened.trained_on.splits} == {"scenes", "chat"}


def test_feedback_reaches_it_with_vectors_or_without(opened: Hybrid) -> None:
    (learner,) = [part for part in opened.parts if part.learns]
    before = learner.learned()
    gold = DATA.tools[17].id
    learner.learn([Example("a b", used=(gold,))], {"a b": HashedWords().encode_request("klaatu barada")})
    opened.learn([Example("klaatu nikto", used=(gold,))])
    assert learner.learned() == before + 2
    assert gold in [hit.tool_id for hit in opened.search(["klaatu barada nikto"], 3)[0]]


def test_scout_uses_both_towers(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolscout.models.encoders.onnx_encoder.Encoder.load", HashedWords.load)
    with Scout.open(tmp_path / "tools.db", model) as scout:
        scout.add(DATA.tools)
        found, chat = scout.search(TEST[0], 5), scout.search("tell me a song", 5)
        assert {hit.tool_id for hit in found.considered[:2]} == set(DATA.split("test").gold[0])
        assert found.need is not None
        assert chat.need is not None
        assert found.need > 0.5 > chat.need
        scout.feedback(Example("klaatu barada nikto", used=(DATA.tools[17].id,)))
        assert DATA.tools[17].id in [hit.tool_id for hit in scout.search("klaatu barada nikto", 3).considered]


def test_it_is_trained_on_the_encoder_that_dense_trains(tmp_path: Path) -> None:
    data = learnable(train=64)
    source = tiny_source(tmp_path / "source")
    tower = Masstool(MasstoolOptions(epochs=1, hidden=8, device="cpu"))
    made = Hybrid(parts=[tower, Memory(), Dense(options(source, epochs=1))])
    made.fit([TrainingSet(data)], tmp_path / "model")
    own = Encoder.load(tmp_path / "model" / "2-dense" / "encoder").fingerprint
    assert tower.bound_to() == own
    assert not tower.has_own_encoder()
    again = load_model(tmp_path / "model")
    assert isinstance(again, Hybrid)
    assert {part.encoder.fingerprint for part in again.parts if part.encoder} == {own}
    again.add(TOOLS)
    assert len(again.search(["w20 w21"], 5)[0]) == 5


def test_parts_that_need_two_encoders_are_refused(tmp_path: Path) -> None:
    data = [TrainingSet(learnable(train=16))]
    trained = colt(epochs=1)
    trained.fit([TrainingSet(DATA)], tmp_path / "colt")
    dense, through = Dense(options(tmp_path)), Masstool(MasstoolOptions(train_encoder=True))
    for parts in ([trained, dense], [through, dense], [trained, through]):
        with pytest.raises(BadModel, match="use one encoder"):
            Hybrid(parts=parts).fit(data, tmp_path / "model")
