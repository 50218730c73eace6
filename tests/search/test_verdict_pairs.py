"""The minimal pairs over the bundled catalogue: of two texts in nearly the same words, one needs a tool."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from toolscout import Scout
from toolscout.data.dataset import Dataset
from toolscout.data.locate import find_dataset


@pytest.mark.slow
def test_the_one_that_needs_a_tool_is_likelier_to_be_answered(tmp_path: Path) -> None:
    lines = (find_dataset("bundled") / "need_pairs.jsonl").read_text(encoding="utf-8").splitlines()
    pairs: dict[str, dict[bool, float]] = {}
    with Scout.open(tmp_path / "tools.db") as scout:
        scout.add(Dataset.load(find_dataset("bundled"), ["dev"]).tools)
        for row in map(json.loads, lines):
            answer = scout.search(row["text"])
            assert answer.use is not None
            pairs.setdefault(row["pair"], {})[row["need"]] = answer.use
    right = [pair[True] > pair[False] for pair in pairs.values()]
    assert len(right) == 100
    assert sum(right) >= 75  # fit hardly tells them apart, and where no tool of the catalogue serves, neither does need
