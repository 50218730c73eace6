"""One training by several processes of a cluster, by Ray Train: it forms the process group and gives out the GPUs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from toolscout.distributed.cluster import Cluster, ray_module
from toolscout.distributed.workers import Surroundings, resources
from toolscout.errors import ClusterError, MissingExtra, ToolscoutError

# How often processes or machines may be lost before that is no coincidence.
_ATTEMPTS = 4
_NO_ROOM = "WorkerGroupStartupTimeoutError"  # of Ray: its processes did not start within a minute


def train_together(cluster: Cluster, processes: int, train: Callable[[Path], Any], out: Path) -> None:
    """Let `train` work in several processes at once, on the same training; that of the leader gets the folder `out`.

    `train` takes the folder that it writes to. A process that is lost ends the others, and the training goes on from
    its checkpoint. Raises what `train` raised, and ClusterError where the cluster is too small or processes die again
    and again.
    """
    ray = ray_module()
    try:
        from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError, WorkerGroupError
        from ray.train.torch import TorchTrainer
    except ImportError:
        raise MissingExtra("--processes", "ray") from None
    takes = resources(max(1, min(cluster.cpus() // processes, cluster.smallest_node())))
    gpu = takes["num_gpus"] > 0
    there, what = int(ray.cluster_resources().get("GPU" if gpu else "CPU", 0)), "GPUs" if gpu else "CPUs"
    if there < processes:
        raise ClusterError(
            f"the cluster has {there} {what}, and {processes} processes need one each; name fewer with --processes"
        )
    own = {"CPU": takes["num_cpus"]}
    trainer = TorchTrainer(
        _work,
        train_loop_config={"surroundings": Surroundings.here(), "train": train, "out": out.absolute()},
        scaling_config=ScalingConfig(num_workers=processes, use_gpu=gpu, resources_per_worker=own),
        run_config=RunConfig(
            name="ray",
            storage_path=str(out.absolute() / "training"),
            # It is tried again here instead: Ray would do so for ever, and keep the CPUs of what failed as it started.
            failure_config=FailureConfig(controller_failure_limit=0),  # type: ignore[call-arg]  # its types lag
        ),
    )
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            trainer.fit()
            return
        except TrainingFailedError as error:
            raised: list[Exception] = [getattr(error, "controller_failure", error)]
            if isinstance(error, WorkerGroupError):
                raised = list(error.worker_failures.values())
            for one in raised:
                if isinstance(one, ToolscoutError):
                    raise one from None
            # Ray's own errors say that a process or its machine is gone.
            lost = any(type(one).__module__.startswith("ray.") for one in raised)
            if any(type(one).__name__ == _NO_ROOM for one in raised) and attempt == _ATTEMPTS:
                raise ClusterError(
                    f"{processes} processes need {what} that are free, and the cluster has not so many of its {there}; "
                    "give the command again once others are done, or name fewer with --processes"
                ) from None
            if not lost or attempt == _ATTEMPTS:
                raise ClusterError(f"the training failed: {str(error).strip().splitlines()[-1]}") from None
            _free_reserved()


def _free_reserved() -> None:
    """Free what this command has reserved: Ray does not where a process dies as the training begins."""
    ray = ray_module()
    from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group

    own = ray.get_runtime_context().get_job_id()
    for reserved in placement_group_table().values():
        if reserved["state"] != "REMOVED" and reserved["placement_group_id"].endswith(own):
            remove_placement_group(PlacementGroup(ray.PlacementGroupID.from_hex(reserved["placement_group_id"])))


def _work(given: dict[str, Any]) -> None:
    """What runs in each process."""
    from toolscout.training.data_parallel import FollowerDone, ProcessGroup

    given["surroundings"].enter()
    if ProcessGroup().leads:
        given["train"](given["out"])
        return
    with tempfile.TemporaryDirectory() as elsewhere, suppress(FollowerDone):
        given["train"](Path(elsewhere) / "model")
