"""Numbers that papers published on datasets that we measure too, out of papers.json: theirs, in percent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

import numpy as np

from toolscout.evaluation.report.rows import ResultLine, percent
from toolscout.evaluation.row import RowDict

_FILE = Path(__file__).with_name("papers.json")
# ToolBench's test requests come in six files; papers report them as three parts.
_PARTS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "G1": ("test_G1_instruction", "test_G1_tool", "test_G1_category"),
        "G2": ("test_G2_instruction", "test_G2_category"),
        "G3": ("test_G3_instruction",),
    }
)


@dataclass(frozen=True, slots=True)
class Published:
    """What papers say about one dataset.

    It stands beside our lines of `split` where that has as many requests as theirs had; without a split it gets a table
    of its own. `lines` are a name, a key of `sources`, and a number or nothing for each column.
    """

    heading: str
    columns: tuple[str, ...]
    sources: Mapping[str, str]
    caveats: tuple[str, ...]
    lines: tuple[tuple[str, str, tuple[float | None, ...]], ...]
    split: str = ""
    requests: int = 0

    def cells(self) -> list[dict[str, str]]:
        """Their lines for a table, in italics."""
        return [
            {"retriever": f"*{name}*", "paper": f"*{source}*"}
            | {key: f"*{value:.2f}*" for key, value in zip(self.columns, values, strict=True) if value is not None}
            for name, source, values in self.lines
        ]

    def notes(self) -> str:
        """Where they come from, and what to know before comparing."""
        sources = "; ".join(f"{name}: {about}" for name, about in self.sources.items())
        bullets = [f"- {caveat}" for caveat in self.caveats]
        return "\n".join([f"In italics: the papers' numbers, not measured here. {sources}.\n", *bullets]) + "\n"


@cache
def published() -> Mapping[str, Published]:
    """All that papers say, by dataset."""
    found = json.loads(_FILE.read_text(encoding="utf-8"))
    return {
        dataset: Published(
            heading=about["heading"],
            columns=tuple(about["columns"]),
            sources=about["sources"],
            caveats=tuple(about["caveats"]),
            lines=tuple((name, source, tuple(values)) for name, source, values in about["lines"]),
            split=about.get("split", ""),
            requests=about.get("requests", 0),
        )
        for dataset, about in found.items()
    }


def by_part(lines: Sequence[ResultLine]) -> list[dict[str, str]]:
    """Our lines on ToolBench's six files of test requests, joined into the papers' three parts, for their table.

    A part needs all of its files. NDCG is ToolGen's; at 1 it is the true one, which rows of earlier versions have.
    """
    methods: dict[str, dict[str, ResultLine]] = {}
    for line in lines:
        methods.setdefault(line.method, {})[line.split[1]] = line
    found = []
    for method, splits in methods.items():
        cells: dict[str, str] = {}
        for part, files in _PARTS.items():
            if all(name in splits for name in files):
                cells |= {f"{part} N@{k}": _joined([splits[name] for name in files], k) for k in (1, 3, 5)}
        if cells:
            commits = dict.fromkeys(row.get("commit", "") for line in splits.values() for row in line.rows)
            found.append({"retriever": method, "commit": ", ".join(commits)} | cells)
    return found


def _joined(parts: Sequence[ResultLine], k: int) -> str:
    """The mean over the requests of several files, for each seed that all of them have, then over those seeds."""
    seeds = [{row.get("seed"): row for row in line.rows} for line in parts]
    scores = []
    for seed in seeds[0]:
        rows = [found[seed] for found in seeds if seed in found]
        values = [_toolgen_ndcg(row, k) for row in rows]
        if len(rows) == len(parts) and None not in values:
            requests = [row["requests"] for row in rows]
            scores.append(float(np.average(np.array(values, dtype=float), weights=requests)))
    return percent(scores)


def _toolgen_ndcg(row: RowDict, k: int) -> float | None:
    metrics = row["metrics"]
    found: float | None = metrics.get(f"toolgen_ndcg@{k}", metrics.get("ndcg@1") if k == 1 else None)
    return found
