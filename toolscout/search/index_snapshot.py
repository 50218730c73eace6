"""Saves a built index beside its store, so that opening a catalogue maps files instead of building the index.

A snapshot can always be replaced: if it is missing, damaged, of another store or of another document version, the index
is built from the store. Only ids that a model assigned to tools depend on history, so they are always saved.

A snapshot is a folder that never changes. A pointer file, replaced atomically, names the newest one. One process at a
time writes, and a folder that another process has open is removed later.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from toolscout.core.tool import DOCUMENT_VERSION
from toolscout.errors import BadModel
from toolscout.models.encoders.base import TextEncoder
from toolscout.retrievers.base import Retriever
from toolscout.retrievers.registry import load_model, method
from toolscout.stores.base import Store

# Below this many tools, building is quicker than reading and not worth the disk.
WORTH_KEEPING = 2_000
# A kept index follows the changes since in no time while they are no more than this share of it, and so many: those
# that it listed are applied by every process that opens it. An index that was opened is kept anew by the changes alone.
WORTH_RENEWING, WORTH_LISTING = 0.02, 500
# How many indexes with options of their own are kept beside a store.
VARIANTS_KEPT = 4
_VARIANT = ".options-"
_POINTER, _LOCK = "current.json", "lock"
_EDGE_BYTES = 4_096
_TRIES = 5
_LAST = 8
# Lines of ids that may be out of date before they are written anew.
_LINES_LEFT = 1_000
_Key = tuple[int, str]
"""Which part of the retriever, and a tool."""
_Id = tuple[str, tuple[int, ...]]
"""The digest of the tool's document, and the id that it got."""


@dataclass(frozen=True, slots=True)
class SnapshotState:
    """Which state of which store an index holds. `baseline`: the similarity baseline of all its tools, if known.

    `last`: ids and digests of some tools that changed last, to detect a store that was restored from a backup.
    """

    store: str
    version: int
    cursor: int
    feedback: int = 0
    document_version: int = DOCUMENT_VERSION
    baseline: float | None = None
    last: tuple[tuple[str, str], ...] = ()


def worth(tools: int, changed: int, opened: int | None = None) -> bool:
    """Whether to save a new snapshot of an index with `tools` tools, `changed` of them since the last snapshot.

    `opened`: how many changed since it was opened from a snapshot; None if it was built.
    """
    if tools < WORTH_KEEPING:
        return False
    share = WORTH_RENEWING * tools
    return changed >= (share if opened is None or opened > share else min(share, WORTH_LISTING))


def folder(index_folder: Path, retriever: str, fingerprint: str = "") -> Path:
    """Where the snapshots of one retriever lie, in the index folder of a store.

    `fingerprint`: of another encoder than the default.
    """
    name = f"{retriever}-{fingerprint[:12]}" if fingerprint else retriever
    return index_folder / name


def index_name(index: Retriever) -> str:
    """The name of an index: the method's, with a digest of options and parts where they are not the default ones.

    "" where options and parts do not say all: a model that was trained, or a class that no method's name opens.
    """
    if not all(map(_is_by_options, _parts(index))):
        return ""
    about = _described(index)
    if about == _described(method(index.name)()):
        return index.name
    digest = hashlib.blake2b(json.dumps(about, default=str).encode(), digest_size=6).hexdigest()
    return f"{index.name}{_VARIANT}{digest}"


def _is_by_options(retriever: Retriever) -> bool:
    try:
        known = method(retriever.name) is type(retriever)
    except BadModel:
        return False
    return known and retriever.fit_record is None and not retriever.trained_on.splits


def _described(retriever: Retriever) -> list[Any]:
    return [retriever.name, asdict(retriever.options), [_described(part) for part in retriever.parts]]


