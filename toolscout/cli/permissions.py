"""The commands `grant` and `revoke`: which tools a principal may see."""

from __future__ import annotations

from typing import Annotated

import typer

from toolscout.cli import output
from toolscout.cli.common import StoreOption, open_store
from toolscout.core.answer import Allowed

PrincipalArgument = Annotated[str, typer.Argument(metavar="PRINCIPAL", help="Who: a user, team or agent, by any name.")]
NamespacesOption = Annotated[
    list[str] | None, typer.Option("--namespace", metavar="NS", help="A whole namespace; may be given again.")
]
ToolsOption = Annotated[
    list[str] | None, typer.Option("--tool", metavar="ID", help="A single tool; may be given again.")
]


def grant(
    ctx: typer.Context,
    principal: PrincipalArgument,
    namespace: NamespacesOption = None,
    tool: ToolsOption = None,
    store: StoreOption = None,
) -> None:
    """Let a principal see namespaces and tools, besides what it may see already."""
    allowed = _named(namespace, tool)
    with open_store(ctx, store) as opened:
        known, ids = opened.namespaces(), set(opened.ids()) if allowed.ids else set()
        opened.grant(principal, allowed)
        now = opened.permissions(principal)
    for absent in sorted({*(allowed.namespaces - known.keys()), *(allowed.ids - ids)}):
        output.note(f"granted, but not in the catalogue yet: {absent}")
    _print_permissions(principal, now)


def revoke(
    ctx: typer.Context,
    principal: PrincipalArgument,
    namespace: NamespacesOption = None,
    tool: ToolsOption = None,
    store: StoreOption = None,
) -> None:
    """Take back what was granted to a principal."""
    allowed = _named(namespace, tool)
    with open_store(ctx, store) as opened:
        opened.revoke(principal, allowed)
        now = opened.permissions(principal)
    _print_permissions(principal, now)


def _named(namespaces: list[str] | None, tools: list[str] | None) -> Allowed:
    if not namespaces and not tools:
        raise typer.BadParameter("name at least one", param_hint="--namespace or --tool")
    return Allowed.of(namespaces or (), tools or ())


def _print_permissions(principal: str, allowed: Allowed) -> None:
    seen = [f"namespace {name}" for name in sorted(allowed.namespaces)] + [f"tool {i}" for i in sorted(allowed.ids)]
    output.stdout().print(output.shown(f"{principal} may see: {', '.join(seen) or 'nothing'}"), soft_wrap=True)
