"""Reads how a Hugging Face folder makes sentence vectors: the configuration files of sentence-transformers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolscout.errors import BadModel
from toolscout.models.encoders.settings import Pooling

CONFIG_FILE = "config.json"
_MODULES = ("Transformer", "Pooling", "Dense", "Normalize")
# What the prompt before a request or a document is called in the configuration, the first that is there.
_REQUEST, _DOCUMENT = ("query", "search_query", "retrieval.query"), ("document", "passage", "corpus", "search_document")
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
    dense: folders of linear layers that follow the pooling, in order.
    """

    pooling: Pooling = "mean"
    request_prompt: str = ""
    document_prompt: str = ""
    max_tokens: int | None = None
    dimensions: int | None = None
    dense: tuple[Path, ...] = ()


def read_sentence_config(folder: Path) -> SentenceConfig:
    """Read the configuration of a folder; without its files, the mean of the token vectors and no prompts.

    Raises BadModel for a file that is malformed, and for a module or pooling that is not supported.
    """
    pooling_folder, dense = folder / "1_Pooling", []
    for module in _read_json(folder / "modules.json", list):
        kind, path = str(module.get("type")).rpartition(".")[2], folder / str(module.get("path", ""))
        if kind not in _MODULES:
            raise BadModel(f"{folder}: a module of type {kind} is not supported, only: {', '.join(_MODULES)}")
        if kind == "Pooling":
            pooling_folder = path
        elif kind == "Dense":
            dense.append(path)
    sentence = _read_json(folder / "config_sentence_transformers.json", dict)
    request, document = _prompts(folder, sentence.get("prompts"))
    limits = (
        _read_json(folder / "sentence_bert_config.json", dict).get("max_seq_length"),
        _read_json(folder / "tokenizer_config.json", dict).get("model_max_length"),
    )
    return SentenceConfig(
        pooling=_pooling(pooling_folder / CONFIG_FILE),
        request_prompt=request,
        document_prompt=document,
        # Tokenisers without a limit say 1e30.
        max_tokens=next((limit for limit in limits if isinstance(limit, int) and 3 <= limit < 1_000_000), None),
        dimensions=sentence["truncate_dim"] if isinstance(sentence.get("truncate_dim"), int) else None,
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


def _pooling(path: Path) -> Pooling:
    config = _read_json(path, dict)
    flags = {key for key, value in config.items() if key.startswith("pooling_mode_") and value is True}
    modes = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "last"}
    names = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
    found: list[Any] = [modes.get(flag) for flag in flags] or [names.get(str(config.get("pooling_mode", "mean")))]
    if len(found) != 1 or found[0] is None:
        wrong = ", ".join(sorted(flags)) or config.get("pooling_mode")
        raise BadModel(f"{path}: the pooling {wrong} is not supported, only: mean, cls, lasttoken")
    pooling: Pooling = found[0]
    return pooling


def _prompts(folder: Path, prompts: Any) -> tuple[str, str]:
    """The prompts of requests and documents: by the configuration, else those that a known family asks for."""
    given: Mapping[str, Any] = prompts if isinstance(prompts, dict) else {}
    found = [next((given[key] for key in keys if key in given), "") for keys in (_REQUEST, _DOCUMENT)]
    if not all(isinstance(prompt, str) for prompt in found):
        raise BadModel(f"{folder / 'config_sentence_transformers.json'}: a prompt is a text; get the folder again")
    if any(found):
        return found[0], found[1]
    known = (pair for name, *pair in _KNOWN_PROMPTS if name.search(folder.resolve().name))
    request, document = next(known, ("", ""))
    return request, document
