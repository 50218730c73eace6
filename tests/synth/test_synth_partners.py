"""Partners in large catalogues are those that a plain comparison of all tools finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from toolscout.core.arrays import Floats
from toolscout.core.tool import Tool
from toolscout.synth import combinations
from toolscout.synth.combinations import PARTNERS, Partners, kind_shares

pytestmark = pytest.mark.slow

COUNT = 1_100
SOME = range(0, COUNT, 37)


def tools_of(namespaces: int) -> list[Tool]:
    """In so many namespaces, one after the other."""
    return [Tool(f"space{number % namespaces}", f"tool{number}", f"does {number}") for number in range(COUNT)]


def with_ties(seed: int = 0) -> Floats:
    """Vectors of small whole numbers: many are equal, and products are exact in whatever order they are added."""
    return np.random.default_rng(seed).integers(-2, 3, size=(COUNT, 4)).astype(np.float32)


def plainly(tools: Sequence[Tool], vectors: NDArray[np.floating[Any]], row: int, kind: str) -> list[str]:
    """The partners of a tool: all others are sorted, those nearest first, of equals the first in the catalogue."""
    own = tools[row]
    cosines = {place: np.float32(vectors[place] @ vectors[row]) for place in range(len(tools))}
    at_home = [place for place in cosines if kind == "meaning" or tools[place].namespace == own.namespace]
    most = 4 * PARTNERS if kind == "meaning" else PARTNERS + 1
    order = sorted(at_home, key=lambda place: (-cosines[place], place))[:most]
    found = [tools[place] for place in order if place != row]
    if kind == "meaning":
        found = [other for other in found if other.namespace != own.namespace]
    return [other.id for other in found if other.digest() != own.digest()][:PARTNERS]


@pytest.mark.parametrize("kind", ["meaning", "namespace"])
@pytest.mark.parametrize("namespaces", [1, 2, 50])
@pytest.mark.parametrize("prepared", [True, False])
def test_partners_are_those_of_a_plain_comparison(kind: str, namespaces: int, prepared: bool) -> None:
    tools, vectors = tools_of(namespaces), with_ties()
    partners = Partners(tools, vectors)
    if prepared:
        partners.prepare(tool.id for tool in tools)
    for row in SOME:
        assert partners.of(tools[row].id, kind) == plainly(tools, vectors, row, kind)


@pytest.mark.parametrize("size", [PARTNERS + 1, PARTNERS + 2, 60])
def test_a_namespace_that_counts_as_large_gives_the_same(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tools, vectors = tools_of(1)[:size], np.random.default_rng(1).normal(size=(size, 16)).astype(np.float16)
    vectors[size // 2 :] = vectors[: size - size // 2]
    monkeypatch.setattr(combinations, "_LARGE", PARTNERS)
    monkeypatch.setattr(combinations, "_ROWS", 7)
    partners = Partners(tools, vectors.astype(np.float32))
    partners.prepare(tool.id for tool in tools)
    for row, tool in enumerate(tools):
        assert partners.of(tool.id, "namespace") == plainly(tools, vectors.astype(np.float64), row, "namespace")


def test_one_namespace_without_vectors_gives_its_first_tools() -> None:
    tools = tools_of(1)
    partners = Partners(tools)
    assert partners.of(tools[-1].id, "namespace") == [tool.id for tool in tools[:PARTNERS]]
    assert partners.of(tools[3].id, "namespace") == [tool.id for tool in tools[: PARTNERS + 1] if tool != tools[3]]


def test_nothing_is_compared_twice_and_only_what_is_needed() -> None:
    told: list[tuple[str, int, int]] = []

    def report(stage: str, done: int, total: int) -> None:
        told.append((stage, done, total))

    tools, partners = tools_of(1), Partners(tools_of(1), with_ties())
    ids = [tool.id for tool in tools]
    partners.prepare(ids, ["chain", "shared"], report)
    assert told == []
    partners.prepare(ids[:600], ["namespace"], report)
    assert told == [("comparing namesakes", 512, 600), ("comparing namesakes", 600, 600)]
    told.clear()
    partners.prepare(ids[:900], ["namespace"], report)
    assert told == [("comparing namesakes", 300, 300)]
    told.clear()
    partners.prepare(ids, ["meaning"], report)
    assert told == [("comparing meanings", done, COUNT) for done in (512, 1_024, COUNT)]
    told.clear()
    partners.prepare(ids[:900], progress=report)
    assert told == []
    assert partners.of(ids[0], "namespace") is partners.of(ids[0], "namespace")


def test_shares_of_known_requests_say_how_far_they_are() -> None:
    told: dict[str, tuple[int, int]] = {}
    tools = tools_of(2)
    golds = [(tools[row].id, tools[row + 2].id) for row in range(20)]
    shares = kind_shares(
        Partners(tools, with_ties()), golds, lambda stage, done, total: told.update({stage: (done, total)})
    )
    assert shares == kind_shares(Partners(tools, with_ties()), golds)
    assert told == {"known requests: comparing meanings": (22, 22), "known requests: finding partners": (20, 20)}
