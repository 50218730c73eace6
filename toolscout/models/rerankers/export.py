"""Exports a cross-encoder from the safetensors of a Hugging Face folder to a folder that `CrossEncoder` opens."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from toolscout.errors import BadModel
from toolscout.models.encoders.dense_layers import DenseLayer
from toolscout.models.encoders.families import EncoderShape, read_shape
from toolscout.models.encoders.onnx_encoder import package_folder
from toolscout.models.encoders.sentence_config import CONFIG_FILE, read_json_object
from toolscout.models.encoders.source_folder import (
    WEIGHTS_FILE,
    EncoderWeights,
    check_files,
    read_stored,
    read_tokenizer,
)
from toolscout.models.encoders.transformer_graph import CrossEncoderGraph, Precision
from toolscout.models.rerankers.cross_encoder import MAX_TOKENS_KEY, TOKENIZER_FILE, TOKENIZER_KEY, CrossEncoder
from toolscout.models.safetensors import StoredTensor

MODEL_FILE = "model.onnx"
# By family, the layers between the first token and the logits: their names, and what is applied behind them.
_ROBERTA = (("classifier.dense", "Tanh"), ("classifier.out_proj", "Identity"))
_HEADS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "bert": (("{}pooler.dense", "Tanh"), ("classifier", "Identity")),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "distilbert": (("pre_classifier", "ReLU"), ("classifier", "Identity")),
}
# What `CrossEncoder` reads of the source's config.json.
_KEPT = ("model_type", "max_position_embeddings", "pad_token_id")


def export_cross_encoder(
    source: Path, out: Path, precision: Precision = "int8", max_tokens: int = 0, share_tokenizer: bool = False
) -> Path:
    """Write a folder that `CrossEncoder` opens, and return its path.

    `source` is a Hugging Face folder with the safetensors of a model for text classification with one logit or two, of
    one of the families in `_HEADS`. `max_tokens`: how many tokens of a pair are read where the user does not say; 0
    for as many as is usual. `share_tokenizer`: leave the tokeniser out, which must be that of the package's encoder.
    An earlier export is replaced once the new one is complete and runs. Raises BadModel where the model cannot be
    exported or `out` is something else.
    """
    if out.exists() and not (out / MODEL_FILE).exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadModel(f"{out} exists and is not an exported cross-encoder; name a new folder to export into")
    check_files(source)
    shape, config = read_shape(source), read_json_object(source / CONFIG_FILE)
    weights = EncoderWeights(source, shape)
    layers = _read_head(source, shape, weights.prefix)
    tokenizer = read_tokenizer(source, shape, lowercase=False)
    about = {key: config[key] for key in _KEPT if key in config} | ({MAX_TOKENS_KEY: max_tokens} if max_tokens else {})
    if share_tokenizer:
        if tokenizer != (package_folder() / TOKENIZER_FILE).read_bytes():
            raise BadModel(f"{source} has another tokeniser than the package's encoder: it cannot share that")
        about[TOKENIZER_KEY] = hashlib.sha256(tokenizer).hexdigest()
    if 0 < max_tokens < shape.positions:  # positions beyond that are left out
        about["max_position_embeddings"] = max_tokens + shape.first_position
    graph = CrossEncoderGraph(weights, shape, layers, precision, max_tokens)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as beside:
            built, old = Path(beside, "new"), Path(beside, "old")
            built.mkdir()
            with (built / MODEL_FILE).open("wb") as file:
                graph.write(file)
            if not share_tokenizer:
                (built / TOKENIZER_FILE).write_bytes(tokenizer)
            (built / CONFIG_FILE).write_text(json.dumps(about, indent=2) + "\n")
            CrossEncoder(built)  # scores a first pair
            if out.exists():
                shutil.move(out, old)
            built.rename(out)
    except OSError as error:
        raise BadModel(f"cannot write {out} ({error}); make room or name another folder") from error
    return out


def _read_head(source: Path, shape: EncoderShape, prefix: str) -> list[DenseLayer]:
    """The layers behind the first token; raises BadModel where the model has none, or gives no score of a pair."""
    if shape.model_type not in _HEADS:
        raise BadModel(
            f"{source}: cross-encoders of the family {shape.model_type} are not exported, only: {', '.join(_HEADS)}; "
            "export it to ONNX with optimum, for text classification"
        )
    stored, inputs, layers = read_stored(source), shape.hidden, []
    for name, activation in _HEADS[shape.model_type]:
        layer = _read_layer(source, stored, name.format(prefix), activation)
        if layer.inputs != inputs:
            raise BadModel(f"{source / WEIGHTS_FILE}: {name} takes {layer.inputs} numbers, and gets {inputs}")
        layers.append(layer)
        inputs = layer.outputs
    if inputs > 2:
        raise BadModel(f"{source} tells {inputs} classes apart; a reranker gives one score, or two logits")
    return layers


def _read_layer(source: Path, stored: Mapping[str, StoredTensor], name: str, activation: str) -> DenseLayer:
    found = [stored.get(f"{name}.{part}") for part in ("weight", "bias")]
    if None in found:
        raise BadModel(
            f"{source / WEIGHTS_FILE} has no {name}: it is an encoder, not a cross-encoder; name one that was trained "
            "for text classification"
        )
    weight, bias = (tensor.values() for tensor in found if tensor is not None)
    return DenseLayer(weight, bias, activation)
