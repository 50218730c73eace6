"""Workers: every item has one result, whatever dies meanwhile; errors reach the caller as they are."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolscout.distributed.workers import Workers
from toolscout.errors import BadModel, ClusterError

pytestmark = pytest.mark.slow


class _Squares:
    """Squares numbers; dies once at each number that has a file in the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self) -> Callable[[int], int]:
        def square(number: int) -> int:
            mark = self._folder / str(number)
            if mark.exists():
                mark.unlink()
                os._exit(1)
            if (self._folder / f"always-{number}").exists():
                os._exit(1)
            if number < 0:
                raise BadModel("no number")
            return number * number

        return square


def _refuses() -> Callable[[int], int]:
    raise BadModel("it cannot be opened")


def _dies() -> Callable[[int], int]:
    os._exit(1)


def test_each_item_has_its_result_once(cluster: Any, tmp_path: Path) -> None:
    with Workers[int, int](cluster, _Squares(tmp_path)) as workers:
        assert sorted(workers.results(range(50))) == [(n, n * n) for n in range(50)]
        assert list(workers.results([])) == []
        assert list(workers.results([3])) == [(3, 9)]


def test_workers_that_die_are_replaced_and_their_work_is_done(cluster: Any, tmp_path: Path) -> None:
    for number in (3, 20, 21):
        (tmp_path / str(number)).touch()
    with Workers[int, int](cluster, _Squares(tmp_path)) as workers:
        assert sorted(workers.results(range(30))) == [(n, n * n) for n in range(30)]
    assert not list(tmp_path.iterdir())


def test_what_kills_every_worker_is_given_up(cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "always-5").touch()
    with (
        Workers[int, int](cluster, _Squares(tmp_path)) as workers,
        pytest.raises(ClusterError, match="again and again"),
    ):
        list(workers.results([5]))


def test_workers_that_die_as_they_open_are_given_up(cluster: Any) -> None:
    with Workers[int, int](cluster, _dies) as workers, pytest.raises(ClusterError, match="again and again"):
        list(workers.results([1]))


def test_errors_reach_the_caller_as_they_are(cluster: Any, tmp_path: Path) -> None:
    with Workers[int, int](cluster, _Squares(tmp_path)) as workers, pytest.raises(BadModel, match="no number"):
        list(workers.results([1, -1]))
    with Workers[int, int](cluster, _refuses) as workers, pytest.raises(BadModel, match="cannot be opened"):
        list(workers.results([1]))


def test_few_items_are_taken_ahead(cluster: Any, tmp_path: Path) -> None:
    taken: list[int] = []

    def items() -> Any:
        for number in range(1_000):
            taken.append(number)
            yield number

    with Workers[int, int](cluster, _Squares(tmp_path)) as workers:
        found = workers.results(items())
        next(found)
        time.sleep(0.5)
        assert len(taken) <= 4 * cluster.cpus() + 1
