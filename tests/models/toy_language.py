"""A language model of a few lines: states made up from the tokens before them, and brute force over every tool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from hypothesis import strategies as st

from toolscout.core.arrays import Floats, Ints
from toolscout.models.decoding.trie import Trie

DIMENSION = 6
Ids = Mapping[str, tuple[int, ...]]


class ToyReading:
    """Prompts are numbers; the state after a path depends on the prompt and on every token of the path."""

    def __init__(self, prompts: int, seed: int = 0) -> None:
        self.prompts, self.seed, self.calls = prompts, seed, 0

    def state(self, owner: int, path: Sequence[int]) -> Floats:
        return np.random.default_rng([self.seed, owner, *path]).normal(size=DIMENSION).astype(np.float32)

    def ends(self) -> Floats:
        return np.stack([self.state(owner, ()) for owner in range(self.prompts)])

    def after(self, owners: Sequence[int], paths: Sequence[Sequence[int]]) -> Floats:
        self.calls += 1
        assert all(len(path) for path in paths)
        return np.stack([self.state(owner, path) for owner, path in zip(owners, paths, strict=True)])


class ToyTable:
    """Rows of a vocabulary of 40, made up; scores are their products with the states, times `scale`."""

    def __init__(self, seed: int = 0, scale: float = 1.0, size: int = 40) -> None:
        self.rows = np.random.default_rng([seed, 7]).normal(size=(size, DIMENSION)).astype(np.float32)
        self.scale = np.float32(scale)

    def logits(self, states: Floats, tokens: Ints | None) -> Floats:
        # Not a matrix product: its last bits would depend on how many rows there are.
        rows = self.rows if tokens is None else self.rows[tokens]
        scores: Floats = (states[:, None, :] * rows[None]).sum(2) * self.scale
        return scores


def trie_of(ids: Ids) -> Trie:
    trie = Trie()
    for key, tokens in ids.items():
        trie.insert(key, tokens)
    return trie


def scored(reading: ToyReading, table: ToyTable, ids: Ids, owner: int, temperature: float = 1.0) -> dict[str, float]:
    """The score of every tool, one by one: at each of its tokens, the log-softmax over what any tool has there."""
    scores = {}
    for key, tokens in ids.items():
        scores[key] = 0.0
        for depth, token in enumerate(tokens):
            allowed = sorted({other[depth] for other in ids.values() if other[:depth] == tokens[:depth]})
            logits = table.logits(reading.state(owner, tokens[:depth])[None], np.array(allowed))[0] / temperature
            scores[key] += log_chances(logits)[allowed.index(token)]
    return scores


def log_chances(logits: Floats) -> list[float]:
    values = [float(value) for value in logits]
    top = max(values)
    total = float(np.log(sum(np.exp(value - top) for value in values)))
    return [value - top - total for value in values]


def all_sets(
    reading: ToyReading, table: ToyTable, ids: Ids, finish: int, most: int, before: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], float]]:
    """Every order of every set that can be written after the tools before, with its log-probability."""
    left = {key: tokens for key, tokens in ids.items() if key not in before}
    if not left or len(before) == most:
        yield before, 0.0
        return
    path = tuple(token for key in before for token in ids[key])
    begins = sorted({tokens[0] for tokens in left.values()})
    logits = table.logits(reading.state(0, path)[None], np.array([*begins, finish]))[0]
    yield before, log_chances(logits)[-1]
    for key, tokens in left.items():
        score = log_chances(logits)[begins.index(tokens[0])]
        for depth in range(1, len(tokens)):
            allowed = sorted({other[depth] for other in left.values() if other[:depth] == tokens[:depth]})
            inner = table.logits(reading.state(0, path + tokens[:depth])[None], np.array(allowed))[0]
            score += log_chances(inner)[allowed.index(tokens[depth])]
        for tools, rest in all_sets(reading, table, ids, finish, most, (*before, key)):
            yield tools, score + rest


@st.composite
def catalogues(draw: st.DrawFn, most: int = 14, deepest: int = 4, tokens: int = 5) -> dict[str, tuple[int, ...]]:
    """Ids of uneven length of which none begins another."""
    ids = st.lists(st.integers(0, tokens - 1), min_size=1, max_size=deepest).map(tuple)
    free: list[tuple[int, ...]] = []
    for one in draw(st.lists(ids, min_size=1, max_size=most)):
        if not any(one[: len(other)] == other or other[: len(one)] == one for other in free):
            free.append(one)
    names = draw(st.permutations([f"tool{place:02}" for place in range(len(free))]))
    return dict(zip(names, free, strict=True))
