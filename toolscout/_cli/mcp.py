"""mcp and approve: the gateway that stands before many MCP servers."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from toolscout._cli import output
from toolscout._cli.common import NONE, IdsArgument, RetrieverOption, StoreOption, plural, store_path
from toolscout.errors import BadRequest
from toolscout.tool import clean_text

DEFAULT_PORT = 8722


class _Notes(logging.Handler):
    """What the gateway has to say goes to stderr; stdout belongs to the protocol."""

    def emit(self, record: logging.LogRecord) -> None:
        output.note(record.getMessage(), label=record.levelname.lower())


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
    quarantine: Annotated[
        bool, typer.Option("--quarantine", help="Hold back a tool whose description changes, until: toolscout approve.")
    ] = False,
    key: Annotated[
        str | None,
        typer.Option(envvar="TOOLSCOUT_KEY", metavar="KEY", help="Who the client is, where the catalogue has keys."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A host name under which --http is reached; may be repeated."),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="How long a call may go on without a sign of progress.")
    ] = 60,
    audit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write who called what to this file, one JSON object a line.")
    ] = None,
    store: StoreOption = None,
    retriever: RetrieverOption = None,
) -> None:
    """Serve one MCP server that finds and calls the tools of many, instead of listing all of them."""
    from toolscout.scout import DEFAULT_RETRIEVER, Scout
    from toolscout.serving import gateway_config, mcp_transports
    from toolscout.serving import quarantine as holding
    from toolscout.serving.access import Access
    from toolscout.serving.audit import Audit
    from toolscout.serving.backends import BackendOptions, Backends
    from toolscout.serving.limits import ServeOptions
    from toolscout.serving.mcp import Gateway, GatewayOptions, check_key, run

    host, port = _address(http) if http else ("", 0)
    served = ServeOptions(host=host, port=port, hosts=tuple(allow_host or ())) if http else None
    found = gateway_config.read_config(config) if config else gateway_config.GatewayConfig()
    for problem in found.problems:
        output.note(problem)
    path = store_path(ctx, store)
    _listen_to_notes()
    with Scout.open(path, retriever or DEFAULT_RETRIEVER) as scout:
        access = Access(scout, loopback=served is None or served.loopback)
        held = holding.Quarantine(holding.quarantine_path(path)) if quarantine else None
        backends = Backends(scout, found, BackendOptions(timeout=timeout), held)
        options = GatewayOptions(pins=tuple(pin or ()), key=key)
        gateway = Gateway(access, backends, options, Audit(audit))
        if served is None:
            check_key(access, key)
            run(mcp_transports.run_stdio, gateway)
        else:
            mcp_transports.check_binding(gateway, served)
            mcp_transports.check_free(served)
            shown = f"[{host}]" if ":" in host else host
            output.note(f"MCP at http://{shown}:{port}{mcp_transports.PATH}; stop with Ctrl-C", label="serving")
            run(mcp_transports.run_http, gateway, served)


def approve(
    ctx: typer.Context,
    ids: IdsArgument = None,
    every: Annotated[bool, typer.Option("--all", help="Approve every tool that waits.")] = False,
    store: StoreOption = None,
) -> None:
    """Let changed tools through that `toolscout mcp --quarantine` holds back; without an ID, show which wait."""
    from toolscout.serving.quarantine import Quarantine, quarantine_path

    path = quarantine_path(store_path(ctx, store))
    waiting = []
    if path.exists():
        record = Quarantine(path)
        waiting = record.held()
        if ids or every:
            done = record.approve(ids or [one.tool_id for one in waiting])
            output.note(f"{plural(done, 'tool')} approved", label="toolscout")
            record.close()
            return
        record.close()
    elif ids:
        raise BadRequest(f"nothing is held back: there is no {path.name}; it is made by: toolscout mcp --quarantine")
    if not waiting:
        output.note("no tool waits for approval")
        raise typer.Exit(NONE)
    table = output.table("tool", "said", "says now", grow="says now")
    for one in waiting:
        table.add_row(output.shown(one.tool_id), output.shown(one.before), output.shown(one.now))
    output.stdout().print(table)


def _address(text: str) -> tuple[str, int]:
    """HOST:PORT, :PORT or PORT; this machine alone where no host is said."""
    host, _, port = text.rpartition(":")
    host = clean_text(host).strip("[]") or "127.0.0.1"
    port = port or str(DEFAULT_PORT)
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise typer.BadParameter(f"{text!r:.80} is not HOST:PORT, as 127.0.0.1:{DEFAULT_PORT}", param_hint="--http")
    return host, int(port)


def _listen_to_notes() -> None:
    log = logging.getLogger("toolscout.gateway")
    log.setLevel(logging.INFO)
    if not log.handlers:
        log.addHandler(_Notes())
        log.propagate = False
