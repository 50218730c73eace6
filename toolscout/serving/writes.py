"""Changes to a catalogue that is being searched: few tools are embedded at once, many in the background."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from toolscout.scout import Scout
from toolscout.serving.bodies import Changes

# So many tools take a second or so to embed; who adds more should not have to wait for it.
FEW = 64
Progress = Callable[[str, int, int], None]
_log = logging.getLogger("toolscout.serving")


class Writes:
    """Applies changes one after the other. On return every tool is found: by its words at least."""

    def __init__(self, scout: Scout) -> None:
        """Over one Scout."""
        self._scout = scout
        self._one = threading.Lock()
        self._wanted = threading.Event()
        self._embedded_to = 0 if scout.words_only() else scout.store.version()
        self._closed = threading.Event()
        self._behind = threading.Thread(target=self._embed_behind, name="toolscout-behind", daemon=True)
        self._behind.start()

    def apply(self, changes: Changes, progress: Progress | None = None) -> dict[str, Any]:
        """Add, change and remove; what came of it. Where one of the ids to remove is not there nothing is done."""
        scout = self._scout
        with self._one:
            scout.store.get(changes.remove)
            before, few = scout.store.version(), len(changes.tools) <= FEW and not scout.words_only()
            counts = {"added": 0, "changed": 0, "unchanged": 0, "removed": 0}
            if changes.tools or changes.sync:
                report = scout.store.add(changes.tools, changes.source, replace=changes.replace, sync=changes.sync)
                counts = {name: getattr(report, name) for name in counts}
            counts["removed"] += scout.store.remove(changes.remove)
        scout.refresh()  # outside: whoever waits for one that follows finds its own changes among those it followed
        if few and changes.tools:
            scout.embed(since=before)
        elif changes.tools and progress:
            scout.embed(progress)
        elif changes.tools:
            self._wanted.set()
        return {**counts, "version": scout.store.version(), "words_only": scout.words_only()}

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