def read(folder: Path, store: Store, encoder: TextEncoder | None = None) -> tuple[Retriever, SnapshotState] | None:
    """Open the newest snapshot of a store; None if there is none that fits.

    `encoder`: the one that it was made with; None for the default one. A snapshot with a later version or more feedback
    than the store does not fit: a backup was restored since.
    """
    tried: set[str] = set()
    while len(tried) < _TRIES:
        name = ""
        try:
            pointer = json.loads((folder / _POINTER).read_text())
            name, state = str(pointer["folder"]), SnapshotState(**pointer["state"])
            if not _fits(state, store):
                (folder / _POINTER).unlink()  # what is built now is kept in its place, though its version may be lower
                return None
            opened = _opened(folder / name, pointer["files"], encoder)
            if _VARIANT in folder.name:
                with suppress(OSError):  # of another user
                    os.utime(folder / _POINTER)  # it is in use
            return opened, state
        except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, BadModel):
            if not name or name in tried:
                return None
            tried.add(name)  # another process may have replaced it since the pointer was read: look again
    return None


def is_outdated(retriever: Retriever) -> bool:
    """Whether a retriever, or a part of it, was loaded from what an older version wrote."""
    return any(part.outdated for part in _parts(retriever))


def last_changes(store: Store, version: int) -> tuple[tuple[str, str], ...]:
    """Some of the tools that changed with a version, with their digests."""
    found = islice(store.changes(version - 1), _LAST)
    return tuple((change.tool_id, change.digest) for change in found if change.version == version)


def _fits(state: SnapshotState, store: Store) -> bool:
    if (state.store, state.document_version) != (store.identity(), DOCUMENT_VERSION):
        return False
    if state.version > store.version() or (state.feedback and not _has_feedback(store, state.feedback)):
        return False
    return not state.last or _changed_at(store, state.version, dict(state.last))


def _changed_at(store: Store, version: int, tools: Mapping[str, str]) -> bool:
    """Whether the store knows that one of these tools changed with a version, or later."""
    for change in store.changes(version - 1):  # the first is one of them, unless it has changed again
        if change.tool_id in tools:
            return change.version > version or change.digest == tools[change.tool_id]
    return False


def _opened(folder: Path, files: Mapping[str, Sequence[object]], encoder: TextEncoder | None) -> Retriever:
    """Open a snapshot whose files are as they were written; no process removes it while this one has it open."""
    held = _take_lock(folder, shared=True)
    try:
        for name, known in files.items():
            if list(known) != _signature(folder / name):
                raise BadModel(f"{folder / name} is damaged")
        retriever = load_model(folder, encoder)
    except BaseException:
        _release_lock(held)
        raise
    weakref.finalize(retriever, _release_lock, held)
    return retriever


def write(folder: Path, retriever: Retriever, state: SnapshotState) -> None:
    """Save the index into a new folder, point to it in one atomic step, and drop the older ones that nobody has open.

    Nothing is written where another process is writing, or has written a later state. OSError where it cannot be kept.
    """
    begin_write(folder, retriever, state)()


