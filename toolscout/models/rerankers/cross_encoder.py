"""A cross-encoder in a folder: an ONNX graph that reads a request and a document together and scores the pair."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from toolscout.errors import BadModel
from toolscout.index.worker_threads import WORKER_THREADS
from toolscout.models.encoders.local import CHARS_PER_TOKEN
from toolscout.models.encoders.onnx_encoder import package_folder
from toolscout.models.encoders.onnx_file import read_weights
from toolscout.models.encoders.sentence_config import CONFIG_FILE, read_json_object
from toolscout.models.encoders.short_documents import without_repeats
from toolscout.models.onnx_runtime import available_cores, ort, session_options
from toolscout.models.rerankers.base import Reranker, run_until

# The version of how this file cuts and feeds texts; part of every fingerprint.
_RULES = 1
TOKENIZER_FILE = "tokenizer.json"
# What config.json of an exported folder may say besides: how many tokens of a pair are read, whether documents are read
# without what they say twice, and the sha256 of the tokeniser, where that is not in the folder because it is the one of
# the package's encoder.
MAX_TOKENS_KEY, SHORT_KEY, TOKENIZER_KEY = "max_tokens", "short_documents", "tokenizer_sha256"
_USUAL_TOKENS = 256
_GRAPHS = ("model.onnx", "onnx/model.onnx", "model*.onnx", "onnx/model*.onnx")
_TYPES: Mapping[str, type[Any]] = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
# Families whose positions begin after that of the padding token.
_SHIFTED = ("roberta", "xlm-roberta", "camembert", "xlm-roberta-xl", "longformer")
_FEWEST_TOKENS = 16
_LONGEST = 1_000_000  # tokenisers without a limit say 1e30


@dataclass(frozen=True, slots=True)
class CrossEncoderSettings:
    """Settings of a cross-encoder: FOLDER?KEY=VALUE&….

    max_tokens: the most tokens of a pair, special tokens included; never more than the model reads. 0 for as many as
        the folder's config.json says, else 256.
    file: the graph in the folder; "" for model.onnx or onnx/model.onnx, else the first that is named model….onnx.
    """

    max_tokens: int = 0
    file: str = ""


class CrossEncoder(Reranker):
    """Scores pairs on this machine. Each pair is run alone, on all cores, in the order of the documents.

    Alone, because int8 activations are scaled by the largest value in a batch: in a batch, a score would depend on the
    other documents, which the caller may not be allowed to see. Batches are no faster (docs/methods/rerank.md).
    """

    def __init__(self, folder: Path, settings: CrossEncoderSettings | None = None) -> None:
        """Open the folder and score a first pair. Raises BadModel where it is no cross-encoder that can be run."""
        settings = settings or CrossEncoderSettings()
        if settings.max_tokens != 0 and settings.max_tokens < _FEWEST_TOKENS:
            raise BadModel(f"max_tokens of a cross-encoder must be {_FEWEST_TOKENS} or more, got {settings.max_tokens}")
        if not folder.is_dir():
            raise BadModel(
                f"there is no reranker {str(folder)!r:.200}; name a folder with an ONNX cross-encoder, the URL of an "
                "endpoint with ?model=NAME, chat:MODEL, or default"
            )
        self.folder: Path = folder
        self.name = folder.resolve().name
        self._graph = _graph(folder, settings.file)
        config = read_json_object(folder / CONFIG_FILE)
        self._tokenizer_file = _tokenizer_file(folder, config)
        self._tokenizer = _tokenizer(self._tokenizer_file)
        shifted = config.get("model_type") in _SHIFTED
        padding = config.get("pad_token_id")
        self._first_position = (padding if isinstance(padding, int) else 1) + 1 if shifted else 0
        said = config.get(MAX_TOKENS_KEY)
        usual = said if isinstance(said, int) and said >= _FEWEST_TOKENS else _USUAL_TOKENS
        self._short = config.get(SHORT_KEY) is True
        self._limit = min([settings.max_tokens or usual, *_limits(folder, config, self._first_position)])
        self._session = _session(self._graph)
        self._types = {one.name: _dtype(self._graph, one) for one in self._session.get_inputs()}
        names = [one.name for one in self._session.get_outputs()]
        self._output = "logits" if "logits" in names else names[0]
        self._score_pair("a request", "a document")

    @cached_property
    def fingerprint(self) -> str:  # type: ignore[override]
        """A digest of graph, tokeniser and limit."""
        digests = []
        for path in (self._graph, self._tokenizer_file):
            with path.open("rb") as file:
                digests.append(hashlib.file_digest(file, "sha256").hexdigest())
        rules = [_RULES, SHORT_KEY] if self._short else [_RULES]
        return hashlib.sha256(json.dumps([*rules, *digests, self._limit]).encode()).hexdigest()[:32]

    @cached_property
    def parameters(self) -> int:  # type: ignore[override]
        """The number of weights in the graph; 0 where the file does not say."""
        try:
            return read_weights(self._graph).parameters
        except BadModel:  # it was replaced after it was opened
            return 0

    def score(self, request: str, documents: Sequence[str], deadline: float = math.inf) -> list[float | None]:
        """The logit of each pair; pairs that were not done by the deadline have none."""
        scores: list[float | None] = [None] * len(documents)
        waiting = deque(range(len(documents)))

        def work() -> None:
            while time.monotonic() < deadline:
                try:
                    place = waiting.popleft()
                except IndexError:
                    return
                scores[place] = self._score_pair(request, documents[place])

        def work_on_all_cores() -> None:
            helpers = [WORKER_THREADS.submit(work) for _ in range(min(available_cores(), len(documents)) - 1)]
            work()
            for helper in helpers:
                helper.result()

        run_until(deadline, work_on_all_cores)
        return list(scores)  # a copy: pairs that were begun may still end

    def _score_pair(self, request: str, document: str) -> float:
        try:
            outputs = self._session.run([self._output], self._feed(request, document))
        except Exception as error:  # the runtime's exceptions share no narrower base
            raise BadModel(f"the cross-encoder {self.name} cannot be run: {error}") from None
        logits: NDArray[Any] = np.asarray(outputs[0], dtype=np.float64)
        if logits.shape not in ((1,), (1, 1), (1, 2)):
            raise BadModel(
                f"the cross-encoder {self.name} gives numbers of shape {logits.shape} for one pair; a reranker gives "
                "one score, or two logits (irrelevant, relevant)"
            )
        flat = logits.reshape(-1)
        return float(flat[0] if len(flat) == 1 else flat[1] - flat[0])

    def _feed(self, request: str, document: str) -> dict[str, NDArray[Any]]:
        """The inputs of one pair, as the graph declares them."""
        document = without_repeats(document) if self._short else document
        most = self._limit * CHARS_PER_TOKEN
        # Lone surrogates are replaced, because the tokeniser would refuse the whole text.
        first, second = (text[:most].encode(errors="replace").decode() for text in (request, document))
        encoded: Encoding = self._tokenizer.encode(first, second)
        kept = _kept(encoded.sequence_ids, self._limit)
        values = {
            "input_ids": np.array(encoded.ids)[kept],
            "attention_mask": np.ones(len(kept)),
            "token_type_ids": np.array(encoded.type_ids)[kept],
            "position_ids": self._first_position + np.arange(len(kept)),
        }
        return {name: values[name][np.newaxis].astype(kind) for name, kind in self._types.items()}


def _kept(sequences: Sequence[int | None], limit: int) -> list[int]:
    """The tokens of a pair that are read: special ones, at most half of the limit of the request, then the document."""
    kept: list[int] = []
    left = {0: limit // 2, 1: 0}
    special = sum(one is None for one in sequences)
    left[1] = limit - special - min(limit // 2, sum(one == 0 for one in sequences))
    for place, one in enumerate(sequences):
        if one is not None:
            if left[one] <= 0:
                continue
            left[one] -= 1
        kept.append(place)
    return kept


def _graph(folder: Path, file: str) -> Path:
    """The graph of a folder; raises BadModel where there is none, or where the file that is named is not in it."""
    if file:
        path = folder / file
        if not path.is_file() or not path.resolve().is_relative_to(folder.resolve()):
            raise BadModel(f"{folder} holds no file {file!r:.80}; name one of its .onnx files")
        return path
    for pattern in _GRAPHS:
        if found := sorted(folder.glob(pattern)):
            return found[0]
    raise BadModel(f"{folder} holds no model.onnx or onnx/model.onnx; name a folder with an ONNX cross-encoder")


def _tokenizer_file(folder: Path, config: Mapping[str, Any]) -> Path:
    """The tokeniser of a folder: its own, or that of the package's encoder where config.json has its digest."""
    path, digest = folder / TOKENIZER_FILE, config.get(TOKENIZER_KEY)
    if path.is_file():
        return path
    if digest is None:
        raise BadModel(f"{folder} holds no {TOKENIZER_FILE}; save the model's fast tokeniser beside its graph")
    shared = package_folder() / TOKENIZER_FILE
    if not shared.is_file() or hashlib.sha256(shared.read_bytes()).hexdigest() != digest:
        raise BadModel(
            f"{folder} was exported for another tokeniser than that of this package's encoder; put its "
            f"{TOKENIZER_FILE} beside its graph"
        )
    return shared


