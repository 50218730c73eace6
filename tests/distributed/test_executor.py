"""Calls as tasks on a cluster: results, errors and dependencies as in one process; what is lost is run again."""

from __future__ import annotations

import math
import os
import time
from concurrent.futures import CancelledError
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from toolscout.distributed.cluster import connected
from toolscout.distributed.executor import ClusterExecutor
from toolscout.errors import BadModel, ClusterError
from toolscout.papers.jobs import Job, run_jobs

if TYPE_CHECKING:
    from tests.distributed.conftest import Nodes

pytestmark = pytest.mark.slow


def _slow(folder: Path, name: str) -> str:
    (folder / f"{name}-{os.getpid()}").touch()
    time.sleep(5)
    return name


def _bad(text: str) -> None:
    raise BadModel(text)


def _dies() -> None:
    os._exit(1)


def test_tasks_of_a_killed_node_are_run_again(nodes: Nodes, tmp_path: Path) -> None:
    with connected(nodes.address) as cluster, ClusterExecutor(cluster, 2) as executor:
        found = [executor.submit(_slow, tmp_path, name) for name in ("one", "two")]
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.1)
        nodes.kill()
        assert [one.result(timeout=60) for one in found] == ["one", "two"]
    assert len(list(tmp_path.iterdir())) == 3


def test_all_is_done_but_what_depends_on_a_failure(cluster: Any) -> None:
    jobs = [
        Job("root", math.sqrt, (9,)),
        Job("wrong", math.sqrt, (-1,)),
        Job("then", math.sqrt, (16,), after=("root",)),
        Job("never", math.sqrt, (25,), after=("wrong",)),
    ]
    with ClusterExecutor(cluster, len(jobs)) as executor:
        found = {done.name: done for done in run_jobs(jobs, executor.side_by_side, executor=executor)}
        assert list(run_jobs(jobs, 2, stop_after=0, executor=executor)) == []
    assert list(found.keys() ^ {job.name for job in jobs}) == ["never"]
    assert (found["root"].result, found["then"].result) == (3, 4)
    assert found["wrong"].error.startswith("ValueError: ")


def test_errors_reach_the_caller_as_they_are(cluster: Any) -> None:
    with ClusterExecutor(cluster, 1) as executor:
        with pytest.raises(BadModel, match="no luck"):
            executor.submit(_bad, "no luck").result(timeout=60)
        with pytest.raises(ClusterError, match="the task was lost"):
            executor.submit(_dies).result(timeout=60)


def test_a_task_takes_over_where_data_and_relative_paths_are(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLSCOUT_DATA", "/some/where")
    monkeypatch.chdir(tmp_path)
    with ClusterExecutor(cluster, 1) as executor:
        assert executor.submit(os.getcwd).result(timeout=60) == str(tmp_path)
        assert executor.submit(os.environ.get, "TOOLSCOUT_DATA").result(timeout=60) == "/some/where"


def test_what_runs_is_stopped_where_that_is_asked(cluster: Any, tmp_path: Path) -> None:
    executor = ClusterExecutor(cluster, 1)
    found = executor.submit(time.sleep, 60)
    executor.shutdown(cancel_futures=True)
    with pytest.raises((ClusterError, CancelledError)):
        found.result(timeout=30)
