"""toolscout results: the page is made, checked, and refused with a line that says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.cli_samples import Run
from tests.evaluation.report_samples import scored, write_rows


@pytest.mark.slow
def test_a_page_is_made_and_then_not_stale(run: Run, tmp_path: Path) -> None:
    write_rows(tmp_path / "results", scored())
    stale = run("results", "--check")
    assert stale.exit_code == 1
    assert "stale: results/README.md" in stale.stderr
    assert stale.stderr.endswith("run: toolscout results results\n")
    made = run("results")
    assert (made.exit_code, made.stdout) == (0, "results/README.md\n")
    assert "written: results/quality_latency.svg" in made.stderr
    assert run("results", "--check").exit_code == 0


def test_any_folder_will_do(run: Run, tmp_path: Path) -> None:
    write_rows(tmp_path / "my runs", scored())
    stale = run("results", "my runs", "--check", "--no-plots")
    assert stale.stderr.endswith("run: toolscout results 'my runs' --no-plots\n")
    assert run("results", "my runs", "--no-plots").exit_code == 0
    assert "| bm25 | 25.00 |" in (tmp_path / "my runs" / "README.md").read_text()
    assert {path.name for path in (tmp_path / "my runs").iterdir()} == {"README.md", "rows.jsonl"}


@pytest.mark.parametrize("args", [(), ("--check",)])
def test_bad_input_is_one_line(run: Run, tmp_path: Path, args: tuple[str, ...]) -> None:
    for expected in ("there is no folder results", "results has no rows", "line 1 is not JSON"):
        result = run("results", *args)
        assert result.exit_code == 2
        assert result.stderr.startswith("error: ")
        assert expected in result.stderr
        assert result.stderr.count("\n") == 1
        if (tmp_path / "results").exists():
            (tmp_path / "results" / "rows.jsonl").write_text("broken\n")
        (tmp_path / "results").mkdir(exist_ok=True)
