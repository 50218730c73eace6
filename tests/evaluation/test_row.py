"""Rows and scores are written so that they can be read, compared and made again."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.evaluation.made_up import dataset
from toolscout.data import metrics
from toolscout.errors import BadDataset, ToolscoutError
from toolscout.evaluation import row
from toolscout.evaluation.evaluate import evaluate
from toolscout.evaluation.measures import MEASURES
from toolscout.retrievers import opening
from toolscout.retrievers.base import Options
from toolscout.retrievers.bm25 import Bm25


@dataclass(frozen=True, slots=True)
class Example(Options):
    depth: int = 100
    encoder: str = ""
    fuzzy: bool = True


def test_a_variant_names_what_differs_from_the_defaults() -> None:
    assert opening.variant_of(Example()) == "default"
    assert opening.variant_of(Example(depth=7, fuzzy=False)) == "depth-7_fuzzy-false"
    assert opening.variant_of(Example(encoder="/home/someone/my encoder/")) == "encoder-my-encoder"


def test_rows_are_appended_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "rows.jsonl"
    for number in range(3):
        row.append(path, {"number": number})
    assert row.read_rows(path) == [{"number": 0}, {"number": 1}, {"number": 2}]
    path.write_text('{"number": 0}\n[]\n')
    with pytest.raises(BadDataset, match="line 2"):
        row.read_rows(path)
    path.write_text('{"number":')
    with pytest.raises(BadDataset, match="line 1 is not JSON"):
        row.read_rows(path)


def test_a_file_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(ToolscoutError, match="name another file"):
        row.check_writable(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ToolscoutError, match="name another file"):
        row.check_writable(tmp_path / "file" / "rows.jsonl")


def test_every_measure_follows_from_the_scores_of_single_requests(tmp_path: Path) -> None:
    done = evaluate(dataset(), "test", Bm25(), cache=tmp_path / "vectors.db")
    path = row.scores_path(tmp_path / "rows.jsonl", done.row)
    assert path == tmp_path / "rows.scores" / "made-up.test.bm25.jsonl.gz"
    row.write_scores(path, done.lines())
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    assert row.read_scores(path) == lines
    assert row.scores_path(tmp_path / "rows.jsonl", done.row.to_dict()) == path
    assert len({line["id"] for line in lines}) == len(lines) == done.row.requests
    rankings, golds = [], []
    for line in lines:
        if line["gold"]:
            ranking = [f"other {rank}" for rank in range(1, 11)]
            for number, rank in enumerate(line["ranks"]):
                ranking[rank - 1] = f"gold {number}"
            rankings.append(ranking)
            golds.append([f"gold {number}" for number in range(line["gold"])])
    expected = metrics.evaluate(rankings, golds, MEASURES)
    assert {name: done.row.metrics[name] for name in MEASURES} == pytest.approx(expected, abs=1e-6)


def test_the_same_scores_are_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        row.write_scores(tmp_path / name, [{"id": "a", "ranks": [1]}, {"id": "b", "ranks": None}])
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_row_says_where_and_with_what_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = row.provenance("toolscout evaluate bundled")
    assert about["hardware"]["cores"] >= 1
    assert re.fullmatch(r"[0-9a-f]{12}\+?|v.+", about["commit"])
    monkeypatch.setattr(row, "_PACKAGE", tmp_path)  # installed: no clone around it
    monkeypatch.delenv("TOOLSCOUT_COMMIT", raising=False)
    assert row.commit().startswith("v")
    monkeypatch.setenv("TOOLSCOUT_COMMIT", "0123456789ab")
    assert row.commit() == "0123456789ab"
