"""The numbers of README.md are those of the rows that it links to."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).parents[2]


def _rows(name: str, **wanted: Any) -> list[dict[str, Any]]:
    rows = map(json.loads, (ROOT / "results" / f"{name}.jsonl").read_text().splitlines())
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def _recall(name: str, dataset: str, retriever: str, variant: str) -> str:
    rows = _rows(name, dataset=dataset, split="test", retriever=retriever)
    found = [row["metrics"]["recall@5"] for row in rows if re.fullmatch(variant, row["variant"])]
    return f"{mean(found):.3f}"[1:]


def test_the_three_numbers() -> None:
    page = (ROOT / "README.md").read_text()
    shown = dict(re.findall(r"^\| \*\*([^*]+)\*\* \| (.*?) \|", page, flags=re.MULTILINE))
    (timed,) = _rows("bench", bench="query", tools=46587, requests="toollens")
    speed, untrained, trained = shown
    assert speed == f"{timed['values']['p50_ms']:.0f} ms"
    assert untrained == _recall("baselines", "toolbench", "hybrid", "default")
    assert _recall("baselines", "toolbench", "bm25", "default") in shown[untrained]
    assert _recall("baselines", "toolbench", "dense", "encoder-raw") in shown[untrained]
    assert trained == _recall("trained", "toollens", "hybrid", r"hybrid-toollens-s\d")
    assert _recall("baselines", "toollens", "hybrid", "default") in shown[trained]
