"""Progress reports of long loops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from toolscout.search.progress import Progress

_REPORTED_AT_ONCE = 1_024
_Item = TypeVar("_Item")


def each(items: Sequence[_Item], stage: str, progress: Progress | None) -> Iterator[_Item]:
    """Yield the items, and report the number done after every 1,024 of them and at the end."""
    for done, item in enumerate(items, 1):
        yield item
        if progress and (done % _REPORTED_AT_ONCE == 0 or done == len(items)):
            progress(stage, done, len(items))


def named(name: str, progress: Progress | None) -> Progress | None:
    """A progress function that puts a name before the stage, for stages that run more than once."""
    if progress is None or not name:
        return progress
    return lambda stage, done, total: progress(f"{name}: {stage}", done, total)
