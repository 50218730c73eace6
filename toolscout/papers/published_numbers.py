"""The numbers of papers on datasets that are measured here too, in percent; papers.json has them."""

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
class PublishedNumbers:
    """The numbers of papers on one dataset.

    They are shown in the table of `split` where that has as many requests as the papers had; without a split they get a
    table of their own. A line is the name of a method, a key of `sources`, and a number or None for each column.
    """

    heading: str
    columns: tuple[str, ...]
    sources: Mapping[str, str]
    caveats: tuple[str, ...]
    lines: tuple[tuple[str, str, tuple[float | None, ...]], ...]
    split: str = ""
    requests: int = 0

    def cells(self) -> list[dict[str, str]]:
        """Return the lines of a table, in italics."""
        return [
            {"retriever": f"*{name}*", "paper": f"*{source}*"}
            | {key: f"*{value:.2f}*" for key, value in zip(self.columns, values, strict=True) if value is not None}
            for name, source, values in self.lines
        ]

    def notes(self) -> str:
        """Return the Markdown under the table: the sources of the numbers, and caveats."""
        sources = "; ".join(f"{name}: {about}" for name, about in self.sources.items())
        bullets = [f"- {caveat}" for caveat in self.caveats]
        return "\n".join([f"In italics: the papers' numbers, not measured here. {sources}.\n", *bullets]) + "\n"


@cache
def load() -> Mapping[str, PublishedNumbers]:
    """Return the numbers in papers.json, by dataset."""
    found = json.loads(_FILE.read_text(encoding="utf-8"))
    return {
        dataset: PublishedNumbers(
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
    """Return table lines of measured methods on ToolBench's three parts, as papers report them.

    A part is shown where all of its splits are measured. NDCG is ToolGen's; NDCG@1 is the true one where a row, of an
    earlier version, has no other.
    """
    methods: dict[str, dict[str, ResultLine]] = {}
    for line in lines:
        methods.setdefault(line.method, {})[line.split[1]] = line
    found = []
    for method, splits in methods.items():
        cells: dict[str, str] = {}
        for part, files in _PARTS.items():
            if all(name in splits for name in files):
                cells |= {f"{part} N@{k}": _mean_ndcg([splits[name] for name in files], k) for k in (1, 3, 5)}
        if cells:
            commits = dict.fromkeys(row.get("commit", "") for line in splits.values() for row in line.rows)
            found.append({"retriever": method, "commit": ", ".join(commits)} | cells)
    return found


def _mean_ndcg(parts: Sequence[ResultLine], k: int) -> str:
    """Return the mean over all requests of several splits, for each seed that all of them have, then over seeds."""
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
