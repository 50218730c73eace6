"""What docs/guides/encoders.md says of the length of documents is what the rows of that study say."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROWS = [json.loads(line) for line in (ROOT / "results" / "document_length.jsonl").read_text().splitlines()]
# ToolBench has few limits: the sentence is about the sets that have all of them.
SETS = ("bundled", "toollens", "simpletoolquestions", "toolbench-g3", "ultratool")


def difference(dataset: str, limit: int) -> float:
    """The points of R@5 to the shipped limit, from the row of a limit."""
    (row,) = (one for one in ROWS if one["dataset"] == dataset and one["study"]["document_tokens"] == limit)
    return 100 * float(row["study"]["difference"])


def test_the_cost_of_shorter_and_the_gain_of_longer_documents() -> None:
    page = " ".join((ROOT / "docs" / "guides" / "encoders.md").read_text(encoding="utf-8").split())
    said = re.search(
        r"On five sets, 32 tokens cost up to ([\d.]+) points of R@5 \(ToolLens\) and 64 up to ([\d.]+), while "
        r"128 and 256 change it by at most ([\d.]+), up or down",
        page,
    )
    assert said
    assert min(SETS, key=lambda name: difference(name, 32)) == "toollens"
    costs = [-min(difference(name, limit) for name in SETS) for limit in (32, 64)]
    most = max(abs(difference(name, limit)) for name in SETS for limit in (128, 256))
    assert list(said.groups()) == [f"{value:.1f}" for value in (*costs, most)]
    longer = [difference(name, limit) for name in SETS for limit in (128, 256)]
    assert min(longer) < 0 < max(longer)


def test_differences_are_those_of_the_scores() -> None:
    shipped = {row["dataset"]: row for row in ROWS if row["study"]["document_tokens"] == 96}
    assert set(shipped) >= set(SETS)
    for row in ROWS:
        base = shipped[row["dataset"]]
        assert row["digest"] == base["digest"]
        gained = row["metrics"]["recall@5"] - base["metrics"]["recall@5"]
        assert abs(row["study"]["difference"] - gained) < 2e-6