def begin_write(folder: Path, retriever: Retriever, state: SnapshotState) -> Callable[[], None]:
    """Begin to write the index, which is in this state now; what is returned does the rest, while the index changes."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as begun:
        if not begun.enter_context(_writing(folder)) or _has_later_snapshot(folder, state):
            return lambda: None
        target = Path(tempfile.mkdtemp(prefix=f"{state.version}-", dir=folder))
        begun.enter_context(_removed_on_error(target))
        save_rest = retriever.begin_save(target)
        rest = begun.pop_all()

    def finish() -> None:
        with rest:
            save_rest()
            _point_to(target, state)
            for other in folder.iterdir():
                if other.is_dir() and other != target:
                    _drop(other)
        if _VARIANT in folder.name:
            _drop_variants(folder)

    return finish


@contextmanager
def _removed_on_error(target: Path) -> Iterator[None]:
    """Remove a folder if the block raises."""
    try:
        yield
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


def _point_to(target: Path, state: SnapshotState) -> None:
    """Make a snapshot that is written the newest one."""
    folder = target.parent
    store = folder.parent.with_suffix("")  # "tools.db" of "tools.db.index"
    pointer = folder / f"{_POINTER}.{os.getpid()}"
    try:
        paths = sorted(path for path in target.rglob("*") if path.is_file())
        files = {path.relative_to(target).as_posix(): _signature(path) for path in paths}
        pointer.write_text(json.dumps({"folder": target.name, "state": asdict(state), "files": files}))
        _copy_permissions(store, [folder.parent, folder, target, *target.rglob("*"), pointer])
        pointer.replace(folder / _POINTER)
    except BaseException:
        pointer.unlink(missing_ok=True)
        raise


def _drop_variants(newest: Path) -> None:
    """Remove the indexes of options that were not used for the longest time, where there are many."""
    used: list[tuple[float, Path]] = []
    for folder in newest.parent.iterdir():
        if _VARIANT in folder.name and folder != newest:
            with suppress(OSError):
                used.append(((folder / _POINTER).stat().st_mtime, folder))
    for _, folder in sorted(used, reverse=True)[VARIANTS_KEPT - 1 :]:
        with suppress(OSError), _writing(folder) as mine:
            if mine:
                (folder / _POINTER).unlink()
                for one in folder.iterdir():
                    if one.is_dir():
                        _drop(one)


def _has_later_snapshot(folder: Path, state: SnapshotState) -> bool:
    """Whether the saved snapshot is of the same store and of a later version."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        kept = SnapshotState(**json.loads((folder / _POINTER).read_text())["state"])
        return kept.store == state.store and kept.document_version == DOCUMENT_VERSION and kept.version > state.version
    return False


def _signature(path: Path) -> list[object]:
    """The size of a file and a digest of its ends: reading all of it would take as long as building it."""
    size = path.stat().st_size
    with path.open("rb") as file:
        ends = file.read(_EDGE_BYTES)
        file.seek(max(0, size - _EDGE_BYTES))
        ends += file.read(_EDGE_BYTES)
    return [size, hashlib.blake2b(ends, digest_size=16).hexdigest()]


def _copy_permissions(store: Path, paths: Sequence[Path]) -> None:
    """Give the files of an index the read permissions of its store."""
    mode = store.stat().st_mode & 0o666
    for path in paths:
        wanted = mode | ((mode & 0o444) >> 2) | 0o300 if path.is_dir() else mode | 0o200
        if path.stat().st_mode & 0o777 != wanted:
            with suppress(PermissionError):  # of another user, who has shared it
                path.chmod(wanted)


@contextmanager
def _writing(folder: Path) -> Iterator[bool]:
    """Take the writer's lock; yields whether this process may write."""
    os.close(os.open(folder / _LOCK, os.O_RDONLY | os.O_CREAT, 0o666))  # whoever made it
    held = _take_lock(folder / _LOCK, shared=False)
    try:
        yield held != _TAKEN
    finally:
        _release_lock(held)


_NO_LOCK, _TAKEN = -1, -2


