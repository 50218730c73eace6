"""The text encoder in torch, for training: the same pooling and truncation as in models/encoders/onnx_encoder.py."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from toolscout.core.arrays import Ints
from toolscout.errors import BadModel, MissingExtra
from toolscout.models.encoders.export import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    default_source,
    read_shape,
)
from toolscout.models.encoders.local import CHARS_PER_TOKEN
from toolscout.models.encoders.onnx_encoder import TOKENIZER_FILE
from toolscout.models.encoders.settings import DOCUMENT_TOKENS, REQUEST_TOKENS

Tokens = list[Ints]
_POOLER = "pooler."  # BERT's pre-training head, which no vector depends on


class TrainableEncoder:
    """A BERT encoder from a Hugging Face folder, by default that of the weights package, that gives unit vectors."""

    def __init__(self, source: Path | None, device: torch.device) -> None:
        """Load the weights in float32; a GPU that has bfloat16 multiplies in it.

        Raises BadModel for a model that could not be exported after training.
        """
        try:
            from transformers import AutoModel
            from transformers.utils import logging
        except ImportError as error:
            raise MissingExtra("training", "train") from error

        self.source = default_source() if source is None else source
        missing = [name for name in (CONFIG_FILE, WEIGHTS_FILE, TOKENIZER_FILE) if not (self.source / name).is_file()]
        if missing:
            raise BadModel(f"{self.source} is not a folder of a Hugging Face model: it has no {', '.join(missing)}")
        shape = read_shape(self.source)
        logging.set_verbosity_error()  # type: ignore[no-untyped-call]
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        self.device = device
        self.model = AutoModel.from_pretrained(str(self.source), dtype=torch.float32, attn_implementation="sdpa")
        self.model.to(device)
        self.pooling = shape.pooling
        self._tokenizer = Tokenizer.from_file(str(self.source / TOKENIZER_FILE))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.request_tokens = min(REQUEST_TOKENS, shape.positions)
        self.document_tokens = min(DOCUMENT_TOKENS, shape.positions)
        self.dimension = shape.hidden
        self._padding = int(self.model.config.pad_token_id or 0)
        self._half = device.type == "cuda" and torch.cuda.is_bf16_supported()

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that a vector depends on, by name."""
        named: Iterator[tuple[str, torch.nn.Parameter]] = self.model.named_parameters()
        return {name: parameter for name, parameter in named if not name.startswith(_POOLER)}

    def tokens(self, texts: Sequence[str], limit: int) -> Tokens:
        """Token ids, cut to `limit` as at inference, with the closing token kept."""
        clean = [text[: limit * CHARS_PER_TOKEN].encode(errors="replace").decode() for text in texts]
        found: Tokens = []
        for start in range(0, len(clean), 4096):
            for encoding in self._tokenizer.encode_batch(clean[start : start + 4096]):
                ids = encoding.ids
                found.append(np.array(ids if len(ids) <= limit else [*ids[: limit - 1], ids[-1]], dtype=np.int64))
        return found

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
        hidden = hidden.float()
        if self.pooling == "cls":
            return functional.normalize(hidden[:, 0], dim=1)
        weight = present[..., None].float()
        return functional.normalize((hidden * weight).sum(1) / weight.sum(1), dim=1)

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
        for name in (CONFIG_FILE, TOKENIZER_FILE, "modules.json"):
            if (self.source / name).is_file():
                shutil.copyfile(self.source / name, folder / name)
        pooling = Path("1_Pooling", CONFIG_FILE)
        if (self.source / pooling).is_file():
            (folder / pooling).parent.mkdir(exist_ok=True)
            shutil.copyfile(self.source / pooling, folder / pooling)
        whole = {name: tensor for name, tensor in self.model.state_dict().items() if not name.startswith(_POOLER)}
        kept = {name: weights.get(name, tensor).detach().cpu().contiguous() for name, tensor in whole.items()}
        save_file(kept, folder / WEIGHTS_FILE, metadata={"format": "pt"})
