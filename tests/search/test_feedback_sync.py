"""Feedback reaches what learns from it: all of it, once, and without encoding it again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.retrievers.scenes import scenes
from tests.toys import HashedWords, catalogue
from toolscout import Example, Scout, Tool
from toolscout.errors import MissingEncoder, ReadOnlyStore
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.centroid import Centroid
from toolscout.retrievers.dense import Dense
from toolscout.retrievers.hybrid.retriever import Hybrid
from toolscout.retrievers.memory import Memory
from toolscout.retrievers.provenance import TrainingSet
from toolscout.stores.sqlite.store import SqliteStore

LION = Tool("zoo", "feed_lion", "Gives the lion its dinner of fresh meat")
HUNGRY = "somebody roars because of hunger"


class Counting(HashedWords):
    """Knows how often it was asked for a request's vector."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[str] = []

    def encode_request(self, text: str) -> np.ndarray:
        if text.startswith(HUNGRY):
            self.requests.append(text)
        return super().encode_request(text)


@pytest.fixture
def encoder(monkeypatch: pytest.MonkeyPatch) -> Counting:
    toy = Counting()
    monkeypatch.setattr("toolscout.models.encoders.onnx_encoder.Encoder.load", lambda folder=None: toy)
    return toy


def used(request: str = HUNGRY) -> Example:
    return Example(request, used=(LION.id,), source="agent")


def top(scout: Scout, request: str = HUNGRY) -> str:
    return scout.search(request).considered[0].tool_id


def centroid(scout: Scout) -> Centroid:
    assert isinstance(scout.retriever, Centroid)
    return scout.retriever


def test_those_who_learn_are_found_among_the_parts() -> None:
    memory, centroid = Memory(encoder=HashedWords()), Centroid(encoder=HashedWords())
    inner = Hybrid(parts=[Bm25(), centroid])
    fused = Hybrid(parts=[Bm25(), memory, inner, Dense(encoder=HashedWords())])
    assert fused.learns
    fused.learn([Example(HUNGRY, used=(LION.id,))])
    assert (memory.learned(), centroid.learned()) == (1, 1)
    assert not Hybrid(parts=[Bm25(), Dense(encoder=HashedWords())]).learns


@pytest.mark.parametrize("retriever", ["bm25", "dense", "hybrid"])
def test_feedback_is_not_even_read_where_nobody_learns(
    tmp_path: Path, encoder: Counting, monkeypatch: pytest.MonkeyPatch, retriever: str
) -> None:
    def refuse(*_: Any) -> Iterator[Any]:
        raise AssertionError("feedback was read")

    monkeypatch.setattr(SqliteStore, "feedback", refuse)
    with Scout.open(tmp_path / "tools.db", retriever) as scout:
        scout.add([LION])
        scout.feedback(used())
        assert scout.search("lion dinner").considered
    assert encoder.requests == []


def test_no_request_is_encoded_again_when_the_store_is_opened_again(tmp_path: Path, encoder: Counting) -> None:
    path = tmp_path / "tools.db"
    with Scout.open(path, "memory") as scout:
        scout.add([*catalogue(50), LION])
        for n in range(5):
            scout.feedback(used(f"{HUNGRY} {n}"))
    with SqliteStore(path) as store:  # as the command line does: recorded without an encoder
        store.add_feedback([used(f"{HUNGRY} {n}") for n in range(5, 1000)])
    with Scout.open(path, "memory") as scout:
        assert top(scout) == LION.id
    assert sorted(encoder.requests) == sorted([*(f"{HUNGRY} {n}" for n in range(1000)), HUNGRY])
    encoder.requests.clear()
    with Scout.open(path, "memory") as scout:
        assert scout.retriever.learned() == 1000  # type: ignore[attr-defined]
    assert encoder.requests == []
    with SqliteStore(path) as store:
        assert store.prune_vectors() == 0


