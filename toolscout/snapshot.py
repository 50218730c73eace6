"""Keeps a built index beside its store, so that opening a large catalogue does not build it again.

An index is derived: where a snapshot is missing, damaged, of another store or of another version of the package, the
index is built from the store.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from toolscout.errors import BadModel
from toolscout.retrievers.base import Retriever, load_model
from toolscout.stores.base import Store
from toolscout.tool import DOCUMENT_VERSION

# Below this many tools, building is quicker than reading and not worth the disk.
WORTH_KEEPING = 2_000
# A kept index follows the changes since in no time while they are no more than this share of it.
WORTH_RENEWING = 0.02
_POINTER = "current.json"


@dataclass(frozen=True, slots=True)
class State:
    """Which state of which store an index holds."""

    store: str
    version: int
    cursor: int
    feedback: int = 0
    document_version: int = DOCUMENT_VERSION


def folder(store_path: Path, retriever: str) -> Path:
    """Where the snapshots of one retriever over one store lie."""
    return store_path.with_name(store_path.name + ".index") / retriever


def read(folder: Path, store: Store) -> tuple[Retriever, State] | None:
    """The newest snapshot of a store and what it holds; None where there is none that fits.

    A snapshot of a later version than the store's, or that learned feedback which the store has not, is one of a copy
    that went on: a backup was restored since.
    """
    try:
        pointer = json.loads((folder / _POINTER).read_text())
        state = State(**pointer["state"])
        if (state.store, state.document_version) != (store.identity(), DOCUMENT_VERSION):
            return None
        if state.version > store.version() or (state.feedback and not _has_feedback(store, state.feedback)):
            return None
        return load_model(folder / pointer["folder"]), state
    except (OSError, ValueError, KeyError, TypeError, BadModel):
        return None


def write(folder: Path, retriever: Retriever, state: State) -> None:
    """Save the index into a new folder, point to it in one atomic step, and drop the older ones."""
    folder.mkdir(parents=True, exist_ok=True)
    target = Path(tempfile.mkdtemp(prefix=f"{state.version}-", dir=folder))
    try:
        retriever.save(target)
        pointer = folder / f"{_POINTER}.{os.getpid()}"
        pointer.write_text(json.dumps({"folder": target.name, "state": asdict(state)}))
        pointer.replace(folder / _POINTER)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    for other in folder.iterdir():
        if other.is_dir() and other != target:
            shutil.rmtree(other, ignore_errors=True)


def _has_feedback(store: Store, number: int) -> bool:
    return next((found for found, _ in store.feedback(number - 1)), None) == number
