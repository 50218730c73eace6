"""Worker processes all over a cluster that each open something once; one that dies is replaced, its work done anew."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from toolscout.distributed.cluster import Cluster, ray_module
from toolscout.errors import ClusterError
from toolscout.models.language.base import DEVICE_VARIABLE

Item = TypeVar("Item")
Result = TypeVar("Result")

# Items that a worker has at hand, so that it never waits for the next one.
_AHEAD = 2
# How often a worker may die over one item, or while it opens, before that is no coincidence.
_ATTEMPTS = 4
# Seconds without a result or a free CPU after which the user is told what is being waited for.
_PATIENCE_S = 60.0
# What a worker is told of the environment of the command. No secret is among it: others on a cluster may see it.
_TOLD = ("BASE", "CACHE", "DATA", "DEVICE", "ENCODER")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a process elsewhere takes over from this one: variables, and the folder that relative paths begin at."""

    variables: Mapping[str, str]
    folder: str

    @classmethod
    def here(cls) -> Self:
        """Return those of this process: the variables that say where models and data are, and what they run on."""
        names = (f"TOOLSCOUT_{name}" for name in _TOLD)
        return cls({name: os.environ[name] for name in names if name in os.environ}, os.getcwd())

    def enter(self) -> None:
        """Take them over; a folder that this machine does not have is left out."""
        os.environ.update(self.variables)
        with suppress(OSError):
            os.chdir(self.folder)


def resources(cpus: int = 1) -> dict[str, float]:
    """Return what a task takes of a cluster: so many CPUs, and a GPU where $TOOLSCOUT_DEVICE names one."""
    return {"num_cpus": cpus, "num_gpus": 1 if os.environ.get(DEVICE_VARIABLE, "").startswith("cuda") else 0}


class _Worker:
    """What runs in a worker process."""

    def __init__(self, opening: Callable[[], Callable[[Any], Any]], surroundings: Surroundings) -> None:
        surroundings.enter()
        self._opening = opening
        self._do: Callable[[Any], Any] | None = None

    def open(self) -> None:
        """Open what all items need; apart from the constructor, so that its error reaches the caller as it is."""
        self._do = self._opening()

    def work(self, item: Any) -> Any:
        """Return the result of one item."""
        assert self._do is not None
        return self._do(item)


@dataclass(slots=True)
class _Handle:
    """A worker as this process sees it: its actor, whether it has opened, and how many items it has at hand."""

    actor: Any
    opened: bool = False
    busy: int = 0


@dataclass(slots=True)
class _Handed(Generic[Item]):
    """An item, and how many workers have died over it."""

    item: Item
    deaths: int = 0


class Workers(Generic[Item, Result]):
    """As many workers as the cluster has CPUs. Each calls `opening` once, and what that returns for each item it gets.

    `tell` is called with a sentence where the cluster has no CPU free for long. Close it when done.
    """

    def __init__(
        self,
        cluster: Cluster,
        opening: Callable[[], Callable[[Item], Result]],
        tell: Callable[[str], None] | None = None,
    ) -> None:
        """Ask for the workers; they open while the first items are prepared."""
        self._ray, self._tell = ray_module(), tell
        self._actors = self._ray.remote(max_restarts=0, **resources())(_Worker)
        self._opening = opening
        self._handles: list[_Handle] = []
        # What was asked for and has no answer yet: the worker, and the item, None for a worker that opens.
        self._running: dict[Any, tuple[_Handle, _Handed[Item] | None]] = {}
        self._failed_openings = 0
        for _ in range(cluster.cpus()):
            self._start()

    def results(self, items: Iterable[Item]) -> Iterator[tuple[Item, Result]]:
        """Yield each item once with its result, in the order in which they are done; few items are taken ahead.

        Raises what the work raised, and ClusterError where workers die again and again.
        """
        source, again = iter(items), deque[_Handed[Item]]()
        while True:
            self._hand_out(source, again)
            if not again and not any(handle.busy for handle in self._handles):
                # Workers that are not open yet may still be needed.
                again.extend(map(_Handed, islice(source, 1)))
                if not again:
                    return
            found, _ = self._ray.wait(list(self._running), num_returns=1, timeout=_PATIENCE_S)
            if not found:
                self._say_waiting()
                continue
            handle, handed = self._running.pop(found[0])
            try:
                result = self._ray.get(found[0])
            except self._ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except self._ray.exceptions.RayError as error:
                self._replace(handle, handed, again, error)
                continue
            if handed is None:
                handle.opened, self._failed_openings = True, 0
            else:
                handle.busy -= 1
                yield handed.item, result

    def close(self) -> None:
        """Stop all workers."""
        for handle in self._handles:
            self._ray.kill(handle.actor)
        self._handles, self._running = [], {}

    def __enter__(self) -> Self:
        """Return the workers themselves, which are stopped at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop them."""
        self.close()

    def _start(self) -> None:
        handle = _Handle(self._actors.remote(self._opening, Surroundings.here()))
        self._handles.append(handle)
        self._running[handle.actor.open.remote()] = (handle, None)

    def _hand_out(self, source: Iterator[Item], again: deque[_Handed[Item]]) -> None:
        """Give items to the workers that have room, one to each in turn, first those that were lost."""
        for room in range(1, _AHEAD + 1):
            for handle in self._handles:
                if handle.opened and handle.busy < room:
                    if not again:
                        again.extend(map(_Handed, islice(source, 1)))
                    if not again:
                        return
                    handed = again.popleft()
                    handle.busy += 1
                    self._running[handle.actor.work.remote(handed.item)] = (handle, handed)

    def _replace(
        self, handle: _Handle, handed: _Handed[Item] | None, again: deque[_Handed[Item]], error: Exception
    ) -> None:
        """Start another worker for one that died, and take back all that it had at hand."""
        self._handles.remove(handle)
        self._ray.kill(handle.actor)  # where it cannot be reached it may live on: what it does is not waited for
        lost = [handed] if handed is not None else []
        for reference, (other, item) in list(self._running.items()):
            if other is handle:
                del self._running[reference]
                lost += [item] if item is not None else []
        for one in lost:
            one.deaths += 1
        self._failed_openings += not handle.opened
        most = max((one.deaths for one in lost), default=0)
        if most >= _ATTEMPTS or self._failed_openings >= _ATTEMPTS * (len(self._handles) + 1):
            raise ClusterError(f"workers of the cluster die again and again: {str(error).splitlines()[0]}") from None
        again.extendleft(reversed(lost))
        self._start()

    def _say_waiting(self) -> None:
        if self._tell is not None and not any(handle.opened for handle in self._handles):
            self._tell("no CPU of the cluster is free yet; this waits until one is")