def _take_lock(path: Path, shared: bool) -> int:
    """Lock a file or folder; returns a file descriptor, _TAKEN if another process prevents it, or _NO_LOCK."""
    try:
        import fcntl
    except ImportError:  # not on this system
        return _NO_LOCK
    opened = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(opened, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(opened)
        return _TAKEN
    except OSError:  # not on this file system
        os.close(opened)
        return _NO_LOCK
    return opened


def _release_lock(held: int) -> None:
    if held >= 0:
        os.close(held)


def _drop(folder: Path) -> None:
    """Remove a snapshot, unless a process has it open."""
    with suppress(OSError):
        held = _take_lock(folder, shared=False)
        if held != _TAKEN:
            shutil.rmtree(folder, ignore_errors=True)
            _release_lock(held)


def _has_feedback(store: Store, number: int) -> bool:
    return next((found for found, _ in store.feedback(number - 1)), None) == number


class AssignedIds:
    """Saves the ids that a model assigned to the tools of a store, so that it assigns the same when opened again.

    A tool whose document has changed gets a new id. Each change appends a line to a log, which processes that share a
    catalogue all write and read; the last line of a tool counts.
    """

    def __init__(self, store: Store, model: Path, retriever: Retriever) -> None:
        """Read the saved ids and reserve them in the model."""
        made = hashlib.blake2b(digest_size=16)
        for path in sorted(model.rglob("model.json")):  # a hybrid's parts have one each
            made.update(path.read_bytes())
        self._log = store.line_log(f"ids/{made.hexdigest()}")
        self._parts = [part for part in _parts(retriever) if part.gives_ids]
        self._digests: dict[str, str] = {}
        self._versions: list[int] = []
        self._kept: dict[_Key, _Id] = {}
        self._own: set[_Key] = set()
        old = folder(store.index_folder(), "ids") / f"{made.hexdigest()}.json"
        if not self._parts or not (self._log.exists() or self._import_old_file(old)):
            return
        lines = self._read_new_lines()
        now = {one.id: one.digest() for _, one in store.documents(0) if one is not None}
        self._kept = {key: own for key, own in self._kept.items() if now.get(key[1]) == own[0]}
        self._recall(self._kept, now)
        if lines > 2 * len(self._kept) + _LINES_LEFT:
            self._rewrite()

    def saw(self, ids: Sequence[str], digests: Sequence[str]) -> None:
        """Note the digests of tools about to be added; reserve ids that another process has assigned to them."""
        if not self._parts:
            return
        self._digests.update(zip(ids, digests, strict=True))
        self._read_new_lines()
        keys = {(place, key) for place in range(len(self._parts)) for key in ids} & self._kept.keys()
        self._recall({key: self._kept[key] for key in keys - self._own}, self._digests)

    def keep(self) -> None:
        """Append the ids that changed."""
        versions = [part.ids_version for part in self._parts]
        if versions == self._versions:
            return
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
                self._log.append([_line(key, own) for key, own in changed.items()])
            for key in self._own - given.keys():
                self._kept.pop(key, None)
            self._kept |= given
            self._own, self._versions = set(given), versions

    def _read_new_lines(self) -> int:
        """Read the lines added since the last call; returns how many there were."""
        lines = self._log.read_new()
        for key, own in filter(None, map(_parse_line, lines)):
            if own is None:
                self._kept.pop(key, None)
            else:
                self._kept[key] = own
        return len(lines)

    def _recall(self, ids: Mapping[_Key, _Id], now: Mapping[str, str]) -> None:
        for place, part in enumerate(self._parts):
            own = {key: own for (whose, key), (digest, own) in ids.items() if whose == place and now[key] == digest}
            if own:
                part.recall_ids(own)

    def _import_old_file(self, old: Path) -> bool:
        """Convert a file of the older format to lines; returns whether there are any now."""
        with suppress(OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            for place, ids in enumerate(json.loads(old.read_text())):
                for key, (digest, *own) in ids.items():
                    self._kept[place, str(key)] = str(digest), tuple(map(int, own))
            self._rewrite()
            old.unlink()
        return self._log.exists()

    def _rewrite(self) -> None:
        self._log.replace([_line(key, own) for key, own in self._kept.items()])


def _line(key: _Key, own: _Id | None) -> str:
    """A line with a tool's id, or without one if it lost it."""
    return json.dumps([*key, own[0], *own[1]] if own else [*key])


def _parse_line(line: str) -> tuple[_Key, _Id | None] | None:
    """Parse a line; None if it is damaged."""
    try:
        place, key, *own = json.loads(line)
        return (int(place), str(key)), (str(own[0]), tuple(map(int, own[1:]))) if own else None
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None


def _parts(retriever: Retriever) -> Iterator[Retriever]:
    yield retriever
    for part in retriever.parts:
        yield from _parts(part)