def _tokenizer(path: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library knows no narrower one
        raise BadModel(f"{path} cannot be read ({error}); get the folder again") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _limits(folder: Path, config: Mapping[str, Any], first_position: int) -> list[int]:
    """How many tokens the model and its tokeniser read, as far as their files say."""
    positions = config.get("max_position_embeddings")
    said = read_json_object(folder / "tokenizer_config.json").get("model_max_length")
    found = [positions - first_position if isinstance(positions, int) else None, said]
    return [limit for limit in found if isinstance(limit, int) and _FEWEST_TOKENS <= limit < _LONGEST]


def _session(graph: Path) -> ort.InferenceSession:
    # One thread: the run stays in the thread that calls it, and several threads share the session.
    try:
        return ort.InferenceSession(str(graph), session_options(1), providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime's exceptions share no narrower base
        raise BadModel(f"{graph} cannot be run: {error}; get the file again") from None


def _dtype(graph: Path, declared: Any) -> type[Any]:
    """The numpy type of an input; raises BadModel for an input that nothing is known of."""
    if declared.name not in _INPUTS or declared.type not in _TYPES:
        raise BadModel(
            f"{graph} wants an input {declared.name!r:.80} of {declared.type}; a cross-encoder has whole numbers as "
            f"{', '.join(_INPUTS)}: export it again with these names"
        )
    return _TYPES[declared.type]
