"""The commands `serve` (the HTTP server and its page) and `bench serve` (how much load it takes)."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from toolscout.cli import output
from toolscout.cli.common import (
    EncoderOption,
    LevelOption,
    LogJsonOption,
    OtelContentOption,
    OtelOption,
    RerankOption,
    RetrieverOption,
    StoreOption,
    existing_place,
    print_measurements,
    retriever_to_open,
)
from toolscout.cli.sign_in import AudienceOption, ClaimsOption, IssuerOption, ResourceOption, sign_in_of
from toolscout.core import tracing
from toolscout.errors import BadRequest, MissingEncoder, MissingExtra

DEFAULT_PORT = 8765
# How often Python switches threads: neither the event loop nor a search may wait long for the other.
_SWITCH_S = 0.001
_DRAIN_S = 30  # seconds that running requests get to end at shutdown
TOKEN_VARIABLE = "TOOLSCOUT_TOKEN"
_SHORTEST_TOKEN = 20
_ARENA_MAX = -8  # M_ARENA_MAX of malloc.h


def serve(
    ctx: typer.Context,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where to listen. Beyond this machine keys are required.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any that is free.")] = DEFAULT_PORT,
    retriever: RetrieverOption = None,
    encoder: EncoderOption = None,
    rerank: RerankOption = None,
    level: LevelOption = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME|FOLDER", help="Another retriever to compare with on the page; may be repeated."),
    ] = None,
    upstream: Annotated[
        str,
        typer.Option(metavar="URL", help="Forward /v1/chat/completions and /v1/messages there, with the right tools."),
    ] = "",
    upstream_key: Annotated[
        str,
        typer.Option(envvar="TOOLSCOUT_UPSTREAM_KEY", metavar="KEY", help="The key to use there.", show_default=False),
    ] = "",
    keep: Annotated[int, typer.Option(min=1, help="How many tools a forwarded request keeps.")] = 10,
    pin: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A tool that forwarded requests always keep; may be repeated."),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Searches at once.")] = 2,
    queue: Annotated[int, typer.Option(min=0, help="Searches that may wait; more are refused with 503.")] = 24,
    rate: Annotated[float, typer.Option(min=0, help="Requests a second from one caller, 0 for any number.")] = 200,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Another host name of this server, * for any; may be repeated."),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="Pages of another site that may ask; may be repeated."),
    ] = None,
    allow_private: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST",
            help="The page may add from this host though it is not at a public address; may be repeated.",
        ),
    ] = None,
    oidc_issuer: IssuerOption = None,
    oidc_audience: AudienceOption = "",
    oidc_claims: ClaimsOption = None,
    oidc_resource: ResourceOption = "",
    audit: Annotated[Path | None, typer.Option(metavar="FILE", help="Record calls here.")] = None,
    results: Annotated[Path, typer.Option(metavar="DIR", help="The results that the page shows.")] = Path("results"),
    log_json: LogJsonOption = False,
    otel: OtelOption = False,
    otel_content: OtelContentOption = False,
    open: Annotated[bool, typer.Option("--open", help="Show the page in a browser.")] = False,
    store: StoreOption = None,
) -> None:
    """Serve the catalogue over HTTP, with a page to try it. SIGTERM and Ctrl-C end it once all is answered."""
    try:
        from toolscout.serving.app import make_app
        from toolscout.serving.http_protocol import Server
    except ImportError as error:
        raise MissingExtra("serving", "serve") from error
    from toolscout.scout import Scout
    from toolscout.serving.access import Access
    from toolscout.serving.catalogue_writes import PacedScout
    from toolscout.serving.limits import ServeOptions

    options = ServeOptions(
        host=host,
        port=port,
        workers=workers,
        queue=queue,
        rate=rate,
        burst=max(1, int(rate)),
        hosts=tuple(allow_host or ()),
        origins=tuple(allow_origin or ()),
        upstream=upstream,
        upstream_key=upstream_key,
        keep=keep,
        pinned=tuple(pin or ()),
        audit=audit,
        results=results,
        private=tuple(allow_private or ()),
    )
    place, token = existing_place(ctx, store), _token()
    _share_heaps()
    with ExitStack() as opened, _logs_and_signals(log_json), tracing.running(otel, otel_content):
        chosen = retriever_to_open(retriever, rerank)
        scout = opened.enter_context(PacedScout.open(place, chosen, encoder=encoder, level=level, wait=False))
        others = {
            name: opened.enter_context(Scout.open(place, name, encoder=encoder, level=level)) for name in compare or ()
        }
        sign_in = sign_in_of(oidc_issuer, oidc_audience, oidc_claims, oidc_resource)
        access = Access(scout, loopback=options.loopback, token=token, sign_in=sign_in)
        if not options.loopback and not access.has_keys():
            raise BadRequest(f"anyone could reach {host}: make a key first with: toolscout keys add NAME --admin")
        _warm(scout)
        scout.follow()
        # The catalogue lives as long as the server: collecting garbage in it would halt every answer meanwhile.
        gc.collect()
        gc.freeze()
        server = Server(make_app(scout, access, options, others), _DRAIN_S)
        _run(server, options, scout.count(), "" if access.has_keys() else token, open)


def bench_serve(
    ctx: typer.Context,
    rate: Annotated[float, typer.Option(min=1, help="Requests a second.")] = 80,
    seconds: Annotated[float, typer.Option(min=0, help="For how long; 0 leaves this out.")] = 600,
    writes: Annotated[float, typer.Option(min=0, help="Tools added, and tools removed, a second.")] = 10,
    data: Annotated[str, typer.Option(metavar="DATA", help="Whose requests are asked.")] = "toollens",
    curve: Annotated[
        str, typer.Option(metavar="N,N,…", help="More rates, of ToolLens and of ToolBench requests, 15 s each.")
    ] = "",
    storm: Annotated[float, typer.Option(min=0, help="At last so many requests a second, far beyond capacity.")] = 0,
    replicas: Annotated[
        int,
        typer.Option(min=1, help="So many servers share the load, and find what one of them adds."),
    ] = 1,
    retriever: RetrieverOption = None,
    encoder: EncoderOption = None,
    json: Annotated[Path | None, typer.Option(metavar="OUT", help="Append the rows to this .jsonl file.")] = None,
    store: StoreOption = None,
) -> None:
    """Load a server over the catalogue of --store with paced requests while tools are added and removed."""
    from toolscout.evaluation import row
    from toolscout.evaluation.bench import replicas as bench_replicas
    from toolscout.evaluation.bench import serving_load
    from toolscout.scout import DEFAULT_RETRIEVER

    if json is not None:
        row.check_writable(json)
    try:
        rates = tuple(float(part) for part in curve.split(",") if part)
    except ValueError:
        raise typer.BadParameter("give numbers with commas between them", param_hint="--curve") from None
    place, method = existing_place(ctx, store), retriever or DEFAULT_RETRIEVER
    plan = serving_load.ServingPlan(
        place, method, data, rate, seconds, writes, rates, storm=storm, encoder=encoder or ""
    )
    with output.progress() as report:
        several = bench_replicas.measure(plan, replicas, report) if replicas > 1 else None
        print_measurements(several or serving_load.measure(plan, report), json)


def _share_heaps() -> None:
    """Make all threads share two malloc arenas: glibc gives each its own, which never gives memory back."""
    with suppress(OSError, AttributeError, TypeError):  # another C library
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 2)


def _warm(scout: Any) -> None:
    """Load everything that the first request would wait for, and let each request use one core, as several run."""
    from toolscout.index.worker_threads import WORKER_THREADS

    sys.setswitchinterval(_SWITCH_S)
    WORKER_THREADS.rest()
    with suppress(MissingEncoder):
        if (encoder := scout.retriever.encoder) is not None:
            encoder.use_threads(1)
    scout.warm_up()


def _token() -> str:
    """Return the token that allows changing the catalogue where no keys exist: from the environment, or a new one.

    Raises BadRequest where the one in the environment is too short or has another prefix.
    """
    from toolscout.core.permissions import KEY_PREFIX, new_secret

    token = os.environ.get(TOKEN_VARIABLE, "").strip() or new_secret()
    if not token.startswith(KEY_PREFIX) or len(token) < _SHORTEST_TOKEN:
        wanted = f"must begin with {KEY_PREFIX} and have {_SHORTEST_TOKEN} characters or more"
        raise BadRequest(f"the token in {TOKEN_VARIABLE} {wanted}; leave it unset to have one made")
    return token


def _run(server: Any, options: Any, tools: int, token: str, show: bool) -> None:
    """Listen, print the address, and serve until a signal comes; `show` opens the page in a browser."""
    from toolscout.serving.http_protocol import listen

    try:
        listening = listen(options.host, options.port)
    except OSError as error:
        why = f"cannot listen on {options.host} port {options.port}: {error.strerror}"
        raise BadRequest(f"{why}; choose another with --port") from None
    with listening:
        name = f"[{options.host}]" if ":" in options.host else options.host
        url = f"http://{name}:{listening.getsockname()[1]}/"
        output.write(f"{tools:,} tools at {url}")
        if token:
            url += f"#token={token}"
            output.write(f"to change the catalogue, open {url} or send the token as a key")
        with _page_opener(url) if show else nullcontext():
            server.run(sockets=[listening])


@contextmanager
def _page_opener(url: str) -> Iterator[None]:
    """Open a page in the browser one second after the block begins.

    The browser gets a file, readable by this user alone, that redirects to the address: the address may hold a token,
    and other users can see the command line that a browser is started with.
    """
    with tempfile.TemporaryDirectory(prefix="toolscout-") as folder:
        file = Path(folder) / "open.html"
        file.write_text(f'<meta http-equiv="refresh" content="0;url={url}">', encoding="utf-8")
        timer = threading.Timer(1, webbrowser.open, [file.as_uri()])
        timer.daemon = True
        timer.start()
        yield


@contextmanager
def _logs_and_signals(as_json: bool) -> Iterator[None]:
    """Show the server's log inside the block, and end with exit code 0 on SIGTERM.

    uvicorn raises the signal again once it has answered everything.
    """
    in_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, _exit) if in_main else None
    try:
        level = logging.INFO if as_json else logging.WARNING
        with output.logged(level, "toolscout.serving", "opentelemetry", as_json=as_json):
            yield
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def _exit(_: int, frame: FrameType | None) -> None:
    raise typer.Exit
