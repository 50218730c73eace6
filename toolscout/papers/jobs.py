"""Runs pieces of work side by side in processes of their own, until they are done or time is up."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Job:
    """A function at the top of a module and what it is called with; `after`: names of jobs that must be done first."""

    name: str
    work: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobResult:
    """What came of a job: its result, or why it failed."""

    name: str
    result: Any = None
    error: str = ""


def run_jobs(jobs: Sequence[Job], side_by_side: int, stop_after: float = float("inf")) -> Iterator[JobResult]:
    """Run jobs and yield each as it is done; after `stop_after` seconds no other one is begun.

    With one at a time they run in this process. What a failed job was needed for is left out.
    """
    deadline = time.monotonic() + stop_after
    if side_by_side <= 1:
        yield from _one_by_one(jobs, deadline)
        return
    with _threads(side_by_side):
        context = multiprocessing.get_context("spawn")  # a forked process cannot use a GPU
        pool = ProcessPoolExecutor(min(side_by_side, max(1, len(jobs))), mp_context=context)
        try:
            yield from _together(jobs, pool, side_by_side, deadline)
        finally:
            pool.shutdown(cancel_futures=True)


def _one_by_one(jobs: Sequence[Job], deadline: float) -> Iterator[JobResult]:
    done: set[str] = set()
    for job in jobs:
        if time.monotonic() >= deadline:
            return
        if done.issuperset(job.after):
            try:
                found = JobResult(job.name, job.work(*job.arguments))
                done.add(job.name)
            except Exception as error:  # the others are still worth having
                found = JobResult(job.name, error=_message(error))
            yield found


def _together(jobs: Sequence[Job], pool: ProcessPoolExecutor, most: int, deadline: float) -> Iterator[JobResult]:
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
def _threads(side_by_side: int) -> Iterator[None]:
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
