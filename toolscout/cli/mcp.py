"""The commands `mcp` (a gateway in front of many MCP servers) and `approve` (release tools it holds back)."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.text import Text

from toolscout.cli import output
from toolscout.cli.common import (
    NONE,
    WRONG,
    AllowTargetOption,
    EncoderOption,
    LevelOption,
    LogJsonOption,
    OtelContentOption,
    OtelOption,
    RerankByDefaultOption,
    RetrieverOption,
    StoreOption,
    plural,
    reranker_or_default,
    retriever_to_open,
    store_place,
)
from toolscout.cli.sign_in import AudienceOption, ClaimsOption, IssuerOption, ResourceOption, sign_in_of
from toolscout.core import tracing
from toolscout.core.tool import clean_text
from toolscout.errors import BadRequest, UnknownTool
from toolscout.stores import is_url

if TYPE_CHECKING:
    from toolscout.serving.gateway.quarantine import Held

DEFAULT_PORT = 8722


def mcp(
    ctx: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The JSON file with mcpServers of Claude Desktop, Cursor or VS Code, as it is."
        ),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Serve streamable HTTP at http://HOST:PORT/mcp.", show_default="stdin and stdout"
        ),
    ] = None,
    pin: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="A tool that is always listed; may be repeated.")
    ] = None,
    expose: Annotated[
        Literal["pins", "auto"],
        typer.Option(help="auto: also list the tools that the conversation has used, at the end of the list."),
    ] = "pins",
    quarantine: Annotated[
        bool, typer.Option("--quarantine", help="Hold back a tool that changes in any way, until: toolscout approve.")
    ] = False,
    quarantine_level: Annotated[
        str | None,
        typer.Option(
            metavar="low|medium|high",
            help="Also hold back new tools in which the scan finds something of this level, until: toolscout approve.",
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(envvar="TOOLSCOUT_KEY", metavar="KEY", help="Who the client is, where the catalogue has keys."),
    ] = None,
    oidc_issuer: IssuerOption = None,
    oidc_audience: AudienceOption = "",
    oidc_claims: ClaimsOption = None,
    oidc_resource: ResourceOption = "",
    allow_target: AllowTargetOption = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A host name under which --http is reached; may be repeated."),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where other gateways over the same PostgreSQL store reach this one, such as http://gateway-1:8722/mcp.",
        ),
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST",
            help="A host of other gateways, such as 'gateway-*', where calls may be forwarded to; may be repeated.",
            show_default="the host of --advertise",
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="How long a call may go on without a sign of progress.")
    ] = 60,
    audit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write who called what to this file, one JSON object a line.")
    ] = None,
    log_json: LogJsonOption = False,
    otel: OtelOption = False,
    otel_content: OtelContentOption = False,
    store: StoreOption = None,
    retriever: RetrieverOption = None,
    encoder: EncoderOption = None,
    rerank: RerankByDefaultOption = None,
    level: LevelOption = None,
) -> None:
    """Serve one MCP server that finds and calls the tools of many, instead of listing all of them."""
    from toolscout.catalogue.poisoning import checked_finding_level
    from toolscout.scout import Scout
    from toolscout.serving.access import Access
    from toolscout.serving.audit import Audit
    from toolscout.serving.gateway import config as gateway_config
    from toolscout.serving.gateway import quarantine as holding
    from toolscout.serving.gateway import transports
    from toolscout.serving.gateway.ownership import Peers
    from toolscout.serving.gateway.server import Gateway, GatewayOptions, check_key, run
    from toolscout.serving.gateway.sources import BackendOptions, Backends
    from toolscout.serving.limits import ServeOptions

    held_level = checked_finding_level(quarantine_level) if quarantine_level else None
    host, port = _address(http) if http else ("", 0)
    peers = Peers(advertise or "", tuple(peer or ())) if http else None
    names = (*(allow_host or ()), *([peers.host] if peers and peers.host else ()))
    served = ServeOptions(host=host, port=port, hosts=names) if http else None
    if (advertise or peer) and (peers is None or not is_url(store_place(ctx, store))):
        raise BadRequest("--advertise and --peer are for gateways with --http over one PostgreSQL store")
    if served is None and (oidc_issuer or oidc_audience or oidc_claims or oidc_resource):
        raise BadRequest("people sign in over --http; over stdio say who the client is with --key")
    sign_in = sign_in_of(oidc_issuer, oidc_audience, oidc_claims, oidc_resource)
    found = gateway_config.read_config(config) if config else gateway_config.GatewayConfig()
    for problem in found.problems:
        output.note(problem)
    place = store_place(ctx, store)
    loggers = ("toolscout.gateway", "toolscout.calling.dispatch", "toolscout.serving", "opentelemetry")
    # Standard output belongs to the protocol.
    named = retriever_to_open(retriever, reranker_or_default(retriever, rerank))
    with (
        output.logged(logging.INFO, *loggers, as_json=log_json),
        tracing.running(otel, otel_content),
        Scout.open(place, named, encoder=encoder, level=level, wait=False) as scout,
    ):
        scout.follow()
        held = holding.Quarantine(scout.store.approvals()) if quarantine or held_level else None
        allowed = tuple(allow_target or ())
        backends = Backends(scout, found, BackendOptions(timeout=timeout), held, allowed, peers, held_level)
        own, loopback = backends.listed_by_caller, served is None or served.loopback
        access = Access(scout, loopback=loopback, sign_in=sign_in, listed_by_caller=own)
        options = GatewayOptions(pins=tuple(pin or ()), expose=expose, key=key)
        gateway = Gateway(access, backends, options, Audit(audit))
        if served is None:
            check_key(access, key)
            run(transports.run_stdio, gateway)
        else:
            transports.check_binding(gateway, served)
            transports.check_free(served)
            shown = f"[{host}]" if ":" in host else host
            output.note(f"MCP at http://{shown}:{port}{transports.PATH}; stop with Ctrl-C", label="serving")
            run(transports.run_http, gateway, served)


def approve(
    ctx: typer.Context,
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID[@DIGEST]", help="Tools by id, with the digest that is listed beside it."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Approve every tool that waits, as it is listed.")] = False,
    store: StoreOption = None,
) -> None:
    """Let changed tools through that `toolscout mcp --quarantine` holds back; without an ID, show which wait.

    What is approved is what was shown. An ID alone shows the change and asks; with its digest nothing is asked. A tool
    that has changed again meanwhile stays held.
    """
    from toolscout import stores
    from toolscout.serving.gateway.quarantine import Quarantine
    from toolscout.stores.sqlite.store import approvals_path

    place = store_place(ctx, store)
    path = None if stores.is_url(place) else approvals_path(Path(place))
    if path is not None and not path.exists():
        if ids:
            raise BadRequest(
                f"nothing is held back: there is no {path.name}; it is made by: toolscout mcp --quarantine"
            )
        output.note("no tool waits for approval")
        raise typer.Exit(NONE)
    with stores.open_store(place) as opened, closing(Quarantine(opened.approvals())) as record:
        waiting = record.held()
        chosen = dict(_waiting(word, waiting) for word in ids or ())
        unseen = [one for one, seen in chosen.items() if not seen] if ids else waiting
        if ids and unseen and not sys.stdin.isatty():
            known = f"{unseen[0].tool_id}@{unseen[0].digest}"
            raise BadRequest(f"nobody is there to be asked; look at the change, then: toolscout approve {known}")
        if not waiting:
            output.note("no tool waits for approval")
            raise typer.Exit(NONE)
        if unseen:
            _show_waiting(unseen)
        if not ids and not every:
            return
        if unseen and sys.stdin.isatty() and not typer.confirm(f"Approve {plural(len(unseen), 'tool')}?", err=True):
            raise typer.Exit(NONE)
        approved = list(chosen) if ids else waiting
        changed = record.approve(approved)
    output.note(f"{plural(len(approved) - len(changed), 'tool')} approved", label="toolscout")
    for tool_id in changed:
        output.note(f"{tool_id} has changed again since it was shown and is still held; see: toolscout approve")
    if changed:
        raise typer.Exit(WRONG)


def _waiting(word: str, waiting: Sequence[Held]) -> tuple[Held, bool]:
    """Return the held tool that ID or ID@DIGEST names, and whether the digest was given.

    Raises BadRequest where the digest is not the present one, UnknownTool where no such tool waits.
    """
    by_id = {one.tool_id: one for one in waiting}
    tool_id, _, digest = word.rpartition("@")
    if tool_id in by_id and by_id[tool_id].digest == digest:
        return by_id[tool_id], True
    if word in by_id:
        return by_id[word], False
    if tool_id in by_id:
        raise BadRequest(f"{tool_id} does not say, or not any more, what {digest!r:.40} stands for: toolscout approve")
    raise UnknownTool(f"{word} does not wait for approval; see: toolscout approve")


def _show_waiting(waiting: Sequence[Held]) -> None:
    """Print everything that changed, uncut: whoever approves a change must have seen all of it."""
    table = output.table("tool", "digest", "said", "says now", grow="says now")
    table.columns[1].no_wrap = True
    for one in waiting:
        table.add_row(output.shown(one.tool_id), one.digest, Text(one.before), Text(one.now))
    output.stdout().print(table)


def _address(text: str) -> tuple[str, int]:
    """Read HOST:PORT, :PORT or PORT; the host is 127.0.0.1 where none is given. Raises typer.BadParameter."""
    host, _, port = text.rpartition(":")
    host = clean_text(host).strip("[]") or "127.0.0.1"
    port = port or str(DEFAULT_PORT)
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise typer.BadParameter(f"{text!r:.80} is not HOST:PORT, as 127.0.0.1:{DEFAULT_PORT}", param_hint="--http")
    return host, int(port)
