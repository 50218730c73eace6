"""One training by several processes of a cluster."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from toolscout.distributed.cluster import Cluster
from toolscout.distributed.training import train_together
from toolscout.errors import BadModel, ClusterError

pytestmark = pytest.mark.slow
TOGETHER = 2


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


def test_errors_are_those_of_the_training(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="this cannot be trained"):
        train_together(cluster, TOGETHER, refuse, tmp_path / "out")
    with pytest.raises(ClusterError, match="name fewer with --processes"):
        train_together(cluster, 1_000, refuse, tmp_path / "out")
