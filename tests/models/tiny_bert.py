"""A BERT of two layers with random weights, as a Hugging Face folder, and a plain numpy forward pass as its oracle."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

Array = NDArray[Any]

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{number}" for number in range(60))]
CONFIG: dict[str, Any] = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "max_position_embeddings": 40,
    "vocab_size": len(WORDS),
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}


def random_weights(seed: int = 0) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    hidden, wide = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    weights: dict[str, Array] = {}

    def norm(name: str) -> None:
        weights[f"{name}.weight"] = random.uniform(0.5, 1.5, hidden)
        weights[f"{name}.bias"] = random.normal(0, 0.3, hidden)

    def linear(name: str, inputs: int, outputs: int) -> None:
        weights[f"{name}.weight"] = random.normal(0, 1.5 / math.sqrt(inputs), (outputs, inputs))
        weights[f"{name}.bias"] = random.normal(0, 0.3, outputs)

    for name, rows in (("word", len(WORDS)), ("position", CONFIG["max_position_embeddings"]), ("token_type", 2)):
        weights[f"embeddings.{name}_embeddings.weight"] = random.normal(0, 1, (rows, hidden))
    norm("embeddings.LayerNorm")
    for layer in range(CONFIG["num_hidden_layers"]):
        prefix = f"encoder.layer.{layer}"
        for part in ("query", "key", "value"):
            linear(f"{prefix}.attention.self.{part}", hidden, hidden)
        linear(f"{prefix}.attention.output.dense", hidden, hidden)
        norm(f"{prefix}.attention.output.LayerNorm")
        linear(f"{prefix}.intermediate.dense", hidden, wide)
        linear(f"{prefix}.output.dense", wide, hidden)
        norm(f"{prefix}.output.LayerNorm")
    weights["pooler.dense.weight"] = random.normal(0, 1, (hidden, hidden))  # published, and not used by an encoder
    return {name: value.astype(np.float32) for name, value in weights.items()}


def safetensors(weights: Mapping[str, Array], dtype: str = "F32") -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, value in weights.items():
        if dtype == "BF16":
            data = (value.view(np.uint32) >> 16).astype("<u2").tobytes()
        else:
            data = value.astype({"F32": "<f4", "F16": "<f2"}[dtype]).tobytes()
        place = [len(body), len(body) + len(data)]
        header[name] = {"dtype": dtype, "shape": list(value.shape), "data_offsets": place}
        body += data
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def tokenizer() -> Tokenizer:
    made = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    ends = [("[CLS]", WORDS.index("[CLS]")), ("[SEP]", WORDS.index("[SEP]"))]
    made.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return made


def write_folder(folder: Path, weights: Mapping[str, Array], dtype: str = "F32", **config: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    (folder / "model.safetensors").write_bytes(safetensors(weights, dtype))
    (folder / "tokenizer.json").write_text(tokenizer().to_str())
    return folder


def forward(
    weights: Mapping[str, Array], ids: list[int], pooling: str = "mean", bias: Array | None = None, unit: bool = True
) -> Array:
    """BERT as its paper has it, one step after the other, in float64.

    `bias` is added to the scores of each head; `unit` gives a vector of length 1.
    """
    tensors = {name: value.astype(np.float64) for name, value in weights.items()}

    def norm(rows: Array, name: str) -> Array:
        centred = rows - rows.mean(axis=1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(axis=1, keepdims=True) + CONFIG["layer_norm_eps"])
        normal: Array = centred / deviation * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]
        return normal

    def linear(rows: Array, name: str) -> Array:
        return rows @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"]

    heads, size = CONFIG["num_attention_heads"], CONFIG["hidden_size"] // CONFIG["num_attention_heads"]
    rows = tensors["embeddings.word_embeddings.weight"][ids]
    rows = rows + tensors["embeddings.position_embeddings.weight"][: len(ids)]
    rows = norm(rows + tensors["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    for layer in range(CONFIG["num_hidden_layers"]):
        prefix = f"encoder.layer.{layer}"
        query, key, value = (linear(rows, f"{prefix}.attention.self.{part}") for part in ("query", "key", "value"))
        seen = np.empty_like(rows)
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            scores = query[:, part] @ key[:, part].T / math.sqrt(size)
            scores = np.exp(scores if bias is None else scores + bias[head])
            seen[:, part] = scores / scores.sum(axis=1, keepdims=True) @ value[:, part]
        rows = norm(rows + linear(seen, f"{prefix}.attention.output.dense"), f"{prefix}.attention.output.LayerNorm")
        wide = linear(rows, f"{prefix}.intermediate.dense")
        wide = wide * 0.5 * (1 + np.vectorize(math.erf)(wide / math.sqrt(2)))
        rows = norm(rows + linear(wide, f"{prefix}.output.dense"), f"{prefix}.output.LayerNorm")
    pooled = {"mean": rows.mean(axis=0), "cls": rows[0], "last": rows[-1]}[pooling]
    vector: Array = pooled / np.linalg.norm(pooled) if unit else pooled
    return vector
