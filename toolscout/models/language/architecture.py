"""The architecture of language models of the Llama family: sizes, and the names and shapes of tensors."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

KINDS = ("llama", "mistral", "qwen2")
EMBEDDINGS, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
# The tokens that open and close a turn in ChatML.
OPEN, CLOSE = "<|im_start|>", "<|im_end|>"


@dataclass(frozen=True, slots=True)
class Architecture:
    """The sizes and settings of a model. `tied`: the output layer uses the input embeddings."""

    kind: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    inner: int
    vocabulary: int
    eps: float
    theta: float
    tied: bool
    context: int

    def problem(self) -> str | None:
        """Why such a model cannot be used, or None where it can."""
        sizes = (self.layers, self.hidden, self.heads, self.kv_heads, self.head_size, self.inner, self.vocabulary)
        if self.kind not in KINDS:
            return f"it is a model of kind {self.kind!r}, not one of: {', '.join(KINDS)}"
        if min(*sizes, self.context) < 1 or self.heads % self.kv_heads or self.head_size % 2:
            return "its sizes do not fit together"
        return None

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor by its Hugging Face name; without the head where it is tied."""
        wide, narrow = self.heads * self.head_size, self.kv_heads * self.head_size
        attention = {"q": (wide, self.hidden), "k": (narrow, self.hidden), "v": (narrow, self.hidden)}
        found: dict[str, tuple[int, ...]] = {EMBEDDINGS: (self.vocabulary, self.hidden)}
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}."
            found[prefix + "input_layernorm.weight"] = (self.hidden,)
            for part, shape in attention.items():
                found[f"{prefix}self_attn.{part}_proj.weight"] = shape
                if self.kind == "qwen2":
                    found[f"{prefix}self_attn.{part}_proj.bias"] = shape[:1]
            found[prefix + "self_attn.o_proj.weight"] = (self.hidden, wide)
            found[prefix + "post_attention_layernorm.weight"] = (self.hidden,)
            found[prefix + "mlp.gate_proj.weight"] = (self.inner, self.hidden)
            found[prefix + "mlp.up_proj.weight"] = (self.inner, self.hidden)
            found[prefix + "mlp.down_proj.weight"] = (self.hidden, self.inner)
        found[NORM] = (self.hidden,)
        return found if self.tied else found | {HEAD: (self.vocabulary, self.hidden)}

    @property
    def parameters(self) -> int:
        """The number of parameters."""
        return sum(map(math.prod, self.shapes().values()))


class Checkpoint(ABC):
    """The files of a model in any format; gives tensors by their Hugging Face names."""

    architecture: Architecture
    tokenizer: Tokenizer
    ends: tuple[int, ...]  # the tokens that end a text
    head: bytes  # all content beside the weights (sizes, names, tokeniser), for the fingerprint

    @abstractmethod
    def sample(self, name: str, size: int) -> bytes:
        """Up to `size` bytes from the middle of a tensor, as stored on disk."""

    @abstractmethod
    def tensor(self, name: str) -> NDArray[np.float32]:
        """One tensor as float32."""
