"""Samples the next token for all rows of a batch at once, on the device of the model."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from toolscout.core.arrays import Ints
from toolscout.errors import BadModel
from toolscout.models.decoding.constrained import Allow

_MASKS_KEPT = 1024


class TokenSampler:
    """Chooses the most probable allowed token, or with a temperature above 0 samples one."""

    def __init__(
        self,
        rows: Sequence[Tensor],
        temperature: float,
        end: Collection[int],
        allow: Allow | None,
        seed: int,
    ) -> None:
        """`rows` are the output embeddings of all tokens, in parts. `end` has the tokens that end a text."""
        self._rows, self._temperature, self._end, self._allow = rows, temperature, frozenset(end), allow
        self._size, self._device = sum(map(len, rows)), rows[0].device
        self._drawn = torch.Generator(self._device).manual_seed(seed)
        self._masks: dict[int, tuple[Ints, Tensor]] = {}

    def next(self, owners: Sequence[int], states: Tensor, written: Sequence[Sequence[int]]) -> list[int | None]:
        """The next token of each prompt after a state [n, d]; None where it ends."""
        allowed = [self._allow(i, text) if self._allow else None for i, text in zip(owners, written, strict=True)]
        found: list[int | None] = [int(one[0]) if one is not None and len(one) == 1 else None for one in allowed]
        open_ = [row for row, one in enumerate(allowed) if one is None or len(one) > 1]
        if open_:
            chosen = self._chosen(states if len(open_) == len(states) else states[open_], [allowed[i] for i in open_])
            for row, token in zip(open_, chosen, strict=True):
                found[row] = token
        return [None if token in self._end else token for token in found]

    def _chosen(self, states: Tensor, allowed: Sequence[Ints | None]) -> list[int]:
        logits = torch.cat([states @ part.T for part in self._rows], 1)
        if not bool(torch.isfinite(logits).all()):
            raise BadModel("the model computes numbers that are not finite; train it again")
        bound = [row for row, one in enumerate(allowed) if one is not None]
        if self._temperature > 0:
            chance = torch.rand(logits.shape, generator=self._drawn, device=self._device).clamp_min_(1e-30)
            logits = logits - self._temperature * (-chance.log()).clamp_min_(1e-30).log()  # Gumbel noise
        if bound:
            masks = torch.stack([self._mask(one) for one in allowed if one is not None])
            logits[bound] = logits[bound].masked_fill(~masks, -torch.inf)
        return [int(token) for token in logits.argmax(1).tolist()]

    def _mask(self, tokens: Ints) -> Tensor:
        """A mask of the allowed tokens, cached by the array's identity, as the same arrays come again and again."""
        cached = self._masks.get(id(tokens))
        if cached is None:
            mask = torch.zeros(self._size, dtype=torch.bool, device=self._device)
            mask[torch.as_tensor(tokens, device=self._device)] = True
            if len(self._masks) >= _MASKS_KEPT:
                self._masks.clear()
            cached = self._masks[id(tokens)] = (tokens, mask)  # keeps the array alive, so that its id stays unique
        return cached[1]
