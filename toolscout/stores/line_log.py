"""Logs of lines that several processes append to and follow: in a file of one machine, or in a table of a database."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


class LineLog(ABC):
    """One log. Lines hold no line break. Each object remembers how far it has read."""

    @abstractmethod
    def exists(self) -> bool:
        """Return whether anything was ever written."""

    @abstractmethod
    def append(self, lines: Sequence[str]) -> None:
        """Append lines. Raises OSError or StoreError where they cannot be written."""

    @abstractmethod
    def read_new(self) -> list[str]:
        """Return the lines since the last call, whoever wrote them. A line may come twice."""

    @abstractmethod
    def replace(self, lines: Sequence[str]) -> None:
        """Put these lines in place of all."""


class LineFile(LineLog):
    """A log in a file."""

    def __init__(self, path: Path) -> None:
        """Nothing is read or made yet."""
        self._path = path
        self._inode, self._read = -1, 0

    def exists(self) -> bool:
        """Return whether the file is there."""
        return self._path.is_file()

    def append(self, lines: Sequence[str]) -> None:
        """Append lines, each after a line break, in case a crash cut the last."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as opened:
            opened.write("".join(f"\n{line}" for line in lines).encode())

    def read_new(self) -> list[str]:
        """Return the lines since the last call."""
        with suppress(OSError), self._path.open("rb") as opened:
            inode = os.fstat(opened.fileno()).st_ino
            if inode != self._inode:  # the file was replaced
                self._inode, self._read = inode, 0
            opened.seek(self._read)
            lines = opened.read().split(b"\n")
            self._read = opened.tell() - len(lines[-1])  # that one may not be written to its end
            return [line.decode(errors="replace") for line in lines]
        return []

    def replace(self, lines: Sequence[str]) -> None:
        """Put these lines in place of all, in one step."""
        beside = self._path.with_name(f"{self._path.name}.{os.getpid()}.{threading.get_ident()}")
        with suppress(OSError):
            beside.write_text("".join(f"\n{line}" for line in lines))
            beside.replace(self._path)
