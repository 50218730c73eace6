"""What the scripts share: where rows are written, running jobs, and what is said while they run."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from toolscout.errors import ToolscoutError
from toolscout.evaluation.report.page import Report
from toolscout.papers.jobs import Job, run_jobs
from toolscout.retrievers.base import FitProgress

RESULTS = Path(__file__).resolve().parent.parent / "results"
_SAID_EVERY = 5.0


def numbers(text: str) -> list[int]:
    """The whole numbers in a text such as "0,1,2"; raises ValueError where one is none."""
    return [int(one) for one in text.split(",")]


def by_hash(ids: Iterable[str]) -> list[str]:
    """Ids in an order that is always the same and says nothing."""
    return sorted(ids, key=lambda one: hashlib.blake2b(one.encode(), digest_size=8).digest())


def say(text: str) -> None:
    """A line of progress."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


def run(todo: Sequence[Job], side_by_side: int, stop_after: float, take: Callable[[Any], object] | None = None) -> None:
    """Run jobs, hand the result of each to `take`, and say of each that it is done, or why it failed.

    After `stop_after` seconds no other one is begun. Ends the process with code 1 where one failed.
    """
    say(f"{len(todo)} jobs: {', '.join(job.name for job in todo)}")
    started, failed = time.perf_counter(), False
    for number, done in enumerate(run_jobs(todo, side_by_side, stop_after), 1):
        say(f"{number} of {len(todo)} after {time.perf_counter() - started:.0f} s: {done.name} {done.error}")
        failed |= bool(done.error)
        if take and not done.error:
            take(done.result)
    if failed:
        sys.exit(1)


def update(make: Callable[[], Mapping[Path, Report]], check: bool) -> None:
    """Write what is stale of the reports that are made, by their folders, and say so; with `check` only say it.

    Ends the process with code 1 where `check` finds something stale, and with a message where there is an error.
    """
    try:
        reports = make().items()
        changed = [path for folder, one in reports for path in (one.stale(folder) if check else one.write(folder))]
    except ToolscoutError as error:
        sys.exit(f"error: {error}")
    for path in changed:
        sys.stderr.write(f"{'stale' if check else 'written'}: {path}\n")
    if check and changed:
        sys.exit(1)


def progress() -> FitProgress:
    """Says how far a fit is, every few seconds."""
    last = 0.0

    def told(text: str, done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > _SAID_EVERY:
            last = time.monotonic()
            say(f"{text} {done:,} of {total:,}")

    return told


def collect(files: Iterable[Path], name: str) -> None:
    """Put the rows of files into results/NAME.jsonl, and their scores beside it; rows that were not made again stay."""
    known, target = RESULTS / f"{name}.jsonl", RESULTS / f"{name}.scores"
    lines = known.read_text().splitlines() if known.is_file() else []
    for path in sorted(path for path in files if not path.name.endswith(".part.jsonl")):
        lines += path.read_text().splitlines()
        for scores in path.with_suffix(".scores").glob("*"):
            target.mkdir(exist_ok=True)
            shutil.copyfile(scores, target / scores.name)
    if lines:
        rows = {tuple(json.loads(line)[key] for key in ("dataset", "split", "variant")): line for line in lines}
        known.write_text("".join(f"{line}\n" for _, line in sorted(rows.items())))
