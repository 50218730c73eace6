"""How far a long stage is, reported now and then."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from toolscout.search.progress import Progress

_REPORTED_AT_ONCE = 1_024
_Item = TypeVar("_Item")


def each(items: Sequence[_Item], stage: str, progress: Progress | None) -> Iterator[_Item]:
    """The items one by one; how many of them are done is reported after every thousand or so, and at the end."""
    for done, item in enumerate(items, 1):
        yield item
        if progress and (done % _REPORTED_AT_ONCE == 0 or done == len(items)):
            progress(stage, done, len(items))


def named(name: str, progress: Progress | None) -> Progress | None:
    """Tells stages apart that come more than once: a bar that is done does not begin again."""
    if progress is None or not name:
        return progress
    return lambda stage, done, total: progress(f"{name}: {stage}", done, total)
