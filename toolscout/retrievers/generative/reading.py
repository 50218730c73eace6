"""Helpers for search with a language model that writes ids: scores, requests it has read, and each caller's trie."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from toolscout.core.answer import Allowed
from toolscout.core.arrays import Floats
from toolscout.index.exact_names import EXACT_BONUS
from toolscout.index.recent import Recent
from toolscout.models.decoding.constrained import Reading
from toolscout.models.decoding.trie import PrunedTrie, Trie
from toolscout.retrievers.base import Pairs

_CALLERS_KEPT = 64
_UNWRITTEN = 1e-4  # the weight of a tool's own probability beside that of the sets it is in
_ROOT = 8.0  # probabilities themselves are too peaked to be added to anything


def flattened(log_chance: float) -> float:
    """The score of a tool: the eighth root of its probability, given as a logarithm."""
    return float(np.exp(log_chance / _ROOT))


def chance(score: float) -> float:
    """The probability behind a score that `flattened` made; 1 for a tool that the request names."""
    return float(min(1.0, score**_ROOT))


def relative(pairs: Pairs) -> Pairs:
    """The tools of a restricted caller, with scores relative to the best of them.

    Probabilities among all tools would reveal, by being low, that a better tool exists.
    """
    best = max((score for _, score in pairs if score < EXACT_BONUS), default=0.0)
    return [(tool_id, score / best if 0 < score < EXACT_BONUS else score) for tool_id, score in pairs]


class ReadRequest(NamedTuple):
    """A request that the model has read: its place in a reading of several."""

    reading: Reading
    place: int


class GeneratedId(NamedTuple):
    """What a model generated: the key of the trie whose id it is, "" for the id of no tool; as text; its score."""

    key: str
    text: str
    score: float


class CallerTries:
    """The tries of the tools that each caller may see, cached for the most recent callers."""

    def __init__(self, trie: Trie, always: Collection[str]) -> None:
        """`always`: keys of the trie that every caller may see."""
        self._trie, self._always = trie, always
        self._known: Recent[Allowed, PrunedTrie] = Recent(_CALLERS_KEPT)

    def of(self, allowed: Allowed) -> PrunedTrie:
        """The part of the trie that this caller may see."""
        view = self._known.get(allowed)
        if view is None:
            view = self._trie.pruned(lambda key: key in self._always or allowed.permits(key))
            self._known.keep(allowed, view)
        return view


class ReadingSubset(Reading):
    """A reading of some of the prompts of another reading."""

    def __init__(self, reading: Reading, places: Sequence[int]) -> None:
        """Take the prompts at these places."""
        self._reading, self._places = reading, list(places)

    def ends(self) -> Floats:
        """The state at the end of each of these prompts."""
        return self._reading.ends()[self._places]

    def after(self, owners: Sequence[int], paths: Sequence[Sequence[int]]) -> Floats:
        """The state at the end of each path; `owners` says which of these prompts it follows."""
        return self._reading.after([self._places[owner] for owner in owners], paths)


def several(read: Sequence[ReadRequest]) -> Reading:
    """A reading of requests that were all read in one batch."""
    return ReadingSubset(read[0].reading, [one.place for one in read])


def included(ranking: Pairs, written: Sequence[tuple[Sequence[str], float]], allowed: Allowed | None) -> Pairs:
    """The log-probability that each tool is needed, best first.

    `written`: the likeliest sets with their log-probabilities. A tool has the sum over the sets it is in; a tool in no
    set has a small share of its own probability in `ranking`.
    """
    chances: dict[str, float] = {}
    for tools, score in written:
        for tool_id in tools:
            if allowed is None or allowed.permits(tool_id):
                chances[tool_id] = chances.get(tool_id, 0.0) + float(np.exp(score))
    # The maximum, not the sum: so the score of a tool in a set does not depend on how many tools are ranked.
    for tool_id, score in ranking:
        chances[tool_id] = max(chances.get(tool_id, 0.0), _UNWRITTEN * float(np.exp(score)))
    least = float(np.finfo(np.float64).tiny)
    logs = [(tool_id, float(np.log(max(chance, least)))) for tool_id, chance in chances.items()]
    return sorted(logs, key=lambda pair: (-pair[1], pair[0]))
