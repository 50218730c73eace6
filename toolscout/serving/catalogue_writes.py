"""Changes a catalogue while it is searched: a few new tools are embedded at once, many in the background."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from toolscout.errors import EncoderUnavailable, ReadOnlyStore
from toolscout.scout import Scout
from toolscout.serving.request_bodies import Changes

# This many tools take about a second to embed; a caller that adds more does not wait for it.
FEW = 64
# One change costs the index about as much as ten: changes that come within this time are applied together.
PACE_S = 0.2
# Seconds before an encoder's endpoint that failed is asked again.
_RETRY_S = 30.0
Progress = Callable[[str, int, int], None]
_log = logging.getLogger("toolscout.serving")


class PacedScout(Scout):
    """A Scout whose searches apply changes to the index at intervals, not after every commit.

    A caller that changes something is answered once the index has it, so acknowledged changes are always found.
    """

    _rests_until = 0.0

    def refresh(self, wait: bool = True) -> None:
        """Apply changes to the index as Scout does; without `wait` only where the last time is 2 * PACE_S ago."""
        if wait or time.monotonic() >= self._rests_until:
            super().refresh(wait)
            # Longer than writers wait, so that the writers apply their changes together before a search applies some.
            self._rests_until = time.monotonic() + 2 * PACE_S


class Writes:
    """Applies changes one after the other. On return every tool can be found, at least by its words."""

    def __init__(self, scout: Scout) -> None:
        """Change the catalogue of this Scout; tools without vectors are embedded in a background thread."""
        self._scout = scout
        self._write_lock, self._turn = threading.Lock(), threading.Lock()
        self._followed, self._followed_at = scout.store.version(), 0.0
        self._wanted = threading.Event()
        self._embedded_to = 0 if scout.words_only() or scout.switching else scout.store.version()
        self._closed = threading.Event()
        self._behind = threading.Thread(target=self._embed_behind, name="toolscout-behind", daemon=True)
        self._behind.start()
        if scout.not_embedded() or scout.switching:  # such as after a change of the encoder
            self._wanted.set()

    def apply(self, changes: Changes, progress: Progress | None = None) -> dict[str, int]:
        """Change the catalogue in one transaction and return the counts. Raises UnknownTool for a missing id."""
        scout = self._scout
        with self._write_lock:
            before = scout.store.version()
            done = scout.store.add(
                changes.tools, changes.source, replace=changes.replace, sync=changes.sync, remove=changes.remove
            )
        self._follow(done.version)
        if changes.tools and progress:
            scout.embed(progress, before)  # progress counts only the tools of this change
        return {"added": done.added, "changed": done.changed, "unchanged": done.unchanged, "removed": done.removed}

    def _follow(self, version: int) -> None:
        """Wait until the index has this version; the first waiting thread updates it for all that wait."""
        with self._turn:
            if self._followed >= version:
                return
            time.sleep(max(0.0, self._followed_at + PACE_S - time.monotonic()))
            reached, waiting = self._scout.store.version(), self._scout.words_only()
            self._scout.refresh()
            if self._scout.switching:  # embedding waits until the change of encoders is complete
                self._wanted.set()
            elif self._scout.words_only() - waiting <= FEW and not waiting:
                self._scout.embed(since=self._followed)
            elif self._scout.words_only():
                self._wanted.set()
            self._followed, self._followed_at = reached, time.monotonic()

    def _embed_behind(self) -> None:
        while True:
            self._wanted.wait(_RETRY_S if self._scout.embedding_problem else None)
            self._wanted.clear()
            if self._closed.is_set():
                return
            try:
                reached = self._scout.store.version()
                self._scout.embed(since=self._embedded_to)
                self._embedded_to = reached
            except EncoderUnavailable as error:
                _log.warning("the tools are found by words until they are embedded: %s", error)
            except ReadOnlyStore:  # their vectors come from the primary, as the tools did
                _log.info("tools without vectors are found by words until a process over the primary embeds them")
            except Exception:  # the tools are still found by their words; the next change tries again
                _log.exception("embedding failed")

    def close(self) -> None:
        """Stop the background thread; tools not embedded yet are embedded at the next start."""
        self._closed.set()
        self._wanted.set()
