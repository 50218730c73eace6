"""What a live view shows of a running server, in the terminal (`toolscout top`) and on the page, out of its metrics."""

from __future__ import annotations

import re
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

SHOWN = 10  # routes, tools and servers
_LINE = re.compile(r'^(\w+)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})? (\S+)$', re.M)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_KEPT, _APART_S = 16, 1.0  # snapshots that a LiveView keeps, and the least time between two of them
Samples = Mapping[str, Mapping[tuple[tuple[str, str], ...], float]]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The metrics of a server at one time: by name, then by labels."""

    at: float
    samples: Samples

    def value(self, name: str) -> float:
        """Return a metric without labels; 0 where there is none."""
        return self.samples.get(name, {}).get((), 0.0)

    def by(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """Return a metric added up by these labels."""
        found: dict[tuple[str, ...], float] = defaultdict(float)
        for given, value in self.samples.get(name, {}).items():
            known = dict(given)
            found[tuple(known.get(label, "") for label in labels)] += value
        return found


@dataclass(slots=True)
class Rates:
    """What happened between two snapshots, or since the start of the server where there is one alone."""

    now: Snapshot
    before: Snapshot | None = None
    seconds: float = field(init=False)

    def __post_init__(self) -> None:
        """Compute the time between them."""
        self.seconds = self.now.at - self.before.at if self.before else 0.0

    def added(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """Return by how much a counter grew, by labels; all of it where the server was started anew."""
        now, before = self.now.by(name, *labels), self.before.by(name, *labels) if self.before else {}
        restarted = any(value < before.get(key, 0.0) for key, value in now.items())
        return now if restarted else {key: value - before.get(key, 0.0) for key, value in now.items()}

    def quantile(self, route: str, share: float) -> float | None:
        """Return the seconds within which a share of the requests of a route was answered, between bounds."""
        counts = self.added("toolscout_request_seconds_bucket", "route", "le")
        bounds = sorted((float(bound), count) for (name, bound), count in counts.items() if name == route)
        total = bounds[-1][1] if bounds else 0.0
        if not total:
            return None
        low = below = 0.0
        for bound, count in bounds:
            if count >= share * total:
                if bound == float("inf"):
                    return low
                return low + (bound - low) * (share * total - below) / (count - below)
            low, below = bound, count
        return low


def read_metrics(text: str, at: float) -> Snapshot:
    """Return the metrics in the text format of Prometheus."""
    samples: dict[str, dict[tuple[tuple[str, str], ...], float]] = defaultdict(dict)
    for name, labels, value in _LINE.findall(text):
        pairs = tuple((key, re.sub(r"\\(.)", r"\1", one)) for key, one in _LABEL.findall(labels))
        samples[name][pairs] = float(value)
    return Snapshot(at, samples)


@dataclass(frozen=True, slots=True)
class RouteFigures:
    """One route: requests, those that the server failed, and the times within which half and 95 % were answered."""

    route: str
    requests: int
    failed: int
    p50_ms: float | None
    p95_ms: float | None


@dataclass(frozen=True, slots=True)
class ToolFigures:
    """One tool: its calls, those that failed, and how long one took on average."""

    tool: str
    calls: int
    failed: int
    mean_ms: float


@dataclass(frozen=True, slots=True)
class Figures:
    """One frame of the live view.

    `seconds`: the time that counts are of; 0 means since the start of the server, and then there is no `per_second`.
    `routes`: the busiest; `slowest`: the slowest tools. `servers` behind a gateway; `down`: those without an answer.
    """

    seconds: float
    tools: int
    words_only: int
    searches_inside: int
    memory_bytes: int
    requests: int
    per_second: float | None
    verdicts: dict[str, int]
    routes: tuple[RouteFigures, ...]
    slowest: tuple[ToolFigures, ...]
    servers: int
    down: tuple[str, ...]


def figures(rates: Rates) -> Figures:
    """Return what is shown of the time between two snapshots."""
    now, states = rates.now, rates.now.by("toolscout_server_up", "server")
    total = sum(rates.added("toolscout_requests_total").values())
    verdicts = rates.added("toolscout_verdicts_total", "verdict")
    return Figures(
        seconds=rates.seconds,
        tools=int(now.value("toolscout_tools")),
        words_only=int(now.value("toolscout_words_only")),
        searches_inside=int(now.value("toolscout_searches_inside")),
        memory_bytes=int(now.value("process_resident_memory_bytes")),
        requests=int(total),
        per_second=total / rates.seconds if rates.seconds else None,
        verdicts={name: int(count) for (name,), count in sorted(verdicts.items())},
        routes=_routes(rates),
        slowest=_slowest(rates),
        servers=len(states),
        down=tuple(sorted(name for (name,), up in states.items() if not up)),
    )


def _routes(rates: Rates) -> tuple[RouteFigures, ...]:
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for (route, status), count in rates.added("toolscout_requests_total", "route", "status").items():
        counts[route][0] += int(count)
        counts[route][1] += int(count) if status.startswith("5") or status == "0" else 0
    busiest = sorted(counts.items(), key=lambda item: (-item[1][0], item[0]))[:SHOWN]
    return tuple(
        RouteFigures(route, count, failed, _ms(rates.quantile(route, 0.5)), _ms(rates.quantile(route, 0.95)))
        for route, (count, failed) in busiest
    )


def _slowest(rates: Rates) -> tuple[ToolFigures, ...]:
    counts = rates.added("toolscout_call_seconds_count", "tool")
    by_outcome = rates.added("toolscout_call_seconds_count", "tool", "ok")
    failed = {tool: int(count) for (tool, ok), count in by_outcome.items() if ok == "false"}
    seconds = rates.added("toolscout_call_seconds_sum", "tool")
    found = [
        ToolFigures(tool, int(count), failed.get(tool, 0), 1000 * seconds.get((tool,), 0.0) / count)
        for (tool,), count in counts.items()
        if count
    ]
    return tuple(sorted(found, key=lambda one: (-one.mean_ms, one.tool))[:SHOWN])


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


class LiveView:
    """Figures of this process for pages that ask again and again, each since it asked last."""

    def __init__(self, text: Callable[[], str], clock: Callable[[], float] = time.monotonic) -> None:
        """`text` gives the metrics as Prometheus reads them."""
        self._text, self._clock, self._lock = text, clock, threading.Lock()
        self._snapshots = deque[tuple[int, Snapshot]](maxlen=_KEPT)

    def look(self, since: str) -> dict[str, Any]:
        """Return the figures as JSON since the look named `since`, and the name of this one in `look`.

        Where there was no such look, or it was too long ago, they are of all since the server started.
        """
        with self._lock:
            before = next((one for name, one in self._snapshots if str(name) == since), None)
            newest = self._snapshots[-1] if self._snapshots else None
            now = self._clock()
            if newest is None or newest[1] is before or now - newest[1].at >= _APART_S:
                # Names go on through a restart: a page that looked at the process before must not find its name here.
                name = max(time.time_ns() // 1_000_000, newest[0] + 1 if newest else 0)
                newest = (name, read_metrics(self._text(), now))
                self._snapshots.append(newest)
        return {"look": str(newest[0]), **asdict(figures(Rates(newest[1], before)))}
