"""The page about other libraries: where toolscout loses stands first, and follows from the rows."""

from __future__ import annotations

from typing import Any

import pytest

from peers import report
from peers.table import BOTH, VECTORS, WORDS
from toolscout.evaluation.row import read_rows


def measured(peer: str, kind: str, recall: float, cpu_ms: float, **about: Any) -> dict[str, Any]:
    names = ("recall@1", "recall@5", "ndcg@5", "comp@5", "offered_recall@5", "fit_use", "fit_nothing", "right@5")
    times = ("p50_ms", "p95_ms", "index_cpu_s", "reopen_cpu_s", "cold_start_cpu_s", "reopen_peak_mb", "index_mb")
    study = {"name": "peers", "kind": kind, "tools": 3, "problem": "", "live": "yes", "load": [0.5, 0.5]}
    study |= {"permissions": "", "adapter_lines": 12, "install_mb": 10.0} | about
    return {
        "dataset": "mine",
        "digest": "d",
        "split": "test",
        "retriever": peer,
        "variant": "default",
        "metrics": dict.fromkeys(names, recall),
        "timing": dict.fromkeys(times, 1.0) | {"cpu_ms": cpu_ms},
        "requests": 7,
        "study": study,
    }


ROWS = [
    measured("toolscout bm25", WORDS, 0.5, 2.0),
    measured("toolscout dense", VECTORS, 0.8, 5.0),
    measured("toolscout hybrid", BOTH, 0.7, 8.0),
    measured("words", WORDS, 0.4, 1.0),
    measured("vectors", VECTORS, 0.75, 20.0, reopen_embedded=3, versions={"vectors": "1.2"}),
    {**measured("absent", WORDS, 0.9, 0.1, problem="does not install"), "metrics": {}, "timing": {}},
]


def losses(page: str) -> str:
    return page.partition("## Where toolscout loses")[2].partition("\n## ")[0]


def test_where_toolscout_loses_stands_first_and_only_to_its_like() -> None:
    page = report.page(ROWS)
    assert page.index("## ") == page.index("## Where toolscout loses")
    lost = losses(page)
    assert "| CPU ms a request | bm25 | 2; words 1 |" in lost
    assert "| R@5 | hybrid | 70.0; vectors 75.0 |" in lost
    assert "| R@5 | bm25" not in lost  # "words" finds less, and "vectors" is of another kind
    assert "| CPU ms a request | hybrid" not in lost
    assert "`hybrid` finds less than `dense` alone, in R@5, on mine (70.0 against 80.0)" in lost


def test_a_peer_that_was_not_measured_stands_below_with_its_reason() -> None:
    page = report.page(ROWS)
    assert "| absent | mine | does not install |" in page
    assert page.count("absent") == 1


def test_features_say_what_was_tried() -> None:
    page = report.page(ROWS)
    assert "| vectors | vectors | 1.2 | yes | yes | yes | no | 12 | 10 |" in page


def test_the_newest_row_of_a_peer_counts() -> None:
    page = report.page([*ROWS, measured("words", WORDS, 0.6, 1.0)])
    assert "| R@5 | bm25 | 50.0; words 60.0 |" in losses(page)


def test_the_picture_has_a_point_for_each_peer() -> None:
    (panel,) = report.figure(ROWS).panels
    assert {one.label: (one.x, one.y, one.dashed) for one in panel.series}["vectors"] == ((20.0,), (75.0,), True)
    assert len(panel.series) == 5


def test_the_page_is_that_of_the_rows() -> None:
    made = report.reports(read_rows(report.ROWS))
    assert not [path for folder, one in made.items() for path in one.stale(folder)], "run: python -m peers.report"


def test_names_of_points_are_drawn(tmp_path: Any) -> None:
    pytest.importorskip("matplotlib")
    from toolscout.evaluation.report import plots

    plots.draw(report.figure(ROWS), tmp_path / "peers.svg")
    text = (tmp_path / "peers.svg").read_text()
    assert all(name in text for name in ("toolscout hybrid", "words", "vectors"))
