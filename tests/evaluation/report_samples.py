"""Rows as evaluate and bench write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toolscout.evaluation import row

# What rows of every version have.
MEASURES = tuple(f"{kind}@{k}" for kind in ("recall", "ndcg", "comp") for k in (1, 3, 5, 10))
BENCH: dict[str, Any] = {
    "bench": "query",
    "requests": "toollens",
    "catalogue": "toolbench",
    "repeats": 3,
    "how": "as published",
    "hardware": {"machine": "aarch64", "cpu": "one", "cores": 2, "memory_gb": 8},
    "commit": "abc",
}


def scored(value: float = 0.25, **changes: Any) -> dict[str, Any]:
    """A row whose measures all have one value; of an earlier version unless changes say otherwise."""
    made = {
        "dataset": "mine",
        "digest": "0123456789abcdef",
        "split": "test",
        "retriever": "bm25",
        "variant": "default",
        "options": {},
        "seed": None,
        "metrics": dict.fromkeys(MEASURES, value),
        "timing": {"query_p50_ms": 1.25},
        "requests": 10,
        "commit": "abc",
    }
    return made | changes


def timed(tools: int, value: float) -> dict[str, Any]:
    """A row of bench."""
    return BENCH | {"tools": tools, "values": {"p50_ms": value}}


def write_rows(folder: Path, *rows: dict[str, Any], name: str = "rows.jsonl") -> Path:
    """A folder with these rows added to a file."""
    for one in rows:
        row.append(folder / name, one)
    return folder


def asked(number: int, gold: int, ranks: list[int] | None) -> dict[str, Any]:
    """The score of one request."""
    return {"id": f"r{number}", "scene": f"s{number}", "kind": "use", "gold": gold, "ranks": ranks}
