"""The study of expansions: its ways, its rows and its table."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from studies import expansion, report
from studies.expansion import APPEND, BUILT, MAX, METHODS, NONE, NOT, RULES, WAYS, Job
from tests.evaluation.report_samples import scored, write_rows
from toolscout.core.expansion import Expansion
from toolscout.core.tool import Tool
from toolscout.data.dataset import Dataset

TOOLS = [Tool("disk", "rm", "Unlinks entries"), Tool("disk", "mv", "Moves entries"), Tool("sky", "forecast", "Weather")]
WRITTEN = {
    "disk/rm": Expansion("shredding my pictures"),
    "sky/forecast": Expansion("needing an umbrella", "", "no past"),
}


def small() -> Dataset:
    requests = {"r0": "shred my pictures", "r1": "do I need an umbrella", "r2": "move it there"}
    gold = {"r0": ("disk/rm",), "r1": ("sky/forecast",), "r2": ("disk/mv",)}
    return Dataset("small", TOOLS, requests, {"test": gold, "dev": gold})


def test_rows_of_all_ways_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(expansion.ALL, "small", "test")
    given = argparse.Namespace(out=tmp_path / "rows.jsonl", cache=tmp_path / "vectors.db")
    expansion.run(small(), {RULES: WRITTEN}, set(), given)
    rows = [json.loads(line) for line in given.out.read_text().splitlines()]
    jobs = [(row["study"]["method"], row["study"]["written"], row["study"]["way"]) for row in rows]
    wanted = [(name, NONE, BUILT) for name in METHODS] + [(name, RULES, way) for name in METHODS for way in WAYS[name]]
    assert sorted(jobs) == sorted(wanted)
    found = dict(zip(jobs, rows, strict=True))
    words = [found["bm25", who, BUILT]["metrics"]["recall@5"] for who in (NONE, RULES)]
    assert words[1] > words[0]
    assert found["bm25", RULES, BUILT]["study"]["difference"] == pytest.approx(words[1] - words[0], abs=1e-5)
    assert {row["variant"] for row in rows} == {NONE, RULES, "rules-append", "rules-max", "rules-not"}
    done = {("small", *job, rows[0]["study"]["encoder"]) for job in jobs}
    expansion.run(small(), {RULES: WRITTEN}, done, given)
    assert len(given.out.read_text().splitlines()) == len(rows)


@pytest.mark.parametrize("way", [BUILT, APPEND, MAX, NOT])
def test_each_way_raises_the_tool_whose_expansion_says_it(way: str, tmp_path: Path) -> None:
    found = expansion.measure(small(), "test", Job("dense", RULES, way), WRITTEN, tmp_path / "vectors.db")
    assert found.asked[0].ranking is not None
    assert found.asked[0].ranking[0] == "disk/rm"


def test_weights_are_said_on_dev(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expansion.say_weights(small(), WRITTEN, tmp_path / "vectors.db")
    said = capsys.readouterr().err
    assert said.count("dense share") == len(expansion.SHARES)
    assert said.count("bm25 weight") == len(expansion.WORD_WEIGHTS)


def test_the_table(tmp_path: Path) -> None:
    told = {"name": expansion.NAME, "method": "bm25", "way": BUILT, "tools": 3, "expanded": 2, "encoder": "e"}
    ends = {"difference": 0.021, "low": 0.01, "high": 0.03, "p": 0.01}
    write_rows(
        tmp_path,
        scored(0.5, retriever="bm25", variant=NONE, study=told | ends | {"written": NONE}),
        scored(0.52, retriever="bm25", variant=RULES, study=told | ends | {"written": RULES}),
    )
    page = report.make(tmp_path, with_plots=False).texts[report.PAGE]
    assert "## Expansions" in page
    assert "+2.10" in page
    assert "+1.00 to +3.00" in page
