"""Encoders of any architecture in Hugging Face folders with ONNX files, which say how their vectors are made."""

from __future__ import annotations

import platform
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from tokenizers.normalizers import Lowercase

from toolscout.core.arrays import Floats
from toolscout.errors import BadModel, BadVector
from toolscout.models.encoders.dense_layers import DENSE_FILE, read_dense
from toolscout.models.encoders.file_digests import file_digest, fingerprint
from toolscout.models.encoders.local import REQUEST_THREADS, LocalEncoder, readable, unit
from toolscout.models.encoders.onnx_encoder import TOKENIZER_FILE, LoadedModel
from toolscout.models.encoders.onnx_file import read_weights
from toolscout.models.encoders.sentence_config import SentenceConfig, folder_name, read_sentence_config
from toolscout.models.encoders.settings import EncoderSettings, encoders_folder, token_limits
from toolscout.models.onnx_runtime import available_cores

# The version of how this file feeds a text to a model and pools it; part of every fingerprint.
_RULES = 1
_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
_DTYPES = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
_READY, _TOKENS = "sentence_embedding", ("last_hidden_state", "token_embeddings")
_NO_VECTORS = ("logits",)  # of a classifier, or of a model that fills masks
_PROBE = "Does it run?"
# Quantised for one kind of CPU: the mark in a file's name, and the feature that the CPU must have.
_FOR_CPU = (("avx512_vnni", "avx512_vnni"), ("avx512", "avx512f"), ("avx2", "avx2"), ("arm64", "arm64"))
# Then those for any CPU: quantised, in full precision, and all others (half precision, 4 bits), which are slower.
_FOR_ALL = ("model_quantized", "model_int8", "model_uint8", "model_quint8", "model_qint8", "model", "model_optimized")


class _Output(NamedTuple):
    """The output of a graph that is read: its name, and whether it is the vector of the text already."""

    name: str
    ready: bool


