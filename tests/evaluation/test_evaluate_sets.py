"""Evaluating k="auto": what Scout returns, in one row with the ranking, and only for those who can tell how many."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.evaluation.made_up import dataset, hybrid
from tests.evaluation.report_samples import MEASURES, scored, write_rows
from tests.sized import Sized, SizedOptions
from tests.toys import HashedWords
from toolscout import Allowed, Scout
from toolscout.errors import BadRequest
from toolscout.evaluation.candidates import read_candidates
from toolscout.evaluation.evaluate import Evaluation, evaluate
from toolscout.evaluation.measures import SETS, check_names
from toolscout.evaluation.minimums import read_minimums
from toolscout.evaluation.report import page as report
from toolscout.evaluation.scores import Scores
from toolscout.retrievers.dense import Dense
from toolscout.retrievers.hybrid.retriever import Hybrid
from toolscout.stores.sqlite.store import SqliteStore


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "vectors.db"


def test_what_is_measured_is_what_scout_returns(tmp_path: Path, cache: Path) -> None:
    data, retriever = dataset(requests=80), Sized()
    done = evaluate(data, "test", retriever, cache=cache)
    assert retriever.batches == (64, 23)  # together, not one by one
    served = {}
    with Scout(SqliteStore(tmp_path / "tools.db"), Sized()) as scout:
        scout.add(data.tools)
        for one in done.asked:
            served[one.request_id] = [
                hit.tool_id for hit in scout.search(data.requests[one.request_id], "auto").considered
            ]
            assert list(one.returned or ()) == served[one.request_id]
    pairs = [(set(served[one.request_id]), set(one.gold)) for one in done.asked if one.gold]
    expected = {
        "exact_set": np.mean([came == gold for came, gold in pairs]),
        "set_recall": np.mean([len(came & gold) / len(gold) for came, gold in pairs]),
        "set_precision": np.mean([len(came & gold) / max(len(came), 1) for came, gold in pairs]),
        "returned": np.mean([len(came) for came, _ in pairs]),
    }
    assert {name: done.row.metrics[name] for name in SETS} == pytest.approx(expected, abs=1e-6)
    assert 0 < expected["set_precision"] < 1 < expected["returned"]
    for name in SETS:
        low, high = done.row.intervals[name]
        assert low <= done.row.metrics[name] <= high


def test_sets_among_candidates_are_what_a_caller_limited_to_them_gets(tmp_path: Path, cache: Path) -> None:
    data = dataset()
    candidates = read_candidates(data, ["test"])
    assert len(candidates.ids) < len(data.tools)
    done = evaluate(data, "test", Sized(), among=candidates, cache=cache)
    with Scout(SqliteStore(tmp_path / "tools.db"), Sized()) as scout:
        scout.add(data.tools)
        for one in done.asked:
            served = scout.search(data.requests[one.request_id], "auto", Allowed.of(ids=candidates.ids)).considered
            assert list(one.returned or ()) == [hit.tool_id for hit in served]
            assert candidates.ids.issuperset(one.returned or ())


def test_the_others_are_not_asked_and_rank_as_before(cache: Path) -> None:
    untold = Sized(SizedOptions(sets=False))
    for retriever in (untold, hybrid(), Hybrid(parts=[Sized(), Dense(encoder=HashedWords())])):
        done = evaluate(dataset(), "test", retriever, cache=cache)
        assert not done.row.metrics.keys() & set(SETS)
        assert not any("returned" in line for line in done.lines())
    assert untold.batches == ()
    usual, sized = (evaluate(dataset(), "test", one, cache=cache).row.metrics for one in (untold, Sized()))
    assert usual == {name: value for name, value in sized.items() if name not in SETS}


def test_a_request_that_fails_returned_nothing_and_the_others_are_asked(cache: Path) -> None:
    data, failing = dataset(), Sized()
    before = evaluate(data, "test", Sized(), cache=cache)
    lost = next(one for one in before.asked if one.gold and set(one.returned or ()) & set(one.gold))
    failing.refused = data.requests[lost.request_id]
    after = evaluate(data, "test", failing, cache=cache)
    assert (after.row.failed, [one.error for one in after.asked if one.error]) == (
        1,
        ["RuntimeError: too many to count"],
    )
    assert after.row.metrics["recall@5"] == before.row.metrics["recall@5"]
    share = len(set(lost.returned or ()) & set(lost.gold)) / len(lost.gold) / 40
    assert after.row.metrics["set_recall"] == pytest.approx(before.row.metrics["set_recall"] - share, abs=1e-6)


def _scores(done: Evaluation) -> Scores:
    return Scores(Path("x"), list(done.lines()))


def test_single_requests_score_as_the_row_does(cache: Path) -> None:
    done = evaluate(dataset(), "test", Sized(), cache=cache)
    means = np.nanmean(_scores(done).values(SETS), axis=0)
    assert [round(float(mean), 6) for mean in means] == [done.row.metrics[name] for name in SETS]
    with_ids = next(iter(done.lines(rankings=True)))
    assert len(with_ids["set"]) == with_ids["returned"]
    plain = evaluate(dataset(), "test", hybrid(), cache=cache)
    with pytest.raises(BadRequest, match="no exact_set: the model cannot say how many"):
        _scores(plain).values(["exact_set"])


def test_measures_of_sets_can_be_named_and_be_a_gate() -> None:
    assert check_names(["exact_set", "returned", "recall@7"]) == ["recall@7"]
    assert read_minimums(["exact_set=0.5"])[0].failure({"exact_set": 0.25}) == "exact_set is 0.25, below 0.5"


def test_the_page_shows_sets_only_where_there_are_some(tmp_path: Path) -> None:
    write_rows(tmp_path, scored())
    page = report.make(tmp_path, with_plots=False).texts[report.PAGE]
    assert "set" not in page.partition("## mine")[2]
    assert "exact set" not in page
    sets = {"exact_set": 0.625, "set_recall": 0.875, "set_precision": 0.75, "returned": 2.5}
    write_rows(tmp_path, scored(retriever="toolgen", variant="sets", metrics=dict.fromkeys(MEASURES, 0.5) | sets))
    page = report.make(tmp_path, with_plots=False).texts[report.PAGE]
    assert "| exact set | set R | set P | returned |" in page
    assert "| 62.50 | 87.50 | 75.00 | 2.50 |" in page
    assert "the gold tools and no other" in page
