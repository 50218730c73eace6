"""Runs jobs in parallel processes, in the order of their dependencies, until they are done or time is up."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Job:
    """A module-level function and its arguments; `after`: names of the jobs that must succeed first."""

    name: str
    work: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of a job, or the error where it failed."""

    name: str
    result: Any = None
    error: str = ""


def run_jobs(
    jobs: Sequence[Job], side_by_side: int, stop_after: float = float("inf"), executor: Executor | None = None
) -> Iterator[JobResult]:
    """Run up to `side_by_side` jobs at once and yield each result as it comes; none starts after `stop_after` seconds.

    With one at a time they run in this process, else in processes of this machine, or where `executor` runs them. A job
    whose `after` failed is not run and has no result.
    """
    deadline = time.monotonic() + stop_after
    if executor is not None:
        yield from _run_parallel(jobs, executor, side_by_side, deadline)
        return
    if side_by_side <= 1:
        yield from _run_sequential(jobs, deadline)
        return
    with _thread_share(side_by_side):
        context = multiprocessing.get_context("spawn")  # a forked process cannot use a GPU
        pool = ProcessPoolExecutor(min(side_by_side, max(1, len(jobs))), mp_context=context)
        try:
            yield from _run_parallel(jobs, pool, side_by_side, deadline)
        finally:
            pool.shutdown(cancel_futures=True)


def _run_sequential(jobs: Sequence[Job], deadline: float) -> Iterator[JobResult]:
    done: set[str] = set()
    for job in jobs:
        if time.monotonic() >= deadline:
            return
        if done.issuperset(job.after):
            try:
                found = JobResult(job.name, job.work(*job.arguments))
                done.add(job.name)
            except Exception as error:  # an error in one job must not stop the others
                found = JobResult(job.name, error=_message(error))
            yield found


def _run_parallel(jobs: Sequence[Job], pool: Executor, most: int, deadline: float) -> Iterator[JobResult]:
    waiting, done = list(jobs), set[str]()
    running: dict[Future[Any], str] = {}
    while waiting or running:
        ready = [job for job in waiting if done.issuperset(job.after)] if time.monotonic() < deadline else []
        for job in ready[: most - len(running)]:
            waiting.remove(job)
            running[pool.submit(job.work, *job.arguments)] = job.name
        if not running:
            return
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            name, error = running.pop(future), future.exception()
            if error is None:
                done.add(name)
            yield JobResult(name, None if error else future.result(), _message(error) if error else "")


def _message(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


@contextmanager
def _thread_share(side_by_side: int) -> Iterator[None]:
    """Set the libraries' thread variables to each process's share of the cores; they are read at import."""
    before = {name: os.environ.get(name) for name in _THREADS}
    share = str(max(1, (os.cpu_count() or 1) // side_by_side))
    os.environ.update({name: share for name in _THREADS if before[name] is None})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
