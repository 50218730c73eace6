"""A causal language model in torch that learns: a Llama with added id tokens, whole or through low-rank adapters.

The matrices of all layers lie in one tensor per kind, so adapters are merged by four products a step instead of
hundreds, and a step is bound by arithmetic rather than by starting kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from toolscout.nn._architecture import EMBEDDINGS, HEAD, NORM, Architecture
from toolscout.nn.adapters import SCALE, SOURCES, stacked

Floats = NDArray[np.float32]
Merged = Mapping[str, Sequence[Tensor]]

KINDS = tuple(SOURCES)


class Past(NamedTuple):
    """Keys and values [layers, n, kv heads, time, size] of prompts padded on the right, and the prompts' lengths."""

    keys: Tensor
    values: Tensor
    lengths: Tensor


class Network(torch.nn.Module):
    """The layers. What is learned is named "low.*" (adapters of a rank) or "full.*" (all matrices, rank 0)."""

    def __init__(
        self, architecture: Architecture, weights: Mapping[str, Floats], rank: int, device: torch.device
    ) -> None:
        """Take the base's weights; adapters begin as no change."""
        super().__init__()
        self.architecture, self.rank, self.device = architecture, rank, device
        self.kind = torch.bfloat16 if device.type == "cuda" else torch.float32
        self._base: dict[str, Tensor] = {}
        self.full, self.low = torch.nn.ParameterDict(), torch.nn.ParameterDict()
        for kind in KINDS:
            matrices = torch.from_numpy(stacked(architecture, weights, kind)).to(device)
            self._base[kind] = matrices.to(self.kind)
            if rank:
                layers, out, into = matrices.shape
                start = torch.randn(layers, rank, into, generator=torch.Generator().manual_seed(0)) / into**0.5
                self.low[f"{kind}_a"] = torch.nn.Parameter(start.to(device))
                self.low[f"{kind}_b"] = torch.nn.Parameter(torch.zeros(layers, out, rank, device=device))
            else:
                self.full[kind] = torch.nn.Parameter(matrices.clone())
        biased = architecture.kind == "qwen2"
        bias = torch.from_numpy(stacked(architecture, weights, "qkv", "bias")) if biased else None
        self._bias = None if bias is None else bias.to(device, self.kind)
        norms = [_norms(architecture, weights, part) for part in ("input_layernorm", "post_attention_layernorm")]
        self._norms = torch.stack(norms).to(device, self.kind)
        self._norm = torch.tensor(weights[NORM]).to(device, self.kind)
        self.embeddings = torch.tensor(weights[EMBEDDINGS]).to(device, self.kind)
        self.head = self.embeddings if architecture.tied else torch.tensor(weights[HEAD]).to(device, self.kind)

    def merged(self) -> dict[str, tuple[Tensor, ...]]:
        """The matrices of each layer as they are multiplied: the base's with what was learned."""
        if not self.rank:
            return {kind: self.full[kind].to(self.kind).unbind() for kind in KINDS}
        return {
            kind: torch.baddbmm(
                self._base[kind], self.low[f"{kind}_b"].to(self.kind), self.low[f"{kind}_a"].to(self.kind), alpha=SCALE
            ).unbind()
            for kind in KINDS
        }

    def unlearned(self) -> dict[str, tuple[Tensor, ...]]:
        """The matrices of the base, as they were before any training."""
        return {kind: self._base[kind].unbind() for kind in KINDS}

    def learned(self) -> dict[str, Floats]:
        """What was learned, as nn/adapters.py keeps it."""
        parts = self.low if self.rank else self.full
        return {name: parameter.detach().float().cpu().numpy() for name, parameter in parts.items()}

    def forward(
        self, embedded: Tensor, merged: Merged, past: Past | None = None, keep: bool = False
    ) -> tuple[Tensor, Past | None]:
        """The states after the final norm [b, t, d], and with `keep` the keys and values of these tokens.

        Sequences are padded on the right: nothing that counts comes after the padding, save what follows a `past`.
        """
        size, kv = self.architecture.head_size, self.architecture.kv_heads
        batch, time = embedded.shape[:2]
        begin = past.lengths[:, None] if past else torch.zeros(1, 1, dtype=torch.long, device=self.device)
        turn = _rotation(begin + torch.arange(time, device=self.device), size, self.architecture.theta, self.kind)
        mask = _mask(past, time) if past else None
        state, eps = embedded.to(self.kind), self.architecture.eps
        kept: list[tuple[Tensor, Tensor]] = []
        for layer in range(self.architecture.layers):
            normed = functional.rms_norm(state, (state.shape[-1],), self._norms[0, layer], eps)
            mixed = functional.linear(normed, merged["qkv"][layer], None if self._bias is None else self._bias[layer])
            mixed = mixed.view(batch, time, -1, size).transpose(1, 2)
            heads = mixed.shape[1] - 2 * kv
            turned = _turned(mixed[:, : heads + kv], turn)
            query, key, value = turned[:, :heads], turned[:, heads:], mixed[:, heads + kv :]
            if keep:
                kept.append((key, value))
            if past:
                key = torch.cat([past.keys[layer], key], 2)
                value = torch.cat([past.values[layer], value], 2)
            seen = functional.scaled_dot_product_attention(
                query, key, value, mask, is_causal=mask is None, enable_gqa=True
            )
            state = state + functional.linear(seen.transpose(1, 2).reshape(batch, time, -1), merged["o"][layer])
            normed = functional.rms_norm(state, (state.shape[-1],), self._norms[1, layer], eps)
            gate, up = functional.linear(normed, merged["gate_up"][layer]).chunk(2, -1)
            state = state + functional.linear(functional.silu(gate) * up, merged["down"][layer])
        state = functional.rms_norm(state, (state.shape[-1],), self._norm, eps)
        return state, self._past(kept, time) if keep else None

    def _past(self, kept: Sequence[tuple[Tensor, Tensor]], time: int) -> Past:
        keys, values = (torch.stack([pair[i] for pair in kept]) for i in (0, 1))
        return Past(keys, values, torch.full((keys.shape[1],), time, device=self.device))

    def embed(self, tokens: Tensor, rows: Tensor) -> Tensor:
        """The rows of tokens [b, t]: the base's, and beyond its vocabulary the added ones."""
        vocabulary = self.architecture.vocabulary
        base = functional.embedding(tokens.clamp(max=vocabulary - 1), self.embeddings)
        if not len(rows):
            return base
        added = functional.embedding((tokens - vocabulary).clamp(min=0), rows).to(base.dtype)
        return torch.where((tokens >= vocabulary)[..., None], added, base)

    def states(self, sequences: Sequence[Sequence[int]], rows: Tensor, merged: Merged) -> Tensor:
        """The states of sequences of tokens [b, t, d], padded to the longest."""
        state, _ = self(self.embed(padded(sequences, self.device), rows), merged)
        return torch.as_tensor(state)


