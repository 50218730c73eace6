"""Best-first search of one prompt over a trie: exact, for a prefix costs no more than whatever it begins."""

from __future__ import annotations

import heapq
from bisect import insort
from typing import NamedTuple

import numpy as np

from toolscout.core.arrays import Doubles, Ints
from toolscout.models.decoding.trie import Branch, Trie


class Prefix(NamedTuple):
    """The beginning of an id, and the sum of its log-probabilities."""

    score: float
    node: int
    path: tuple[int, ...]


class _Siblings(NamedTuple):
    """Children of one prefix that lead on, best first; `costs` are scores with the sign turned."""

    path: tuple[int, ...]
    costs: Doubles
    nodes: Ints
    tokens: Ints


class BestFirstSearch:
    """The search for one prompt: the k best tools found so far, and the prefixes that are open.

    Of each family of siblings only the best that is left lies in the heap.
    """

    def __init__(self, trie: Trie, k: int) -> None:
        """Begin at the root."""
        self.found: list[tuple[float, str]] = []
        """The tools found, best first, each with its cost: the score with the sign turned."""
        self._trie, self._k = trie, k
        self._worst = np.inf  # no tool that costs more is among the k best
        self._spent = 0
        self._heap: list[tuple[float, int, int, _Siblings]] = []
        self._families = 0
        nothing = np.empty(0, np.int64)
        self._open(_Siblings((), np.zeros(1), np.array([Trie.ROOT]), nothing))

    def next(self, width: int, budget: int) -> list[Prefix]:
        """The open prefixes to look at next; none once no open one could change the ranking."""
        taken: list[Prefix] = []
        while self._heap and len(taken) < width and not self._settled(budget - self._spent - len(taken)):
            cost, family, place, siblings = self._heap[0]
            if place + 1 < len(siblings.nodes):
                following = (float(siblings.costs[place + 1]), family, place + 1, siblings)
                heapq.heapreplace(self._heap, following)
            else:
                heapq.heappop(self._heap)
            node, tail = self._trie.settle(int(siblings.nodes[place]))
            key = self._trie.key(node)
            if key is None:
                taken.append(Prefix(-cost, node, (*siblings.path, *siblings.tokens[place : place + 1].tolist(), *tail)))
            else:
                insort(self.found, (cost, key))
                self._cut()
        self._spent += len(taken)
        return taken

    def expand(self, prefix: Prefix, branch: Branch, scores: Doubles) -> None:
        """Take in what follows a prefix: the tools among it, and what leads on."""
        costs = -prefix.score - scores
        leaves = costs[branch.leaves]
        near = smallest(leaves, self._k)
        near = near[leaves[near] <= self._worst]
        keys = [str(self._trie.key(node)) for node in branch.nodes[branch.leaves[near]].tolist()]
        self.found += heapq.nsmallest(self._k, zip(leaves[near].tolist(), keys, strict=True))
        inner = branch.inner[costs[branch.inner] <= self._worst]
        if len(inner):
            inner = inner[np.argsort(costs[inner], kind="stable")]
            self._open(_Siblings(prefix.path, costs[inner], branch.nodes[inner], branch.tokens[inner]))

    def tidy(self) -> None:
        """Put in order what a round found."""
        self.found.sort()
        self._cut()

    def _cut(self) -> None:
        del self.found[self._k :]
        if len(self.found) == self._k:
            self._worst = self.found[-1][0]

    def _open(self, siblings: _Siblings) -> None:
        self._families += 1
        heapq.heappush(self._heap, (float(siblings.costs[0]), self._families, 0, siblings))

    def _settled(self, left: int) -> bool:
        return len(self.found) == self._k and (left <= 0 or self._worst < self._heap[0][0])


def smallest(costs: Doubles, k: int) -> Ints:
    """The places of the k smallest, and of those tied with the last of them."""
    groups = 32 * k
    if len(costs) > 4 * groups:  # the minima of groups bound the k-th smallest: cheaper than to partition all
        minima = costs[: len(costs) // groups * groups].reshape(-1, groups).min(axis=0)
        places = np.flatnonzero(costs <= np.partition(minima, k - 1)[k - 1])
    else:
        places = np.arange(len(costs))
    if len(places) <= k:
        return places
    near = costs[places]
    found: Ints = places[near <= np.partition(near, k - 1)[k - 1]]
    return found