class HfOnnxEncoder(LocalEncoder):
    """An encoder that is published as an ONNX file. Safe to use from several threads at once.

    The graph gives a sentence vector (`sentence_embedding`), or token vectors that are pooled as the folder's files
    say. All encoders of one folder in a process share its tokeniser and sessions.
    """

    kind = "onnx"

    def __init__(
        self, folder: Path, file: str, model: LoadedModel, config: SentenceConfig, pooled: bool, threads: int
    ) -> None:
        """Use `load` instead. `pooled`: token vectors are pooled even where the graph gives a sentence vector."""
        self.folder: Path = folder
        self.name = folder_name(folder)
        self.threads = threads
        self.request_prompt, self.document_prompt = config.request_prompt, config.document_prompt
        self.file, self._model, self._config, self._tokenizer = file, model, config, model.tokenizer
        session = model.session(min(threads, REQUEST_THREADS))
        self._inputs = _inputs(folder / file, session.get_inputs())
        self._output = _output(folder / file, session.get_outputs(), pooled)
        self.pooling = "by the model" if self._output.ready else config.pooling
        self._dense = () if self._output.ready else tuple(map(read_dense, config.dense))

    @classmethod
    def load(cls, folder: Path, threads: int | None = None, settings: EncoderSettings | None = None) -> Self:
        """Open a folder with onnx/model*.onnx or model*.onnx and tokenizer.json, and encode a text with it.

        `threads` is the number of cores to use, by default all; `settings` replace what the folder's files say.
        Raises BadModel where the folder is not complete, or the model cannot be run or gives no vectors.
        """
        settings = settings or EncoderSettings()
        if settings.request_file:
            raise BadModel(f"{folder} was not exported by toolscout: name one network as `file`, no `request_file`")
        config = read_sentence_config(folder).with_settings(settings)
        file = choose_file(folder, settings.file)
        if not (folder / TOKENIZER_FILE).is_file():
            raise BadModel(f"{folder} has no {TOKENIZER_FILE}; get the one that was published with the model")
        weights = read_weights(folder / file)
        names = [file, *(str(Path(file).parent / place) for place in weights.external), TOKENIZER_FILE]
        digests = {name: _digest(folder / name) for name in names}
        model, pooled = LoadedModel.of(folder, digests, file), settings.pooling is not None
        made = cls(folder, file, model, config, pooled, threads or available_cores())
        made.parameters = weights.parameters
        made.request_tokens, made.document_tokens = token_limits(settings, config.max_tokens, folder)
        made._check_prompts()
        made.dimension = made._probe()
        made.fingerprint = fingerprint("onnx", _RULES, made._depends_on([digests[name] for name in names]))
        return made

    def _probe(self) -> int:
        """Run the first and the last token, and a text; return the length of a vector, or raise BadModel."""
        threads = min(self.threads, REQUEST_THREADS)
        last = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
        self._run([0], threads)
        try:
            self._run([last], threads)
        except BadModel as error:
            raise BadModel(
                f"{self.folder}: {TOKENIZER_FILE} has a token {last} and the model does not; get the {TOKENIZER_FILE} "
                f"that was published with it ({error})"
            ) from error
        try:
            length = len(unit(self._whole_vector(self._tokens(_PROBE, self.request_tokens), threads), self.folder))
        except BadVector as error:
            raise BadModel(str(error)) from None
        if (self._config.dimensions or 0) > length:
            raise BadModel(f"{self.folder} gives {length} numbers a vector, not {self._config.dimensions}")
        return self._config.dimensions or length

    def _depends_on(self, digests: Sequence[str]) -> dict[str, Any]:
        layers = zip(self._config.dense, self._dense, strict=bool(self._dense))
        return {
            "files": digests,
            "output": self._output,
            "pooling": self.pooling,
            "dense": [(_digest(folder / DENSE_FILE), layer.activation) for folder, layer in layers],
            "prompts": (self.request_prompt, self.document_prompt),
            "tokens": (self.request_tokens, self.document_tokens),
            "dimension": self.dimension,
            "lowercase": self._config.lowercase,
        }

    def _tokens(self, text: str, limit: int) -> list[int]:
        if self._config.lowercase:
            text = Lowercase().normalize_str(readable(text, limit))
        # A graph cannot run without tokens: a text that has none is run as the first token of the vocabulary.
        return super()._tokens(text, limit) or [0]

    def _vector_of(self, ids: list[int], threads: int) -> Floats:
        vector = self._whole_vector(ids, threads)
        if len(vector) < self.dimension:
            raise BadModel(f"{self.folder} gave a vector of {len(vector)} numbers, and others have {self.dimension}")
        return unit(vector[: self.dimension], self.folder)

    def _whole_vector(self, ids: list[int], threads: int) -> Floats:
        """The vector of a text before it is cut and scaled; raises BadModel where it is not as the files say."""
        found = self._run(ids, threads)
        wanted = self._config.sentence_dimension if self._output.ready else self._config.token_dimension
        if found.ndim != (2 if self._output.ready else 3) or len(found) != 1 or found.size == 0:
            raise BadModel(
                f"{self.folder / self.file} gave {self._output.name} of the shape {found.shape} for one text"
            )
        if wanted and found.shape[-1] != wanted:
            raise BadModel(
                f"{self.folder / self.file} gives vectors of {found.shape[-1]} numbers, the configuration says "
                f"{wanted}; get all files of one model"
            )
        vector: Floats = found[0].astype(np.float32, copy=False)
        if not self._output.ready:
            vector = {"mean": vector.mean(axis=0), "cls": vector[0], "last": vector[-1]}[self._config.pooling]
        for layer in self._dense:
            if len(vector) != layer.inputs:
                raise BadModel(f"{self.folder}: a Dense module takes {layer.inputs} numbers, not {len(vector)}")
            vector = layer.apply(vector)
        return vector

    def _run(self, ids: list[int], threads: int) -> NDArray[Any]:
        count, first = len(ids), self._config.first_position
        values = {
            "input_ids": ids,
            "attention_mask": np.ones(count),
            "token_type_ids": np.zeros(count),
            "position_ids": np.arange(first, first + count),
        }
        feed = {name: np.array([values[name]], dtype) for name, dtype in self._inputs.items()}
        session = self._model.session(threads)
        try:
            found: NDArray[Any] = session.run([self._output.name], feed)[0]
        except Exception as error:  # the runtime's exceptions share no narrower base
            raise BadModel(f"{self.folder / self.file} cannot be run on a text of {count} tokens: {error}") from error
        return found


