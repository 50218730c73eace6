"""An executor whose calls run as tasks on a cluster, for everything that takes a `concurrent.futures.Executor`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, TypeVar

from toolscout.distributed.cluster import Cluster, ray_module
from toolscout.distributed.workers import Surroundings, resources
from toolscout.errors import ClusterError

Result = TypeVar("Result")


class ClusterExecutor(Executor):
    """Runs calls as tasks on a cluster. A task whose process or node dies is run again elsewhere.

    An argument is sent once, however many calls take it. `tasks`: how many there will be, by which the CPUs are shared.
    """

    def __init__(self, cluster: Cluster, tasks: int) -> None:
        """Share the cluster's CPUs among so many tasks; a task runs on one machine."""
        self._ray = ray_module()
        share = max(1, min(cluster.cpus() // max(1, tasks), cluster.smallest_node()))
        self.side_by_side = max(1, cluster.cpus() // share)
        self._task = self._ray.remote(**resources(share), max_retries=3)(_run)
        self._sent: dict[int, tuple[Any, Any]] = {}
        self._running: dict[Future[Any], Any] = {}

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        """Run a module-level function on the cluster; its error is that of the future."""
        found: Future[Result] = Future()
        reference = self._task.remote(Surroundings.here(), fn, kwargs, *map(self._put, args))
        self._running[found] = reference
        reference.future().add_done_callback(partial(self._finish, found))
        return found

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Stop the tasks that run still where `cancel_futures` is true, as where one has failed."""
        if cancel_futures:
            for reference in list(self._running.values()):
                self._ray.cancel(reference, force=True)
            self._running.clear()
        elif wait:
            for future in list(self._running):
                future.exception()
        self._sent.clear()

    def _put(self, value: Any) -> Any:
        """Return a reference to a value in the cluster, which is sent there at its first use."""
        if id(value) not in self._sent:
            self._sent[id(value)] = (value, self._ray.put(value))  # the value itself is kept: ids are used again
        return self._sent[id(value)][1]

    def _finish(self, found: Future[Any], done: Future[Any]) -> None:
        self._running.pop(found, None)
        error = done.exception()
        if error is None:
            found.set_result(done.result())
        elif isinstance(error, self._ray.exceptions.RayTaskError):
            found.set_exception(error.cause)
        else:
            found.set_exception(ClusterError(f"the task was lost: {(str(error).splitlines() or [repr(error)])[0]}"))


def _run(surroundings: Surroundings, work: Callable[..., Any], kwargs: Mapping[str, Any], *arguments: Any) -> Any:
    """What runs in a worker process."""
    surroundings.enter()
    return work(*arguments, **kwargs)
