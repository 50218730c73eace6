"""A Llama-like language model in torch, for training: all of its matrices, or LoRA adapters, and added tokens.

The matrices of all layers are stacked in one tensor per kind, so adapters are merged by four products a step instead of
hundreds; otherwise launching kernels would take most of the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from toolscout.core.arrays import Floats
from toolscout.errors import BadModel
from toolscout.models.language.architecture import EMBEDDINGS, HEAD, NORM, Architecture
from toolscout.models.language.lora import SCALE, SOURCES, stack_matrices

LayerMatrices = Mapping[str, Sequence[Tensor]]

KINDS = tuple(SOURCES)
# Without cuDNN's kernel, which plans for each new shape, and that takes longer than a step itself.
_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class KeyValueCache(NamedTuple):
    """Keys and values [layers, n, kv heads, time, size] of prompts padded on the right, and the prompts' lengths."""

    keys: Tensor
    values: Tensor
    lengths: Tensor

    def places(self, time: int) -> Tensor:
        """The positions of the tokens after the cached ones [b, t]."""
        return self.lengths[:, None] + torch.arange(time, device=self.lengths.device)

    def mask(self, time: int) -> Tensor:
        """The attention mask [b, 1, t, past + t] of the tokens after: the prompt up to its length, then causal."""
        width = self.keys.shape[3]
        before = torch.arange(width, device=self.lengths.device)[None, :] < self.lengths[:, None]
        among = torch.ones(time, time, dtype=torch.bool, device=before.device).tril()
        batch = len(before)
        return torch.cat([before[:, None].expand(batch, time, width), among.expand(batch, time, time)], 2)[:, None]

    def concat(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values of a layer: the cached ones, then the new ones."""
        return torch.cat([self.keys[layer], key], 2), torch.cat([self.values[layer], value], 2)


class BranchedSequences:
    """Masks and positions of sequences that end in several branches: a branch attends to the trunk and to itself."""

    def __init__(self, lengths: Sequence[int], branches: Sequence[Sequence[int]], device: torch.device) -> None:
        """Take the lengths of whole sequences, and for each the lengths of the branches at its end."""
        longest = max(lengths)
        branch_of = np.zeros((len(lengths), longest), np.int64)  # 0 is the trunk
        places = np.tile(np.arange(longest), (len(lengths), 1))
        for row, (length, few) in enumerate(zip(lengths, branches, strict=True)):
            trunk = start = length - sum(few)
            for number, size in enumerate(few, 1):
                branch_of[row, start : start + size] = number
                places[row, start : start + size] = np.arange(trunk, trunk + size)
                start += size
        branch = torch.from_numpy(branch_of).to(device)
        causal = torch.ones(longest, longest, dtype=torch.bool, device=device).tril()
        self._mask = (causal & ((branch[:, None, :] == 0) | (branch[:, None, :] == branch[:, :, None])))[:, None]
        self._places = torch.from_numpy(places).to(device)

    def places(self, time: int) -> Tensor:
        """The positions of tokens [b, t]."""
        return self._places

    def mask(self, time: int) -> Tensor:
        """The attention mask [b, 1, t, t]."""
        return self._mask

    def concat(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values as they are: there are no cached ones."""
        return key, value


class GrowingKeyValueCache:
    """As KeyValueCache, with room after each prompt: one token at a time is written in place, without copies."""

    def __init__(self, keys: Tensor, values: Tensor, lengths: Tensor, longest: int) -> None:
        """`longest` is the greatest of the lengths, passed so that the device need not be waited for."""
        self.keys, self.values, self.lengths, self.longest = keys, values, lengths, longest

    def places(self, time: int) -> Tensor:
        """The position of the one new token of each sequence [b, 1]."""
        return self.lengths[:, None]

    def mask(self, time: int) -> Tensor:
        """The attention mask [b, 1, 1, longest + 1] of the one new token of each sequence."""
        assert time == 1, "one token at a time is added"
        places = torch.arange(self.longest + 1, device=self.lengths.device)
        return (places[None, :] <= self.lengths[:, None])[:, None, None]

    def concat(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values of a layer, after writing the new ones into the cache."""
        rows = torch.arange(len(self.lengths), device=self.lengths.device)
        self.keys[layer][rows, :, self.lengths] = key[:, :, 0]
        self.values[layer][rows, :, self.lengths] = value[:, :, 0]
        return self.keys[layer, :, :, : self.longest + 1], self.values[layer, :, :, : self.longest + 1]

    def grow(self) -> None:
        """Add one to the lengths, after the token of a step was written for all layers."""
        self.lengths, self.longest = self.lengths + 1, self.longest + 1

    def select(self, rows: Sequence[int]) -> GrowingKeyValueCache:
        """A copy with these rows alone."""
        picked = torch.tensor(rows, device=self.lengths.device)
        return GrowingKeyValueCache(self.keys[:, picked], self.values[:, picked], self.lengths[picked], self.longest)


class TransformerNetwork(torch.nn.Module):
    """The layers. Trainable parameters are named "low.*" (adapters of a rank) or "full.*" (all matrices, rank 0)."""

    def __init__(
        self, architecture: Architecture, weights: Mapping[str, Floats], rank: int, device: torch.device
    ) -> None:
        """Load the base model's weights; the initial adapters change nothing."""
        super().__init__()
        self.architecture, self.rank, self.device = architecture, rank, device
        self.kind = torch.bfloat16 if device.type == "cuda" else torch.float32
        self._base: dict[str, Tensor] = {}
        self.full, self.low = torch.nn.ParameterDict(), torch.nn.ParameterDict()
        for kind in KINDS:
            matrices = torch.from_numpy(stack_matrices(architecture, weights, kind)).to(device)
            self._base[kind] = matrices.to(self.kind)
            if rank:
                layers, out, into = matrices.shape
                start = torch.randn(layers, rank, into, generator=torch.Generator().manual_seed(0)) / into**0.5
                self.low[f"{kind}_a"] = torch.nn.Parameter(start.to(device))
                self.low[f"{kind}_b"] = torch.nn.Parameter(torch.zeros(layers, out, rank, device=device))
            else:
                self.full[kind] = torch.nn.Parameter(matrices.clone())
        biased = architecture.kind == "qwen2"
        bias = torch.from_numpy(stack_matrices(architecture, weights, "qkv", "bias")) if biased else None
        self._bias = None if bias is None else bias.to(device, self.kind)
        norms = [_norms(architecture, weights, part) for part in ("input_layernorm", "post_attention_layernorm")]
        self._norms = torch.stack(norms).to(device, self.kind)
        self._norm = torch.tensor(weights[NORM]).to(device, self.kind)
        self.embeddings = torch.tensor(weights[EMBEDDINGS]).to(device, self.kind)
        self.head = self.embeddings if architecture.tied else torch.tensor(weights[HEAD]).to(device, self.kind)

    def merged(self) -> dict[str, tuple[Tensor, ...]]:
        """The matrices of each layer, by kind: those of the base model with the adapters merged in."""
        if not self.rank:
            return {kind: self.full[kind].to(self.kind).unbind() for kind in KINDS}
        return {
            kind: torch.baddbmm(
                self._base[kind], self.low[f"{kind}_b"].to(self.kind), self.low[f"{kind}_a"].to(self.kind), alpha=SCALE
            ).unbind()
            for kind in KINDS
        }

    def base_matrices(self) -> dict[str, tuple[Tensor, ...]]:
        """The matrices of the base model, without any training."""
        return {kind: self._base[kind].unbind() for kind in KINDS}

    def begin(self, arrays: Mapping[str, Floats]) -> None:
        """Start from the parameters of an earlier training; raises BadModel where their shapes differ."""
        parts = self.low if self.rank else self.full
        if {name: tuple(one.shape) for name, one in parts.items()} != {n: one.shape for n, one in arrays.items()}:
            raise BadModel("the model to begin with has adapters of another rank or another base; set rank to its own")
        with torch.no_grad():
            for name, parameter in parts.items():
                parameter.copy_(torch.from_numpy(arrays[name].astype(np.float32)))

    def trained_arrays(self) -> dict[str, Floats]:
        """A copy of the trained parameters, in the form of models/language/lora.py."""
        parts = self.low if self.rank else self.full
        return {name: parameter.detach().float().cpu().numpy().copy() for name, parameter in parts.items()}

    @sdpa_kernel(_KERNELS)
    def forward(
        self,
        embedded: Tensor,
        merged: LayerMatrices,
        past: KeyValueCache | GrowingKeyValueCache | BranchedSequences | None = None,
        keep: bool = False,
    ) -> tuple[Tensor, KeyValueCache | None]:
        """The states after the final norm [b, t, d], and with `keep` the key-value cache of these tokens.

        Sequences are padded on the right; without `past`, attention is causal, so padding does not change them.
        """
        size, kv = self.architecture.head_size, self.architecture.kv_heads
        batch, time = embedded.shape[:2]
        places = past.places(time) if past else torch.arange(time, device=self.device)[None]
        turn = _rotation(places, size, self.architecture.theta, self.kind)
        mask = past.mask(time) if past else None
        state, eps = embedded.to(self.kind), self.architecture.eps
        kept = self._past(batch, time) if keep else None
        for layer in range(self.architecture.layers):
            normed = functional.rms_norm(state, (state.shape[-1],), self._norms[0, layer], eps)
            mixed = functional.linear(normed, merged["qkv"][layer], None if self._bias is None else self._bias[layer])
            mixed = mixed.view(batch, time, -1, size).transpose(1, 2)
            heads = mixed.shape[1] - 2 * kv
            asking, value = torch.split_with_sizes(mixed, [heads + kv, kv], 1)
            query, key = torch.split_with_sizes(_rotate(asking, turn), [heads, kv], 1)
            if kept:
                kept.keys[layer], kept.values[layer] = key, value
            if past:
                key, value = past.concat(layer, key, value)
            seen = _attention(query, key, value, mask)
            state = state + functional.linear(seen.transpose(1, 2).reshape(batch, time, -1), merged["o"][layer])
            normed = functional.rms_norm(state, (state.shape[-1],), self._norms[1, layer], eps)
            gate, up = functional.linear(normed, merged["gate_up"][layer]).chunk(2, -1)
            state = state + functional.linear(functional.silu(gate) * up, merged["down"][layer])
        state = functional.rms_norm(state, (state.shape[-1],), self._norm, eps)
        return state, kept

    def _past(self, batch: int, time: int) -> KeyValueCache:
        """An empty cache that keys and values are copied into: views would keep a layer's whole output in memory."""
        shape = (self.architecture.layers, batch, self.architecture.kv_heads, time, self.architecture.head_size)
        keys, values = (torch.empty(shape, dtype=self.kind, device=self.device) for _ in range(2))
        return KeyValueCache(keys, values, torch.full((batch,), time, device=self.device))

    def embed(self, tokens: Tensor, rows: Tensor) -> Tensor:
        """The embeddings of tokens [b, t]; ids beyond the base vocabulary are those of `rows`."""
        vocabulary = self.architecture.vocabulary
        base = functional.embedding(tokens.clamp(max=vocabulary - 1), self.embeddings)
        if not len(rows):
            return base
        added = functional.embedding((tokens - vocabulary).clamp(min=0), rows).to(base.dtype)
        return torch.where((tokens >= vocabulary)[..., None], added, base)

    def states(
        self,
        sequences: Sequence[Sequence[int]],
        rows: Tensor,
        merged: LayerMatrices,
        branches: BranchedSequences | None = None,
    ) -> Tensor:
        """The states [b, t, d] of token sequences, padded to the longest; `branches` are those at their ends."""
        state, _ = self(self.embed(pad(sequences, self.device), rows), merged, branches)
        return torch.as_tensor(state)


def _norms(architecture: Architecture, weights: Mapping[str, Floats], part: str) -> Tensor:
    layers = [weights[f"model.layers.{layer}.{part}.weight"] for layer in range(architecture.layers)]
    return torch.from_numpy(np.stack(layers))


def _rotation(places: Tensor, size: int, theta: float, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines [b, 1, t, size] of the rotary embedding for positions [b, t]; the first half of the sines is
    negated."""
    speeds = theta ** (-torch.arange(0, size, 2, device=places.device, dtype=torch.float32) / size)
    angles = (places[..., None].float() * speeds)[:, None]
    cosines, sines = angles.cos(), angles.sin()
    return torch.cat([cosines, cosines], -1).to(kind), torch.cat([-sines, sines], -1).to(kind)


def _rotate(heads: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    return torch.addcmul(heads * turn[0], heads.roll(heads.shape[-1] // 2, -1), turn[1])


def _attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Attention output [b, heads, t, size]. For a single token, heads that share keys are computed together."""
    batch, heads, time, size = query.shape
    if mask is None or time > 1:
        return functional.scaled_dot_product_attention(query, key, value, mask, is_causal=mask is None, enable_gqa=True)
    grouped = query.reshape(batch, key.shape[1], heads // key.shape[1], size)
    seen = functional.scaled_dot_product_attention(grouped, key, value, mask)
    return seen.reshape(batch, heads, 1, size)


def pad(sequences: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Sequences as one tensor, padded on the right with zeros."""
    longest = max(map(len, sequences))
    flat = np.zeros((len(sequences), longest), dtype=np.int64)
    for row, sequence in enumerate(sequences):
        flat[row, : len(sequence)] = sequence
    return torch.from_numpy(flat).to(device, non_blocking=True)
