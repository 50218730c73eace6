"""The text encoder in torch, for training: the same pooling and truncation as in models/encoders/onnx_encoder.py."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from toolscout.core.arrays import Ints
from toolscout.errors import BadModel, MissingExtra
from toolscout.models.encoders.dense_layers import DENSE_FILE, NORM_EPSILON, Layer, NormLayer
from toolscout.models.encoders.export import default_source
from toolscout.models.encoders.families import read_shape
from toolscout.models.encoders.local import cut, readable
from toolscout.models.encoders.onnx_encoder import TOKENIZER_FILE
from toolscout.models.encoders.sentence_config import CONFIG_FILE, read_json_object, read_sentence_config
from toolscout.models.encoders.settings import Pooling, trained_limits
from toolscout.models.encoders.source_folder import (
    WEIGHTS_FILE,
    EncoderWeights,
    check_files,
    read_layers,
    read_tokenizer,
)

Tokens = list[Ints]
_POOLER = "pooler."  # a head of pre-training, which no vector depends on
_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "Identity": lambda vectors: vectors,
    "Tanh": torch.tanh,
    "ReLU": torch.relu,
    "Sigmoid": torch.sigmoid,
}
_PROMPTS_FILE = "config_sentence_transformers.json"
# What a saved folder keeps of its source, beside the weights.
_KEPT = (
    CONFIG_FILE,
    TOKENIZER_FILE,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "modules.json",
    "sentence_bert_config.json",
    _PROMPTS_FILE,
)


class TrainableEncoder:
    """An encoder from a Hugging Face folder, by default that of the weights package, that gives unit vectors.

    Its family is one that models/encoders/export.py exports.
    """

    def __init__(self, source: Path | None, device: torch.device, tokens: int = 0) -> None:
        """Load the weights in float32; a GPU that has bfloat16 multiplies in it.

        `tokens`: how many tokens of a text are read; 0 for as many as an encoder reads unless told otherwise.

        Raises BadModel for a model that could not be exported after training.
        """
        self.source = default_source() if source is None else source
        check_files(self.source)
        shape, config = read_shape(self.source), read_sentence_config(self.source)
        layers = read_layers(self.source, config, shape)
        tokenizer = read_tokenizer(self.source, shape, config.lowercase)
        self.device = device
        self.model = _load_model(self.source, EncoderWeights(self.source, shape).prefix)
        self.model.to(device)
        self.pooling = config.pooling
        self.request_prompt, self.document_prompt = config.request_prompt, config.document_prompt
        self._tokenizer = Tokenizer.from_buffer(tokenizer)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.request_tokens, self.document_tokens = trained_limits(
            tokens, shape.positions, config.max_tokens, self.source
        )
        self._layers = {
            folder: _LayerModule(layer, read_json_object(folder / CONFIG_FILE).get("bias", True)).to(device)
            for folder, layer in zip(config.dense, layers, strict=True)
        }
        whole = layers[-1].outputs if layers else shape.hidden
        self.dimension = min(whole, config.dimensions or whole)
        # How many tokens of a request are its prompt's.
        self.prompt_length = len(self._tokenizer.encode(self.request_prompt.rstrip(), add_special_tokens=False))
        self._padding = shape.padding
        self._half = device.type == "cuda" and torch.cuda.is_bf16_supported()

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that a vector depends on, by name."""
        named: Iterator[tuple[str, torch.nn.Parameter]] = self.model.named_parameters()
        found = {name: parameter for name, parameter in named if not name.startswith(_POOLER)}
        for folder, layer in self._layers.items():
            found |= {f"{folder.name}.{name}": parameter for name, parameter in layer.named_parameters()}
        return found

    def tokens(self, texts: Sequence[str], limit: int, prompt: str = "") -> Tokens:
        """Token ids of texts behind the prompt, cut to `limit` as at inference, with the closing token kept."""
        clean = [readable(prompt + text, limit) for text in texts]
        found: Tokens = []
        for start in range(0, len(clean), 4096):
            few = self._tokenizer.encode_batch(clean[start : start + 4096])
            found += [np.array(cut(one, limit), dtype=np.int64) for one in few]
        return found

    def tokenise_requests(self, texts: Sequence[str]) -> Tokens:
        """Token ids of requests behind their prompt."""
        return self.tokens(texts, self.request_tokens, self.request_prompt)

    def tokenise_documents(self, texts: Sequence[str]) -> Tokens:
        """Token ids of documents behind their prompt."""
        return self.tokens(texts, self.document_tokens, self.document_prompt)

    def embed(self, tokens: Sequence[Ints]) -> Tensor:
        """Unit vectors of one batch, with gradients."""
        longest = max(map(len, tokens))
        ids = np.full((len(tokens), longest), self._padding, dtype=np.int64)
        mask = np.zeros((len(tokens), longest), dtype=np.int64)
        for row, one in enumerate(tokens):
            ids[row, : len(one)] = one
            mask[row, : len(one)] = 1
        present = torch.from_numpy(mask).to(self.device, non_blocking=True)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self._half):
            hidden = self.model(
                input_ids=torch.from_numpy(ids).to(self.device, non_blocking=True), attention_mask=present
            ).last_hidden_state
        pooled = _pool(hidden.float(), present, self.pooling)
        for layer in self._layers.values():
            pooled = layer(pooled)
        return functional.normalize(pooled[:, : self.dimension], dim=1)

    @torch.no_grad()
    def encode(self, tokens: Sequence[Ints], at_once: int) -> Tensor:
        """Unit vectors of any number of texts, without gradients and without dropout."""
        training = self.model.training
        self.model.eval()
        order = sorted(range(len(tokens)), key=lambda i: len(tokens[i]))
        vectors = torch.empty((len(tokens), self.dimension), device=self.device)
        for start in range(0, len(order), at_once):
            rows = order[start : start + at_once]
            vectors[torch.tensor(rows, device=self.device)] = self.embed([tokens[i] for i in rows])
        self.model.train(training)
        return vectors

    def save(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        """Write a Hugging Face folder with these weights, which models/encoders/export.py and `AutoModel` can read."""
        folder.mkdir(parents=True, exist_ok=True)
        for path in [*(self.source / name for name in _KEPT), *self.source.glob(f"[0-9]_*/{CONFIG_FILE}")]:
            if path.is_file():
                kept_at = folder / path.relative_to(self.source)
                kept_at.parent.mkdir(exist_ok=True)
                shutil.copyfile(path, kept_at)
        self._keep_prompts(folder)
        whole = {name: tensor for name, tensor in self.model.state_dict().items() if not name.startswith(_POOLER)}
        kept = {name: weights.get(name, tensor).detach().cpu().contiguous() for name, tensor in whole.items()}
        save_file(kept, folder / WEIGHTS_FILE, metadata={"format": "pt"})
        for place, layer in self._layers.items():
            named = {name: weights.get(f"{place.name}.{name}", tensor) for name, tensor in layer.state_dict().items()}
            tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in named.items()}
            save_file(tensors, folder / place.relative_to(self.source) / DENSE_FILE)

    def _keep_prompts(self, folder: Path) -> None:
        """Write down prompts that are known by the name of the source's folder alone."""
        prompts = {"query": self.request_prompt, "document": self.document_prompt}
        settings = read_json_object(folder / _PROMPTS_FILE)
        if any(prompts.values()) and not settings.get("prompts"):
            (folder / _PROMPTS_FILE).write_text(json.dumps(settings | {"prompts": prompts}, indent=2) + "\n")


