"""Free decoding: beam search over the whole vocabulary, without a trie, to see what a language model generates.

The score of a sequence is the sum of the log-probabilities of its tokens among all tokens, not normalised by length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from toolscout.core.arrays import Floats
from toolscout.models.decoding.best_first import smallest
from toolscout.models.decoding.constrained import Reading, Table, log_softmax

_ROWS = 256  # states whose logits over the whole vocabulary are in memory at once


class GeneratedTokens(NamedTuple):
    """A generated sequence: its tokens, and the sum of their log-probabilities."""

    tokens: tuple[int, ...]
    score: float


Ends = Callable[[tuple[int, ...]], bool]
"""Tells whether a sequence is complete."""


def beam_search(reading: Reading, table: Table, width: int, most: int, ends: Ends) -> list[list[GeneratedTokens]]:
    """The `width` best sequences of each prompt, best first; a sequence ends where `ends` says so, or after `most`.

    Every step keeps the `width` best continuations of a prompt. A prompt is done once it has `width` complete sequences
    that no continuation can beat.
    """
    done: list[list[GeneratedTokens]] = [[] for _ in reading.ends()]
    live = [[GeneratedTokens((), 0.0)] for _ in done]
    while rows := [(owner, one) for owner, few in enumerate(live) for one in few]:
        grown: list[list[GeneratedTokens]] = [[] for _ in done]
        owners = [owner for owner, _ in rows]
        paths = [one.tokens for _, one in rows]
        states = reading.after(owners, paths) if paths[0] else reading.ends()[np.asarray(owners)]
        for (owner, one), longer in zip(rows, _continuations(table, states, width), strict=True):
            grown[owner] += [GeneratedTokens((*one.tokens, token), one.score + score) for token, score in longer]
        for owner, few in enumerate(grown):
            best = sorted(few, key=lambda one: (-one.score, one.tokens))[:width]
            complete = [len(one.tokens) == most or ends(one.tokens) for one in best]
            done[owner] += [one for one, ended in zip(best, complete, strict=True) if ended]
            done[owner] = sorted(done[owner], key=lambda one: (-one.score, one.tokens))[:width]
            least = done[owner][-1].score if len(done[owner]) == width else -np.inf
            live[owner] = [one for one, ended in zip(best, complete, strict=True) if not ended and one.score > least]
    return done


def _continuations(table: Table, states: Floats, width: int) -> list[list[tuple[int, float]]]:
    """The `width` most probable next tokens after each state, with their log-probabilities."""
    found = []
    for start in range(0, len(states), _ROWS):
        for logits in table.logits(states[start : start + _ROWS], None):
            costs = -log_softmax(logits)
            near = sorted(smallest(costs, width).tolist(), key=lambda token: (costs[token], token))[:width]
            found.append([(token, -float(costs[token])) for token in near])
    return found
