"""Reads and writes the files that every model folder has: model.json, and the list of tools new to the model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from toolscout.core.model_files import malformed, of_another_kind
from toolscout.errors import BadModel
from toolscout.retrievers.base import Options, Retriever
from toolscout.retrievers.provenance import TrainedOn

MODEL_FILE = "model.json"
FORMAT = 1
_NEW_FILE = "new.json"
# Old names of options: model folders and rows of results that were written with them still hold these.
RENAMED_OPTIONS = {
    "begin": "init_from",
    "held": "held_out_share",
    "kin": "neighbour_weight",
    "own": "self_queries",
    "through": "train_encoder",
}

OptionsT = TypeVar("OptionsT", bound=Options)


def write_new(folder: Path, ids: Iterable[str]) -> None:
    """Write the ids of the indexed tools that are new to the model: training has not seen them."""
    (folder / _NEW_FILE).write_text(json.dumps(sorted(ids)))


def read_new(folder: Path) -> set[str]:
    """Read the ids that write_new wrote. Raises BadModel where the file cannot be read."""
    try:
        return set(json.loads((folder / _NEW_FILE).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise BadModel(f"the index in {folder} cannot be read ({error}); build it again") from None


def write_model(folder: Path, retriever: Retriever, parts: Mapping[str, str] | None = None, **extra: Any) -> None:
    """Write model.json: the method, its options, its parts (folders inside this one) and its fit record, if any.

    `extra`: further fields; one that model.json has anyway is replaced.
    """
    folder.mkdir(parents=True, exist_ok=True)
    record = {"format": FORMAT, "method": retriever.name, "options": asdict(retriever.options)}
    record |= {"fit": retriever.fit_record} if retriever.fit_record else {}
    record |= {"parts": dict(parts or {}), **extra}
    (folder / MODEL_FILE).write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")


def read_model(folder: Path) -> dict[str, Any]:
    """Read and check model.json. Raises BadModel where it is missing, damaged or of another format version."""
    path = folder / MODEL_FILE
    try:
        record: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise BadModel(f"{folder} is not a model folder: it has no {MODEL_FILE}") from None
    except (OSError, ValueError) as error:
        raise BadModel(f"{path} cannot be read ({error}); write the model again") from None
    if wrong := malformed(record):
        raise BadModel(f"{path} {wrong}; write the model again")
    if record.get("format") != FORMAT:
        raise BadModel(f"{path} has format {record.get('format')!r}, this version reads {FORMAT}; upgrade toolscout")
    return record


def read_options(kind: type[OptionsT], record: Mapping[str, Any]) -> OptionsT:
    """Take the options of type `kind` out of a model.json; options that were renamed are known by both names.

    Raises BadModel for options that the type does not have, or whose value is of another type.
    """
    known = {field.name for field in fields(kind)}
    saved = {
        name if name in known else RENAMED_OPTIONS.get(name, name): value
        for name, value in record.get("options", {}).items()
    }
    unknown = set(saved) - known
    if unknown:
        raise BadModel(f"options that this version does not know: {', '.join(sorted(unknown))}; upgrade toolscout")
    if wrong := of_another_kind(kind, saved):
        raise BadModel(f"the model has an option of the wrong kind ({', '.join(wrong)}); write the model again")
    return kind(**saved)


def trained_on(folder: Path) -> TrainedOn:
    """Read what a saved model and its parts have seen in training; an empty TrainedOn where they were not trained."""
    seen = TrainedOn.load(folder)
    for part in read_model(folder).get("parts", {}):
        seen |= trained_on(folder / part)
    return seen
