"""The command `top`: a live view of a running server, out of its /metrics."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from typing import Annotated
from urllib.parse import urlsplit

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from toolscout.cli import output
from toolscout.errors import BadRequest, ToolscoutError
from toolscout.serving.live_metrics import SHOWN, Figures, Rates, Snapshot, figures, read_metrics

_DEFAULT_URL = "http://127.0.0.1:8765"
_TIMEOUT_S = 10.0
_MAX_BYTES = 8_000_000


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
        output.stdout().print(frame(url, figures(Rates(now))))
        return
    from rich.live import Live

    with Live(frame(url, figures(Rates(now))), console=output.stdout(), screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(every)
            try:
                before, now = now, fetch(url, key)
                live.update(frame(url, figures(Rates(now, before))), refresh=True)
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


def frame(url: str, shown: Figures) -> RenderableType:
    """Return all that is shown at one time."""
    return Group(*_head(url, shown), Text(), _routes(shown), *_calls(shown), *_servers(shown))


def _head(url: str, shown: Figures) -> Iterator[RenderableType]:
    rate = shown.per_second
    speed = f"{rate:,.1f} requests/s" if rate is not None else f"{shown.requests:,} requests since the start"
    yield output.shown(f"{url}  {shown.tools:,} tools  {speed}  {shown.memory_bytes / 1e6:,.0f} MB", "bold")
    searches = sum(shown.verdicts.values())
    if searches:
        shares = ", ".join(f"{name} {count:,} ({count / searches:.0%})" for name, count in shown.verdicts.items())
        yield output.shown(f"verdicts: {shares}")
    waiting = f"searches running or waiting: {shown.searches_inside:,}"
    yield output.shown(f"{waiting}; tools not embedded: {shown.words_only:,}")


def _routes(shown: Figures) -> RenderableType:
    table = output.table("route", "requests", "failed", "p50 ms", "p95 ms", grow="route")
    for one in shown.routes:
        times = (f"{ms:,.1f}" if ms is not None else "" for ms in (one.p50_ms, one.p95_ms))
        table.add_row(output.shown(one.route), f"{one.requests:,}", f"{one.failed:,}", *times)
    return table


def _calls(shown: Figures) -> Iterator[RenderableType]:
    if not shown.slowest:
        return
    table = output.table("slowest tools", "calls", "failed", "mean ms", grow="slowest tools")
    for one in shown.slowest:
        table.add_row(output.shown(one.tool), f"{one.calls:,}", f"{one.failed:,}", f"{one.mean_ms:,.1f}")
    yield Text()
    yield table


def _servers(shown: Figures) -> Iterator[RenderableType]:
    if not shown.servers:
        return
    yield Text()
    yield output.shown(f"servers: {shown.servers - len(shown.down)} of {shown.servers} answer", "bold")
    for name in shown.down[:SHOWN]:
        yield output.shown(f"  {name} does not answer", "red")
    if len(shown.down) > SHOWN:
        yield output.shown(f"  and {len(shown.down) - SHOWN:,} more")
