"""A row says what the fit behind it took, added up over nested parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.evaluation.made_up import dataset
from toolscout.errors import BadModel
from toolscout.evaluation.evaluate import evaluate
from toolscout.evaluation.fit_record import FitRecord, read_fit_record
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.hybrid.retriever import Hybrid
from toolscout.retrievers.model_folder import write_model
from toolscout.retrievers.opening import open_retriever


def test_the_fits_of_a_model_and_its_parts_are_added_up(tmp_path: Path) -> None:
    parts = {"0-bm25": "bm25", "1-bm25": "bm25"}
    write_model(
        tmp_path, Hybrid(parts=[Bm25()]), parts, fit={"seconds": 2, "device": "cpu", "parameters": 7, "dev": {}}
    )
    trained = {"seconds": 61.25, "device": "cuda", "parameters": 22_000_000, "dev": {"recall@5": 0.9}}
    write_model(tmp_path / "0-bm25", Bm25(), fit=trained, seed=3)
    write_model(tmp_path / "1-bm25", Bm25())
    assert read_fit_record(tmp_path) == FitRecord(63.25, "cpu, cuda", 22_000_007, 3)


def test_nothing_is_known_of_what_was_not_fitted(tmp_path: Path) -> None:
    assert read_fit_record("bm25") == FitRecord()
    Bm25().save(tmp_path / "plain")
    assert read_fit_record(str(tmp_path / "plain")) == FitRecord()


@pytest.mark.parametrize("fit", ["soon", {"seconds": 1}, {"seconds": "1", "device": "cpu", "parameters": 1}])
def test_a_fit_that_cannot_be_read_is_refused(tmp_path: Path, fit: object) -> None:
    write_model(tmp_path, Bm25(), fit=fit)
    with pytest.raises(BadModel, match="train the model again"):
        read_fit_record(tmp_path)


def test_the_row_has_it(tmp_path: Path) -> None:
    Bm25().save(tmp_path / "mine")
    report = {"seconds": 5.5, "device": "cuda", "parameters": 10, "dev": {}}
    write_model(tmp_path / "mine", Bm25(), fit=report, seed=2)
    opened, variant = open_retriever(str(tmp_path / "mine"))
    known = read_fit_record(tmp_path / "mine")
    row = evaluate(dataset(), "test", opened, variant=variant, fitted=known, cache=tmp_path / "v.db").row
    assert row.seed == 2
    assert [row.timing[key] for key in ("fit_s", "fit_device", "fit_params")] == [5.5, "cuda", 10]
    plain = evaluate(dataset(), "test", Bm25(), cache=tmp_path / "v.db").row
    assert [plain.timing[key] for key in ("fit_s", "fit_device", "fit_params")] == [None, None, None]