def choose_file(folder: Path, wanted: str | None = None, features: Collection[str] | None = None) -> str:
    """The ONNX file of a folder that fits this CPU best, or the one that is wanted, as a path in the folder.

    The order: quantised for this CPU (avx512_vnni, avx512, avx2 or arm64 in its name), quantised for any (_quantized,
    _int8, _uint8), full precision (model.onnx), the others, those for another CPU. `features`: those of the CPU, by
    default of this one. Raises BadModel where there is none, or no telling which.
    """
    found = sorted(
        path.relative_to(folder).as_posix() for place in ("onnx/*.onnx", "*.onnx") for path in folder.glob(place)
    )
    if wanted is not None:
        if wanted not in found:
            raise BadModel(f"{folder} has no {wanted}; its ONNX files: {', '.join(found) or 'none'}")
        return wanted
    models = [name for name in found if Path(name).name.startswith("model")] or found
    if not models or (len(models) > 1 and models == found and not Path(models[0]).name.startswith("model")):
        raise BadModel(
            f"{folder} has no onnx/model.onnx; name one with FOLDER?file=…: {', '.join(found) or 'none here'}"
        )
    known = cpu_features() if features is None else features
    return min(models, key=lambda name: _rank(Path(name).stem, known))


def cpu_features() -> frozenset[str]:
    """What this CPU can do, by the names that the kernel of Linux gives it; elsewhere what all such CPUs can."""
    if platform.machine().lower() in ("arm64", "aarch64"):
        return frozenset({"arm64"})
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset({"avx2"})
    return frozenset(next((line for line in lines if line.startswith("flags")), "").split())


def _rank(stem: str, features: Collection[str]) -> tuple[int, int]:
    for place, (mark, feature) in enumerate(_FOR_CPU):
        if mark in stem:
            return (0, place) if feature in features else (3, place)
    return (1, _FOR_ALL.index(stem)) if stem in _FOR_ALL else (2, 0)


def _inputs(path: Path, declared: Sequence[Any]) -> dict[str, Any]:
    """The inputs of a graph and their types; raises BadModel for one that cannot be given."""
    names = [one.name for one in declared]
    if any(name.startswith("past_key_values") for name in names):
        raise BadModel(f"{path} writes text with a cache (past_key_values); get an export for feature extraction")
    for one in declared:
        if one.name not in _INPUTS or one.type not in _DTYPES:
            raise BadModel(
                f"{path} takes {', '.join(f'{each.name} ({each.type})' for each in declared)}; supported are, as int64 "
                f"or int32: {', '.join(_INPUTS)}"
            )
    if "input_ids" not in names:
        raise BadModel(f"{path} takes no input_ids, only: {', '.join(names) or 'nothing'}")
    return {one.name: _DTYPES[one.type] for one in declared}


def _output(path: Path, declared: Sequence[Any], pooled: bool) -> _Output:
    """The output to read: the sentence vector, else token vectors; raises BadModel where there is neither."""
    ranks = {one.name: len(one.shape or ()) for one in declared if one.name not in _NO_VECTORS}
    tokens = [name for name in _TOKENS if name in ranks] + [name for name, rank in ranks.items() if rank == 3]
    flat = [name for name, rank in ranks.items() if rank == 2]
    if _READY in ranks and not (pooled and tokens):
        flat, tokens = [_READY], []
    if tokens:
        return _Output(tokens[0], ready=False)
    if len(flat) == 1 and not pooled:
        return _Output(flat[0], ready=True)
    raise BadModel(
        f"{path} gives {', '.join(one.name for one in declared)}; wanted: {_READY}, or token vectors as {_TOKENS[0]}"
        + (", which pooling=… pools" if pooled else "")
    )


def _digest(path: Path) -> str:
    try:
        return file_digest(path, encoders_folder())
    except OSError as error:
        raise BadModel(f"{path} cannot be read ({error.strerror}); get the folder again") from error