def test_each_example_is_learned_once(tmp_path: Path, encoder: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    learned: list[str] = []
    learn: Callable[..., None] = Centroid.learn

    def noted(self: Centroid, examples: list[Example], vectors: Any = None) -> None:
        learned.extend(example.request for example in examples)
        learn(self, examples, vectors)

    monkeypatch.setattr(Centroid, "learn", noted)
    with Scout.open(tmp_path / "tools.db", "centroid") as scout:
        scout.add([*catalogue(50), LION])
        for n in range(3):
            scout.feedback(used(f"{HUNGRY} {n}"))
            scout.store.add_feedback([used(f"another process {n}")])
            scout.search("lion dinner")
            scout.add([Tool("zoo", f"animal_{n}")])
    assert learned == [f"{text} {n}" for n in range(3) for text in (HUNGRY, "another process")]


def test_a_kept_index_goes_on_where_it_was(tmp_path: Path, encoder: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolscout.search.index_snapshot.WORTH_KEEPING", 10)
    monkeypatch.setattr("toolscout.search.index_snapshot.WORTH_RENEWING", 0)
    path = tmp_path / "tools.db"
    with Scout.open(path, "centroid") as scout:
        scout.add([*catalogue(50), LION])
        scout.feedback(used())
        scout.add([Tool("zoo", "wash_whale")])  # keeps the index, with one example in it
        scout.feedback(used("roars"))
        wanted = scout.search(HUNGRY, k=52).considered
    after: list[int] = []
    feedback = SqliteStore.feedback

    def noted(self: SqliteStore, since: int = 0) -> Iterator[tuple[int, Example]]:
        after.append(since)
        return feedback(self, since)

    monkeypatch.setattr(SqliteStore, "feedback", noted)
    with Scout.open(path, "centroid") as scout:
        assert scout.search(HUNGRY, k=52).considered == wanted
        assert centroid(scout).learned() == 2
    assert after == [0, 1]  # is the first example still there? then all after it


def test_a_kept_index_that_learned_more_than_the_store_has_is_built_again(
    tmp_path: Path, encoder: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolscout.search.index_snapshot.WORTH_KEEPING", 10)
    path, backup = tmp_path / "tools.db", tmp_path / "backup.db"
    with Scout.open(path, "centroid") as scout:
        scout.add([*catalogue(50), LION])
    shutil.copy(path, backup)
    with Scout.open(path, "centroid") as scout:
        scout.feedback(used())
        scout._prepare(None)
    for file in tmp_path.glob("tools.db-*"):
        file.unlink()
    shutil.copy(backup, path)
    with Scout.open(path, "centroid") as scout:
        assert centroid(scout).learned() == 0
        assert scout.count() == 51


def test_feedback_without_an_encoder_is_learned_when_there_is_one(
    tmp_path: Path, encoder: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:

        def missing(folder: Path | None = None) -> None:
            raise MissingEncoder("run: toolscout encoder export")

        without.setattr("toolscout.models.encoders.onnx_encoder.Encoder.load", missing)
        with Scout.open(tmp_path / "tools.db", "memory") as scout:
            scout.add([*catalogue(50), LION])
            scout.feedback(used())
            assert scout.search(HUNGRY).considered == ()
    with Scout.open(tmp_path / "tools.db", "memory") as scout:
        scout.embed()
        assert top(scout) == LION.id


def test_a_store_that_may_not_be_written_is_learned_from_all_the_same(
    tmp_path: Path, encoder: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Scout.open(tmp_path / "tools.db", "memory") as scout:
        scout.add([*catalogue(50), LION])
        scout.store.add_feedback([used()])

    def refuse(*_: Any) -> None:
        raise ReadOnlyStore("may not be written")

    monkeypatch.setattr(SqliteStore, "put_vectors", refuse)
    with Scout.open(tmp_path / "tools.db", "memory") as scout:
        assert top(scout) == LION.id


def test_a_hybrid_hands_feedback_to_its_parts(tmp_path: Path, encoder: Counting) -> None:
    Hybrid(parts=[Bm25(), Memory(encoder=encoder)]).save(tmp_path / "model")
    with Scout.open(tmp_path / "tools.db", tmp_path / "model") as scout:
        scout.add([*catalogue(50), LION])
        assert top(scout) != LION.id
        scout.feedback(used())
        assert top(scout) == LION.id


@pytest.mark.parametrize("kind", [Memory, Centroid])
def test_what_a_model_was_fitted_to_counts_over_the_same_tools(
    tmp_path: Path, encoder: Counting, kind: type[Memory | Centroid]
) -> None:
    data = scenes()
    kind(encoder=encoder).fit([TrainingSet(data)], tmp_path / "model")
    asked = data.split("test")
    with Scout.open(tmp_path / "tools.db", tmp_path / "model") as scout:
        assert scout.search(asked.requests[0][1]).considered == ()
        scout.add(data.tools)
        for (_, text), gold in list(zip(asked.requests, asked.gold, strict=True))[::6]:
            assert set(gold) <= {hit.tool_id for hit in scout.search(text, k=10).considered}
        scout.feedback(Example(HUNGRY, used=(data.tools[0].id,)))
        assert data.tools[0].id in {hit.tool_id for hit in scout.search(HUNGRY, k=5).considered}
