"""A minimum is read strictly, and what was not measured does not pass."""

from __future__ import annotations

import pytest

from toolscout.errors import BadRequest
from toolscout.evaluation.minimums import Minimum, read_minimums


def test_minimums_are_read() -> None:
    assert read_minimums(["recall@5=0.8", "mrr = .5", "need_auroc=1", "comp@12=0"]) == [
        Minimum("recall@5", 0.8),
        Minimum("mrr", 0.5),
        Minimum("need_auroc", 1.0),
        Minimum("comp@12", 0.0),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("recall@5", "as recall@5=0.8"),
        ("recall@5=", "as recall@5=0.8"),
        ("=0.5", "as recall@5=0.8"),
        ("recall@5=high", "as recall@5=0.8"),
        ("recall@5=80", "from 0 to 1"),
        ("recall@5=nan", "from 0 to 1"),
        ("recall@5=-0.1", "from 0 to 1"),
        ("recal@5=0.8", "unknown measure 'recal@5'"),
        ("fit_brier=0.2", "less is better"),
    ],
)
def test_what_is_no_minimum_is_refused(text: str, expected: str) -> None:
    with pytest.raises(BadRequest, match=expected):
        read_minimums([text])


def test_a_gate_passes_at_its_minimum_and_not_below() -> None:
    gate = Minimum("recall@5", 0.8)
    assert gate.failure({"recall@5": 0.8}) == ""
    assert gate.failure({"recall@5": 0.79996}) == "recall@5 is 0.79996, below 0.8"
    assert "was not measured" in gate.failure({"recall@3": 1.0})
