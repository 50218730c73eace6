"""The command `top`: a live view of a running server, out of its /metrics."""

from __future__ import annotations

import http.client
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated
from urllib.parse import urlsplit

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from toolscout.cli import output
from toolscout.errors import BadRequest, ToolscoutError

_DEFAULT_URL = "http://127.0.0.1:8765"
_TIMEOUT_S = 10.0
_MAX_BYTES = 8_000_000
_SHOWN = 10  # routes, tools and servers
_LINE = re.compile(r'^(\w+)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})? (\S+)$', re.M)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
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


def top(
    url: Annotated[str, typer.Argument(metavar="URL", help="The server, or the gateway over HTTP.")] = _DEFAULT_URL,
    key: Annotated[
        str | None,
        typer.Option(
            envvar=["TOOLSCOUT_KEY", "TOOLSCOUT_TOKEN"],
            metavar="KEY",
            help="The key of an admin, or the token that the server printed.",
            show_default=False,
        ),
    ] = None,
    every: Annotated[float, typer.Option(min=0.2, metavar="SECONDS", help="How often to look.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one frame, of all since the server started.")] = False,
) -> None:
    """Watch a running server: requests a second, verdicts, p50 and p95, slowest tools, failing servers, memory."""
    before, now = None, fetch(url, key)
    if once:
        output.stdout().print(frame(url, Rates(now)))
        return
    from rich.live import Live

    with Live(frame(url, Rates(now)), console=output.stdout(), screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(every)
            try:
                before, now = now, fetch(url, key)
                live.update(frame(url, Rates(now, before)), refresh=True)
            except ToolscoutError as error:  # it may be starting again
                live.update(output.shown(str(error), "bold red"), refresh=True)


def fetch(url: str, key: str | None) -> Snapshot:
    """Return the metrics of a server. Raises BadRequest where it does not give them."""
    parts = urlsplit(url if "//" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadRequest(f"{url!r:.200} is no address of a server; give it as {_DEFAULT_URL}")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    try:
        connection = kind(parts.hostname, parts.port, timeout=_TIMEOUT_S)
        path = parts.path.rstrip("/").removesuffix("/mcp") + "/metrics"
        connection.request("GET", path, headers={"Authorization": f"Bearer {key}"} if key else {})
        reply = connection.getresponse()
        text = reply.read(_MAX_BYTES).decode(errors="replace")
        connection.close()
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise BadRequest(f"no server answers at {url}: {error}; start it with: toolscout serve") from None
    if reply.status in (401, 403):
        raise BadRequest("metrics are for admins; give the key of one, or the server's token, with --key")
    if reply.status != 200:
        raise BadRequest(f"{url} has no metrics (status {reply.status}); is it a toolscout server?")
    return read_metrics(text, time.monotonic())


def frame(url: str, rates: Rates) -> RenderableType:
    """Return all that is shown at one time."""
    return Group(*_head(url, rates), Text(), *_routes(rates), *_calls(rates), *_servers(rates))


def _head(url: str, rates: Rates) -> Iterator[RenderableType]:
    now = rates.now
    total = sum(rates.added("toolscout_requests_total").values())
    speed = f"{total / rates.seconds:,.1f} requests/s" if rates.seconds else f"{total:,.0f} requests since the start"
    memory = f"{now.value('process_resident_memory_bytes') / 1e6:,.0f} MB"
    yield output.shown(f"{url}  {now.value('toolscout_tools'):,.0f} tools  {speed}  {memory}", "bold")
    verdicts = {verdict: count for (verdict,), count in rates.added("toolscout_verdicts_total", "verdict").items()}
    searches = sum(verdicts.values())
    if searches:
        shares = ", ".join(f"{name} {count:,.0f} ({count / searches:.0%})" for name, count in sorted(verdicts.items()))
        yield output.shown(f"verdicts: {shares}")
    waiting = now.value("toolscout_searches_inside"), now.value("toolscout_words_only")
    yield output.shown(f"searches running or waiting: {waiting[0]:,.0f}; tools not embedded: {waiting[1]:,.0f}")


def _routes(rates: Rates) -> Iterator[RenderableType]:
    counts: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for (route, status), count in rates.added("toolscout_requests_total", "route", "status").items():
        counts[route][0] += count
        counts[route][1] += count if status.startswith("5") or status == "0" else 0
    table = output.table("route", "requests", "failed", "p50 ms", "p95 ms", grow="route")
    busiest = sorted(counts.items(), key=lambda item: (-item[1][0], item[0]))[:_SHOWN]
    for route, (count, failed) in busiest:
        times = (rates.quantile(route, share) for share in (0.5, 0.95))
        shown = (f"{1000 * one:,.1f}" if one is not None else "" for one in times)
        table.add_row(output.shown(route), f"{count:,.0f}", f"{failed:,.0f}", *shown)
    yield table


def _calls(rates: Rates) -> Iterator[RenderableType]:
    counts = rates.added("toolscout_call_seconds_count", "tool")
    by_outcome = rates.added("toolscout_call_seconds_count", "tool", "ok")
    failed = {tool: count for (tool, ok), count in by_outcome.items() if ok == "false"}
    seconds = rates.added("toolscout_call_seconds_sum", "tool")
    means = {key[0]: (seconds.get(key, 0.0) / count, count) for key, count in counts.items() if count}
    if not means:
        return
    table = output.table("slowest tools", "calls", "failed", "mean ms", grow="slowest tools")
    for tool, (mean, count) in sorted(means.items(), key=lambda item: (-item[1][0], item[0]))[:_SHOWN]:
        table.add_row(output.shown(tool), f"{count:,.0f}", f"{failed.get(tool, 0):,.0f}", f"{1000 * mean:,.1f}")
    yield Text()
    yield table


def _servers(rates: Rates) -> Iterator[RenderableType]:
    states = rates.now.by("toolscout_server_up", "server")
    if not states:
        return
    down = sorted(name for (name,), up in states.items() if not up)
    yield Text()
    yield output.shown(f"servers: {len(states) - len(down)} of {len(states)} answer", "bold")
    for name in down[:_SHOWN]:
        yield output.shown(f"  {name} does not answer", "red")
    if len(down) > _SHOWN:
        yield output.shown(f"  and {len(down) - _SHOWN:,} more")
