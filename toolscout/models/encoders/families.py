"""The families of encoders that are exported and trained: where their files differ, as one table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from toolscout.errors import BadModel
from toolscout.models.encoders.sentence_config import CONFIG_FILE, read_json_object

# The exact function in ONNX, and the one used with int8: twice as fast, with an error far below that of eight bits.
ACTIVATIONS = {"gelu": ("Gelu", "FastGelu"), "gelu_new": ("FastGelu", "FastGelu")}

_EMBEDDINGS = {
    "words": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
}
_BERT = _EMBEDDINGS | {
    "token_types": "embeddings.token_type_embeddings",
    "query": "encoder.layer.{}.attention.self.query",
    "key": "encoder.layer.{}.attention.self.key",
    "value": "encoder.layer.{}.attention.self.value",
    "attention_output": "encoder.layer.{}.attention.output.dense",
    "attention_norm": "encoder.layer.{}.attention.output.LayerNorm",
    "intermediate": "encoder.layer.{}.intermediate.dense",
    "output": "encoder.layer.{}.output.dense",
    "output_norm": "encoder.layer.{}.output.LayerNorm",
}
_DISTILBERT = _EMBEDDINGS | {
    "query": "transformer.layer.{}.attention.q_lin",
    "key": "transformer.layer.{}.attention.k_lin",
    "value": "transformer.layer.{}.attention.v_lin",
    "attention_output": "transformer.layer.{}.attention.out_lin",
    "attention_norm": "transformer.layer.{}.sa_layer_norm",
    "intermediate": "transformer.layer.{}.ffn.lin1",
    "output": "transformer.layer.{}.ffn.lin2",
    "output_norm": "transformer.layer.{}.output_layer_norm",
}
_MPNET = _EMBEDDINGS | {
    "relative_bias": "encoder.relative_attention_bias",
    "query": "encoder.layer.{}.attention.attn.q",
    "key": "encoder.layer.{}.attention.attn.k",
    "value": "encoder.layer.{}.attention.attn.v",
    "attention_output": "encoder.layer.{}.attention.attn.o",
    "attention_norm": "encoder.layer.{}.attention.LayerNorm",
    "intermediate": "encoder.layer.{}.intermediate.dense",
    "output": "encoder.layer.{}.output.dense",
    "output_norm": "encoder.layer.{}.output.LayerNorm",
}
_SIZES = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "intermediate": "intermediate_size",
    "heads": "num_attention_heads",
    "positions": "max_position_embeddings",
    "vocabulary": "vocab_size",
}
_DISTILBERT_SIZES = _SIZES | {"layers": "n_layers", "hidden": "dim", "intermediate": "hidden_dim", "heads": "n_heads"}
# Values of config.json: what stands for a missing key, and what can be computed.
_ENCODER = {"position_embedding_type": ("absolute", ("absolute",)), "is_decoder": (False, (False,))}
BUCKETS = 32


@dataclass(frozen=True, slots=True)
class Family:
    """How a family names its tensors and settings. A "{}" in a tensor's name stands for the number of the layer.

    sizes: the keys of config.json, by the names in `EncoderShape`; `activation`: the key of the activation.
    known: keys with what stands for a missing one and the values that can be computed.
    ends: the tokens around a text.
    padding: the id of the padding token where config.json has none.
    after_padding: whether the first position is that of the padding token plus 1, instead of 0.
    """

    tensors: Mapping[str, str]
    sizes: Mapping[str, str] = field(default_factory=lambda: _SIZES)
    activation: str = "hidden_act"
    known: Mapping[str, tuple[Any, tuple[Any, ...]]] = field(default_factory=lambda: _ENCODER)
    ends: tuple[str, str] = ("<s>", "</s>")
    padding: int = 1
    after_padding: bool = True


_ROBERTA = Family(_BERT)
FAMILIES = {
    "bert": Family(_BERT, ends=("[CLS]", "[SEP]"), padding=0, after_padding=False),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "distilbert": Family(
        _DISTILBERT, _DISTILBERT_SIZES, "activation", ends=("[CLS]", "[SEP]"), padding=0, after_padding=False
    ),
    # Positions start at 2 whatever config.json says of the padding token, and the buckets are always 32.
    "mpnet": Family(
        _MPNET,
        known=_ENCODER | {"relative_attention_num_buckets": (BUCKETS, (BUCKETS,)), "pad_token_id": (1, (1,))},
    ),
}


class EncoderShape(NamedTuple):
    """The sizes and settings of a network.

    positions: how many tokens a text may have. `first_position`: the row of the first one in the table of positions.
    padding: the id of the padding token.
    """

    model_type: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    positions: int
    vocabulary: int
    epsilon: float
    activation: str
    first_position: int
    padding: int

    @property
    def family(self) -> Family:
        """The family of the network."""
        return FAMILIES[self.model_type]


class NamedShape(NamedTuple):
    """The name of a tensor in the files, and its shape; -1 is any size."""

    name: str
    shape: tuple[int, ...]


def read_shape(source: Path) -> EncoderShape:
    """The sizes of the network from config.json; raises BadModel for a network that the graph cannot compute."""
    path = source / CONFIG_FILE
    config = read_json_object(path)
    model_type = config.get("model_type")
    if model_type not in FAMILIES:
        raise BadModel(
            f"{source}: cannot export model_type {model_type!r}, only: {', '.join(FAMILIES)}; other families are used "
            "through their ONNX files (onnx/model.onnx)"
        )
    family = FAMILIES[model_type]
    known = {family.activation: ("gelu", tuple(ACTIVATIONS)), **family.known}
    for key, (assumed, values) in known.items():
        if (value := config.get(key, assumed)) not in values:
            raise BadModel(f"{source}: cannot export {key} {value!r}, only: {', '.join(map(str, values))}")
    sizes = {name: _number(path, config, key, 1) for name, key in family.sizes.items()}
    if sizes["hidden"] % sizes["heads"] or sizes["hidden"] % 2 or sizes["intermediate"] % 2:
        raise BadModel(
            f"{source}: cannot export odd sizes, nor a {family.sizes['hidden']} that does not divide by the heads"
        )
    has_padding = config.get("pad_token_id") is not None
    padding = _number(path, config, "pad_token_id", 0) if has_padding else family.padding
    first = padding + 1 if family.after_padding else 0
    if sizes["positions"] - first < 3:
        raise BadModel(f"{path}: {family.sizes['positions']} {sizes['positions']} leaves no room for a text")
    sizes["positions"] -= first
    return EncoderShape(
        model_type=model_type,
        **sizes,
        epsilon=float(config.get("layer_norm_eps", 1e-12)),
        activation=str(config.get(family.activation, "gelu")),
        first_position=first,
        padding=padding,
    )


def _number(path: Path, config: Mapping[str, Any], key: str, least: int) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value < least:
        raise BadModel(f"{path}: {key} must be a whole number of {least} or more, got {value!r}")
    return value


def tensor_shapes(shape: EncoderShape) -> dict[str, NamedShape]:
    """Name and shape of every tensor that the graph uses, by our own names, such as "words.weight", "0.query.bias"."""
    hidden, wide = shape.hidden, shape.intermediate
    tables = {
        "words": (shape.vocabulary, hidden),
        "positions": (shape.first_position + shape.positions, hidden),
        "token_types": (-1, hidden),
        "relative_bias": (BUCKETS, shape.heads),
    }
    linear = dict.fromkeys(("query", "key", "value", "attention_output"), (hidden, hidden))
    linear |= {"intermediate": (wide, hidden), "output": (hidden, wide)}
    found: dict[str, NamedShape] = {}
    for part, name in shape.family.tensors.items():
        for layer in range(shape.layers) if "{}" in name else [None]:
            ours, stored = (part, name) if layer is None else (f"{layer}.{part}", name.format(layer))
            weight = tables.get(part) or linear.get(part) or (hidden,)
            found[f"{ours}.weight"] = NamedShape(f"{stored}.weight", weight)
            if part not in tables:
                found[f"{ours}.bias"] = NamedShape(f"{stored}.bias", weight[:1])
    return found
