"""Static encoders (model2vec): the vector of a text is the mean of its tokens' rows in a table; no network is run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from toolscout.core.arrays import Floats
from toolscout.errors import BadModel
from toolscout.models.encoders.file_digests import file_digest, fingerprint
from toolscout.models.encoders.local import LocalEncoder, readable, unit
from toolscout.models.encoders.onnx_encoder import TOKENIZER_FILE
from toolscout.models.encoders.sentence_config import (
    CONFIG_FILE,
    STATIC_FOLDER,
    folder_name,
    read_json_object,
    read_sentence_config,
)
from toolscout.models.encoders.settings import EncoderSettings, encoders_folder, token_limits
from toolscout.models.onnx_runtime import available_cores
from toolscout.models.safetensors import read_safetensors

# The version of how this file makes a vector; part of every fingerprint.
_RULES = 1
WEIGHTS_FILE = "model.safetensors"
_UNKNOWN = re.compile(rb'"unk_id"\s*:\s*(\d+)')


class _Table(NamedTuple):
    """A row a token, in the type of the file; `mapping` has the row of each token where tokens share rows."""

    rows: NDArray[Any]
    weights: Floats | None
    mapping: NDArray[np.integer[Any]] | None


class StaticEncoder(LocalEncoder):
    """The mean of the rows of a text's tokens, at length 1. Safe to use from several threads at once.

    As model2vec has it, special tokens are not added and unknown tokens are left out. The table is in memory. A text
    without known tokens gets a vector that is like no text in particular.
    """

    kind, file, pooling = "model2vec", WEIGHTS_FILE, "mean"

    def __init__(self, folder: Path, tokenizer: Tokenizer, unknown: int | None, table: _Table, threads: int) -> None:
        """Use `load` instead. `unknown` is the token that is left out."""
        self.folder: Path = folder
        self.name = folder_name(folder)
        self.parameters = int(table.rows.size)
        self.threads = threads
        self._tokenizer, self._unknown, self._table = tokenizer, unknown, table

    @classmethod
    def load(cls, folder: Path, threads: int | None = None, settings: EncoderSettings | None = None) -> Self:
        """Open a folder with config.json, model.safetensors and tokenizer.json as model2vec writes them.

        `threads` is the number of cores to use, by default all; `settings` replace what the folder's files say. Raises
        BadModel where a file is missing or malformed.
        """
        settings = settings or EncoderSettings()
        if settings.pooling not in (None, "mean") or settings.file or settings.request_file:
            raise BadModel(f"{folder} is a static encoder, which takes the mean: leave pooling and files out")
        home = folder if (folder / WEIGHTS_FILE).is_file() else folder / STATIC_FOLDER
        if missing := [name for name in (WEIGHTS_FILE, TOKENIZER_FILE) if not (home / name).is_file()]:
            raise BadModel(f"{folder} is a static encoder and has no {', '.join(missing)}; get the folder again")
        config = read_sentence_config(folder).with_settings(settings)
        if config.dense:
            raise BadModel(f"{folder}: a Dense module behind a static encoder is not supported")
        tokenizer, unknown = _read_tokenizer(home / TOKENIZER_FILE)
        table, own = _read_table(home / WEIGHTS_FILE, tokenizer.get_vocab_size())
        made = cls(folder, tokenizer, unknown if own else None, table, threads or available_cores())
        made.request_prompt, made.document_prompt = config.request_prompt, config.document_prompt
        longest = read_json_object(folder / CONFIG_FILE).get("max_length")
        longest = longest if isinstance(longest, int) and longest > 2 else None
        made.request_tokens, made.document_tokens = token_limits(settings, longest, folder)
        made._check_prompts()
        length = table.rows.shape[1]
        if (config.dimensions or 0) > length:
            raise BadModel(f"{folder} gives {length} numbers a vector, not {config.dimensions}")
        made.dimension = config.dimensions or length
        parts = {
            "files": [file_digest(home / name, encoders_folder()) for name in (WEIGHTS_FILE, TOKENIZER_FILE)],
            "prompts": (made.request_prompt, made.document_prompt),
            "tokens": (made.request_tokens, made.document_tokens),
            "dimension": made.dimension,
        }
        made.fingerprint = fingerprint("static", _RULES, parts)
        return made

    def _tokens(self, text: str, limit: int) -> list[int]:
        ids: list[int] = self._tokenizer.encode(readable(text, limit), add_special_tokens=False).ids
        return [token for token in ids[:limit] if token != self._unknown]

    def _vector_of(self, ids: list[int], threads: int) -> Floats:
        table = self._table
        rows = table.rows[ids if table.mapping is None else table.mapping[ids], : self.dimension]
        rows = rows.astype(np.float32, copy=False)
        # The sum has the direction of the mean.
        total: Floats = rows.sum(axis=0) if table.weights is None else table.weights[ids] @ rows
        return unit(total if total.any() else np.ones(self.dimension, np.float32), self.folder)


def _read_tokenizer(path: Path) -> tuple[Tokenizer, int | None]:
    """The tokeniser, and its unknown token, if any."""
    try:
        content = path.read_bytes()
        tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises the bare class
        raise BadModel(f"{path} cannot be used ({error}); get the folder again") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if hasattr(tokenizer.model, "unk_token"):
        token = tokenizer.model.unk_token
        return tokenizer, None if token is None else tokenizer.token_to_id(token)
    # The library does not show that of a Unigram model; in a JSON text the key cannot stand as it does here.
    found = _UNKNOWN.search(content)
    return tokenizer, int(found.group(1)) if found else None


def _read_table(path: Path, tokens: int) -> tuple[_Table, bool]:
    """The table, and whether it is model2vec's own format; raises BadModel where it does not fit the tokeniser."""
    _, stored = read_safetensors(path, all_types=True)
    own = "embeddings" in stored
    found = stored.get("embeddings", stored.get("embedding.weight"))
    if found is None or len(found.shape) != 2 or 0 in found.shape:
        raise BadModel(f"{path} has no table of embeddings; is it really a model2vec folder?")
    rows = found.array()
    weights = stored["weights"].values() if "weights" in stored else None
    mapping = stored["mapping"].array() if "mapping" in stored else None
    if mapping is not None and not (
        mapping.ndim == 1 and mapping.dtype.kind == "i" and (mapping >= 0).all() and (mapping < len(rows)).all()
    ):
        raise BadModel(f"{path}: the mapping names rows that are not there; get the folder again")
    known = min(len(rows if mapping is None else mapping), tokens if weights is None else len(weights))
    if tokens > known:
        raise BadModel(f"{path} has rows for {known} tokens, {TOKENIZER_FILE} has {tokens}; get all files of one model")
    if not np.isfinite(rows).all() or (weights is not None and not np.isfinite(weights).all()):
        raise BadModel(f"{path} holds values that are not finite numbers; get the folder again")
    return _Table(rows, weights, mapping), own
