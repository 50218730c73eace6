"""The command `feedback`: record which tools a request really used."""

from __future__ import annotations

from typing import Annotated

import typer

from toolscout.cli import output
from toolscout.cli.common import RequestArgument, StoreOption, open_store, plural, request_text, tenant_of
from toolscout.core.answer import Example


def feedback(
    ctx: typer.Context,
    request: RequestArgument,
    used: Annotated[list[str] | None, typer.Option(metavar="ID", help="A tool it used; may be given again.")] = None,
    rejected: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="A tool that was offered and turned down; may be given again."),
    ] = None,
    principal: Annotated[
        str, typer.Option("--as", metavar="PRINCIPAL", help="Who made the request.", show_default=False)
    ] = "",
    store: StoreOption = None,
) -> None:
    """Record which tools a request really used, for retrievers that learn from use."""
    if not used and not rejected:
        raise typer.BadParameter("name at least one tool", param_hint="--used or --rejected")
    text = request_text(request)
    with open_store(ctx, store) as opened:
        opened.get([*(used or ()), *(rejected or ())])  # raises UnknownTool for an id that is not there
        tenant = tenant_of(opened, principal)
        opened.add_feedback([Example(text, tuple(used or ()), tuple(rejected or ()), tenant=tenant, source="cli")])
    output.write(f"recorded: {plural(len(used or ()), 'tool')} used, {len(rejected or ()):,} rejected")
