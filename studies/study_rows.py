"""The rows that a page of studies is made of, by study, and what the sections of that page share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolscout.evaluation.report.rows import ResultLine, is_method, read_folder
from toolscout.evaluation.row import STUDY, RowDict


@dataclass(frozen=True, slots=True)
class StudyRows:
    """The rows of a folder: quality lines, those of studies and of plain methods alike, and rows with times."""

    folder: Path
    lines: Sequence[ResultLine]
    timed: Sequence[RowDict]

    @classmethod
    def read(cls, folder: Path) -> StudyRows:
        """All rows of a folder; raises BadDataset where there are none, or one that cannot be read."""
        return cls(folder, *read_folder(folder))

    def study(self, name: str) -> list[ResultLine]:
        """The lines of one study."""
        return [line for line in self.lines if line.newest.get(STUDY, {}).get("name") == name]

    def bench(self, name: str) -> list[RowDict]:
        """The rows with times of one study."""
        return [row for row in self.timed if row["bench"] == name]

    def methods(self) -> list[ResultLine]:
        """The lines of methods, which no study made."""
        return [line for line in self.lines if is_method(line)]


def about(line: ResultLine, key: str) -> Any:
    """What the newest row of a line says of its study under a key; None where it says nothing."""
    return line.newest[STUDY].get(key)


def number(value: float) -> str:
    """Four digits, or all that stand before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
