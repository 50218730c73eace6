"""toolscout compare and toolscout inspect."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.cli_samples import Run
from tests.evaluation.made_up import dataset


@pytest.fixture
def rows(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs on a made-up dataset, with rankings."""
    monkeypatch.setenv("TOOLSCOUT_DATA", str(tmp_path / "home"))
    dataset().save(tmp_path / "home" / "made-up")
    out = tmp_path / "rows.jsonl"
    for option in ("names=0.5", "words=0"):
        words = ("--retriever", "bm25", "--option", option, "--json", out, "--rankings")
        assert run("evaluate", "made-up", *words).exit_code == 0
    return out


def test_compare_prints_both_means_the_difference_and_its_chance(run: Run, rows: Path) -> None:
    done = run("compare", f"{rows}#1", f"{rows}#2")
    assert done.exit_code == 0
    written = [json.loads(line)["metrics"] for line in rows.read_text().splitlines()]
    for name in ("recall@5", "ndcg@5", "comp@5"):
        line = next(line for line in done.stdout.splitlines() if line.startswith(name))
        a, b = written[0][name], written[1][name]
        assert line.split()[1:3] == [f"{a:.4f}", f"{b:.4f}"]
        assert float(line.split()[3]) == pytest.approx(b - a, abs=1e-4)
    assert "40 requests in" in done.stdout
    assert "A: made-up test bm25" in done.stdout


def test_compare_as_json(run: Run, rows: Path) -> None:
    files = sorted(rows.with_name("rows.scores").iterdir())
    done = run("compare", *files, "--measure", "recall@3", "--measure", "fit_nothing", "--json")
    found = json.loads(done.stdout)
    assert [one["measure"] for one in found["measures"]] == ["recall@3", "fit_nothing"]
    assert [one["requests"] for one in found["measures"]] == [40, 7]
    assert 0 < found["measures"][0]["p"] <= 1


def test_runs_that_cannot_be_compared_are_refused(run: Run, rows: Path) -> None:
    for words, expected in (
        ((rows, rows), "2 rows of"),
        ((f"{rows}#1", f"{rows}#9"), "has rows 1 to 2"),
        ((f"{rows}#1", "nowhere"), "there is no file nowhere"),
        ((f"{rows}#1", f"{rows}#2", "--measure", "recall@50"), "evaluate again with --measure recall@50"),
        ((f"{rows}#1", f"{rows}#2", "--dataset", "other"), "no row of"),
    ):
        done = run("compare", *words)
        assert (done.exit_code, expected in done.stderr) == (2, True)


def test_inspect_shows_what_was_returned_and_what_was_missing(run: Run, rows: Path) -> None:
    done = run("inspect", f"{rows}#1", "-n", 3, "--measure", "recall@3")
    assert done.exit_code == 0
    data = dataset()
    line = done.stdout.splitlines()
    shown = [text.partition(":")[0] for text in line if ": recall@3" in text and text[0] == "r"]
    assert len(shown) == 3
    for request_id in shown:
        assert data.requests[request_id] in " ".join(done.stdout.split())
        for tool_id in data.qrels["test"][request_id]:
            assert f": {tool_id}" in done.stdout
    assert "gold, missing:" in done.stdout
    assert "  1. space" in done.stdout
    groups = [text.split() for text in line if text[:1].isdigit()]
    assert [(group[0], group[1]) for group in groups] == [("1", "10"), ("2", "10"), ("3", "10"), ("4", "10")]


def test_inspect_says_how_to_get_rankings_and_texts(run: Run, rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = rows.with_name("bare.jsonl")
    assert run("evaluate", "made-up", "--retriever", "bm25", "--json", out).exit_code == 0
    home = rows.parent / "home" / "made-up"
    monkeypatch.delenv("TOOLSCOUT_DATA")
    done = run("inspect", out, "-n", 2)
    assert (done.exit_code, "--json OUT --rankings" in done.stderr, "--data DATA" in done.stderr) == (0, True, True)
    assert "found at rank:" in done.stdout
    assert dataset().requests["r0"] not in done.stdout
    named = run("inspect", out, "-n", 40, "--data", home)
    assert dataset().requests["r0"] in " ".join(named.stdout.split())
    other = run("inspect", out, "--data", "bundled")
    assert (other.exit_code, "bundled" in other.stderr) == (2, True)
    assert run("inspect", out, "--data", "nowhere").exit_code == 2
    assert run("inspect", out, "--measure", "nonsense").exit_code == 2
