"""Reads how a Hugging Face folder makes sentence vectors: the configuration files of sentence-transformers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toolscout.errors import BadModel
from toolscout.models.encoders.settings import EncoderSettings, Pooling

CONFIG_FILE = "config.json"
# Where sentence-transformers puts the files of a static encoder.
STATIC_FOLDER = "0_StaticEmbedding"
_MODULES = ("Transformer", "StaticEmbedding", "Pooling", "Dense", "LayerNorm", "Dropout", "Normalize")
# What the prompt before a request or a document is called in the configuration, the first that is there.
_REQUEST = ("query", "search_query", "retrieval.query", "s2p_query")
_DOCUMENT = ("document", "passage", "corpus", "search_document", "retrieval.passage")
# What the length of a token's vector is called in the configuration of the pooling.
_WIDTHS = ("embedding_dimension", "word_embedding_dimension")
# Networks whose first positions belong to padding.
_SHIFTED = ("roberta", "xlm-roberta", "camembert", "mpnet")
# Families whose model cards ask for prompts that their configuration does not have, by the name of the folder.
_KNOWN_PROMPTS = (
    (re.compile(r"(^|[-_])e5([-_]|$)(?!.*instruct)", re.IGNORECASE), "query: ", "passage: "),
    (re.compile(r"nomic-embed-text", re.IGNORECASE), "search_query: ", "search_document: "),
)


@dataclass(frozen=True, slots=True)
class SentenceConfig:
    """How token vectors become the vector of a text.

    pooling: the mean of the token vectors, the first one (cls), or the last one.
    request_prompt, document_prompt: what is put before a text.
    max_tokens: how many tokens of a text the model reads; None where the files do not say.
    dimensions: how many numbers of a vector are used; None for all.
    token_dimension, sentence_dimension: the length of a token's and of a text's vector; None where no file says it.
    first_position: the number of the first token's position.
    lowercase: whether a text is put into lower case before it is tokenised.
    dense: folders of the layers that follow the pooling, in order.
    """

    pooling: Pooling = "mean"
    request_prompt: str = ""
    document_prompt: str = ""
    max_tokens: int | None = None
    dimensions: int | None = None
    token_dimension: int | None = None
    sentence_dimension: int | None = None
    first_position: int = 0
    lowercase: bool = False
    dense: tuple[Path, ...] = ()

    def with_settings(self, settings: EncoderSettings) -> SentenceConfig:
        """The same with what a user set instead."""
        keys = ("pooling", "request_prompt", "document_prompt", "dimensions")
        return replace(self, **{key: value for key, value in settings.given().items() if key in keys})


def read_sentence_config(folder: Path) -> SentenceConfig:
    """Read the configuration of a folder; without its files, the mean of the token vectors and no prompts.

    Raises BadModel for a file that is malformed, and for a module or pooling that is not supported.
    """
    pooling_folder, dense = folder / "1_Pooling", []
    for module in _read_json(folder / "modules.json", list):
        kind, path = str(module.get("type")).rpartition(".")[2], folder / str(module.get("path", ""))
        if kind not in _MODULES:
            raise BadModel(f"{folder}: a module of type {kind} is not supported, only: {', '.join(_MODULES)}")
        if ".." in path.parts[len(folder.parts) :] or not path.is_relative_to(folder):
            raise BadModel(f"{folder / 'modules.json'} names a folder outside of its own; get the folder again")
        if kind == "Pooling":
            pooling_folder = path
        elif kind in ("Dense", "LayerNorm"):
            dense.append(path)
    sentence = _read_json(folder / "config_sentence_transformers.json", dict)
    transformer = _read_json(folder / "sentence_bert_config.json", dict)
    network, pooling = _read_json(folder / CONFIG_FILE, dict), _read_json(pooling_folder / CONFIG_FILE, dict)
    request, document = _prompts(folder, sentence)
    if (request or document) and pooling.get("include_prompt") is False:
        raise BadModel(f"{pooling_folder / CONFIG_FILE}: pooling without the prompt's tokens is not supported")
    width = next(filter(None, (_number(pooling.get(key)) for key in _WIDTHS)), None)
    behind = _read_json(dense[-1] / CONFIG_FILE, dict) if dense else {"out_features": width}
    shift = 2 if network.get("model_type") in _SHIFTED else 0
    return SentenceConfig(
        pooling=_pooling(pooling_folder / CONFIG_FILE, pooling),
        request_prompt=request,
        document_prompt=document,
        max_tokens=_max_tokens(folder, transformer, network, shift),
        dimensions=_number(sentence.get("truncate_dim")),
        token_dimension=width or _number(network.get("hidden_size")),
        sentence_dimension=_number(behind.get("out_features", behind.get("dimension"))),
        first_position=shift,
        lowercase=transformer.get("do_lower_case") is True,
        dense=tuple(dense),
    )


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file, empty where there is no file; raises BadModel where it holds something else."""
    found: dict[str, Any] = _read_json(path, dict)
    return found


