"""The level that similarity must stand above: of this catalogue, of this caller, and as it is now."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.toys import HashedWords, catalogue
from toolscout.core.answer import Allowed
from toolscout.core.arrays import Floats
from toolscout.core.scope import EVERYTHING, Scope
from toolscout.core.tool import Tool
from toolscout.errors import MissingEncoder, StoreError
from toolscout.models.encoders.onnx_encoder import Encoder
from toolscout.retrievers.base import Retriever
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.centroid import Centroid
from toolscout.retrievers.dense import Dense
from toolscout.retrievers.hybrid.retriever import Hybrid
from toolscout.retrievers.memory import Memory
from toolscout.scout import Scout
from toolscout.search import similarity_baseline
from toolscout.search.feedback_sync import request_key
from toolscout.search.similarity_baseline import SimilarityBaseline, texts
from toolscout.stores.sqlite.store import SqliteStore


class Counting(HashedWords):
    """Counts the requests that were encoded in bulk."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def encode(self, texts: Sequence[str]) -> Floats:
        self.asked += len(texts)
        return super().encode(texts)


class Watched(Dense):
    """Counts how often the background was compared with it."""

    compared = 0

    def best_similarities(self, vectors: Floats, scope: Scope = EVERYTHING) -> Floats:
        self.compared += 1
        return super().best_similarities(vectors, scope)


def expected(tools: Sequence[Tool]) -> float:
    """The level by its definition."""
    encoder = HashedWords()
    rows = np.stack([encoder.encode_request(tool.document()) for tool in tools])
    requests = np.stack([encoder.encode_request(text) for text in texts()])
    return float(np.quantile((requests @ rows.T).max(axis=1), similarity_baseline.QUANTILE))


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "store.db")


def test_the_requests_are_many_short_and_different() -> None:
    assert len(texts()) >= 300
    assert len({text.lower() for text in texts()}) == len(texts())
    assert max(map(len, texts())) < 100


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 5, 300])
@pytest.mark.parametrize(
    "make", [Dense, Memory, Centroid, lambda encoder: Hybrid(parts=[Bm25(), Dense(None, encoder)])]
)
def test_the_level_is_a_low_quantile_of_what_others_score(make: Any, count: int, store: SqliteStore) -> None:
    retriever = make(encoder=HashedWords())
    retriever.add(catalogue(count))
    found = SimilarityBaseline(store, retriever).baseline(None, count)
    assert found == pytest.approx(expected(catalogue(count)), abs=1e-3)  # vectors rest in half precision


def test_more_tools_raise_the_level(store: SqliteStore) -> None:
    levels: list[float] = []
    for count in (2, 20, 200):
        dense = Dense(encoder=HashedWords())
        dense.add(catalogue(count))
        levels.append(SimilarityBaseline(store, dense).baseline(None, count) or 0.0)
    assert levels == sorted(levels)
    assert levels[0] != levels[-1]


