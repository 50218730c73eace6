"""The documents of tools by id, for methods that read a few of them in a search; a million do not fill the memory."""

from __future__ import annotations

import tempfile
import threading
import weakref
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

import numpy as np

from toolscout.core.model_files import UNREADABLE
from toolscout.core.tool import Searchable
from toolscout.errors import BadModel, DiskFull
from toolscout.index.exact_names import ExactNames
from toolscout.index.row_ids import RowIds
from toolscout.index.saved_rows import load_rows, save_rows
from toolscout.index.tool_table import Texts, link_file, replace_file, save_array

MAX_CHARS = 3_000  # of each document: more than any reader of documents takes
_SAVED, _LATER = "documents", "later"
# The most texts that are saved beside older saved ones: a number, or a share of the older ones.
_BESIDE, _BESIDE_SHARE = 2_000, 0.02
# Rows of removed tools are not reused. All texts are written anew once there are so many more dead rows than live ones.
_DEAD_KEPT = 1024


class DocumentTexts:
    """The first MAX_CHARS of each tool's document: saved ones in a mapped file, later ones in a temporary file.

    Several threads may read while one changes the tools.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._rows, self._saved, self._later = RowIds(), None, _TextFile()
        self._folder: Path | None = None  # where the saved texts are
        self._lock = threading.Lock()

    _saved: Texts | None

    def __len__(self) -> int:
        """How many tools there are."""
        return len(self._rows)

    def add(self, tools: Sequence[Searchable]) -> None:
        """Add tools, or replace their documents. Raises DiskFull where there is no room for temporary files."""
        with self._lock:
            for tool in tools:
                self._rows.remove(tool.id)
            if len(self._rows.ids) > 2 * len(self._rows) + _DEAD_KEPT:
                self._renew()
            for tool in tools:
                self._later.append(tool.document()[:MAX_CHARS])
                self._rows.add(tool.id)

    def remove(self, ids: Sequence[str]) -> None:
        """Remove tools; unknown ids are ignored."""
        with self._lock:
            for tool_id in ids:
                self._rows.remove(tool_id)

    def get(self, ids: Sequence[str]) -> list[str | None]:
        """The document of each tool; None for a tool that is not here."""
        with self._lock:
            return [self._text(self._rows.row(tool_id)) for tool_id in ids]

    def _text(self, row: int | None) -> str | None:
        first = 0 if self._saved is None else len(self._saved)
        if row is None or self._saved is None or row >= first:
            return None if row is None else self._later[row - first]
        try:
            return self._saved[row]
        except UnicodeDecodeError:  # the file is damaged: a search goes on without this text
            return None

    def _renew(self) -> None:
        """Drop the rows of removed tools."""
        rows, texts = RowIds(), _TextFile()
        for row in self._rows.alive().tolist():
            texts.append(self._text(row) or "")
            rows.add(self._rows.ids[row])
        self._rows, self._saved, self._later, self._folder = rows, None, texts, None

    def save(self, folder: Path) -> None:
        """Write the texts; saved ones that did not change are linked, and a few later ones go beside them."""
        with self._lock:
            folder.mkdir(parents=True, exist_ok=True)
            save_rows(folder, self._rows, ExactNames())
            if not self._linked(folder):
                _write(folder, _SAVED, self._sizes(), self._all())
                _write(folder, _LATER, [], iter(()))

    def _linked(self, folder: Path) -> bool:
        if self._folder is None or self._saved is None:
            return False
        if len(self._later) > max(_BESIDE, _BESIDE_SHARE * len(self._saved)):
            return False
        with suppress(OSError):
            for name in (f"{_SAVED}.npy", f"{_SAVED}.ends.npy"):
                link_file(self._folder / name, folder / name)
            _write(folder, _LATER, self._later.sizes(), iter(self._later))
            return True
        return False

    def _sizes(self) -> list[int]:
        saved = self._saved.sizes() if self._saved is not None else []
        return [*saved, *self._later.sizes()]

    def _all(self) -> Iterator[bytes]:
        saved = self._saved.encoded() if self._saved is not None else iter(())
        return chain(saved, self._later)

    @classmethod
    def load(cls, folder: Path) -> DocumentTexts:
        """Open what `save` wrote; the saved texts stay on disk. Raises BadModel where they cannot be read."""
        texts = cls()
        try:
            texts._rows, *_ = load_rows(folder)
            texts._saved, texts._folder = Texts(folder, _SAVED), folder.resolve()
            later = Texts(folder, _LATER)
            for row in range(len(later)):
                texts._later.append(later[row])
            if len(texts._rows.ids) != len(texts._saved) + len(later):
                raise ValueError("there is not one for each tool")
        except UNREADABLE as error:
            raise BadModel(f"the documents in {folder} cannot be read ({error}); build the index again") from None
        return texts


class _TextFile:
    """Texts in a temporary file without a name, which goes with this object. Calls are made one at a time."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as this object
        weakref.finalize(self, self._file.close)
        self._ends = array("q")

    def __len__(self) -> int:
        return len(self._ends)

    def sizes(self) -> list[int]:
        sizes: list[int] = np.diff(np.array(self._ends, dtype=np.int64), prepend=0).tolist()
        return sizes

    def append(self, text: str) -> None:
        encoded, start = text.encode(errors="surrogatepass"), self._ends[-1] if self._ends else 0
        try:
            self._file.seek(start)
            self._file.write(encoded)
        except OSError as error:
            raise DiskFull(
                f"a document cannot be written ({error.strerror}); make room among the temporary files and try again"
            ) from None
        self._ends.append(start + len(encoded))

    def __getitem__(self, row: int) -> str:
        return self._bytes(row).decode(errors="surrogatepass")

    def _bytes(self, row: int) -> bytes:
        start = self._ends[row - 1] if row else 0
        self._file.seek(start)
        return self._file.read(self._ends[row] - start)

    def __iter__(self) -> Iterator[bytes]:
        return map(self._bytes, range(len(self)))


def _write(folder: Path, name: str, sizes: Sequence[int], texts: Iterator[bytes]) -> None:
    """Write texts as `Texts` reads them, one after the other: all at once they would fill the memory."""
    ends = np.cumsum(np.array(sizes, dtype=np.int64))

    def write(path: Path) -> None:
        with path.open("wb") as file:
            header = {"descr": "|u1", "fortran_order": False, "shape": (int(ends[-1]) if len(ends) else 0,)}
            np.lib.format.write_array_header_1_0(file, header)
            file.writelines(texts)

    save_array(folder / f"{name}.ends.npy", ends)
    replace_file(folder / f"{name}.npy", write)
