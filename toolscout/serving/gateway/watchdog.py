"""Ends servers whose lease is lost, also where this process cannot: it was killed or stopped, or is too busy."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from toolscout.stores.base import Lease

_WORKER = Path(__file__).with_name("watchdog_worker.py")
_TELL_SECONDS = 0.2
KILL_SECONDS = 0.4
"""A server is killed so long before another process may hold its lease, or after the lease is known to be lost."""


class Watchdog:
    """Tells a process of its own until when each server may run. A thread tells it, whatever the event loop does."""

    def __init__(self) -> None:
        """Start nothing yet: the first server does."""
        self._lock = threading.Lock()
        self._leases: dict[int, Lease] = {}
        self._last: dict[int, float] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    @contextmanager
    def guarding(self, pid: int, lease: Lease) -> Iterator[None]:
        """Inside the block, kill the process and its group when the lease is lost or this process ends."""
        with self._lock:
            self._leases[pid] = lease
            self._tell([pid])
            if self._thread is None:
                self._thread = threading.Thread(target=self._follow, name="toolscout-watchdog", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                del self._leases[pid]
                self._last.pop(pid, None)
                self._write(f"{pid} 0\n")

    def close(self) -> None:
        """End the process, and with it the servers that still run."""
        with self._lock:
            self._closed.set()
            process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            with suppress(OSError):
                process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(2)

    def _follow(self) -> None:
        while not self._closed.wait(_TELL_SECONDS):
            with self._lock:
                if self._leases:
                    self._tell(list(self._leases))

    def _tell(self, pids: list[int]) -> None:
        lines = []
        for pid in pids:
            until = self._leases[pid].until
            # Once it is lost, the first deadline stays.
            lost = min(self._last.get(pid, math.inf), time.monotonic() + KILL_SECONDS)
            self._last[pid] = until - KILL_SECONDS if until else lost
            lines.append(f"{pid} {self._last[pid]}\n")
        self._write("".join(lines))

    def _write(self, lines: str) -> None:
        if self._closed.is_set():
            return
        if self._process is None or self._process.poll() is not None:
            command = [sys.executable, "-I", "-S", str(_WORKER)]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0, start_new_session=True)
        assert self._process.stdin is not None
        with suppress(OSError):  # it was killed: the next line starts it anew
            self._process.stdin.write(lines.encode())
