"""The scripts that publish numbers: the page of results is not stale, and what they compute is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runs import fit, report
from toolscout.evaluation import row
from toolscout.evaluation.run import MEASURES

BENCH: dict[str, Any] = {
    "catalogue": "toolbench",
    "repeats": 3,
    "how": "as published",
    "hardware": {"machine": "aarch64", "cpu": "one", "cores": 2, "memory_gb": 8},
    "commit": "abc",
}


def scored(**changes: Any) -> dict[str, Any]:
    made = {
        "dataset": "toollens",
        "digest": "0123456789abcdef",
        "split": "test",
        "retriever": "bm25",
        "variant": "default",
        "seed": None,
        "metrics": dict.fromkeys(MEASURES, 0.25),
        "timing": {"query_p50_ms": 1.25},
        "requests": 10,
        "commit": "abc",
    }
    return made | changes


def test_the_page_of_results_is_not_stale() -> None:
    written = (report.RESULTS / "README.md").read_text(encoding="utf-8")
    assert written == report.render(report.RESULTS), "run: python runs/report.py"


def test_rows_become_tables_the_newest_of_its_kind_counting(tmp_path: Path) -> None:
    fitting = {"fit_use": 0.9, "fit_auroc": 0.8}
    row.append(tmp_path / "one.jsonl", scored(metrics=dict.fromkeys(MEASURES, 0.5)))
    row.append(tmp_path / "one.jsonl", scored())
    row.append(tmp_path / "two.jsonl", scored(variant="names-0.0", metrics=dict.fromkeys(MEASURES, 0.75) | fitting))
    for tools, value in ((464, 3.0), (46587, 12.0)):
        values = {"p50_ms": value}
        row.append(
            tmp_path / "bench.jsonl",
            BENCH | {"bench": "query", "requests": "toollens", "tools": tools, "values": values},
        )
    page = report.render(tmp_path)
    assert "| bm25 | 25.00 |" in page
    assert "50.00" not in page
    assert "| bm25 (names-0.0) | 75.00 |" in page
    assert "| test | bm25 (names-0.0) | 90.00 |  |  | 80.00 |" in page
    assert "| query toollens | p50_ms | 3 | 12 (≤ 11: **missed**) |" in page


def test_the_plot_is_drawn_small_and_without_a_date(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from runs import plot_bench

    rows = [
        BENCH | {"bench": "query", "requests": "toollens", "tools": tools, "values": {"p50_ms": tools / 100}}
        for tools in (464, 46587)
    ]
    plot_bench.draw(rows, tmp_path / "bench.svg")
    drawn = (tmp_path / "bench.svg").read_text()
    assert len(drawn) < 100_000
    assert "ToolLens requests" in drawn
    assert "dc:date" not in drawn


def test_fitting_finds_the_curve_that_made_the_labels() -> None:
    rng = np.random.default_rng(0)
    signal = rng.uniform(size=50_000)
    truth = rng.uniform(size=len(signal)) < 1 / (1 + np.exp(-(10 * signal - 4)))
    kept = truth | (rng.uniform(size=len(signal)) < 0.2)  # a rare class must not move the curve
    assert fit.logistic(signal[kept], truth[kept])[1] == pytest.approx(10, abs=0.5)
    bias, weight = fit.logistic(signal, truth)
    assert -bias / weight == pytest.approx(-np.divide(*fit.logistic(signal[kept], truth[kept])), abs=0.02)


def test_the_threshold_keeps_nine_in_ten() -> None:
    chance = np.array([0.05, 0.31, 0.42, 0.53, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.99])
    truth = np.array([False, True, True, True, False, True, True, True, True, True, True, True])
    assert fit.lenient_threshold(chance, truth) == 0.31
