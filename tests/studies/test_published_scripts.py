"""The scripts that publish numbers: the pages of results are not stale, and what they compute is right."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from peers import report as peers_report
from recipes import catalogue_fit
from studies import report
from toolscout.evaluation.report import page

RESULTS = Path(__file__).parents[2] / "results"


def test_the_pages_of_results_and_their_plots_are_not_stale() -> None:
    assert page.stale(RESULTS) == [], "run: toolscout results"
    assert report.make(RESULTS).stale(RESULTS) == [], "run: python -m studies.report"
    text = "".join((RESULTS / name).read_text(encoding="utf-8") for name in (page.PAGE, report.PAGE))
    named = set(re.findall(r"\]\((\S+\.svg)\)", text))
    assert named
    assert named == {path.name for path in RESULTS.glob("*.svg")} - {peers_report.PICTURE}  # it has a page of its own


def test_fitting_finds_the_curve_that_made_the_labels() -> None:
    rng = np.random.default_rng(0)
    signal = rng.uniform(size=50_000)
    truth = rng.uniform(size=len(signal)) < 1 / (1 + np.exp(-(10 * signal - 4)))
    kept = truth | (rng.uniform(size=len(signal)) < 0.2)  # a rare class must not move the curve
    assert catalogue_fit.logistic(signal[kept], truth[kept])[1] == pytest.approx(10, abs=0.5)
    bias, weight = catalogue_fit.logistic(signal, truth)
    assert -bias / weight == pytest.approx(-np.divide(*catalogue_fit.logistic(signal[kept], truth[kept])), abs=0.02)


def test_the_threshold_keeps_nine_in_ten() -> None:
    chance = np.array([0.05, 0.31, 0.42, 0.53, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.99])
    truth = np.array([False, True, True, True, False, True, True, True, True, True, True, True])
    assert catalogue_fit.lenient_threshold(chance, truth) == 0.31
