"""What documents say beside a language model that writes ids of several tokens: each token counts the best under it.

Where an id is one token the cosine is part of that token's score (see _atomic). Here it is added at every token of an
id: to the last one the cosine of its tool, to those before the best cosine of all tools that begin with it.
Probabilities are still normalised token by token, so they stay one distribution over all tools, and the search exact.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toolscout import metrics
from toolscout.answer import Allowed
from toolscout.nn.decoding import Reading
from toolscout.nn.trie import Tokens
from toolscout.retrievers._atomic_choice import BONUSES, MAY_COST, SIMILARITIES
from toolscout.retrievers.base import Floats, TrainingSet
from toolscout.training.options import GenerativeOptions

if TYPE_CHECKING:
    from toolscout.retrievers._generative import Generative

_ASKED = 300  # requests of a dev split on which it is chosen
_NEVER = -1e6
_K = 5


class _Range(NamedTuple):
    """The tools whose ids begin alike: the first of them, where those that go on alike begin, and by which token."""

    first: int
    end: int
    starts: NDArray[np.int64]
    tokens: Tokens


class Order:
    """Tools in the order of their ids, so that those that begin alike stand together."""

    def __init__(
        self,
        paths: Mapping[str, tuple[int, ...]],
        vectors: Mapping[str, NDArray[np.floating]],
        needed: Collection[str],
        version: int,
    ) -> None:
        """Tools with their ids and vectors, of which training requests needed some, at this version of the trie."""
        ids = sorted(paths, key=paths.__getitem__)
        self.version = version
        self._vectors = np.stack([vectors[tool_id] for tool_id in ids]).astype(np.float32)
        self._new = np.array([tool_id not in needed for tool_id in ids], dtype=np.float32)
        self._paths = [paths[tool_id] for tool_id in ids]
        self._ranges: dict[tuple[int, ...], _Range] = {}

    def near(self, requests: Sequence[Floats], options: GenerativeOptions) -> Near:
        """What is added for requests with these vectors."""
        cosines = np.stack([self._vectors @ vector for vector in requests])
        return Near(self, options.similarity * cosines + options.new_bonus * self._new)

    def under(self, path: tuple[int, ...]) -> _Range:
        """The tools whose ids begin with this."""
        found = self._ranges.get(path)
        if found is None:
            first = bisect_left(self._paths, path)
            end = bisect_left(self._paths, (*path[:-1], path[-1] + 1)) if path else len(self._paths)
            tokens = np.array([one[len(path)] for one in self._paths[first:end]], dtype=np.int64)
            starts = np.flatnonzero(np.diff(tokens, prepend=-1))
            found = self._ranges[path] = _Range(first, end, starts, tokens[starts])
        return found


class Near:
    """What is added to the logits of tokens."""

    def __init__(self, order: Order, scores: Floats) -> None:
        """`scores`: [requests, tools], the tools in that order. The best of each request gets nothing, others less."""
        self._order, self._scores = order, scores - scores.max(axis=1, keepdims=True)

    def __call__(self, owner: int, path: tuple[int, ...], tokens: Tokens) -> Floats:
        """For the tokens that may follow this beginning of an id."""
        found = self._order.under(path)
        more = np.zeros(len(tokens), np.float32)
        best = np.maximum.reduceat(self._scores[owner, found.first : found.end], found.starts)
        more[np.searchsorted(tokens, found.tokens)] = best
        return more


def near(retriever: Generative, requests: Sequence[str]) -> Near:
    """What is added for these requests, to ids of tools as they are now."""
    order, trie = retriever._order, retriever._trie
    if order is None or order.version != trie.version:
        rows = retriever._rows.alive()
        ids = [retriever._rows.ids[row] for row in rows]
        vectors = dict(zip(ids, retriever._table.rows(rows), strict=True))
        order = retriever._order = Order(retriever._paths, vectors, retriever.needed, trie.version)
    retriever._encode(requests)
    return order.near([retriever._encoded(request) for request in requests], retriever.options)


class Remembered:
    """A reading that does not look twice at the same path: what is chosen on dev is tried many times."""

    def __init__(self, reading: Reading) -> None:
        """Nothing was looked at yet."""
        self._reading = reading
        self._known: dict[tuple[int, tuple[int, ...]], Floats] = {}

    def ends(self) -> Floats:
        """The state at the end of each prompt."""
        return self._reading.ends()

    def after(self, owners: Sequence[int], paths: Sequence[Sequence[int]]) -> Floats:
        """The states at the ends of paths."""
        asked = [(owner, tuple(path)) for owner, path in zip(owners, paths, strict=True)]
        new = list(dict.fromkeys(one for one in asked if one not in self._known))
        if new:
            states = self._reading.after([owner for owner, _ in new], [path for _, path in new])
            self._known.update(zip(new, states, strict=True))
        return np.stack([self._known[one] for one in asked])


class _Trial:
    """Dev requests of one dataset, read once."""

    def __init__(self, retriever: Generative, one: TrainingSet) -> None:
        split = one.dataset.split(one.dev)
        step = max(1, len(split.requests) // _ASKED)
        self._retriever = retriever
        self._texts = [text for _, text in split.requests[::step]]
        self._gold = split.gold[::step]
        self._reading = Remembered(retriever.reading(self._texts))
        self._among = Allowed.of(ids=(tool.id for tool in one.dataset.tools))
        self._new = {tool.id for tool in one.dataset.tools} - retriever.needed

    def measured(self, similarity: float, bonus: float) -> dict[str, float]:
        """Recall of all, and of known tools, with these."""
        retriever = self._retriever
        retriever.options = replace(retriever.options, similarity=similarity, new_bonus=bonus)
        ranked = retriever._rank(self._reading, self._texts, _K, self._among)
        rankings = [[tool_id for tool_id, _ in pairs] for pairs in ranked]
        return metrics.evaluate(rankings, self._gold, ["recall@5", "known_recall@5"], self._new)

    def weighs(self) -> bool:
        """Whether dev needs both new and known tools: without both there is nothing to weigh."""
        needed = [tool_id in self._new for few in self._gold for tool_id in few]
        return any(needed) and not all(needed)


def choose(retriever: Generative, data: Sequence[TrainingSet]) -> None:
    """What similarity counts, then what new tools get beside it where that costs known ones little, by dev's recall."""
    trials = [_Trial(retriever, one) for one in data if one.dev]
    if not trials:
        return
    found = {one: float(np.mean([t.measured(one, 0.0)["recall@5"] for t in trials])) for one in SIMILARITIES}
    similarity = max(SIMILARITIES, key=lambda one: (found[one], -one))
    best, bonus = found[similarity], 0.0
    weighing = [trial for trial in trials if trial.weighs()]
    alone = [trial.measured(similarity, _NEVER)["known_recall@5"] for trial in weighing]
    for one in BONUSES[1:] if weighing else ():
        measured = [trial.measured(similarity, one) for trial in trials]
        kept = [m["known_recall@5"] for trial, m in zip(trials, measured, strict=True) if trial in weighing]
        recall = float(np.mean([m["recall@5"] for m in measured]))
        if recall > best and all(k >= a - MAY_COST for k, a in zip(kept, alone, strict=True)):
            best, bonus = recall, one
    retriever.options = replace(retriever.options, similarity=similarity, new_bonus=bonus)
