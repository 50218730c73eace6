"""Does a request need a tool: which head answers, what overrides it, and what is wrong with a broken one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.toys import HashedWords, catalogue
from toolscout.core.answer import ExactName, Hit, PastRequest, Similarity
from toolscout.core.arrays import Floats
from toolscout.core.scope import EVERYTHING
from toolscout.errors import BadModel, BadRequest, MissingEncoder
from toolscout.models.need_head import NEED_FILE, NeedHead
from toolscout.retrievers.base import Ranking
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.dense import Dense
from toolscout.retrievers.hybrid.retriever import Hybrid
from toolscout.search.tool_need import NeedEstimator, NeedOptions, open_head


class Homely(HashedWords):
    """The toy encoder with a folder of its own, counting the requests it encodes."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.requests = 0

    def encode_request(self, text: str) -> NDArray[np.float32]:
        self.requests += 1
        return super().encode_request(text)


def poem_head() -> NeedHead:
    """Says that whatever has the word "poem" in it needs no tool."""
    poem = HashedWords().encode_request("poem")
    nothing, weight = np.zeros(1, dtype=np.float32), np.array([-20], dtype=np.float32)
    return NeedHead(poem[None], nothing, weight, 3.0, 1.0, 0.0, HashedWords.fingerprint)


@pytest.fixture
def encoder(tmp_path: Path) -> Homely:
    poem_head().save(tmp_path / "encoder")
    return Homely(tmp_path / "encoder")


class Telling(Dense):
    """A retriever with a tower of its own, which may be missing."""

    said: float | None = 0.125

    def _predicts_need(self) -> bool:
        return self.said is not None

    def _need(self, vectors: Floats) -> list[float]:
        assert self.said is not None
        return [self.said for _ in vectors]


def test_the_head_beside_an_encoder(encoder: Homely) -> None:
    head = open_head(encoder)
    assert head is not None
    chances = head.probabilities(encoder.encode(["write a poem about mail", "send the mail"]))
    assert chances[0] < 0.2 < 0.8 < chances[1]


def test_no_head_where_there_is_none_or_it_reads_other_vectors(encoder: Homely, tmp_path: Path) -> None:
    assert open_head(HashedWords()) is None
    assert open_head(Homely(tmp_path / "elsewhere")) is None
    replace(poem_head(), encoder="another").save(encoder.folder)
    assert open_head(encoder) is None


def test_a_broken_head_says_so(encoder: Homely) -> None:
    short = poem_head()
    replace(short, hidden=short.hidden[:, :7]).save(encoder.folder)
    with pytest.raises(BadModel, match="another length; train it again"):
        open_head(encoder)
    (encoder.folder / NEED_FILE).write_bytes(b"PK nonsense")
    with pytest.raises(BadModel, match="train it again"):
        NeedEstimator(Dense(encoder=encoder)).need(["anything"])


def test_a_request_is_encoded_once_for_search_and_need(encoder: Homely) -> None:
    for retriever in (Dense(encoder=encoder), Hybrid(parts=[Bm25(), Dense(encoder=encoder)])):
        retriever.add(catalogue(20))
        encoder.requests = 0
        request = f"delete the old report of {retriever.name}"
        ranking = retriever.rank([request], 5)[0]
        assert NeedEstimator(retriever).need_of(ranking, retriever.hits(ranking, 5), NeedOptions()) is not None
        assert encoder.requests == 1


def test_many_requests_get_the_same_forecasts_as_each_alone(encoder: Homely) -> None:
    texts = ["write a poem", "send a mail", "a poem about mail", "delete file nine"]
    for retriever in (Dense(encoder=encoder), Hybrid(parts=[Bm25(), Dense(encoder=encoder)])):
        together = NeedEstimator(retriever).need(texts)
        alone = [(NeedEstimator(retriever).need([text]) or [])[0] for text in texts]
        assert together == pytest.approx(alone)
        assert [chance < 0.5 for chance in alone] == [True, False, True, False]


def test_a_tower_of_its_own_comes_first(encoder: Homely) -> None:
    own = Telling(encoder=encoder)
    assert NeedEstimator(own).need(["send a mail"]) == [0.125]
    assert NeedEstimator(Hybrid(parts=[Bm25(), own])).need(["send a mail", "b"]) == [0.125, 0.125]
    own.said = None  # a model that was trained without one: the head beside its encoder answers
    for retriever in (own, Hybrid(parts=[Bm25(), own])):
        assert (NeedEstimator(retriever).need(["send a mail"]) or [0])[0] > 0.8


def test_what_cannot_tell_says_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert NeedEstimator(Bm25()).need(["send a mail"]) is None
    assert NeedEstimator(Hybrid(parts=[Bm25()])).need(["send a mail"]) is None
    assert NeedEstimator(Dense(encoder=HashedWords())).need(["send a mail"]) is None

    def missing(folder: Path | None = None) -> None:
        raise MissingEncoder("run: toolscout encoder export")

    monkeypatch.setattr("toolscout.retrievers.dense.Encoder.load", missing)
    assert NeedEstimator(Dense()).need(["send a mail"]) is None


def test_a_name_and_a_repeated_request_override_the_forecast(encoder: Homely) -> None:
    forecaster, options = NeedEstimator(Dense(encoder=encoder)), NeedOptions()
    poem = Ranking("write a poem", EVERYTHING, [])

    def need(*hits: Hit, past: float = options.past) -> float | None:
        return forecaster.need_of(poem, hits, replace(options, past=past))

    low = need(Hit("a/b", 1.0, (Similarity(0.9),)))
    assert low is not None
    assert low < 0.2
    assert need(Hit("a/b", 1.0, (ExactName("poem"), Similarity(0.9)))) == 1.0
    assert need(Hit("a/b", 1.0), Hit("a/c", 0.5, (PastRequest("write me a poem", 0.97),))) == 0.97
    assert need(Hit("a/b", 1.0, (PastRequest("write a letter", 0.8),))) == low
    assert need(Hit("a/b", 1.0, (PastRequest("write a letter", 0.8),)), past=0.75) == 0.8
    assert need(Hit("a/b", 1.0, (PastRequest("write a poem", 1.0000002),))) == 1.0
    assert NeedEstimator(Bm25()).need_of(poem, [Hit("a/b", 1.0, (ExactName("poem"),))], options) == 1.0


@pytest.mark.parametrize("wrong", [{"threshold": 1.5}, {"threshold": -0.1}, {"threshold": float("nan")}, {"past": -1}])
def test_options_that_are_no_probabilities(wrong: dict[str, float]) -> None:
    with pytest.raises(BadRequest):
        NeedOptions(**wrong)


def test_the_packaged_head_belongs_to_the_packaged_encoder() -> None:
    from toolscout.models.encoders.onnx_encoder import Encoder

    encoder = Encoder.load(Path(__file__).parents[2] / "toolscout" / "default_model")
    head = open_head(encoder)
    assert head is not None
    least = NeedOptions().threshold
    needed = ["book a flight from Oslo to Lima for next Monday", "send a mail to Ann that I am late"]
    unneeded = ["write a poem about autumn", "explain what a metaphor is", "tell me a joke about cats"]
    assert (head.probabilities(encoder.encode(needed), needed) >= least).all()
    assert (head.probabilities(encoder.encode(unneeded), unneeded) < least).all()
