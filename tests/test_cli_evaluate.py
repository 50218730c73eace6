"""toolscout evaluate and toolscout bench."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.evaluation.made_up import dataset
from toolscout.cli import app
from toolscout.evaluation import speed


@pytest.fixture(autouse=True)
def _no_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLSCOUT_CACHE", str(tmp_path / "cache"))


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    dataset().save(tmp_path / "made-up")
    return tmp_path / "made-up"


def test_evaluate_prints_the_measures_and_appends_a_row(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    for option in ("names=0.5", "names=0"):
        done = run("evaluate", data, "--retriever", "bm25", "--option", option, "--json", out)
        assert done.exit_code == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["variant"] for row in rows] == ["default", "names-0.0"]
    assert rows[0]["command"].startswith("toolscout evaluate made-up --split test --retriever bm25")
    for name, label in (("recall", "Recall"), ("ndcg", "NDCG"), ("comp", "COMP")):
        line = next(line for line in done.stdout.splitlines() if line.startswith(label))
        assert line.split()[1:] == [f"{rows[1]['metrics'][f'{name}@{k}']:.4f}" for k in (1, 3, 5, 10)]
    assert "those that need no tool" in done.stdout
    files = sorted(path.name for path in (tmp_path / "rows.scores").iterdir())
    assert files == ["made-up.test.bm25.jsonl.gz", "made-up.test.bm25.names-0.0.jsonl.gz"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["nowhere"], "no dataset 'nowhere'"),
        (["DATA", "--split", "nonsense"], "no split nonsense"),
        (["DATA", "--retriever", "nonsense"], "no retriever called 'nonsense'"),
        (["DATA", "--retriever", "bm25", "--option", "nonsense=1"], "no option of bm25"),
        (["DATA", "--retriever", "dense"], "no sentence encoder"),
        (["DATA", "--retriever", "bm25", "--json", "."], "name another file"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_in_one_line(data: Path, words: list[str], expected: str) -> None:
    done = run("evaluate", *(data if word == "DATA" else word for word in words))
    assert done.exit_code == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_bench_writes_rows_and_shows_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"p50_ms": 10.0, "searches_ms": 5.0}
    row = {"bench": "query", "requests": "toollens", "tools": 46587, "values": values}
    plans: list[speed.Plan] = []

    def bench(plan: speed.Plan, *_: object) -> list[dict[str, object]]:
        plans.append(plan)
        return [row]

    monkeypatch.setattr(speed, "bench", bench)
    words = ("--sizes", "464,46587", "--repeats", 2, "--work", tmp_path, "--no-embed-timing")
    done = run("bench", *words, "--json", tmp_path / "bench.jsonl")
    assert done.exit_code == 0
    assert plans == [speed.Plan((464, 46587), 2, tmp_path, embed_timing=False)]
    assert json.loads((tmp_path / "bench.jsonl").read_text()) == row
    assert "≤ 11 met" in done.stdout
    assert "≤ 4 missed" in done.stdout


def test_bench_refuses_sizes_that_are_none() -> None:
    done = run("bench", "--sizes", "many")
    assert (done.exit_code, "numbers of tools" in done.stderr) == (2, True)
