"""The tiny BERT as a folder of each other family: the same network, with the names and the order of that family."""

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

from tests.models import tiny_bert

Array = NDArray[Any]

FAMILIES = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "mpnet")
AFTER_PADDING = ("roberta", "xlm-roberta", "camembert", "mpnet")
_PARTS = {
    "distilbert": {
        "encoder.layer": "transformer.layer",
        "attention.self.query": "attention.q_lin",
        "attention.self.key": "attention.k_lin",
        "attention.self.value": "attention.v_lin",
        "attention.output.dense": "attention.out_lin",
        "attention.output.LayerNorm": "sa_layer_norm",
        "intermediate.dense": "ffn.lin1",
        ".output.dense": ".ffn.lin2",
        ".output.LayerNorm": ".output_layer_norm",
    },
    "mpnet": {
        "attention.self.query": "attention.attn.q",
        "attention.self.key": "attention.attn.k",
        "attention.self.value": "attention.attn.v",
        "attention.output.dense": "attention.attn.o",
        "attention.output.LayerNorm": "attention.LayerNorm",
    },
}
_KEYS = {
    "num_hidden_layers": "n_layers",
    "hidden_size": "dim",
    "intermediate_size": "hidden_dim",
    "num_attention_heads": "n_heads",
    "hidden_act": "activation",
}


def weights_of(family: str, weights: Mapping[str, Array], bias: Array | None = None) -> dict[str, Array]:
    """The weights of a BERT as those of another family that gives the same vectors.

    `bias` [32, heads] is MPNet's relative attention bias, which BERT does not have.
    """
    made = dict(weights)
    places = "embeddings.position_embeddings.weight"
    if family in AFTER_PADDING:
        made[places] = np.concatenate([np.full((2, made[places].shape[1]), 9, np.float32), made[places]])
    if family in _PARTS:
        made[places] = made[places] + made.pop("embeddings.token_type_embeddings.weight")[0]
    elif family != "bert":
        made["embeddings.token_type_embeddings.weight"] = made["embeddings.token_type_embeddings.weight"][:1]
    if family == "distilbert":
        made = {name: value for name, value in made.items() if "pooler" not in name}
    if family == "mpnet":
        assert bias is not None
        made["encoder.relative_attention_bias.weight"] = bias
    renamed = {}
    for name, value in made.items():
        for old, new in _PARTS.get(family, {}).items():
            name = name.replace(old, new)
        renamed[name] = np.ascontiguousarray(value, np.float32)
    return renamed


def config_of(family: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json of a BERT as that of another family."""
    made = {**config, "model_type": family}
    if family in AFTER_PADDING:
        made |= {"max_position_embeddings": config["max_position_embeddings"] + 2, "type_vocab_size": 1}
        made |= {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    if family in _PARTS:
        made.pop("type_vocab_size")
    if family == "distilbert":
        made = {_KEYS.get(key, key): value for key, value in made.items() if key != "layer_norm_eps"}
    if family == "mpnet":
        made["relative_attention_num_buckets"] = 32
    return made


def tokenizer(family: str) -> Tokenizer:
    """The tokenizer of the tiny BERT, with the family's own special tokens in their usual places."""
    if family not in AFTER_PADDING:
        return tiny_bert.tokenizer()
    words = ["<s>", "<pad>", "</s>", "<unk>", *tiny_bert.WORDS[4:]]
    made = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = Whitespace()
    made.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    return made


def relative_bias(heads: int = tiny_bert.CONFIG["num_attention_heads"]) -> Array:
    return np.random.default_rng(7).normal(0, 1, (32, heads)).astype(np.float32)


def distances(count: int) -> Array:
    """MPNet's bucket of each pair of tokens, [count, count]: one for each distance below 8, then eight half octaves."""
    buckets = np.zeros((count, count), dtype=int)
    for here in range(count):
        for there in range(count):
            away = abs(here - there)
            near = away if away < 8 else min(15, 8 + math.floor(2 * math.log2(away / 8)))
            buckets[here, there] = near + (16 if there > here else 0)
    return buckets


def write_folder(folder: Path, family: str, seed: int = 0, **config: Any) -> Path:
    """The tiny BERT with the weights of this seed, as a Hugging Face folder of a family."""
    folder.mkdir(parents=True)
    weights = weights_of(family, tiny_bert.random_weights(seed), relative_bias())
    (folder / "config.json").write_text(json.dumps(config_of(family, tiny_bert.CONFIG) | config))
    (folder / "model.safetensors").write_bytes(tiny_bert.safetensors(weights))
    (folder / "tokenizer.json").write_text(tokenizer(family).to_str())
    return folder


def forward(
    family: str, weights: Mapping[str, Array], ids: list[int], pooling: str = "mean", unit: bool = True
) -> Array:
    """The vector of a text, given the weights of the BERT; `unit`: at length 1."""
    bias = relative_bias()[distances(len(ids))].transpose(2, 0, 1) if family == "mpnet" else None
    return tiny_bert.forward(weights, ids, pooling, bias, unit)


def add_layers(folder: Path, seed: int = 0) -> list[Array]:
    """Put what ANCE has behind the pooling there: a linear layer without activation, and a LayerNorm.

    Gives back the matrix and the shift of the first [24, 32], [24], and the scale and the shift of the second.
    """
    random = np.random.default_rng(seed)
    tensors = [random.normal(0, 0.3, shape).astype(np.float32) for shape in ((24, 32), 24, 24, 24)]
    modules = ("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense"), ("LayerNorm", "3_LayerNorm")
    listed = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in modules]
    (folder / "modules.json").write_text(json.dumps(listed))
    identity = "torch.nn.modules.linear.Identity"
    dense = {"in_features": 32, "out_features": 24, "bias": True, "activation_function": identity}
    saved = {"2_Dense": (dense, "linear", tensors[:2]), "3_LayerNorm": ({"dimension": 24}, "norm", tensors[2:])}
    for name, (config, part, (weight, bias)) in saved.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
        content = tiny_bert.safetensors({f"{part}.weight": weight, f"{part}.bias": bias})
        (folder / name / "model.safetensors").write_bytes(content)
    return tensors