def _read_json(path: Path, kind: type[Any]) -> Any:
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return kind()
    except (OSError, ValueError, RecursionError) as error:
        raise BadModel(f"{path} is not readable JSON ({error}); get the folder again") from None
    if not isinstance(found, kind) or (kind is list and not all(isinstance(one, dict) for one in found)):
        raise BadModel(f"{path} does not hold what sentence-transformers writes there; get the folder again")
    return found


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _max_tokens(folder: Path, transformer: Mapping[str, Any], network: Mapping[str, Any], shift: int) -> int | None:
    """How many tokens the model reads: what sentence-transformers or else the tokeniser says, at most its positions."""
    said = transformer.get("max_seq_length") or _read_json(folder / "tokenizer_config.json", dict).get(
        "model_max_length"
    )
    # Tokenisers without a limit say 1e30; networks with relative positions say -1.
    said = said if _number(said) and 3 <= said < 1_000_000 else None
    positions = _number(network.get("max_position_embeddings")) or _number(network.get("n_positions"))
    limits = [limit for limit in (said, positions and positions - shift) if limit]
    return min(limits, default=None)


def _pooling(path: Path, config: Mapping[str, Any]) -> Pooling:
    flags = {key for key, value in config.items() if key.startswith("pooling_mode_") and value is True}
    modes = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "last"}
    names = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
    found: list[Any] = [modes.get(flag) for flag in flags] or [names.get(str(config.get("pooling_mode", "mean")))]
    if len(found) != 1 or found[0] is None:
        wrong = ", ".join(sorted(flags)) or config.get("pooling_mode")
        raise BadModel(f"{path}: the pooling {wrong} is not supported, only: mean, cls, lasttoken")
    pooling: Pooling = found[0]
    return pooling


def _prompts(folder: Path, sentence: Mapping[str, Any]) -> tuple[str, str]:
    """The prompts of requests and documents: by the configuration, else those that a known family asks for."""
    prompts, default = sentence.get("prompts"), sentence.get("default_prompt_name")
    given: Mapping[str, Any] = prompts if isinstance(prompts, dict) else {}
    keys = [(*names, default) for names in (_REQUEST, _DOCUMENT)]
    found = [next((given[key] for key in names if key in given), "") for names in keys]
    if not all(isinstance(prompt, str) for prompt in found):
        raise BadModel(f"{folder / 'config_sentence_transformers.json'}: a prompt is a text; get the folder again")
    if any(found):
        return found[0], found[1]
    known = (pair for name, *pair in _KNOWN_PROMPTS if name.search(folder_name(folder)))
    request, document = next(known, ("", ""))
    return request, document


def folder_name(folder: Path) -> str:
    """The name of a model by its folder; in the cache of the Hugging Face hub, that of the repository."""
    folder = folder.resolve()
    if folder.parent.name == "snapshots" and folder.parent.parent.name.startswith("models--"):
        return folder.parent.parent.name.rpartition("--")[2]
    return folder.name
