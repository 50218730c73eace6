"""The files of a word index (Tantivy): in memory, or on disk once memory is full. One thread at a time may write."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tantivy

from toolscout.errors import DiskFull
from toolscout.index.scratch_dir import in_memory, scratch_folder
from toolscout.index.tool_table import link_file, replace_file

# Buffer bytes of the writer. A large add gets a large buffer, for few segments, which search faster; a small add gets
# the smallest buffer, since each commit allocates it again. There is one thread: a second one has a segment of its own,
# with which a request took a quarter longer over 46,587 tools, and no add was quicker: making documents takes longer.
_MANY, _MANY_WRITER, _FEW_WRITER = 1_000, 120_000_000, 15_000_000
_LOCKS = shutil.ignore_patterns("*.lock")
_META = "meta.json"  # the list of segments, the only file that a commit rewrites
_MANAGED = ".managed.json"
Fields = dict[str, Any]
Shard = dict[str, bytes]
"""The files of an index, by name."""


class WordFiles:
    """A Tantivy index in a temporary folder, removed with this object. `searcher` searches the last commit.

    A saved index is searched in place: the temporary folder links to its files, which never change.
    """

    def __init__(self, schema: Any, analyzers: Mapping[str, Any], saved: Path | None = None) -> None:
        """Start empty, or with the index in the folder `saved`."""
        self._schema, self._analyzers = schema, analyzers
        self._writer: Any = None
        self._room = _FEW_WRITER
        folder = scratch_folder(self, "bm25")
        if saved is not None:
            _link(saved.resolve(), Path(folder))
        self._open(folder)

    def _open(self, folder: str) -> None:
        self._folder = folder
        try:
            self._index = tantivy.Index(self._schema, path=folder)
        except BaseException as error:  # on some damaged files the engine panics, which is no Exception
            if type(error).__name__ != "PanicException":
                raise
            raise ValueError(f"the engine gave up: {error}") from None
        for name, analyzer in self._analyzers.items():
            self._index.register_tokenizer(name, analyzer)
        self.searcher = self._index.searcher()

    def commit(self, documents: Callable[[], Iterable[Fields]], count: int, dead: Sequence[int]) -> None:
        """Add `count` documents and delete the rows `dead`. On DiskFull the last commit stays intact."""
        self._in_room(lambda: self._commit(documents, count, dead))

    def add_shard(self, shard: Shard) -> None:
        """Add the documents of another index with the same fields, whose files `shard` returned."""
        self._in_room(lambda: self._join(shard))

    def shard(self) -> Shard:
        """Return the files of this index, by name: its last commit, to be added to another index."""
        self._close_writer()
        return {file.name: file.read_bytes() for file in Path(self._folder).iterdir() if not file.name.startswith(".")}

    def _in_room(self, write: Callable[[], None]) -> None:
        """Write, on disk where there is no room in memory; raises DiskFull where there is none there either."""
        try:
            write()
        except (ValueError, OSError) as error:  # all that the engine raises
            self._writer = None  # a writer that failed cannot be used again
            if not in_memory(self._folder):
                raise _no_room(error) from None
            try:
                self._move()
                write()
            except (ValueError, OSError) as again:
                self._writer = None
                raise _no_room(again) from None

    def _commit(self, documents: Callable[[], Iterable[Fields]], count: int, dead: Sequence[int]) -> None:
        writer = self._open_writer(_MANY_WRITER if count >= _MANY else _FEW_WRITER)
        for fields in documents():
            writer.add_document(tantivy.Document.from_dict(fields, self._schema))
        for row in dead:
            writer.delete_documents_by_query(tantivy.Query.term_query(self._schema, "row", row))
        writer.commit()
        self._index.reload()
        self.searcher = self._index.searcher()

    def _join(self, shard: Shard) -> None:
        """Put the segments of a shard beside those that are here, as one list of segments."""
        self._close_writer()
        folder = Path(self._folder)
        own, other = json.loads((folder / _META).read_bytes()), json.loads(shard[_META])
        own["segments"] += other["segments"]
        own["opstamp"] = max(own["opstamp"], other["opstamp"])
        for name, content in shard.items():
            if name != _META:
                (folder / name).write_bytes(content)
        known = folder / _MANAGED  # what the engine may remove, once a segment is merged into another
        names = {*(json.loads(known.read_bytes()) if known.exists() else ()), *shard}
        replace_file(known, lambda path: path.write_text(json.dumps(sorted(names))))
        replace_file(folder / _META, lambda path: path.write_text(json.dumps(own)))
        self._open(self._folder)

    def save(self, target: Path) -> None:
        """Save the files into a folder; most are linked, since they never change."""
        self._close_writer()
        target.mkdir(parents=True, exist_ok=True)
        for file in sorted(Path(self._folder).iterdir(), key=lambda file: file.name == _META):
            if file.suffix != ".lock":
                link_file(file, target / file.name)

    def _move(self) -> None:
        """Move the index from memory to the temporary files on disk."""
        full, folder = self._folder, scratch_folder(self, "bm25", memory=False)
        shutil.copytree(full, folder, symlinks=True, dirs_exist_ok=True, ignore=_LOCKS)
        self._open(folder)
        shutil.rmtree(full, ignore_errors=True)  # running searches keep the old files open

    def _open_writer(self, room: int) -> Any:
        if self._writer is None or self._room != room:
            self._close_writer()
            self._writer, self._room = self._index.writer(room, num_threads=1), room
        return self._writer

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.wait_merging_threads()
            self._writer = None


def _link(saved: Path, folder: Path) -> None:
    """Link to the files of a saved index; files that the engine rewrites are copied."""
    for file in saved.iterdir():
        if file.suffix == ".json":
            shutil.copyfile(file, folder / file.name)
        elif file.suffix != ".lock":
            try:
                (folder / file.name).symlink_to(file)
            except OSError:  # some systems allow nobody to make links
                shutil.copyfile(file, folder / file.name)


def _no_room(error: Exception) -> DiskFull:
    return DiskFull(f"the word index cannot be written ({error}); make room among the temporary files and try again")
