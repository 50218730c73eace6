"""Changes to a catalogue that is being searched: few tools are embedded at once, many in the background."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from toolscout.scout import Scout
from toolscout.serving.request_bodies import Changes

# So many tools take a second or so to embed; who adds more should not have to wait for it.
FEW = 64
# Taking one change into the index costs about as much as taking in ten: those that come close together wait together.
PACE_S = 0.2
Progress = Callable[[str, int, int], None]
_log = logging.getLogger("toolscout.serving")


class PacedScout(Scout):
    """A Scout under load: its searches follow what others commit every now and then, not each commit.

    Whoever changes something here is answered once it was followed, so nobody misses what was acknowledged.
    """

    _rests_until = 0.0

    def refresh(self, wait: bool = True) -> None:
        """As Scout's; without `wait` only where the last time is a while ago."""
        if wait or time.monotonic() >= self._rests_until:
            super().refresh(wait)
            # Longer than those who write wait: what they wait for is then followed by them, together, and not by half.
            self._rests_until = time.monotonic() + 2 * PACE_S


class Writes:
    """Applies changes one after the other. On return every tool is found: by its words at least."""

    def __init__(self, scout: Scout) -> None:
        """Over one Scout."""
        self._scout = scout
        self._write_lock, self._turn = threading.Lock(), threading.Lock()
        self._followed, self._followed_at = scout.store.version(), 0.0
        self._wanted = threading.Event()
        self._embedded_to = 0 if scout.words_only() else scout.store.version()
        self._closed = threading.Event()
        self._behind = threading.Thread(target=self._embed_behind, name="toolscout-behind", daemon=True)
        self._behind.start()
        if scout.not_embedded():  # of another encoder, say: nobody else would embed them
            self._wanted.set()

    def apply(self, changes: Changes, progress: Progress | None = None) -> dict[str, int]:
        """Add, change and remove; how many of each. Where one of the ids to remove is not there nothing is done."""
        scout = self._scout
        with self._write_lock:
            before = scout.store.version()
            scout.store.get(changes.remove)
            counts = {"added": 0, "changed": 0, "unchanged": 0, "removed": 0}
            if changes.tools or changes.sync:
                report = scout.store.add(changes.tools, changes.source, replace=changes.replace, sync=changes.sync)
                counts = {name: getattr(report, name) for name in counts}
            counts["removed"] += scout.store.remove(changes.remove)
            version = scout.store.version()
        self._follow(version)
        if changes.tools and progress:
            scout.embed(progress, before)  # how many others wait is not for whoever added these
        return counts

    def _follow(self, version: int) -> None:
        """Wait until the index has taken this version in; whoever comes first takes in for all who wait meanwhile."""
        with self._turn:
            if self._followed >= version:
                return
            time.sleep(max(0.0, self._followed_at + PACE_S - time.monotonic()))
            reached, waiting = self._scout.store.version(), self._scout.words_only()
            self._scout.refresh()
            if self._scout.words_only() - waiting <= FEW and not waiting:
                self._scout.embed(since=self._followed)
            elif self._scout.words_only():
                self._wanted.set()
            self._followed, self._followed_at = reached, time.monotonic()

    def _embed_behind(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            if self._closed.is_set():
                return
            try:
                reached = self._scout.store.version()
                self._scout.embed(since=self._embedded_to)
                self._embedded_to = reached
            except Exception:  # what is not embedded is found by its words; the next change tries again
                _log.exception("embedding failed")

    def close(self) -> None:
        """Stop; what is not embedded yet waits for the next time."""
        self._closed.set()
        self._wanted.set()
