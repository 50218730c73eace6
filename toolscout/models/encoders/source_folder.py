"""Reads the Hugging Face folder of an encoder without torch: its weights, one tensor at a time, and its tokeniser."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from toolscout.core.arrays import Floats
from toolscout.errors import BadModel
from toolscout.models.encoders.dense_layers import Layer, read_dense
from toolscout.models.encoders.families import EncoderShape, tensor_shapes
from toolscout.models.encoders.onnx_encoder import TOKENIZER_FILE
from toolscout.models.encoders.sentence_config import CONFIG_FILE, SentenceConfig, read_json_object
from toolscout.models.safetensors import StoredTensor, read_safetensors

WEIGHTS_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"
# Old names of what a LayerNorm has.
_OLD_NAMES = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}


def read_layers(source: Path, config: SentenceConfig, shape: EncoderShape) -> tuple[Layer, ...]:
    """The layers behind the pooling; raises BadModel where one does not take what the one before it gives."""
    layers = tuple(map(read_dense, config.dense))
    inputs = shape.hidden
    for folder, layer in zip(config.dense, layers, strict=True):
        if layer.inputs != inputs:
            raise BadModel(f"{folder} takes vectors of {layer.inputs} numbers, and gets {inputs}; get {source} again")
        inputs = layer.outputs
    return layers


class EncoderWeights:
    """The weights of an encoder by our own names (`families.tensor_shapes`), each read when it is asked for."""

    def __init__(self, source: Path, shape: EncoderShape) -> None:
        """Check that all tensors are there in the right shapes; raises BadModel where they are not.

        Models with a head have a prefix before the names of the encoder, such as "bert."; any prefix is taken off.
        """
        self._source = source
        stored = read_stored(source)
        self.prefix = _prefix(source, stored, shape)
        self._tensors: dict[str, StoredTensor] = {}
        for ours, (name, size) in tensor_shapes(shape).items():
            found = stored.get(self.prefix + name) or stored.get(self.prefix + _old_name(name))
            if found is None:
                raise BadModel(
                    f"{source / WEIGHTS_FILE} has no tensor {name} in F32, F16 or BF16; is it really an encoder of "
                    f"the family {shape.model_type}, as {CONFIG_FILE} says?"
                )
            if size not in (found.shape, (-1, *found.shape[1:])):
                raise BadModel(
                    f"{source / WEIGHTS_FILE}: {name} has the shape {found.shape}, {CONFIG_FILE} says {size}"
                )
            self._tensors[ours] = found

    @property
    def parameters(self) -> int:
        """How many numbers there are."""
        return sum(math.prod(tensor.shape) for tensor in self._tensors.values())

    def __contains__(self, name: str) -> bool:
        """Whether the family has this tensor."""
        return name in self._tensors

    def __getitem__(self, name: str) -> Floats:
        """The whole tensor; raises BadModel where it holds values that are not finite."""
        return self._values(name, self._tensors[name])

    def blocks(self, name: str, rows: int) -> Iterator[Floats]:
        """The tensor in pieces of at most this many rows."""
        tensor = self._tensors[name]
        for start in range(0, tensor.shape[0], rows):
            yield self._values(name, tensor.rows(start, start + rows))

    def _values(self, name: str, tensor: StoredTensor) -> Floats:
        values = tensor.values()
        if not np.isfinite(values).all():
            raise BadModel(f"{self._source / WEIGHTS_FILE}: {name} holds values that are not finite numbers")
        return values


def check_files(source: Path) -> None:
    """Raise BadModel, with what to do, where a file that an encoder needs is missing."""
    found = {name: (source / name).is_file() for name in (CONFIG_FILE, WEIGHTS_FILE, TOKENIZER_FILE)}
    found[WEIGHTS_FILE] |= (source / _INDEX_FILE).is_file()
    missing = [name for name, there in found.items() if not there]
    if not missing:
        return
    remedy = ""
    if WEIGHTS_FILE in missing and any(source.glob("*.bin")):
        remedy = _remedy("the weights are there as pytorch_model.bin alone; convert them with", "AutoModel", source)
    elif missing == [TOKENIZER_FILE]:
        remedy = _remedy("the tokeniser may be there in another form; convert it with", "AutoTokenizer", source)
    raise BadModel(f"{source} is not a folder of a Hugging Face model: it has no {', '.join(missing)}{remedy}")


def _remedy(what: str, kind: str, source: Path) -> str:
    code = f"from transformers import {kind} as A; A.from_pretrained('{source}').save_pretrained('{source}')"
    return f'; {what}: python -c "{code}"'


def read_tokenizer(source: Path, shape: EncoderShape, lowercase: bool) -> bytes:
    """The tokeniser's file, with `lowercase` one that puts texts into lower case first.

    Raises BadModel where it has more tokens than the model, or does not put its tokens around a text.
    """
    path = source / TOKENIZER_FILE
    content = path.read_bytes()
    try:
        tokenizer = Tokenizer.from_buffer(content)
    except ValueError as error:
        raise BadModel(f"{path} cannot be used: {error}") from error
    if tokenizer.get_vocab_size() > shape.vocabulary:
        raise BadModel(f"{path} knows {tokenizer.get_vocab_size()} tokens, the model only {shape.vocabulary}")
    tokenizer.no_padding()
    if tokenizer.encode("a").special_tokens_mask[:: max(1, len(tokenizer.encode("a")) - 1)] != [1, 1]:
        first, last = shape.family.ends
        raise BadModel(
            f"{path} does not put a text between {first} and {last} as encoders of the family {shape.model_type} expect"
        )
    if lowercase:
        described = read_json_object(path)
        steps = [{"type": "Lowercase"}, *filter(None, [described.get("normalizer")])]
        described["normalizer"] = {"type": "Sequence", "normalizers": steps}
        content = json.dumps(described, ensure_ascii=False).encode()
    return content


def read_stored(source: Path) -> dict[str, StoredTensor]:
    """All tensors in F32, F16 or BF16; large models have theirs in several files."""
    if (source / WEIGHTS_FILE).is_file():
        return read_safetensors(source / WEIGHTS_FILE)[1]
    listed = read_json_object(source / _INDEX_FILE).get("weight_map")
    names = sorted({str(name) for name in listed.values()}) if isinstance(listed, dict) else []
    stored: dict[str, StoredTensor] = {}
    for name in names:
        if Path(name).name != name or not (source / name).is_file():
            raise BadModel(f"{source} has no {name}, which {_INDEX_FILE} names; get the folder again")
        stored |= read_safetensors(source / name)[1]
    return stored


def _prefix(source: Path, stored: Mapping[str, StoredTensor], shape: EncoderShape) -> str:
    words = f"{shape.family.tensors['words']}.weight"
    found = sorted(name.removesuffix(words) for name in stored if name.endswith(words))
    if len(found) > 1 and found[0]:
        raise BadModel(f"{source / WEIGHTS_FILE} holds {len(found)} encoders ({', '.join(found)}); export one of them")
    return found[0] if found else ""


def _old_name(name: str) -> str:
    for new, old in _OLD_NAMES.items():
        name = name.replace(new, old)
    return name
