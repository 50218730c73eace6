"""Blocking work for coroutines: a few threads do it, and whoever waits for it can be cancelled."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from toolscout.errors import StoreError

Result = TypeVar("Result")


class Workers:
    """Threads that do blocking work for coroutines of any asyncio loop, so many pieces at a time; the rest waits.

    The event loop is never blocked. Work sees the context variables of the task that asked for it, and what it raises
    is raised there alone. Threads are started when they are first needed.
    """

    def __init__(self, threads: int, name: str) -> None:
        """At most so many threads; `name` begins theirs."""
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._closed = False

    async def run(self, work: Callable[[], Result]) -> Result:
        """Do it in a thread; StoreError where the threads are closed before it begins.

        Who is cancelled returns at once. Work that waited is then never begun. Work that has begun cannot be stopped:
        it goes on to its end, and its result is dropped.
        """
        import asyncio  # here: the command line starts quicker without it

        try:
            begun = self._pool.submit(self._begin, copy_context().run, work)
        except RuntimeError:  # what a pool raises once it is shut down
            raise _closed() from None
        return await asyncio.wrap_future(begun)

    def _begin(self, run: Callable[[Callable[[], Result]], Result], work: Callable[[], Result]) -> Result:
        if self._closed:
            raise _closed()
        return run(work)

    def close(self) -> None:
        """Wait for what has begun; what waits is refused. Twice does no harm."""
        self._closed = True
        self._pool.shutdown(wait=True)


def _closed() -> StoreError:
    return StoreError("the Scout is closed; open it again")
