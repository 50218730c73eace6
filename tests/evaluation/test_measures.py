"""The numbers of a row, worked by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from toolscout.data.dataset import Kind
from toolscout.errors import BadRequest
from toolscout.evaluation.measures import FORECASTS, MEASURES, SETS, check_names, compute_measures, depth_of
from toolscout.evaluation.request_result import RequestResult
from toolscout.evaluation.scores import Scores

TEN = tuple(f"t{number}" for number in range(1, 11))


def asked(
    number: int,
    gold: tuple[str, ...] = ("t1",),
    ranking: tuple[str, ...] | None = TEN,
    kind: Kind = "use",
    need: float | None = None,
    fit: float = 1.0,
    said: str = "",
) -> RequestResult:
    verdict = None if ranking is None else said or ("use" if fit >= 0.5 else "nothing_fits")
    error = "" if ranking else "broken"
    return RequestResult(f"r{number}", f"s{number}", kind, gold, ranking, fit, verdict, 0.001, error, need)  # type: ignore[arg-type]


def test_the_default_measures_by_hand() -> None:
    found = compute_measures([asked(1, ("t1", "t4")), asked(2, ("t2",)), asked(3, ranking=None, fit=0.0)])
    assert set(MEASURES) | {"fit_use"} == found.metrics.keys() == found.intervals.keys()
    assert found.metrics["hit@1"] == pytest.approx(1 / 3, abs=1e-6)
    assert found.metrics["hit@3"] == pytest.approx(2 / 3, abs=1e-6)
    assert found.metrics["mrr"] == pytest.approx((1 + 1 / 2) / 3, abs=1e-6)
    assert found.metrics["recall@3"] == pytest.approx((1 / 2 + 1) / 3, abs=1e-6)
    assert found.metrics["recall@5"] == pytest.approx(2 / 3, abs=1e-6)
    # ToolGen's ideal is over what was returned: two of two at rank 1, 4; one of one at rank 2.
    first = (1 + 1 / math.log2(5)) / (1 + 1 / math.log2(3))
    assert found.metrics["toolgen_ndcg@5"] == pytest.approx((first + 1 / math.log2(3)) / 3, abs=1e-6)
    assert found.metrics["fit_use"] == pytest.approx(2 / 3, abs=1e-6)


def test_any_cutoff_can_be_asked_for_and_mrr_stays_what_it_was() -> None:
    deep = tuple(f"t{number}" for number in range(1, 31))
    names = ["recall@7", "recall@25", "mrr@30", "precision@4"]
    found = compute_measures([asked(1, ("t6", "t20"), deep), asked(2, ("t20",), deep)], names).metrics
    assert (found["recall@7"], found["recall@25"]) == (0.25, 1.0)
    assert found["mrr"] == pytest.approx((1 / 6 + 0) / 2, abs=1e-6)  # over the first ten, as in every row
    assert found["mrr@30"] == pytest.approx((1 / 6 + 1 / 20) / 2, abs=1e-6)
    assert found["precision@4"] == 0
    assert (depth_of(names), depth_of(["recall@7", "mrr"])) == (30, 10)


def test_new_tools_are_told_apart_only_where_there_are_some() -> None:
    both = [asked(1, ("t1", "t9")), asked(2, ("t2",))]
    found = compute_measures(both, ["new_recall@7"], frozenset(["t9"]))
    assert (found.metrics["new_recall@5"], found.metrics["new_recall@10"]) == (0, 1)
    assert (found.metrics["known_recall@1"], found.metrics["known_recall@5"]) == (0.5, 1)
    assert found.metrics["new_recall@7"] == 0
    assert found.intervals["new_recall@10"] == [1, 1]
    plain = compute_measures(both, ["new_recall@7"]).metrics
    assert not [name for name in plain if name.startswith(("new", "known"))]
    every = compute_measures(both, (), frozenset(["t1", "t2", "t9"])).metrics
    assert every["new_recall@5"] == every["recall@5"]
    assert "known_recall@5" not in every


def test_forecasts_by_hand() -> None:
    run = [
        asked(1, need=0.9, fit=0.8),
        asked(2, need=0.4, fit=0.3),
        asked(3, (), kind="nothing_fits", need=0.8, fit=0.6),
        asked(4, (), kind="no_tool", need=0.1, fit=0.1),
        asked(5, (), kind="no_tool", need=0.6, fit=0.2),
    ]
    found = compute_measures(run).metrics
    assert found["fit_auroc"] == pytest.approx(5 / 6, abs=1e-6)  # 0.3 stands below 0.6
    assert found["fit_auroc.no_tool"] == 1
    assert found["fit_f1"] == pytest.approx(2 * 1 / (2 + 2), abs=1e-6)  # said yes twice, once rightly, of two
    brier = (0.2**2 + 0.7**2 + 0.6**2 + 0.1**2 + 0.2**2) / 5
    assert found["fit_brier"] == pytest.approx(brier, abs=1e-6)
    assert found["fit_ece"] == pytest.approx((0.2 + 0.7 + 0.6 + 0.1 + 0.2) / 5, abs=1e-6)
    # Whether a tool is needed: yes, yes, yes, no, no.
    assert found["need_auroc"] == pytest.approx(5 / 6, abs=1e-6)
    assert found["need_f1"] == pytest.approx(2 * 2 / (3 + 3), abs=1e-6)
    assert found["need_brier"] == pytest.approx((0.1**2 + 0.6**2 + 0.2**2 + 0.1**2 + 0.6**2) / 5, abs=1e-6)
    assert found["need_accuracy"] == pytest.approx(3 / 5, abs=1e-6)
    judged = {name for name in found if name.startswith(("fit", "need", "verdict", "right"))}
    assert judged == set(FORECASTS) - set(SETS)


def test_both_steps_together_by_hand() -> None:
    run = [
        asked(1, ("t1", "t5")),  # all of it found
        asked(2, ("t1", "t6")),  # one too far down
        asked(3, ("t1",), said="no_tool_needed"),  # found, but not offered
        asked(4, ranking=None),
        asked(5, (), kind="no_tool", said="no_tool_needed"),
        asked(6, (), kind="no_tool", said="nothing_fits"),  # none offered, for the wrong reason
        asked(7, (), kind="no_tool", said="use"),
        asked(8, (), kind="nothing_fits", said="no_tool_needed"),
        asked(9, (), kind="nothing_fits", ranking=None),
    ]
    found = compute_measures(run)
    assert found.metrics["right_use@5"] == 0.25
    assert found.metrics["right_abstain"] == found.metrics["fit_nothing"] == 0.6
    assert found.metrics["right@5"] == pytest.approx(4 / 9, abs=1e-6)
    assert found.metrics["fit_nothing.no_tool"] == pytest.approx(2 / 3, abs=1e-6)
    assert found.metrics["verdict.no_tool"] == pytest.approx(1 / 3, abs=1e-6)
    assert (found.metrics["fit_nothing.nothing_fits"], found.metrics["verdict.nothing_fits"]) == (0.5, 0.0)
    low, high = found.intervals["right@5"]
    assert low < 4 / 9 < high
    lines = [one.to_dict() for one in run]
    again = Scores(Path("x"), lines).values(["right@5", "right_use@5", "right_abstain", "verdict.no_tool"])
    assert [round(float(value), 6) for value in np.nanmean(again, axis=0)] == [
        found.metrics[name] for name in ("right@5", "right_use@5", "right_abstain", "verdict.no_tool")
    ]


def test_nothing_but_requests_for_tools_has_no_mixed_measure() -> None:
    assert not [name for name in compute_measures([asked(1), asked(2)]).metrics if name.startswith("right")]


def test_a_failed_request_is_forecast_as_wrongly_as_can_be() -> None:
    good = [asked(1, need=1.0), asked(2, (), kind="no_tool", need=0.0, fit=0.0)]
    assert compute_measures(good).metrics["need_brier"] == 0
    run = [*good, asked(3, ranking=None, fit=0.0), asked(4, (), ranking=None, kind="no_tool", fit=1.0)]
    found = compute_measures(run).metrics
    assert (found["need_brier"], found["fit_brier"]) == (0.5, 0.5)
    assert found["need_f1"] == found["fit_f1"] == 0.5
    assert found["fit_nothing"] == 0.5


def test_need_is_not_judged_where_it_was_not_forecast_or_all_need_one() -> None:
    no_tool = asked(2, (), kind="no_tool", fit=0.0)
    assert "need_auroc" not in compute_measures([asked(1), no_tool]).metrics
    assert "need_auroc" not in compute_measures([asked(1, need=0.5), no_tool]).metrics
    assert "need_auroc" not in compute_measures([asked(1, need=0.5), asked(2, need=0.5)]).metrics


def test_names_that_are_no_measure_are_refused() -> None:
    assert check_names(["recall@7", "fit_auroc", "recall@7"]) == ["recall@7"]
    for wrong in ("recall", "recall@0", "accuracy@3", "recall@5=1"):
        with pytest.raises(BadRequest, match=r"unknown measure.*toolgen_ndcg@k.*need_auroc"):
            check_names([wrong])
