"""What a language model has read, together or one of several; which tools a caller may see; sets that it wrote."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from toolscout.core.answer import Allowed, Hit
from toolscout.core.arrays import Floats
from toolscout.index.exact_names import EXACT_BONUS
from toolscout.index.recent import Recent
from toolscout.models.decoding.constrained import Reading
from toolscout.models.decoding.trie import Pruned, Trie
from toolscout.retrievers.base import Pairs

_CALLERS_KEPT = 64
_UNWRITTEN = 1e-4  # what a tool's own probability counts beside that of the sets it is in
_ROOT = 8.0  # probabilities themselves are too peaked to be added to anything


def flattened(log_chance: float) -> float:
    """The score of a tool: its probability's root."""
    return float(np.exp(log_chance / _ROOT))


def chance(score: float) -> float:
    """The probability that a score was made of; that of a tool which the request names is 1."""
    return float(min(1.0, score**_ROOT))


def relative(hits: Sequence[Hit]) -> list[Hit]:
    """The hits of one who may not see all tools, with scores relative to the best of them.

    As probabilities among all tools, low scores would say that there is a better one.
    """
    best = max((hit.score for hit in hits if hit.score < EXACT_BONUS), default=0.0)
    return [replace(hit, score=hit.score / best) if 0 < hit.score < EXACT_BONUS else hit for hit in hits]


@dataclass(frozen=True, slots=True)
class Ahead:
    """Requests that were read and ranked together before they are asked: their places, the reading, k tools each."""

    places: Mapping[str, int] = field(default_factory=dict)
    reading: Reading | None = None
    rankings: Sequence[Pairs] = ()
    k: int = 0
    version: int = -1

    def ranked(self, requests: Sequence[str], k: int, version: int) -> list[Pairs] | None:
        """The rankings of requests, if all were ranked so far down, and among the tools of this version."""
        if k > self.k or version != self.version or not all(request in self.places for request in requests):
            return None
        return [list(self.rankings[self.places[request]][:k]) for request in requests]


class Views:
    """The parts of a trie that callers may see; remembered for the last of them."""

    def __init__(self, trie: Trie, always: Collection[str]) -> None:
        """`always`: keys that all may see."""
        self._trie, self._always = trie, always
        self._known: Recent[Allowed, Pruned] = Recent(_CALLERS_KEPT)

    def of(self, allowed: Allowed) -> Pruned:
        """What this caller may see."""
        view = self._known.get(allowed)
        if view is None:
            view = self._trie.pruned(lambda key: key in self._always or allowed.permits(key))
            self._known.keep(allowed, view)
        return view


class OneOf:
    """One prompt of a reading, as a reading of its own."""

    def __init__(self, reading: Reading, place: int) -> None:
        """The prompt at this place."""
        self._reading, self._place = reading, place

    def ends(self) -> Floats:
        """The state at its end."""
        return self._reading.ends()[self._place : self._place + 1]

    def after(self, owners: Sequence[int], paths: Sequence[Sequence[int]]) -> Floats:
        """The states at the ends of paths behind it."""
        return self._reading.after([self._place] * len(owners), paths)


def included(ranking: Pairs, written: Sequence[tuple[Sequence[str], float]], allowed: Allowed | None) -> Pairs:
    """How likely each tool is to be in the set: the logs, best first. Those in no set follow by their own chances."""
    chances: dict[str, float] = {}
    for tools, score in written:
        for tool_id in tools:
            if allowed is None or allowed.permits(tool_id):
                chances[tool_id] = chances.get(tool_id, 0.0) + float(np.exp(score))
    # The larger of both, not the sum: so a tool of a set counts the same, however many are ranked.
    for tool_id, score in ranking:
        chances[tool_id] = max(chances.get(tool_id, 0.0), _UNWRITTEN * float(np.exp(score)))
    least = float(np.finfo(np.float64).tiny)
    logs = [(tool_id, float(np.log(max(chance, least)))) for tool_id, chance in chances.items()]
    return sorted(logs, key=lambda pair: (-pair[1], pair[0]))
