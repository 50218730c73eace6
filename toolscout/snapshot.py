"""Keeps a built index beside its store, so that opening a large catalogue does not build it again.

An index is derived: where a snapshot is missing, damaged, of another store or of another version of the package, the
index is built from the store. Only ids that a model gave to tools depend on what came before: those are kept whatever
the size, so that they stay the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

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


def worth(tools: int, changed: int) -> bool:
    """Whether an index of so many tools, so many of them changed since it was kept, is kept anew."""
    return tools >= WORTH_KEEPING and changed >= WORTH_RENEWING * tools


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


@runtime_checkable
class GivesIds(Protocol):
    """A retriever that gives tools ids of its own."""

    @property
    def ids_version(self) -> int:
        """Another number whenever a tool got an id or lost it."""

    def given_ids(self) -> dict[str, tuple[int, ...]]:
        """The ids of tools that came after its training."""

    def recall_ids(self, ids: Mapping[str, tuple[int, ...]]) -> None:
        """Keep these for tools that will come again; what does not fit, or is taken, is left out."""


class Given:
    """The ids that a model gave to tools of a store; opened again, it gives them the same.

    A tool whose document is another one by now gets an id anew, as one would that came while the model was open.
    """

    def __init__(self, store: Store, store_path: Path, model: Path, retriever: Retriever) -> None:
        """Have the model recall what it gave before."""
        made = hashlib.blake2b(digest_size=16)
        for path in sorted(model.rglob("model.json")):  # a hybrid's parts have one each
            made.update(path.read_bytes())
        self._file = folder(store_path, "ids") / f"{made.hexdigest()}.json"
        self._parts = [part for part in _parts(retriever) if isinstance(part, GivesIds)]
        self._digests: dict[str, str] = {}
        self._versions: list[int] = []
        self._kept = ""
        if not self._parts or not self._file.is_file():
            return
        now = {one.id: one.digest() for _, one in store.documents(0) if one is not None}
        with suppress(OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            text = self._file.read_text()
            for part, ids in zip(self._parts, json.loads(text), strict=True):
                part.recall_ids(
                    {key: tuple(map(int, own)) for key, (digest, *own) in ids.items() if now.get(key) == digest}
                )
            self._kept = text

    def saw(self, ids: Iterable[str], digests: Iterable[str]) -> None:
        """The documents of tools that came."""
        if self._parts:
            self._digests.update(zip(ids, digests, strict=True))

    def keep(self) -> None:
        """Write them down where any changed."""
        versions = [part.ids_version for part in self._parts]
        if versions == self._versions:
            return
        self._versions = versions
        ids = [
            {key: [self._digests.get(key, ""), *own] for key, own in part.given_ids().items()} for part in self._parts
        ]
        text = json.dumps(ids)
        if text == self._kept or not (any(ids) or self._kept):
            return
        with suppress(OSError):  # as an index: where it cannot be kept it is built again
            self._file.parent.mkdir(parents=True, exist_ok=True)
            beside = self._file.with_name(f"{self._file.name}.{os.getpid()}.{threading.get_ident()}")
            beside.write_text(text)
            beside.replace(self._file)
            self._kept = text


def _parts(retriever: Retriever) -> Iterator[Retriever]:
    yield retriever
    for part in getattr(retriever, "parts", ()):
        yield from _parts(part)
