"""The torch model as an engine: reads prompts once, looks ahead, writes; what decoding needs of it, in batches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from toolscout.nn.causal import Merged, Network, Past, padded
from toolscout.nn.language import TokenTable

Floats = NDArray[np.float32]
Tokens = NDArray[np.int64]
_PROMPTS = 256  # read together
_PATHS = 1024  # looked at together


class Live:
    """A network and its rows as they are now."""

    def __init__(self, network: Network, rows: Tensor, table: TokenTable | None = None) -> None:
        """`rows`: those added to the vocabulary; `table` scores what is written, where something is."""
        self._network, self._rows, self._table = network, rows, table
        self.dimension = network.architecture.hidden
        with torch.no_grad():
            self._merged: Merged = network.merged()

    @classmethod
    def of(cls, network: Network, table: TokenTable) -> Live:
        """A network over the rows of a table, those that it gets later included."""
        return cls(network, torch.tensor(table.added(), device=network.device), table)

    def read(self, prompts: Sequence[Sequence[int]]) -> Prompts:
        """Read prompts."""
        if self._table is not None and len(self._table) > self._network.architecture.vocabulary + len(self._rows):
            self._rows = torch.tensor(self._table.added(), device=self._network.device)
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        ends = np.zeros((len(prompts), self.dimension), np.float32)
        pasts: list[tuple[Past, list[int]]] = []
        for start in range(0, len(order), _PROMPTS):
            few = order[start : start + _PROMPTS]
            states, past = self._run([prompts[i] for i in few], None)
            ends[few] = states
            pasts.append((past, few))
        return Prompts(self, ends, pasts)

    @torch.no_grad()
    def _run(self, sequences: Sequence[Sequence[int]], past: Past | None) -> tuple[Floats, Past]:
        """The states at the ends of sequences, and their keys and values."""
        embedded = self._network.embed(padded(sequences, self._network.device), self._rows)
        states, kept = self._network(embedded, self._merged, past, keep=True)
        lengths = torch.tensor([len(one) for one in sequences], device=self._network.device)
        last = states[torch.arange(len(sequences), device=lengths.device), lengths - 1]
        return last.float().cpu().numpy(), kept._replace(lengths=lengths)

    def write(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        most: int,
        temperature: float = 0.0,
        end: Collection[int] = (),
        allow: Callable[[int, Sequence[int]], Tokens | None] | None = None,
        seed: int = 0,
    ) -> list[list[int]]:
        """Continue each prompt until a token of `end` (not returned) or `most` tokens; see decoding.Writer."""
        written: list[list[int]] = [[] for _ in prompts]
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        for start in range(0, len(order), _PROMPTS):
            few = order[start : start + _PROMPTS]
            self._continue(prompts, few, written, most, _Choice(self._table, temperature, end, allow, seed))
        return written

    def _continue(
        self, prompts: Sequence[Sequence[int]], few: list[int], written: list[list[int]], most: int, choice: _Choice
    ) -> None:
        states, past = self._run([prompts[i] for i in few], None)
        for step in range(most):
            tokens = [choice.next(i, state, written[i]) for i, state in zip(few, states, strict=True)]
            going = [place for place, token in enumerate(tokens) if token is not None]
            for place in going:
                written[few[place]].append(int(tokens[place] or 0))
            if not going or step == most - 1:
                return
            few = [few[place] for place in going]
            past = _chosen(past, going)
            states, new = self._run([[written[i][-1]] for i in few], past)
            past = _grown(past, new)


class _Choice:
    """How the next token is chosen."""

    def __init__(
        self,
        table: TokenTable | None,
        temperature: float,
        end: Collection[int],
        allow: Callable[[int, Sequence[int]], Tokens | None] | None,
        seed: int,
    ) -> None:
        assert table is not None, "what is written needs a table of all tokens"
        self._table, self._temperature, self._end, self._allow = table, temperature, frozenset(end), allow
        self._rng = np.random.default_rng(seed)

    def next(self, row: int, state: Floats, written: Sequence[int]) -> int | None:
        allowed = self._allow(row, written) if self._allow else None
        if allowed is not None and len(allowed) < 2:
            token = int(allowed[0]) if len(allowed) else None
            return None if token is None or token in self._end else token
        logits = self._table.logits(state[None], allowed)[0]
        if self._temperature > 0:
            logits = logits + self._temperature * self._rng.gumbel(size=logits.shape)
        best = int(np.argmax(logits))
        token = best if allowed is None else int(allowed[best])
        return None if token in self._end else token


class Prompts:
    """Prompts that were read."""

    def __init__(self, engine: Live, ends: Floats, pasts: Sequence[tuple[Past, Sequence[int]]]) -> None:
        """Keep keys and values as they were computed, batch by batch."""
        self._engine, self._ends, self._pasts = engine, ends, pasts
        self._place = {row: (batch, at) for batch, (_, few) in enumerate(pasts) for at, row in enumerate(few)}

    def ends(self) -> Floats:
        """The state at the end of each prompt."""
        return self._ends

    def after(self, owners: Sequence[int], paths: Sequence[Sequence[int]]) -> Floats:
        """The states at the ends of paths, each after its prompt."""
        found = np.zeros((len(owners), self._engine.dimension), np.float32)
        batches: dict[int, list[int]] = {}
        for place, owner in enumerate(owners):
            batches.setdefault(self._place[owner][0], []).append(place)
        for batch, places in batches.items():
            for start in range(0, len(places), _PATHS):
                few = places[start : start + _PATHS]
                past = _chosen(self._pasts[batch][0], [self._place[owners[place]][1] for place in few])
                found[few], _ = self._engine._run([paths[place] for place in few], past)
        return found


def _chosen(past: Past, rows: Sequence[int]) -> Past:
    picked = torch.tensor(rows, device=past.lengths.device)
    width = int(past.lengths[picked].max())
    return Past(past.keys[:, picked, :, :width], past.values[:, picked, :, :width], past.lengths[picked])


def _grown(past: Past, new: Past) -> Past:
    """One more token each, put behind the prompt's last."""
    room = int(past.lengths.max()) + 1 - past.keys.shape[3]
    keys, values = past.keys, past.values
    if room > 0:
        keys, values = (torch.nn.functional.pad(one, (0, 0, 0, room)) for one in (keys, values))
    at = past.lengths[None, :, None, None, None].expand(keys.shape[0], -1, keys.shape[2], 1, keys.shape[4])
    return Past(keys.scatter(3, at, new.keys), values.scatter(3, at, new.values), past.lengths + 1)
