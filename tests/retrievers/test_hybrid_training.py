"""hybrid trains its parts, has them share one encoder, and leaves a model that opens as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.toys import HashedWords
from tests.training.learnable import TOOLS, learnable, options, recall, tiny_source
from toolscout.errors import BadModel, Leak
from toolscout.evaluation.evaluate import evaluate, seen_by
from toolscout.evaluation.fit_record import read_fit_record
from toolscout.models.encoders.export import export
from toolscout.models.encoders.onnx_encoder import Encoder
from toolscout.retrievers.base import FitReport, Retriever
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.centroid import Centroid
from toolscout.retrievers.dense import Dense, DenseOptions
from toolscout.retrievers.hybrid.retriever import Hybrid
from toolscout.retrievers.memory import Memory, MemoryOptions
from toolscout.retrievers.model_folder import read_model, trained_on
from toolscout.retrievers.opening import open_retriever
from toolscout.retrievers.provenance import TrainedOn, TrainingSet
from toolscout.retrievers.registry import load_model
from toolscout.scout import Scout

pytestmark = pytest.mark.slow

DATA = learnable()
SETS = [TrainingSet(DATA)]
ASKED = [text for _, text in DATA.split("test").requests]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny BERT (source), a dense model trained from it, and a hybrid of it with memory and words."""
    folder = tmp_path_factory.mktemp("hybrid")
    tiny_source(folder / "source")
    Dense(learning(folder)).fit(SETS, folder / "dense")
    Hybrid(parts=[Bm25(), Memory(), Dense(learning(folder))]).fit(SETS, folder / "hybrid")
    return folder


def learning(home: Path, epochs: int = 4) -> DenseOptions:
    return options(home / "source", epochs=epochs)


def ids(retriever: Retriever, texts: Sequence[str] = ASKED) -> list[list[str]]:
    return [[hit.tool_id for hit in hits] for hits in retriever.search(texts, 5)]


def opened(folder: Path) -> Hybrid:
    loaded = load_model(folder)
    assert isinstance(loaded, Hybrid)
    loaded.add(TOOLS)
    return loaded


def test_it_trains_its_parts_and_is_better_than_words(home: Path) -> None:
    words, made = Bm25(), opened(home / "hybrid")
    words.add(TOOLS)
    assert recall(made, DATA, "test") > recall(words, DATA, "test") + 0.4
    assert made.options.weights[0] < max(made.options.weights[1:])  # words know nothing here
    assert trained_on(home / "hybrid") == TrainedOn.of(SETS)
    # The encoder came first: what memory holds are its vectors.
    assert len({part.encoder.fingerprint for part in made.parts[1:] if part.encoder}) == 1


def test_scout_and_evaluate_open_it_as_a_whole(home: Path, tmp_path: Path) -> None:
    ranked = ids(opened(home / "hybrid"))
    with Scout.open(tmp_path / "tools.db", home / "hybrid") as scout:
        scout.add(TOOLS)
        assert [[hit.tool_id for hit in scout.search(text, 5).considered] for text in ASKED] == ranked
    model, _ = open_retriever(str(home / "hybrid"))
    seen = seen_by(str(home / "hybrid"), model)
    for split in ("train", "dev"):
        with pytest.raises(Leak, match=f"learnable {split}"):
            evaluate(DATA, split, model, seen=seen, cache=tmp_path / "v.db")
    done = evaluate(DATA, "test", model, seen=seen, fitted=read_fit_record(home / "hybrid"), cache=tmp_path / "v.db")
    assert [list(one.ranking or ())[:5] for one in done.asked] == ranked


def test_a_saved_copy_ranks_the_same(home: Path, tmp_path: Path) -> None:
    made = opened(home / "hybrid")
    made.save(tmp_path / "copy")
    copy = load_model(tmp_path / "copy")
    assert copy.search(ASKED, 5) == made.search(ASKED, 5)
    assert trained_on(tmp_path / "copy") == trained_on(home / "hybrid")


