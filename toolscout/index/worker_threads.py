"""Worker threads that take over parts of a search. If none is free, the caller's thread does the work."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from threading import BoundedSemaphore
from typing import Any, TypeVar

Result = TypeVar("Result")


class WorkerThreads:
    """One thread fewer than there are cores. Nothing is queued: under load each search stays in its own thread."""

    def __init__(self) -> None:
        """The threads start when they are first needed."""
        count = max(1, (os.cpu_count() or 2) - 1)
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="toolscout-help")
        self._free = BoundedSemaphore(count)

    def rest(self) -> None:
        """Stop using the workers: with more searches than cores, one thread per search is fastest."""
        while self._free.acquire(blocking=False):
            pass

    def free(self) -> bool:
        """Whether a worker is probably free; does not block."""
        if taken := self._free.acquire(blocking=False):
            self._free.release()
        return taken

    def submit(self, work: Callable[..., Result], *args: Any) -> Future[Result]:
        """Run the work in a free worker, else in this thread at once; it sees the caller's context variables."""
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
