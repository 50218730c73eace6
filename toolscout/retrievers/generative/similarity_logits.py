"""Adds the similarity of tool documents to the logits of a language model that writes ids of several tokens.

Each token gets the best cosine of all tools whose ids continue with it; the last token gets the cosine of its one tool.
Probabilities are still normalised token by token, so they stay one distribution over all tools and the search stays
exact. For ids of one token, token_rows.py makes the cosine part of the token's score.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from toolscout.core.arrays import Floats, Ints
from toolscout.models.decoding.constrained import Reading
from toolscout.training.encoder_options import IdTrainingOptions


class _Range(NamedTuple):
    """The tools [first, end) whose ids share a prefix, the tokens that follow it, and where each of these starts."""

    first: int
    end: int
    starts: Ints
    tokens: Ints


class IdOrder:
    """Tools sorted by their ids, so that those with a common prefix are one range."""

    def __init__(
        self,
        paths: Mapping[str, tuple[int, ...]],
        vectors: Mapping[str, NDArray[np.floating]],
        needed: Collection[str],
        version: int,
    ) -> None:
        """Sort the tools in `paths`, which gives each tool's id as tokens.

        `needed`: the tools that training requests needed; all others count as new. `version`: the trie's, to tell when
        this order is out of date.
        """
        ids = sorted(paths, key=paths.__getitem__)
        self.version = version
        self._vectors = np.stack([vectors[tool_id] for tool_id in ids]).astype(np.float32)
        self._new = np.array([tool_id not in needed for tool_id in ids], dtype=np.float32)
        self._paths = [paths[tool_id] for tool_id in ids]
        self._ranges: dict[tuple[int, ...], _Range] = {}

    @property
    def dimension(self) -> int:
        """The length of the tools' vectors."""
        return int(self._vectors.shape[1])

    def logits(self, requests: Floats, options: IdTrainingOptions) -> SimilarityLogits:
        """What to add to the logits for requests with these vectors."""
        cosines = np.stack([self._vectors @ vector for vector in requests])
        similarity, new_bonus = options.similarity or 0.0, options.new_bonus or 0.0
        return SimilarityLogits(self, similarity * cosines + new_bonus * self._new)

    def under(self, path: tuple[int, ...]) -> _Range:
        """The range of tools whose ids begin with `path`."""
        found = self._ranges.get(path)
        if found is None:
            first = bisect_left(self._paths, path)
            end = bisect_left(self._paths, (*path[:-1], path[-1] + 1)) if path else len(self._paths)
            tokens = np.array([one[len(path)] for one in self._paths[first:end]], dtype=np.int64)
            starts = np.flatnonzero(np.diff(tokens, prepend=-1))
            found = self._ranges[path] = _Range(first, end, starts, tokens[starts])
        return found


class SimilarityLogits:
    """Similarity and new-tool bonus, as numbers to add to the logits of tokens."""

    def __init__(self, order: IdOrder, scores: Floats) -> None:
        """`scores`: [requests, tools in that order]. They are shifted so that the best tool of each request has 0."""
        self._order, self._scores = order, scores - scores.max(axis=1, keepdims=True)

    def __call__(self, owner: int, path: tuple[int, ...], tokens: Ints) -> Floats:
        """The numbers for `tokens`, which may follow the prefix `path`, for the request at position `owner`."""
        found = self._order.under(path)
        more = np.zeros(len(tokens), np.float32)
        best = np.maximum.reduceat(self._scores[owner, found.first : found.end], found.starts)
        more[np.searchsorted(tokens, found.tokens)] = best
        return more


class CachedReading(Reading):
    """A reading that caches the state of each path: choosing weights on dev asks for the same paths many times."""

    def __init__(self, reading: Reading) -> None:
        """Start with an empty cache in front of a reading."""
        self._reading = reading
        self._known: dict[tuple[int, tuple[int, ...]], Floats] = {}

    def ends(self) -> Floats:
        """The state at the end of each prompt."""
        return self._reading.ends()

    def after(self, owners: Sequence[int], paths: Sequence[Sequence[int]]) -> Floats:
        """The state at the end of each path."""
        keys = [(owner, tuple(path)) for owner, path in zip(owners, paths, strict=True)]
        new = list(dict.fromkeys(one for one in keys if one not in self._known))
        if new:
            states = self._reading.after([owner for owner, _ in new], [path for _, path in new])
            self._known.update(zip(new, states, strict=True))
        return np.stack([self._known[one] for one in keys])
