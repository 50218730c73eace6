"""The numbers of README.md and of the table of all methods are those of the rows in results/."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RECALL = ("recall@5",)
# The columns of the table of methods: dataset, split and measures.
COLUMNS = [
    ("toollens", "test", RECALL),
    ("toollens", "unseen_scene.test", RECALL),
    ("toollens", "unseen_tool.test", ("new_recall@5", "known_recall@5")),
    ("toolbench-g3", "test", RECALL),
    ("toolbench", "test", RECALL),
    ("bundled", "test", RECALL),
]
_TRAINED = r"(toollens|g3|toolbench)(-unseen_(scene|tool))?-s\d"
# Its lines: where the rows are, the retriever, and which variants of it.
LINES = {
    "words (`bm25`)": ("baselines", "bm25", "default"),
    "published encoder (`dense`, raw)": ("baselines", "dense", "encoder-raw"),
    "out of the box (`hybrid`)": ("baselines", "hybrid", "default|drop-seen"),
    "trained (`dense`)": ("trained", "dense", _TRAINED),
    **{
        f"trained (`{name}`)": ("trained", name, f"{name}-{_TRAINED}")
        for name in ("hybrid", "memory", "masstool", "masstool_published")
    },
    "trained with 20 written requests for each new tool (`dense`)": ("synthetic", "dense", r"synthetic-dense-20-s0"),
    "… (`hybrid`)": ("synthetic", "hybrid", r"synthetic-hybrid-20-s0"),
    **{f"trained (`{name}+dense`)": ("generative", name, f"{name}-{_TRAINED}") for name in ("toolgen", "toolweaver")},
}


@cache
def _file(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (ROOT / "results" / f"{name}.jsonl").read_text().splitlines()]


def _measured(name: str, dataset: str, split: str, retriever: str, variants: str, measure: str) -> float:
    wanted = {"dataset": dataset, "split": split, "retriever": retriever}
    rows = [row for row in _file(name) if all(row.get(key) == value for key, value in wanted.items())]
    return mean(row["metrics"][measure] for row in rows if re.fullmatch(variants, row["variant"]))


def _shown(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


def _recall(name: str, dataset: str, retriever: str, variants: str) -> str:
    return _shown(_measured(name, dataset, "test", retriever, variants, "recall@5"))


def test_the_numbers_of_the_readme() -> None:
    page = (ROOT / "README.md").read_text()
    shown = dict(re.findall(r"^\| \*\*([^*]+)\*\* \| (.*?) \|", page, flags=re.MULTILINE))
    (timed,) = [
        row
        for row in _file("bench")
        if (row["bench"], row["tools"], row["requests"], row.get("encoder", "")) == ("query", 46587, "toollens", "")
    ]
    speed, untrained, beside, trained = shown
    assert speed == f"{timed['values']['p50_ms']:.0f} ms"
    assert untrained == _recall("baselines", "toolbench", "hybrid", "default")
    assert _recall("baselines", "toolbench", "bm25", "default") in shown[untrained]
    assert _recall("baselines", "toolbench", "dense", "encoder-raw") in shown[untrained]
    asked = [row for row in _file("peers") if row["dataset"] == "bundled" and "recall@5" in row["metrics"]]
    newest = {row["retriever"]: row["metrics"]["recall@5"] for row in asked}
    peers = [recall for name, recall in newest.items() if not name.startswith("toolscout")]
    assert beside == _shown(newest["toolscout hybrid"])
    assert f"the best of {len(peers)} other searches beside it {_shown(max(peers))}" in shown[beside]
    assert trained == _recall("trained", "toollens", "hybrid", rf"hybrid-{_TRAINED}")
    assert _recall("baselines", "toollens", "hybrid", "default") in shown[trained]


@pytest.mark.parametrize("line", LINES)
def test_the_table_of_methods(line: str) -> None:
    page = (ROOT / "docs" / "methods" / "index.md").read_text()
    (cells,) = re.findall(rf"^\| {re.escape(line)} \|(.*)\|$", page, flags=re.MULTILINE)
    name, retriever, variants = LINES[line]
    for cell, (dataset, split, measures) in zip(cells.split("|"), COLUMNS, strict=True):
        source = "bundled" if dataset == "bundled" else name
        for number, measure in zip(cell.split(" / "), measures, strict=True) if cell.strip() else ():
            value = _measured(source, dataset, split, retriever, variants, measure)
            assert abs(float(number) - value) <= 0.00051, (dataset, split, measure)


def test_no_line_of_the_table_is_left_out() -> None:
    page = (ROOT / "docs" / "methods" / "index.md").read_text()
    table = page.partition("| | ToolLens |")[2].partition("\n\n")[0]
    assert [row.split(" | ")[0].removeprefix("| ") for row in table.splitlines()[2:]] == list(LINES)
