"""An audit log: who did what, when, and whether it worked. One line of JSON a call; no arguments, no keys."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from toolscout.core import tracing
from toolscout.errors import BadRequest
from toolscout.serving.access import Caller

_LONGEST = 300


class Audit:
    """Appends to a file, and starts a new one when it is full; older ones are named FILE.1, FILE.2 and so on.

    Arguments and results of calls are never written: the log says that `mail/send` was called, not to whom. Where a
    line cannot be written (a full disk) calls go on, and `lost` counts the missing lines.
    """

    def __init__(self, path: Path | None, *, max_bytes: int = 10_000_000, keep: int = 5) -> None:
        """Write to `path`; None writes nothing. At most `keep` older files of `max_bytes` each are kept."""
        if max_bytes < 1 or keep < 0:
            raise BadRequest(
                f"an audit log needs max_bytes of at least 1 and keep of at least 0, got {max_bytes}, {keep}"
            )
        self._path, self._max_bytes, self._keep = path, max_bytes, keep
        self._lock = threading.Lock()
        self._file: int | None = None
        self.lost = 0
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = _opened(path)  # fails now, with a reason, rather than at the first call

    def record(self, caller: Caller | str, action: str, tool: str = "", *, ok: bool, ms: float) -> None:
        """Write one line. Never raises: a call must not fail because its record does."""
        if self._path is None:
            return
        entry = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "principal": (caller if isinstance(caller, str) else caller.name)[:_LONGEST],
            **({"user": caller.user.shown[:_LONGEST]} if isinstance(caller, Caller) and caller.user else {}),
            "action": action[:_LONGEST],
            "tool": tool[:_LONGEST],
            "ok": ok,
            "ms": round(ms, 1),
        }
        if request_id := tracing.request_id.get():
            entry["request_id"] = request_id
        line = json.dumps(entry).encode() + b"\n"  # ASCII: no name can break a line
        with self._lock:
            try:
                self._write(self._path, line)
            except OSError:
                self.lost += 1

    @contextmanager
    def timed(self, caller: Caller | str, action: str, tool: str = "") -> Iterator[None]:
        """Record the block as one action, with its time; as not ok where it raises."""
        started, ok = time.perf_counter(), False
        try:
            yield
            ok = True
        finally:
            self.record(caller, action, tool, ok=ok, ms=1000 * (time.perf_counter() - started))

    def close(self) -> None:
        """Close the file; a later record opens it again."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def _write(self, path: Path, line: bytes) -> None:
        if self._file is None:
            self._file = _opened(path)
        size = os.fstat(self._file).st_size
        if size and size + len(line) > self._max_bytes:
            self._rotate(path)
            self._file = _opened(path)
        os.write(self._file, line)  # one write to a file opened for appending: lines of two processes never mix

    def _rotate(self, path: Path) -> None:
        os.close(self._file) if self._file is not None else None
        self._file = None
        names = [path, *(path.with_name(f"{path.name}.{number}") for number in range(1, self._keep + 1))]
        for older, newer in zip(names[:0:-1], names[-2::-1], strict=True):
            if newer.exists():
                newer.replace(older)
        if not self._keep:
            path.unlink(missing_ok=True)


def _opened(path: Path) -> int:
    """Open a file for appending that only its owner may read, since it says who uses what."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
