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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from toolscout.core.tool import DOCUMENT_VERSION
from toolscout.errors import BadModel
from toolscout.retrievers.base import Retriever
from toolscout.retrievers.registry import load_model
from toolscout.stores.base import Store

# Below this many tools, building is quicker than reading and not worth the disk.
WORTH_KEEPING = 2_000
# A kept index follows the changes since in no time while they are no more than this share of it.
WORTH_RENEWING = 0.02
_POINTER = "current.json"
# Lines of ids that may be out of date before they are written anew.
_LINES_LEFT = 1_000
_Key = tuple[int, str]
"""Which part of the retriever, and a tool."""
_Id = tuple[str, tuple[int, ...]]
"""The digest of the tool's document, and the id that it got."""


@dataclass(frozen=True, slots=True)
class SnapshotState:
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


def read(folder: Path, store: Store) -> tuple[Retriever, SnapshotState] | None:
    """The newest snapshot of a store and what it holds; None where there is none that fits.

    A snapshot of a later version than the store's, or that learned feedback which the store has not, is one of a copy
    that went on: a backup was restored since.
    """
    try:
        pointer = json.loads((folder / _POINTER).read_text())
        state = SnapshotState(**pointer["state"])
        if (state.store, state.document_version) != (store.identity(), DOCUMENT_VERSION):
            return None
        if state.version > store.version() or (state.feedback and not _has_feedback(store, state.feedback)):
            return None
        return load_model(folder / pointer["folder"]), state
    except (OSError, ValueError, KeyError, TypeError, EOFError, BadModel):
        return None


def write(folder: Path, retriever: Retriever, state: SnapshotState) -> None:
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


class AssignedIds:
    """The ids that a model gave to tools of a store; opened again, it gives them the same.

    A tool whose document is another one by now gets an id anew, as one would that came while the model was open. What
    changes is added as a line, so that a change costs the same whatever was given before. Processes that share a
    catalogue add to each other's, and take what another has given; the last line of a tool counts.
    """

    def __init__(self, store: Store, store_path: Path, model: Path, retriever: Retriever) -> None:
        """Have the model recall what it gave before."""
        made = hashlib.blake2b(digest_size=16)
        for path in sorted(model.rglob("model.json")):  # a hybrid's parts have one each
            made.update(path.read_bytes())
        self._file = folder(store_path, "ids") / f"{made.hexdigest()}.jsonl"
        self._parts = [part for part in _parts(retriever) if part.gives_ids]
        self._digests: dict[str, str] = {}
        self._versions: list[int] = []
        self._kept: dict[_Key, _Id] = {}
        self._own: set[_Key] = set()
        self._inode, self._read = -1, 0
        if not self._parts or not (self._file.is_file() or self._taken_over()):
            return
        lines = self._news()
        now = {one.id: one.digest() for _, one in store.documents(0) if one is not None}
        self._kept = {key: own for key, own in self._kept.items() if now.get(key[1]) == own[0]}
        self._recall(self._kept, now)
        if lines > 2 * len(self._kept) + _LINES_LEFT:
            self._write_anew()

    def saw(self, ids: Sequence[str], digests: Sequence[str]) -> None:
        """The documents of tools that came; what another process has given them meanwhile is theirs."""
        if not self._parts:
            return
        self._digests.update(zip(ids, digests, strict=True))
        self._news()
        keys = {(place, key) for place in range(len(self._parts)) for key in ids} & self._kept.keys()
        self._recall({key: self._kept[key] for key in keys - self._own}, self._digests)

    def keep(self) -> None:
        """Write down what changed."""
        versions = [part.ids_version for part in self._parts]
        if versions == self._versions:
            return
        self._versions = versions
        given = {
            (place, key): (self._digests.get(key, ""), own)
            for place, part in enumerate(self._parts)
            for key, own in part.given_ids().items()
        }
        changed: dict[_Key, _Id | None] = {key: own for key, own in given.items() if self._kept.get(key) != own}
        # What another process has given is not gone because this one never had it.
        changed |= dict.fromkeys(sorted(self._own - given.keys()))
        with suppress(OSError):  # as an index: where it cannot be kept it is built again
            if changed:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                with self._file.open("ab") as opened:
                    opened.write("".join(_line(key, own) for key, own in changed.items()).encode())
            for key in self._own - given.keys():
                self._kept.pop(key, None)
            self._kept |= given
            self._own = set(given)

    def _news(self) -> int:
        """Take in the lines since the last look; how many there were."""
        with suppress(OSError), self._file.open("rb") as opened:
            inode = os.fstat(opened.fileno()).st_ino
            if inode != self._inode:
                self._inode, self._read = inode, 0
            opened.seek(self._read)
            lines = opened.read().split(b"\n")
            self._read = opened.tell() - len(lines[-1])  # that one may not be written to its end
            for key, own in filter(None, map(_said, lines)):
                if own is None:
                    self._kept.pop(key, None)
                else:
                    self._kept[key] = own
            return len(lines)
        return 0

    def _recall(self, ids: Mapping[_Key, _Id], now: Mapping[str, str]) -> None:
        for place, part in enumerate(self._parts):
            own = {key: own for (whose, key), (digest, own) in ids.items() if whose == place and now[key] == digest}
            if own:
                part.recall_ids(own)

    def _taken_over(self) -> bool:
        """Whether there is a file of the kind that was written whole, which becomes one of lines."""
        old = self._file.with_suffix(".json")
        with suppress(OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            for place, ids in enumerate(json.loads(old.read_text())):
                for key, (digest, *own) in ids.items():
                    self._kept[place, str(key)] = str(digest), tuple(map(int, own))
            self._write_anew()
            old.unlink()
        return self._file.is_file()

    def _write_anew(self) -> None:
        beside = self._file.with_name(f"{self._file.name}.{os.getpid()}.{threading.get_ident()}")
        with suppress(OSError):
            beside.write_text("".join(_line(key, own) for key, own in self._kept.items()))
            beside.replace(self._file)


def _line(key: _Key, own: _Id | None) -> str:
    """What a tool has, or that it has nothing any more; begins a line of its own, whatever a crash left before it."""
    return "\n" + json.dumps([*key, own[0], *own[1]] if own else [*key])


def _said(line: bytes) -> tuple[_Key, _Id | None] | None:
    """What a line says of a tool; None where it says nothing."""
    try:
        place, key, *own = json.loads(line)
        return (int(place), str(key)), (str(own[0]), tuple(map(int, own[1:]))) if own else None
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None


def _parts(retriever: Retriever) -> Iterator[Retriever]:
    yield retriever
    for part in retriever.parts:
        yield from _parts(part)
