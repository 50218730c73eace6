"""Metrics of a server in the text format of Prometheus."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from toolscout.core.tool import clean_text

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BOUNDS = (0.005, 0.01, 0.02, 0.03, 0.04, 0.06, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)
MAX_TOOLS = 1_000  # that calls are counted of, one by one
_STATM = Path("/proc/self/statm")


class Metrics:
    """Counts requests by route and status, and measures how long they took."""

    def __init__(self) -> None:
        """Start at zero."""
        self._counts: Counter[tuple[str, int]] = Counter()
        self._times: dict[str, tuple[list[int], float]] = {}
        self._verdicts: Counter[str] = Counter()
        self._calls: dict[tuple[str, bool], tuple[int, float]] = {}
        self._lock = threading.Lock()

    def observe(self, route: str, status: int, seconds: float) -> None:
        """Count an answered request. `route` is a template, never a path as the caller wrote it."""
        with self._lock:
            self._counts[route, status] += 1
            buckets, total = self._times.setdefault(route, ([0] * (len(_BOUNDS) + 1), 0.0))
            buckets[next((i for i, bound in enumerate(_BOUNDS) if seconds <= bound), len(_BOUNDS))] += 1
            self._times[route] = (buckets, total + seconds)

    def count_verdict(self, verdict: str) -> None:
        """Count the verdict of a search."""
        with self._lock:
            self._verdicts[verdict] += 1

    def observe_call(self, tool_id: str, ok: bool, seconds: float) -> None:
        """Count a call of a tool. Beyond MAX_TOOLS tools, all further ones are counted as one."""
        with self._lock:
            if (tool_id, ok) not in self._calls and len(self._calls) >= MAX_TOOLS:
                tool_id = "other"
            calls, total = self._calls.get((tool_id, ok), (0, 0.0))
            self._calls[tool_id, ok] = (calls + 1, total + seconds)

    def text(self, gauges: Mapping[str, tuple[str, float]]) -> str:
        """Return all metrics as text; `gauges` maps further names to a help text and a value."""
        with self._lock:
            lines = [*self._requests(), *self._seconds(), *self._verdict_lines(), *self._call_lines()]
        for name, (about, value) in (*gauges.items(), *_process().items()):
            lines += [f"# HELP {name} {about}", f"# TYPE {name} gauge", f"{name} {value:.17g}"]
        return "\n".join(lines) + "\n"

    def _requests(self) -> Iterator[str]:
        yield "# HELP toolscout_requests_total Requests answered, by route and status."
        yield "# TYPE toolscout_requests_total counter"
        for (route, status), count in sorted(self._counts.items()):
            yield f'toolscout_requests_total{{route="{route}",status="{status}"}} {count}'

    def _verdict_lines(self) -> Iterator[str]:
        yield "# HELP toolscout_verdicts_total Searches answered, by verdict."
        yield "# TYPE toolscout_verdicts_total counter"
        for verdict, count in sorted(self._verdicts.items()):
            yield f'toolscout_verdicts_total{{verdict="{verdict}"}} {count}'

    def _call_lines(self) -> Iterator[str]:
        if not self._calls:
            return
        yield "# HELP toolscout_call_seconds How long calls of tools took."
        yield "# TYPE toolscout_call_seconds summary"
        for (tool_id, ok), (count, total) in sorted(self._calls.items()):
            labels = f'tool="{escaped_label(tool_id)}",ok="{str(ok).lower()}"'
            yield f"toolscout_call_seconds_sum{{{labels}}} {total:.6f}"
            yield f"toolscout_call_seconds_count{{{labels}}} {count}"

    def _seconds(self) -> Iterator[str]:
        yield "# HELP toolscout_request_seconds How long requests took."
        yield "# TYPE toolscout_request_seconds histogram"
        for route, (buckets, total) in sorted(self._times.items()):
            below = 0
            for bound, count in zip((*_BOUNDS, "+Inf"), buckets, strict=True):
                below += count
                yield f'toolscout_request_seconds_bucket{{route="{route}",le="{bound}"}} {below}'
            yield f'toolscout_request_seconds_sum{{route="{route}"}} {total:.6f}'
            yield f'toolscout_request_seconds_count{{route="{route}"}} {below}'


def escaped_label(text: str) -> str:
    """Return a text as the value of a label."""
    return clean_text(text).replace("\\", "\\\\").replace('"', '\\"')


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes; 0 where the system does not say."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _process() -> dict[str, tuple[str, float]]:
    seconds = sum(os.times()[:2])
    return {
        "process_resident_memory_bytes": ("Memory held.", resident_bytes()),
        "process_cpu_seconds": ("Processor time used.", seconds),
    }