@pytest.mark.timing
def test_what_a_fit_took_is_counted_once(home: Path) -> None:
    parts = [read_fit_record(home / "hybrid" / name) for name in ("1-memory", "2-dense")]
    whole = read_fit_record(home / "hybrid")
    assert [part.parameters is not None for part in parts] == [True, True]
    assert whole.parameters == sum(part.parameters or 0 for part in parts) + 3
    assert (whole.seconds or 0) > sum(part.seconds or 0 for part in parts)
    assert (whole.seconds or 0) < 2 * sum(part.seconds or 0 for part in parts) + 5


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each request was encoded."""
    counted: Counter[str] = Counter()
    one, several = Encoder.encode_request, Encoder._stream

    def encode_request(self: Encoder, text: str) -> Any:
        counted[text] += 1
        return one(self, text)

    def stream(self: Encoder, texts: Sequence[str], encode: Any) -> Any:
        counted.update(texts)
        return several(self, texts, encode)

    monkeypatch.setattr(Encoder, "encode_request", encode_request)
    monkeypatch.setattr(Encoder, "_stream", stream)
    return counted


def test_all_parts_have_a_request_encoded_once(home: Path, encoded: Counter[str]) -> None:
    made = opened(home / "hybrid")
    for texts in (ASKED[:1], ASKED[1:20]):
        made.search(texts, 5)
    assert {encoded[text] for text in ASKED[:20]} == {1}


def test_parts_on_the_default_encoder_share_it_too(
    home: Path, tmp_path: Path, encoded: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLSCOUT_ENCODER", str(home / "dense" / "encoder"))
    Hybrid(parts=[Memory(), Centroid()]).fit(SETS, tmp_path)
    made = opened(tmp_path)
    encoded.clear()
    made.search(ASKED, 5)
    assert {encoded[text] for text in ASKED} == {1}
    # The encoder was trained on the same requests, and says so behind the hybrid as well.
    assert [one.split for one in seen_by(str(tmp_path), made).splits] == ["train", "dev"]
    with pytest.raises(Leak):
        evaluate(DATA, "dev", Hybrid(parts=[made.parts[0]]), cache=tmp_path / "v.db")


def refuse(*args: Any) -> FitReport:
    raise AssertionError("trained again")


def test_a_part_that_has_learned_is_taken_as_it_is(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dense = load_model(home / "dense")
    monkeypatch.setattr(Dense, "fit", refuse)
    made = Hybrid(parts=[Bm25(), Memory(), dense])
    made.fit(SETS, tmp_path)
    loaded = opened(tmp_path)
    assert ids(loaded) == ids(opened(home / "hybrid"))
    file = Path("encoder", "model.onnx")
    assert (tmp_path / "2-dense" / file).read_bytes() == (home / "dense" / file).read_bytes()


def test_interrupted_between_its_parts_it_does_not_train_the_first_again(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any) -> FitReport:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Memory, "fit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Hybrid(parts=[Bm25(), Memory(), Dense(learning(home))]).fit(SETS, tmp_path)
    monkeypatch.setattr("toolscout.training.bi_encoder.learn", refuse)
    Hybrid(parts=[Bm25(), Memory(), Dense(learning(home))]).fit(SETS, tmp_path)
    assert opened(tmp_path).search(ASKED, 5) == opened(home / "hybrid").search(ASKED, 5)


def test_tools_that_were_there_before_do_not_stand_in_the_way(home: Path, tmp_path: Path) -> None:
    made = Hybrid(parts=[Memory(encoder=HashedWords()), Dense(learning(home), HashedWords())])
    made.add(TOOLS)  # 256 numbers each; the encoder that is trained has 32
    made.fit(SETS, tmp_path)
    made.add(TOOLS)
    assert ids(made) == ids(opened(tmp_path))


def test_parts_bound_to_different_encoders_are_refused_before_training(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = export(home / "source", tmp_path / "raw")
    memory = Memory(encoder=Encoder.load(raw))
    memory.fit(SETS, tmp_path / "memory")
    monkeypatch.setenv("TOOLSCOUT_ENCODER", str(raw))
    dense, untrained = load_model(home / "dense"), Dense(learning(home))
    named = Memory(MemoryOptions(encoder=str(raw)))
    refused: list[list[Retriever]] = [[memory, dense], [memory, untrained], [named, dense], [dense, untrained]]
    for parts in refused:
        with pytest.raises(BadModel, match="the parts of a hybrid use one encoder"):
            Hybrid(parts=parts).fit(SETS, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    Hybrid(parts=[memory, dense]).save(tmp_path / "model")
    with pytest.raises(BadModel, match="the parts of a hybrid use one encoder"):
        load_model(tmp_path / "model")


def test_a_part_may_name_the_encoder_of_another(home: Path, tmp_path: Path) -> None:
    memory = Memory(MemoryOptions(encoder=str(home / "dense" / "encoder")))
    Hybrid(parts=[memory, load_model(home / "dense")]).fit(SETS, tmp_path)
    assert recall(opened(tmp_path), DATA, "test") > 0.6


def test_a_part_that_names_none_uses_the_encoder_that_another_names(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLSCOUT_ENCODER", str(export(home / "source", tmp_path / "default")))
    named = Memory(MemoryOptions(encoder=str(home / "dense" / "encoder")))
    named.fit(SETS, tmp_path / "named")
    Hybrid(parts=[Centroid(), load_model(tmp_path / "named")]).fit(SETS, tmp_path / "model")
    own = Encoder.load(home / "dense" / "encoder").fingerprint
    assert [read_model(tmp_path / "model" / part)["encoder"] for part in ("0-centroid", "1-memory")] == [own, own]
    assert recall(opened(tmp_path / "model"), DATA, "test") > 0.6


@pytest.mark.parametrize("damage", ["gone", "half"])
def test_a_damaged_index_says_so(home: Path, tmp_path: Path, damage: str) -> None:
    opened(home / "hybrid").save(tmp_path)
    (tmp_path / "new.json").unlink()
    if damage == "half":
        (tmp_path / "new.json").write_text('["n/t')
    with pytest.raises(BadModel, match="build it again"):
        load_model(tmp_path)
