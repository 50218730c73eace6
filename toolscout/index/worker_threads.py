"""Threads that help with a part of a search while they are free: whoever finds none free does that part itself."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from threading import BoundedSemaphore
from typing import Any, TypeVar

Result = TypeVar("Result")


class WorkerThreads:
    """One fewer than there are cores. Under load each search keeps to its own thread, and nothing waits in a queue."""

    def __init__(self) -> None:
        """The threads start when they are first needed."""
        count = max(1, (os.cpu_count() or 2) - 1)
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="toolscout-help")
        self._free = BoundedSemaphore(count)

    def rest(self) -> None:
        """Help no more: where more searches come than there are cores, each is done soonest by one thread."""
        while self._free.acquire(blocking=False):
            pass

    def free(self) -> bool:
        """Whether one is likely free: nobody waits to see."""
        if taken := self._free.acquire(blocking=False):
            self._free.release()
        return taken

    def submit(self, work: Callable[..., Result], *args: Any) -> Future[Result]:
        """The work, begun in a thread that is free, else done here and now; it sees the caller's context."""
        if self._free.acquire(blocking=False):
            begun = self._pool.submit(copy_context().run, work, *args)
            begun.add_done_callback(lambda _: self._free.release())
            return begun
        done: Future[Result] = Future()
        try:
            done.set_result(work(*args))
        except Exception as error:
            done.set_exception(error)
        return done


WORKER_THREADS = WorkerThreads()
