"""Work side by side: all of it, in order where it must be, and none that is begun too late."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import pytest

from toolscout.papers.jobs import Job, run_jobs


@pytest.mark.parametrize("side_by_side", [1, 2])
def test_all_is_done_but_what_depends_on_a_failure(side_by_side: int) -> None:
    jobs = [
        Job("root", math.sqrt, (9,)),
        Job("wrong", math.sqrt, (-1,)),
        Job("then", math.sqrt, (16,), after=("root",)),
        Job("never", math.sqrt, (25,), after=("wrong",)),
        Job("threads", os.environ.get, ("OMP_NUM_THREADS",)),
    ]
    before = os.environ.get("OMP_NUM_THREADS")
    found = {done.name: done for done in run_jobs(jobs, side_by_side)}
    assert list(found.keys() ^ {job.name for job in jobs}) == ["never"]
    assert (found["root"].result, found["then"].result) == (3, 4)
    assert found["wrong"].error.startswith("ValueError: ")
    assert os.environ.get("OMP_NUM_THREADS") == before


def test_nothing_is_begun_after_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("toolscout.papers.jobs.time.monotonic", lambda: now[0])

    def slow() -> None:
        now[0] += 6

    work: Callable[..., Any] = slow
    assert [done.name for done in run_jobs([Job(f"{n}", work) for n in range(4)], 1, stop_after=10)] == ["0", "1"]
    assert list(run_jobs([Job("0", work)], 2, stop_after=0)) == []
