"""What docs/guides/expansion.md says of expansions is what the rows of that study say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [json.loads(line) for line in (ROOT / "results" / "expansion.jsonl").read_text().splitlines()]
PAGE = " ".join((ROOT / "docs" / "guides" / "expansion.md").read_text(encoding="utf-8").split())
SETS = ("bundled", "toolbench-g3", "ultratool")


def newest(dataset: str, method: str, written: str, way: str = "built") -> dict[str, Any]:
    """The last row of a method over a set."""
    found = [row for row in ROWS if row["dataset"] == dataset]
    wanted = {"method": method, "written": written, "way": way}
    return [row for row in found if {key: row["study"][key] for key in wanted} == wanted][-1]


@pytest.mark.parametrize("dataset", SETS)
def test_the_table(dataset: str) -> None:
    cells = [dataset]
    for method in ("bm25", "dense", "hybrid"):
        plain, study = newest(dataset, method, "none"), newest(dataset, method, "rules")["study"]
        gain, low, high = (f"{100 * study[key]:+.1f}" for key in ("difference", "low", "high"))
        cells += [f"{100 * plain['metrics']['recall@5']:.1f}", f"{gain} ({low} to {high})"]
    assert f"| {' | '.join(cells)} |" in PAGE


@pytest.mark.parametrize(("way", "before"), [("append", "one text"), ("max", "nearer one counts")])
def test_the_other_ways(way: str, before: str) -> None:
    gains = [f"{100 * newest(name, 'dense', 'rules', way)['study']['difference']:+.1f}" for name in SETS]
    assert f"{before} ({', '.join(gains)}" in PAGE
