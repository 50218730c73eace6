"""One training by several processes of a cluster."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from toolscout.distributed.cluster import Cluster, ray_module
from toolscout.distributed.training import train_together
from toolscout.errors import BadModel, ClusterError

pytestmark = pytest.mark.slow
TOGETHER = 2
PATIENCE = "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"


def add_up(shared: Path, folder: Path) -> None:
    """Stand in for a training; its second process dies the first time."""
    import torch

    from toolscout.training.data_parallel import FollowerDone, ProcessGroup

    processes = ProcessGroup()
    if not processes.leads and not (shared / "died").exists():
        (shared / "died").touch()
        os._exit(1)
    total = torch.tensor([processes.rank + 1.0])
    processes.add(total)
    if not processes.leads:
        raise FollowerDone
    (folder / "total").write_text(f"{total.item():g}")


def refuse(folder: Path) -> None:
    raise BadModel("this cannot be trained")


class Busy:
    """Holds what it takes of a cluster."""

    def work(self) -> None:
        """Answer, once it has begun."""


@pytest.fixture(autouse=True)
def enough(cluster: Cluster) -> None:
    """Skip where each process cannot have a core."""
    if cluster.cpus() < TOGETHER:
        pytest.skip("needs two cores")


def test_a_process_that_dies_is_replaced(cluster: Cluster, tmp_path: Path) -> None:
    out = tmp_path / "out"
    train_together(cluster, TOGETHER, partial(add_up, tmp_path), out)
    assert (tmp_path / "died").exists()
    assert (out / "total").read_text() == "3"


def test_what_a_failed_start_reserved_is_freed(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.util.placement_group import placement_group

    monkeypatch.setenv(PATIENCE, "5")
    ray_module().get(placement_group([{"CPU": 1}] * cluster.cpus()).ready())  # as Ray leaves it
    (tmp_path / "died").touch()
    train_together(cluster, TOGETHER, partial(add_up, tmp_path), tmp_path / "out")
    assert (tmp_path / "out" / "total").read_text() == "3"


def test_a_cluster_that_stays_full_is_an_error(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PATIENCE, "5")
    ray = ray_module()
    other = ray.remote(num_cpus=cluster.cpus())(Busy).remote()
    ray.get(other.work.remote())
    with pytest.raises(ClusterError, match="2 processes need CPUs that are free"):
        train_together(cluster, TOGETHER, partial(add_up, tmp_path), tmp_path / "out")
    ray.kill(other)


def test_errors_are_those_of_the_training(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="this cannot be trained"):
        train_together(cluster, TOGETHER, refuse, tmp_path / "out")
    with pytest.raises(ClusterError, match="name fewer with --processes"):
        train_together(cluster, 1_000, refuse, tmp_path / "out")
