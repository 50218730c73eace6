"""Best-first search over a trie for one prompt. It is exact: a prefix never costs more than its continuations."""

from __future__ import annotations

import heapq
from bisect import insort
from typing import NamedTuple

import numpy as np

from toolscout.core.arrays import Doubles, Ints
from toolscout.models.decoding.trie import Branch, Trie


class Prefix(NamedTuple):
    """A prefix of an id: the sum of its log-probabilities, its trie node, and its tokens."""

    score: float
    node: int
    path: tuple[int, ...]


class _Siblings(NamedTuple):
    """The children of one prefix that are inner nodes, best first; a cost is a negated score."""

    path: tuple[int, ...]
    costs: Doubles
    nodes: Ints
    tokens: Ints


class BestFirstSearch:
    """The state of the search for one prompt: the k best tools found so far, and a heap of prefixes to expand.

    Of the siblings under one prefix, only the best one not expanded yet is in the heap.
    """

    def __init__(self, trie: Trie, k: int) -> None:
        """Begin at the root."""
        self.found: list[tuple[float, str]] = []
        """The tools found, best first, each with its cost: its negated score."""
        self._trie, self._k = trie, k
        self._worst = np.inf  # the cost of the k-th best tool found
        self._spent = 0
        self._heap: list[tuple[float, int, int, _Siblings]] = []
        self._families = 0
        nothing = np.empty(0, np.int64)
        self._open(_Siblings((), np.zeros(1), np.array([Trie.ROOT]), nothing))

    def next(self, width: int, budget: int) -> list[Prefix]:
        """The prefixes to expand next, at most `width`; none once no prefix could change the ranking.

        Once k tools are found and `budget` prefixes were expanded, the search ends too.
        """
        taken: list[Prefix] = []
        while self._heap and len(taken) < width and not self._is_done(budget - self._spent - len(taken)):
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
                self._keep_best()
        self._spent += len(taken)
        return taken

    def expand(self, prefix: Prefix, branch: Branch, scores: Doubles) -> None:
        """Add the children of a prefix, with their log-probabilities: tools to `found`, inner nodes to the heap."""
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
        """Sort what a round of expansions found, and drop all but the k best."""
        self.found.sort()
        self._keep_best()

    def _keep_best(self) -> None:
        del self.found[self._k :]
        if len(self.found) == self._k:
            self._worst = self.found[-1][0]

    def _open(self, siblings: _Siblings) -> None:
        self._families += 1
        heapq.heappush(self._heap, (float(siblings.costs[0]), self._families, 0, siblings))

    def _is_done(self, left: int) -> bool:
        return len(self.found) == self._k and (left <= 0 or self._worst < self._heap[0][0])


def smallest(costs: Doubles, k: int) -> Ints:
    """The positions of the k smallest costs, and of those tied with the last of them."""
    groups = 32 * k
    if len(costs) > 4 * groups:  # the minima of groups bound the k-th smallest, which is cheaper than a full partition
        minima = costs[: len(costs) // groups * groups].reshape(-1, groups).min(axis=0)
        places = np.flatnonzero(costs <= np.partition(minima, k - 1)[k - 1])
    else:
        places = np.arange(len(costs))
    if len(places) <= k:
        return places
    near = costs[places]
    found: Ints = places[near <= np.partition(near, k - 1)[k - 1]]
    return found