def test_where_no_vectors_are_searched_there_is_no_level(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    words = Bm25()
    words.add(catalogue(5))
    assert SimilarityBaseline(store, words).baseline(None, 5) is None
    waiting = Dense(encoder=HashedWords())
    waiting.add(catalogue(5), {})
    assert SimilarityBaseline(store, waiting).baseline(None, 5) is None
    assert SimilarityBaseline(store, Dense(encoder=HashedWords())).baseline(None, 0) is None

    def missing(folder: Path | None = None) -> Encoder:
        raise MissingEncoder("none")

    monkeypatch.setattr(Encoder, "load", missing)
    lonely = Dense()
    lonely.add(catalogue(5), {})
    assert SimilarityBaseline(store, lonely).baseline(None, 5) is None


def test_a_caller_is_measured_by_what_it_may_see_and_nothing_else(store: SqliteStore) -> None:
    allowed = Allowed.of(["space1"])
    own = [tool for tool in catalogue(300) if tool.namespace == "space1"]
    dense = Dense(encoder=HashedWords())
    dense.add(catalogue(300))
    levels = SimilarityBaseline(store, dense)
    assert levels.baseline(allowed, len(own)) == pytest.approx(expected(own), abs=1e-3)
    alone = Dense(encoder=HashedWords())
    alone.add(own)
    assert levels.baseline(allowed, len(own)) == SimilarityBaseline(store, alone).baseline(None, len(own))
    assert levels.baseline(Allowed.of(["nowhere"]), 0) is None


def test_the_level_is_kept_until_enough_has_moved(store: SqliteStore) -> None:
    tools = catalogue(400)
    dense = Watched(encoder=HashedWords())
    dense.add(tools[:200])
    levels = SimilarityBaseline(store, dense)
    first = levels.baseline(None, 200)
    for number, tool in enumerate(tools[200:205], 201):
        dense.add([tool])
        assert levels.baseline(None, number) == first
    assert dense.compared == 1
    dense.add(tools[205:])
    assert levels.baseline(None, 400) == pytest.approx(expected(tools), abs=1e-3)
    dense.remove([tool.id for tool in tools[3:]])
    assert levels.baseline(None, 3) == pytest.approx(expected(tools[:3]), abs=1e-3)
    assert dense.compared == 3


def test_only_so_many_callers_are_remembered(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(similarity_baseline, "_CALLERS_KEPT", 2)
    dense = Watched(encoder=HashedWords())
    dense.add(catalogue(70))
    levels = SimilarityBaseline(store, dense)
    callers = [Allowed.of([f"space{number}"]) for number in range(3)]
    found = [levels.baseline(caller, 10) for caller in callers]
    assert [levels.baseline(caller, 10) for caller in reversed(callers[1:])] == found[:0:-1]
    assert dense.compared == 3
    assert levels.baseline(callers[0], 10) == found[0]
    assert dense.compared == 4


def test_a_frequent_caller_is_remembered_however_many_others_ask(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(similarity_baseline, "_CALLERS_KEPT", 3)
    dense = Watched(encoder=HashedWords())
    dense.add(catalogue(70))
    levels, frequent = SimilarityBaseline(store, dense), Allowed.of(["space0"])
    first = levels.baseline(frequent, 10)
    for number in range(12):
        other = Allowed.of([f"space{number % 7}"], [f"nowhere/{number}"])
        assert levels.baseline(other, 10) == SimilarityBaseline(store, dense).baseline(other, 10)
        assert levels.baseline(frequent, 10) == first
    assert dense.compared == 1 + 12 * 2
    dense.add(catalogue(140)[70:])
    assert levels.baseline(frequent, 20) == SimilarityBaseline(store, dense).baseline(frequent, 20)
    assert dense.compared == 1 + 12 * 2 + 2


def test_hundreds_of_callers_in_turn_are_compared_once(store: SqliteStore) -> None:
    dense = Watched(encoder=HashedWords())
    dense.add(catalogue(7))
    levels = SimilarityBaseline(store, dense)
    callers = [Allowed.of(["space0"], [f"nowhere/{number}"]) for number in range(300)]
    first = [levels.baseline(caller, 1) for caller in callers]
    assert [levels.baseline(caller, 1) for caller in callers] == first
    assert dense.compared == len(callers)


def test_many_tools_are_compared_with_fewer_requests(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(similarity_baseline, "_ALL_UP_TO", 50)
    dense = Dense(encoder=HashedWords())
    dense.add(catalogue(200))
    assert SimilarityBaseline(store, dense).baseline(None, 200) == pytest.approx(expected(catalogue(200)), abs=0.05)


def test_requests_are_encoded_once_for_a_store(store: SqliteStore) -> None:
    encoder = Counting()
    dense = Dense(encoder=encoder)
    dense.add(catalogue(9), {tool.digest(): encoder.encode_request(tool.document()) for tool in catalogue(9)})
    first = SimilarityBaseline(store, dense).baseline(None, 9)
    assert encoder.asked == len(texts())
    assert SimilarityBaseline(store, dense).baseline(None, 9) == pytest.approx(first, abs=1e-3)
    assert encoder.asked == len(texts())
    assert len(store.vectors(encoder.fingerprint, [request_key(text) for text in texts()])) == len(texts())


def test_a_store_that_may_not_be_written_is_only_slower(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise StoreError("read-only")

    monkeypatch.setattr(store, "put_vectors", refuse)
    dense = Dense(encoder=HashedWords())
    dense.add(catalogue(9))
    assert SimilarityBaseline(store, dense).baseline(None, 9) == pytest.approx(expected(catalogue(9)), abs=1e-3)


def test_vectors_beside_an_encoder_are_used_if_they_are_its_own(store: SqliteStore, tmp_path: Path) -> None:
    encoder = Counting()
    encoder.folder = tmp_path  # type: ignore[attr-defined]
    similarity_baseline.ship(encoder, tmp_path)
    dense = Dense(encoder=encoder)
    dense.add(catalogue(9), {tool.digest(): encoder.encode_request(tool.document()) for tool in catalogue(9)})
    assert SimilarityBaseline(store, dense).baseline(None, 9) == pytest.approx(expected(catalogue(9)), abs=1e-3)
    assert encoder.asked == len(texts())  # by ship
    encoder.fingerprint = "another"
    assert SimilarityBaseline(store, dense).baseline(None, 9) == pytest.approx(expected(catalogue(9)), abs=1e-3)
    assert encoder.asked == 2 * len(texts())
    (tmp_path / similarity_baseline.FILE).write_bytes(b"not an archive")
    encoder.fingerprint = "a third"
    assert SimilarityBaseline(store, dense).baseline(None, 9) == pytest.approx(expected(catalogue(9)), abs=1e-3)


def test_the_default_encoder_comes_with_its_vectors() -> None:
    encoder = Encoder.load()
    shipped = similarity_baseline._shipped(encoder)
    assert shipped is not None, "run: python recipes/catalogue_fit.py --ship"
    some = [0, 100, len(texts()) - 1]
    made = np.stack([encoder.encode_request(texts()[i]) for i in some])
    assert np.sum(shipped[some] * made, axis=1) == pytest.approx([1, 1, 1], abs=0.01)


def opened(path: Path, retriever: Retriever, tools: Sequence[Tool]) -> Scout:
    scout = Scout(SqliteStore(path), retriever)
    scout.add(tools)
    return scout


def test_a_search_says_how_far_above_the_level_its_best_tool_is(tmp_path: Path) -> None:
    """The same request and the same best tool: among many tools that similarity says less than among few."""
    request = "mail order please somebody"
    best = Tool("post", "dispatch", "mail order")
    with opened(tmp_path / "few.db", Dense(encoder=HashedWords()), [best]) as few:
        alone = few.search(request)
    with opened(tmp_path / "many.db", Dense(encoder=HashedWords()), [best, *catalogue(400)]) as many:
        among = many.search(request, allowed=Allowed.of(["post", *(f"space{i}" for i in range(7))]))
        own = many.search(request, allowed=Allowed.of(["post"]))
        many.remove([tool.id for tool in catalogue(400)])
        left = many.search(request)
    assert among.considered[0].tool_id == alone.considered[0].tool_id
    assert among.fit is not None
    assert alone.fit is not None
    assert among.fit < alone.fit
    assert own.fit == alone.fit == left.fit
    assert own.considered == alone.considered


def test_words_alone_are_judged_as_ever(tmp_path: Path) -> None:
    with opened(tmp_path / "words.db", Bm25(), catalogue(50)) as scout:
        assert scout.search("create a weather report").verdict == "use"
        assert scout.search("zzz qqq").fit == 0