class _LayerModule(torch.nn.Module):
    """A layer behind the pooling, with the names of its tensors in the files of sentence-transformers."""

    def __init__(self, layer: Layer, bias: bool) -> None:
        super().__init__()
        self._activation = layer.activation
        inner: torch.nn.Linear | torch.nn.LayerNorm
        if isinstance(layer, NormLayer):
            self.norm = inner = torch.nn.LayerNorm(layer.inputs, eps=NORM_EPSILON)
        else:
            self.linear = inner = torch.nn.Linear(layer.inputs, layer.outputs, bias=bias)
        with torch.no_grad():
            inner.weight.copy_(torch.from_numpy(layer.weight))
            if bias:
                inner.bias.copy_(torch.from_numpy(layer.bias))

    def forward(self, vectors: Tensor) -> Tensor:
        """The vectors behind the layer."""
        if self._activation == "LayerNorm":
            found: Tensor = self.norm(vectors)
            return found
        return _ACTIVATIONS[self._activation](self.linear(vectors))


def _load_model(source: Path, prefix: str) -> Any:
    """The network without a head; raises BadModel where some of its weights are not in the folder's files."""
    try:
        from transformers import AutoModel
        from transformers.utils import logging
    except ImportError as error:
        raise MissingExtra("training", "train") from error

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    # AutoModel takes the usual prefixes off by itself; others would leave it with random weights.
    renamed = {f"^{re.escape(prefix)}": ""} if prefix else None
    model, found = AutoModel.from_pretrained(
        str(source), dtype=torch.float32, key_mapping=renamed, output_loading_info=True
    )
    wrong = [*found["missing_keys"], *(name for name, *_ in found["mismatched_keys"])]
    if lost := sorted(name for name in wrong if not name.startswith(_POOLER)):
        raise BadModel(f"{source / WEIGHTS_FILE}: AutoModel does not find {len(lost)} tensors there, such as {lost[0]}")
    return model


def _pool(hidden: Tensor, present: Tensor, pooling: Pooling) -> Tensor:
    """One vector for each text; `present` is 1 for each of its tokens, which padding follows."""
    if pooling == "cls":
        return hidden[:, 0]
    if pooling == "last":
        return hidden[torch.arange(len(hidden), device=hidden.device), present.sum(1) - 1]
    weight = present[..., None].float()
    return (hidden * weight).sum(1) / weight.sum(1)
