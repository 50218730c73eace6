"""The tools and requests that every peer is given, as files that its process reads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from studies.running import by_hash
from toolscout.core.tool import Tool
from toolscout.data.dataset import Dataset
from toolscout.data.locate import find_dataset

SETS = ("bundled", "ultratool", "simpletoolquestions", "toollens")
LARGE = ("toolbench",)
"""Sets that are asked for by name alone, since each takes some peers hours."""
SPLIT = "test"
_SAMPLED = {"toolbench": 300}
_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Workload:
    """One set: the dataset cut to one split, its tools as records, their ids by name, and the requests in order."""

    dataset: Dataset
    records: Sequence[Mapping[str, Any]]
    ids: Mapping[str, str]
    requests: Sequence[tuple[str, str]]

    @classmethod
    def of(cls, dataset: Dataset) -> Workload:
        """Return the workload of a dataset's test split, with the requests that no tool serves."""
        names = unique_names(dataset.tools)
        records = [record(tool, name) for tool, name in zip(dataset.tools, names, strict=True)]
        ids = {name: tool.id for tool, name in zip(dataset.tools, names, strict=True)}
        return cls(dataset, records, ids, dataset.split(SPLIT).requests + dataset.goldless(SPLIT))

    def write(self, folder: Path) -> None:
        """Write tools.jsonl and requests.jsonl."""
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / "tools.jsonl", self.records)
        _write(folder / "requests.jsonl", ({"id": key, "text": text} for key, text in self.requests))


def load(name: str) -> Workload:
    """Read a set by its name; of a large one so many requests as a peer answers within its time."""
    dataset = Dataset.load(find_dataset(name), [SPLIT])
    if name in _SAMPLED:
        chosen = by_hash(dataset.qrels[SPLIT])[: _SAMPLED[name]]
        dataset = replace(dataset, qrels={SPLIT: {key: dataset.qrels[SPLIT][key] for key in chosen}})
    return Workload.of(dataset)


def record(tool: Tool, name: str) -> dict[str, Any]:
    """Return a tool as every peer gets it. What is known of its service ends the description."""
    return {
        "name": name,
        "namespace": tool.namespace,
        "title": tool.name,
        "description": "\n".join(part for part in (tool.description, tool.service) if part) or tool.title or tool.name,
        "parameters": dict(tool.input_schema),
    }


def unique_names(tools: Sequence[Tool]) -> list[str]:
    """Return names as model vendors take them, each once: namespace and name, and a number where that is taken."""
    taken: set[str] = set()
    names = []
    for tool in tools:
        plain = name = _ILLEGAL.sub("_", f"{tool.namespace}_{tool.name}").strip("_") or "tool"
        number = 2
        while name in taken:
            name, number = f"{plain}_{number}", number + 1
        taken.add(name)
        names.append(name)
    return names


def _write(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
