"""Language models in a Hugging Face folder: config.json, tokenizer.json and safetensors files, read without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from toolscout.core.arrays import Floats
from toolscout.errors import BadModel
from toolscout.models.language.architecture import CLOSE, OPEN, Architecture, Checkpoint
from toolscout.models.safetensors import StoredTensor, read_safetensors

CONFIG_FILE, TOKENIZER_FILE, GENERATION_FILE = "config.json", "tokenizer.json", "generation_config.json"
_SIZES = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "inner": "intermediate_size",
    "vocabulary": "vocab_size",
    "context": "max_position_embeddings",
}


class HfFolder(Checkpoint):
    """A Hugging Face model folder. Tensors are read on demand."""

    def __init__(self, path: Path) -> None:
        """Read the headers; raises BadModel where a file is missing or broken, or the model cannot be used."""
        files = sorted(path.glob("*.safetensors"))
        missing = [name for name in (CONFIG_FILE, TOKENIZER_FILE) if not (path / name).is_file()]
        if missing or not files:
            raise BadModel(
                f"{path} is no folder of a Hugging Face model: no {', '.join(missing) or '*.safetensors'} there"
            )
        self.path = path
        config = _read_json(path / CONFIG_FILE)
        self.head = b""
        self._stored: dict[str, StoredTensor] = {}
        for file in files:
            head, tensors = read_safetensors(file)
            self.head += head
            self._stored |= tensors
        self.architecture = _architecture(path, config)
        ends = config.get("eos_token_id")
        if (path / GENERATION_FILE).is_file():
            ends = _read_json(path / GENERATION_FILE).get("eos_token_id", ends)
        listed = ends if isinstance(ends, list) else [ends]
        self.ends = tuple(one for one in listed if isinstance(one, int))
        self.tokenizer = self._tokenizer()
        self._check()

    def sample(self, name: str, size: int) -> bytes:
        """Some bytes from the middle of a tensor."""
        raw = self._stored[name].raw
        return raw[raw.size // 2 : raw.size // 2 + size].tobytes()

    def tensor(self, name: str) -> Floats:
        """One tensor as float32."""
        return self._stored[name].values()

    def _check(self) -> None:
        for name, shape in self.architecture.shapes().items():
            if name not in self._stored:
                raise BadModel(f"{self.path} has no tensor {name} in F32, F16 or BF16; is it complete?")
            if (found := self._stored[name].shape) != shape:
                raise BadModel(f"{self.path}: {name} has the shape {found}, {CONFIG_FILE} says {shape}")

    def _tokenizer(self) -> Tokenizer:
        path = self.path / TOKENIZER_FILE
        described = _read_json(path)
        try:
            for token in described.get("added_tokens", ()):
                # Some folders do not mark these as special, and only special tokens are kept apart from text.
                token["special"] |= token["content"] in (OPEN, CLOSE) or token["id"] in self.ends
            text = json.dumps(described)
            self.head += text.encode()
            tokenizer = Tokenizer.from_str(text)
        except Exception as error:  # the library raises the bare class
            raise BadModel(f"{path} cannot be used: {error}") from error
        if tokenizer.get_vocab_size() > self.architecture.vocabulary:
            raise BadModel(
                f"{path} knows {tokenizer.get_vocab_size()} tokens, the model only {self.architecture.vocabulary}"
            )
        return tokenizer


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BadModel(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise BadModel(f"{path} must hold a JSON object")
    return found


def _architecture(path: Path, config: dict[str, Any]) -> Architecture:
    """The architecture from config.json; raises BadModel for one that cannot be computed exactly here."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = config.get("model_type")
    found = {
        "hidden_act": (config.get("hidden_act", "silu"), "silu"),
        "mlp_bias": (config.get("mlp_bias", False), False),
        "attention_bias": (config.get("attention_bias", False), False),
        "rope_type": (rope.get("rope_type", rope.get("type", "default")), "default"),
        "partial_rotary_factor": (rope.get("partial_rotary_factor", 1.0), 1.0),
    }
    for key, (value, known) in found.items():
        if value != known:
            raise BadModel(f"{path / CONFIG_FILE}: cannot use {key} {value!r}, only {known!r}")
    try:
        sizes = {name: int(config[key]) for name, key in _SIZES.items()}
        window = config.get("sliding_window")
        if window and (kind == "mistral" or config.get("use_sliding_window")):
            sizes["context"] = min(sizes["context"], int(window))  # within the window, it has no effect
        architecture = Architecture(
            kind=str(kind),
            kv_heads=int(config.get("num_key_value_heads") or sizes["heads"]),
            head_size=int(config.get("head_dim") or sizes["hidden"] // sizes["heads"]),
            eps=float(config.get("rms_norm_eps", 1e-6)),
            theta=float(rope.get("rope_theta", config.get("rope_theta", 10_000.0))),
            tied=bool(config.get("tie_word_embeddings", False)),
            **sizes,
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise BadModel(f"{path / CONFIG_FILE} is not complete ({error!r})") from error
    if problem := architecture.problem():
        raise BadModel(f"{path} cannot be used: {problem}")
    return architecture
