"""What methods choose on dev they choose without doing the same work for each number that is tried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.retrievers.scenes import scenes
from tests.toys import HashedWords
from toolscout.core.answer import Allowed
from toolscout.core.scope import EVERYTHING, Scope
from toolscout.core.tool import Tool
from toolscout.data import metrics
from toolscout.data.dataset import Split
from toolscout.index.tenant_pools import VisiblePools
from toolscout.retrievers.base import Retriever
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.centroid import _TRIED_ALPHA, _TRIED_TAU, Centroid
from toolscout.retrievers.dense import Dense
from toolscout.retrievers.encoded_requests import DevRequests, dev_recall, dev_requests, dev_sample, encode_dev
from toolscout.retrievers.hybrid import fusion
from toolscout.retrievers.hybrid.retriever import Hybrid
from toolscout.retrievers.memory import _TRIED_VOTES, Memory
from toolscout.retrievers.provenance import TrainingSet

SETS = [TrainingSet(scenes("one")), TrainingSet(scenes("two", seed=5))]
DEV = [text for one in SETS for _, text in one.dataset.split("dev").requests]


class Counting(HashedWords):
    """Counts how often each text is encoded."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: Counter[str] = Counter()
        self.documents: Counter[str] = Counter()

    def encode_request(self, text: str) -> NDArray[np.float32]:
        self.requests[text] += 1
        return super().encode_request(text)

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.requests.update(texts)
        return np.stack([super(Counting, self).encode_request(text) for text in texts])

    def encode_documents(self, texts: Sequence[str]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        self.documents.update(texts)
        yield np.arange(len(texts)), np.stack([super(Counting, self).encode_request(text) for text in texts])


@pytest.mark.parametrize("kind", [Memory, Centroid])
@pytest.mark.parametrize("chunk", [7, 512])
def test_dev_requests_of_several_sets_are_encoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Callable[..., Memory | Centroid], chunk: int
) -> None:
    monkeypatch.setattr("toolscout.retrievers.encoded_requests._CHUNK", chunk)
    encoder = Counting()
    kind(encoder=encoder).fit(SETS, tmp_path)
    assert {encoder.requests[text] for text in DEV} == {1}
    assert set(encoder.requests.values()) == set(encoder.documents.values()) == {1}


def by_hand(retriever: Retriever) -> float:
    """The mean recall over the dev splits."""
    values = []
    for one in SETS:
        split, among = one.dataset.split("dev"), Scope(Allowed.of(ids=[tool.id for tool in one.dataset.tools]))
        ranked = retriever.rank([text for _, text in split.requests], 5, among)
        rankings = [ranking.ids() for ranking in ranked]
        values.append(metrics.evaluate(rankings, split.gold, ["recall@5"])["recall@5"])
    return float(np.mean(values))


def test_memory_finds_the_neighbours_of_a_request_once_for_all_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched, nearest = Counter[bytes](), VisiblePools.nearest

    def counted(self: VisiblePools, vector: NDArray[np.float32], *args: Any) -> Any:
        searched[vector.tobytes()] += 1
        return nearest(self, vector, *args)

    monkeypatch.setattr(VisiblePools, "nearest", counted)
    made = Memory(encoder=HashedWords())
    said: list[tuple[str, int, int]] = []
    report = made.fit(SETS, tmp_path, lambda *now: said.append(now))
    assert (len(searched), set(searched.values())) == (48, {1})
    assert said[-49:] == [("encoding dev requests", 48, 48), *(("choosing", done, 48) for done in range(1, 49))]
    chosen, tried = made.options, {}
    for weight in _TRIED_VOTES:
        made.options = replace(chosen, votes=weight)
        tried[weight] = by_hand(made)
    assert report.dev == {"recall@5": max(tried.values())}
    assert chosen.votes == min(weight for weight in tried if tried[weight] == max(tried.values()))


def test_centroid_says_how_far_it_is_and_mixes_by_the_best(tmp_path: Path) -> None:
    made = Centroid(encoder=HashedWords())
    said: list[tuple[str, int, int]] = []
    report = made.fit(SETS, tmp_path, lambda *now: said.append(now))
    assert said[-15:] == [("choosing", done, 15) for done in range(1, 16)]
    assert report.dev == {"recall@5": by_hand(made)}
    chosen, tried = (made.options.alpha, made.options.tau), {}
    for pair in [(alpha, tau) for alpha in _TRIED_ALPHA for tau in _TRIED_TAU]:
        made._mix_by(*pair)
        tried[pair] = by_hand(made)
    assert chosen == max(tried, key=lambda pair: (tried[pair], pair))


