"""What the scores of parts count in a hybrid that has learned nothing, and in one with weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self

import pytest

from toolscout.core.answer import Allowed
from toolscout.core.scope import EVERYTHING, Scope
from toolscout.core.tool import Tool
from toolscout.models.encoders.base import TextEncoder
from toolscout.retrievers.base import Ranking, Retriever
from toolscout.retrievers.hybrid.retriever import Hybrid, HybridOptions

TOOLS = [Tool("n", name, name) for name in ("a", "b", "c", "d")]
BM25_UNIT = 190.0


class Scripted(Retriever):
    """A part with the scores given, by the last letter of a tool's id."""

    name: ClassVar[str] = "scripted"

    def __init__(self, scores: Mapping[str, float]) -> None:
        super().__init__()
        self._scores = {f"n/{name}": score for name, score in scores.items()}

    def rank(self, requests: Sequence[str], k: int, scope: Scope = EVERYTHING) -> list[Ranking]:
        pairs = [pair for pair in self._scores.items() if scope.permits(pair[0])]
        best = sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:k]
        return [Ranking(request, scope, list(best)) for request in requests]

    def save(self, folder: Path) -> None:
        raise NotImplementedError

    @classmethod
    def load(cls, folder: Path, encoder: TextEncoder | None = None) -> Self:
        raise NotImplementedError


class Words(Scripted):
    name: ClassVar[str] = "bm25"


class Vectors(Scripted):
    name: ClassVar[str] = "dense"


def scores_of(hybrid: Hybrid, scope: Scope = EVERYTHING) -> dict[str, float]:
    hybrid.add(TOOLS)
    return {hit.tool_id[-1]: hit.score for hit in hybrid.search(["what to find"], 4, scope)[0]}


VECTORS = {"a": 0.6, "b": 0.5, "c": 0.3, "d": 0.1}


def test_scores_of_words_and_vectors_are_added_up_in_fixed_units() -> None:
    found = scores_of(Hybrid(parts=[Words({"b": 44.0, "c": 11.0}), Vectors(VECTORS)]))
    assert found == pytest.approx({"a": 0.6, "b": 0.5 + 44 / BM25_UNIT, "c": 0.3 + 11 / BM25_UNIT, "d": 0.1})
    assert list(found) == ["b", "a", "c", "d"]


def test_a_weak_match_of_words_moves_little_though_it_is_the_best_there_is() -> None:
    words = {"d": 4.0, "c": 3.0}
    assert list(scores_of(Hybrid(parts=[Words(words), Vectors(VECTORS)]))) == ["a", "b", "c", "d"]
    relative = Hybrid(HybridOptions(weights=(1.0, 1.0)), [Words(words), Vectors(VECTORS)])
    assert list(scores_of(relative))[:2] == ["c", "d"]


def test_given_weights_are_of_scores_relative_to_the_best() -> None:
    """A model that learned its weights ranks as when it was saved."""
    found = scores_of(Hybrid(HybridOptions(weights=(1.0, 3.0)), [Words({"b": 44.0, "c": 11.0}), Vectors(VECTORS)]))
    assert found == pytest.approx({"a": 3.0, "b": 1 + 2.5, "c": 0.25 + 1.5, "d": 0.5})


@pytest.mark.parametrize("other", [Scripted({"a": 8.0, "b": 4.0})])
def test_scores_of_other_parts_are_relative_to_the_best(other: Retriever) -> None:
    found = scores_of(Hybrid(parts=[Words({"b": 44.0, "c": 11.0}), other]))
    assert found == pytest.approx({"a": 1.0, "b": 1.0 + 0.5, "c": 0.25})


def test_a_cut_ranking_counts_its_last_score_for_the_tools_that_are_missing() -> None:
    parts = [Words({"a": 44.0, "b": 22.0}), Vectors(VECTORS)]
    found = scores_of(Hybrid(HybridOptions(depth=2), parts))
    assert found["a"] == pytest.approx(0.6 + 44 / BM25_UNIT)
    assert found["b"] == pytest.approx(0.5 + 22 / BM25_UNIT)
    cut = scores_of(Hybrid(HybridOptions(depth=1), parts))
    assert cut["a"] == pytest.approx(0.6 + 44 / BM25_UNIT)


def test_a_restricted_caller_gets_the_scores_of_its_own_tools() -> None:
    parts = [Words({"a": 66.0, "b": 44.0, "c": 11.0}), Vectors(VECTORS)]
    few = scores_of(Hybrid(parts=parts), Scope(Allowed.of(ids=["n/b", "n/d"])))
    assert few == pytest.approx({"b": 0.5 + 44 / BM25_UNIT, "d": 0.1})


def test_without_vectors_words_alone_rank() -> None:
    found = scores_of(Hybrid(parts=[Words({"b": 44.0, "c": 11.0}), Vectors({})]))
    assert found == pytest.approx({"b": 44 / BM25_UNIT, "c": 11 / BM25_UNIT})