def _norms(architecture: Architecture, weights: Mapping[str, Floats], part: str) -> Tensor:
    layers = [weights[f"model.layers.{layer}.{part}.weight"] for layer in range(architecture.layers)]
    return torch.from_numpy(np.stack(layers))


def _rotation(places: Tensor, size: int, theta: float, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary embedding for positions [b, t]: [b, 1, t, size]."""
    speeds = theta ** (-torch.arange(0, size, 2, device=places.device, dtype=torch.float32) / size)
    angles = (places[..., None].float() * speeds)[:, None]
    angles = torch.cat([angles, angles], -1)
    return angles.cos().to(kind), angles.sin().to(kind)


def _turned(heads: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    first, second = heads.chunk(2, -1)
    return heads * turn[0] + torch.cat([-second, first], -1) * turn[1]


def _mask(past: Past, time: int) -> Tensor:
    """What the tokens after a past may see [b, 1, t, past + t]: the prompt up to its length, then each other."""
    width = past.keys.shape[3]
    before = torch.arange(width, device=past.lengths.device)[None, :] < past.lengths[:, None]
    among = torch.ones(time, time, dtype=torch.bool, device=before.device).tril()
    batch = len(before)
    return torch.cat([before[:, None].expand(batch, time, width), among.expand(batch, time, time)], 2)[:, None]


def padded(sequences: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Sequences as one tensor, filled up on the right with zeros."""
    longest = max(map(len, sequences))
    flat = np.zeros((len(sequences), longest), dtype=np.int64)
    for row, sequence in enumerate(sequences):
        flat[row, : len(sequence)] = sequence
    return torch.from_numpy(flat).to(device, non_blocking=True)
