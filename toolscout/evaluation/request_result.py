"""The result of one request of an evaluation, and the line of scores that is written for it."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from toolscout.core.answer import Verdict
from toolscout.data.dataset import Kind

DEPTH = 10
"""How many tools are ranked, unless a measure looks further down."""


@dataclass(frozen=True, slots=True)
class RequestResult:
    """What an evaluation found for one request: the ranking, the verdict, the time it took.

    `ranking` is None and `error` says why where the request failed. `returned`: the tools of a search with k="auto";
    None where the retriever cannot tell how many a request needs.
    """

    request_id: str
    scene: str
    kind: Kind
    gold: tuple[str, ...]
    ranking: tuple[str, ...] | None
    fit: float
    verdict: Verdict | None
    seconds: float
    error: str = ""
    need: float | None = None
    returned: tuple[str, ...] | None = None

    def to_dict(
        self, new_tools: Collection[str] | None = None, depth: int = DEPTH, rankings: bool = False
    ) -> dict[str, Any]:
        """Return the line of scores to write; row.py describes its fields."""
        line: dict[str, Any] = {
            "id": self.request_id,
            "scene": hashlib.blake2b(self.scene.encode(errors="replace"), digest_size=6).hexdigest(),
            "kind": self.kind,
            "gold": len(self.gold),
            "ranks": self._ranks(self.gold),
            "fit": round(self.fit, 4),
            "verdict": self.verdict,
        }
        if self.need is not None:
            line["need"] = round(self.need, 4)
        if depth != DEPTH:
            line["depth"] = depth
        if new_tools is not None:
            new = [tool_id for tool_id in self.gold if tool_id in new_tools]
            line |= {"new": len(new), "new_ranks": self._ranks(new)}
        if self.returned is not None:
            distinct = set(self.returned)
            line |= {"returned": len(distinct), "returned_gold": len(distinct.intersection(self.gold))}
        if rankings:
            line |= {"golds": list(self.gold), "ranking": None if self.ranking is None else list(self.ranking[:DEPTH])}
            line |= {} if self.returned is None else {"set": list(self.returned)}
            line |= {"error": self.error} if self.error else {}
        return line

    def _ranks(self, tools: Collection[str]) -> list[int] | None:
        """Return the ranks of these tools, from 1; None where the request failed."""
        if self.ranking is None:
            return None
        places = {tool_id: rank for rank, tool_id in reversed(list(enumerate(self.ranking, 1)))}
        return sorted(places[tool_id] for tool_id in tools if tool_id in places)


def scoring_ranking(line: Mapping[str, Any]) -> tuple[list[str] | None, list[str]]:
    """Return a ranking and gold tools that score like the request of a line; new tools are named "new 0", "new 1" …"""
    ranks, new_ranks = line["ranks"], line.get("new_ranks") or []
    new = int(line.get("new", 0))
    known_ranks = list(ranks or ())
    for rank in new_ranks:
        known_ranks.remove(rank)
    golds = [f"new {number}" for number in range(new)] + [f"known {number}" for number in range(line["gold"] - new)]
    if ranks is None:
        return None, golds
    ranking = [f"other {rank}" for rank in range(1, line.get("depth", DEPTH) + 1)]
    for number, rank in enumerate(new_ranks):
        ranking[rank - 1] = f"new {number}"
    for number, rank in enumerate(known_ranks):
        ranking[rank - 1] = f"known {number}"
    return ranking, golds


def scoring_set(line: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return a set of tools and gold tools that score like the set of a line."""
    golds = [f"gold {number}" for number in range(line["gold"])]
    right = line["returned_gold"]
    return [*golds[:right], *(f"other {number}" for number in range(line["returned"] - right))], golds


def new_tool_placeholders(lines: Collection[Mapping[str, Any]]) -> frozenset[str] | None:
    """Return the names that scoring_ranking gives new tools; None where a line does not distinguish new tools."""
    if not all("new" in line for line in lines):
        return None
    return frozenset(f"new {number}" for number in range(max((line["new"] for line in lines), default=0)))