def test_sets_of_the_same_tools_share_what_they_are_searched_among() -> None:
    larger = replace(SETS[0].dataset, tools=[*SETS[0].dataset.tools, Tool("another", "one")])
    first, second, third = dev_requests([*SETS, TrainingSet(SETS[1].dataset, dev=""), TrainingSet(larger)])
    assert first.scope is second.scope
    assert third.scope.allowed.ids == first.scope.allowed.ids | {"another/one"}
    assert (first.texts + second.texts, third.texts) == (DEV, first.texts)


def test_dev_requests_are_encoded_ahead_once_and_named_to_the_end() -> None:
    asked: list[list[str]] = []
    said: list[tuple[str, int, int]] = []
    twice = DevRequests([str(n) for n in range(600)], [("n/t",)] * 600, EVERYTHING)
    made = Dense(encoder=HashedWords())
    made.add([Tool("n", "t", "the only one")])

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        asked.append(list(texts))
        return made.encode(texts)

    encoded = encode_dev(encode, [twice, twice], lambda *now: said.append(now))
    assert asked == [twice.texts[:512], twice.texts[512:]]
    assert said == [("encoding dev requests", 512, 600), ("encoding dev requests", 600, 600)]
    assert dev_recall(made, encoded, [twice, twice]) == 1
    assert len(asked) == 2


@pytest.mark.parametrize(("count", "kept"), [(1, 1), (2_000, 2_000), (2_001, 1_001), (8_068, 1_614)])
def test_a_large_dev_split_is_sampled(count: int, kept: int) -> None:
    split = Split("dev", [(str(n), f"request {n}") for n in range(count)], [(f"n/{n}",) for n in range(count)])
    few = dev_sample(split)
    assert (few.name, len(few), len(few.gold)) == ("dev", kept, kept)
    assert [f"n/{key}" for key, _ in few.requests] == [gold for (gold,) in few.gold]


def test_hybrid_encodes_a_document_once_for_all_sets_and_parts(tmp_path: Path) -> None:
    encoder = Counting()
    Hybrid(parts=[Bm25(), Memory(encoder=encoder), Centroid(encoder=encoder)]).fit(SETS, tmp_path / "same")
    assert set(encoder.documents.values()) == {3}  # memory and centroid were fitted, then both were weighed
    more = replace(SETS[1].dataset, tools=[*SETS[1].dataset.tools, Tool("another", "one")])
    made = Hybrid(parts=[Memory(encoder=encoder), Centroid(encoder=encoder)])
    encoder.documents.clear()
    sets = [SETS[0], TrainingSet(more)]
    fusion.learn_weights(made.parts, made._full, sets, frozenset(), 100, None)
    assert set(encoder.documents) == {tool.document() for tool in more.tools}
    assert set(encoder.documents.values()) == {1}


def test_hybrid_weighs_by_a_sample_of_a_large_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolscout.retrievers.encoded_requests._DEV_MOST", 10)
    said: list[tuple[str, int, int]] = []
    Hybrid(parts=[Bm25(), Memory(encoder=HashedWords())]).fit(SETS[:1], tmp_path, lambda *now: said.append(now))
    assert said[-1] == ("weighing the parts", 8, 8)  # each third of 24


def test_the_recalls_of_many_bonuses_are_those_of_metrics() -> None:
    """Scores of few values, so that many are equal; gold that was not found, that is all new, or that is said twice."""
    random = np.random.default_rng(2)
    asked = []
    for number in range(60):
        ids = [f"n/{n}" for n in random.permutation(14)[: random.integers(0, 14)]]
        gold = tuple(f"n/{n}" for n in random.choice(14, 3)) if number % 7 else ("n/1", "n/2")
        scores, new = random.integers(0, 4, (len(ids), 2)) / 3, {"n/1", "n/2", "n/3"}
        is_gold, is_new = (np.array([i in few for i in ids], dtype=bool) for few in (gold, new))
        asked.append(
            fusion._split_new_columns(fusion._DevRequest(ids, scores, gold, frozenset(new & {*gold}), is_gold, is_new))
        )
    thetas = [np.array([1.0, 0.5, 0.7, 1.1, bonus]) for bonus in (-1e6, *fusion._BONUSES.tolist())]
    names = ["recall@5", "known_recall@5"]
    for theta, found in zip(thetas, fusion._recalls(asked, thetas), strict=True):
        expected = metrics.evaluate(*fusion._ranked(asked, theta), names, frozenset({"n/1", "n/2", "n/3"}))
        assert found == tuple(expected[name] for name in names)
    only_new = [one for one in asked if set(one.gold) <= {"n/1", "n/2", "n/3"}]
    assert {known for _, known in fusion._recalls(only_new, thetas)} == {0.0}
