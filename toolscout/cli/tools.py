"""The commands `list`, `show`, `remove` and `alias`: look at and change the catalogue without a search index."""

from __future__ import annotations

import sys
from itertools import islice
from typing import Annotated, Any, Literal

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from toolscout.cli import output
from toolscout.cli.common import NONE, IdsArgument, Listed, StoreOption, open_store, plural
from toolscout.core.expansion import Expansion
from toolscout.core.tool import Tool, namespace_of
from toolscout.errors import BadRequest

Shape = Literal["table", "json", "openai", "openai-responses", "anthropic", "mcp"]
PAGE = 100


def list_tools(
    ctx: typer.Context,
    store: StoreOption = None,
    namespace: Annotated[str | None, typer.Option(metavar="NS", help="List the tools of this namespace.")] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="At most so many lines.")] = PAGE,
    offset: Annotated[int, typer.Option(min=0, metavar="N", help="Skip so many lines.")] = 0,
    format: Annotated[Listed, typer.Option(help="How to print it.")] = "table",
) -> None:
    """List the namespaces and how many tools each has, or the tools of one."""
    with open_store(ctx, store) as opened:
        namespaces, version = opened.namespaces(), opened.version()
        tools = [] if namespace is None else list(opened.tools(namespace, offset=offset, limit=limit))
    counted = list(islice(namespaces.items(), offset, offset + limit))
    total = len(namespaces) if namespace is None else namespaces.get(namespace, 0)
    listed = len(counted) if namespace is None else len(tools)
    if format == "json":
        page: dict[str, Any] = {"version": version, "total": total, "offset": offset}
        if namespace is None:
            page |= {"tools": sum(namespaces.values()), "namespaces": dict(counted)}
        else:
            listing = [{"id": one.id, "title": one.title, "description": one.description} for one in tools]
            page |= {"namespace": namespace, "tools": listing}
        output.print_json(page)
    elif listed:
        output.stdout().print(_namespace_table(counted) if namespace is None else _tool_table(tools))
    if format != "json":
        _say_what_is_left(namespace, sum(namespaces.values()), total, offset, listed)
    if not listed:
        raise typer.Exit(NONE)


def show(
    ctx: typer.Context,
    tool_id: Annotated[str, typer.Argument(metavar="ID", help="A tool by its id: namespace/name.")],
    store: StoreOption = None,
    format: Annotated[Shape, typer.Option(help="How to print it.")] = "table",
) -> None:
    """Show one tool: for people, as JSON, or as a vendor's interface takes it."""
    with open_store(ctx, store) as opened:
        tool = opened.get([tool_id])[0]
        expanded = bool(opened.expansions([tool_id]))
    if format == "table":
        output.stdout().print(_sheet(tool, expanded))
    elif format == "json":
        output.print_json({"id": tool.id, **tool.to_record()})
    else:
        from toolscout.core import vendor_formats

        output.print_json(vendor_formats.to_wire(tool, format))


def remove(
    ctx: typer.Context,
    ids: IdsArgument = None,
    store: StoreOption = None,
    namespace: Annotated[str | None, typer.Option(metavar="NS", help="Remove every tool of this namespace.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before a namespace is removed.")] = False,
    expansions: Annotated[
        bool, typer.Option("--expansions", help="Remove expansions, of these tools or of all, and keep the tools.")
    ] = False,
) -> None:
    """Remove tools, or a whole namespace.

    When one of the ids is not there, nothing is removed.
    """
    if expansions:
        _remove_expansions(ctx, store, ids, namespace)
        return
    if bool(ids) == bool(namespace):
        raise typer.BadParameter("name tools by id, or a namespace with --namespace", param_hint="ID")
    with open_store(ctx, store) as opened:
        chosen = list(dict.fromkeys(ids or opened.ids(namespace)))
        if not chosen:
            output.note(f"there are no tools in {namespace}; run: toolscout list")
            raise typer.Exit(NONE)
        if namespace and not yes and not _agreed(f"Remove {plural(len(chosen), 'tool')} of {namespace}?"):
            output.note("nothing was removed")
            raise typer.Exit(NONE)
        removed = opened.remove(chosen)
        version = opened.version()
    output.write(f"{plural(removed, 'tool')} removed; catalogue version {version}")


def _remove_expansions(ctx: typer.Context, store: str | None, ids: list[str] | None, namespace: str | None) -> None:
    with open_store(ctx, store) as opened:
        if ids:
            opened.get(ids)  # raises UnknownTool where one is not there
        there = opened.expansions(ids or None)
        chosen = [one for one in there if namespace is None or namespace_of(one) == namespace]
        done = opened.set_expansions(dict.fromkeys(chosen, Expansion()))
    output.write(f"{plural(done.changed, 'expansion')} removed; catalogue version {done.version}")


def alias(
    ctx: typer.Context,
    tool_id: Annotated[str, typer.Argument(metavar="ID", help="A tool by its id: namespace/name.")],
    name: Annotated[str, typer.Argument(metavar="ALIAS", help="Another name that finds it, like its own.")],
    store: StoreOption = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take the alias back.")] = False,
) -> None:
    """Give a tool one more name that always finds it.

    It stays when the tool is imported again.
    """
    with open_store(ctx, store) as opened:
        changed = opened.remove_alias(tool_id, name) if remove else opened.set_alias(tool_id, name)
        names = opened.get([tool_id])[0].aliases
    prefix = "" if changed else "nothing to do: "
    output.stdout().print(
        output.shown(f"{prefix}{tool_id} has the aliases: {', '.join(names) or 'none'}"), soft_wrap=True
    )


def _agreed(question: str) -> bool:
    output.stderr().print(output.shown(f"{question} [y/N]"), end=" ")
    reply = sys.stdin.readline()
    if not reply:
        raise BadRequest("nobody is there to confirm it; say --yes to remove a namespace without being asked")
    return reply.strip().lower() in ("y", "yes")


def _namespace_table(counted: list[tuple[str, int]]) -> Table:
    made = output.table("namespace", "tools")
    for namespace, count in counted:
        made.add_row(output.shown(namespace), f"{count:,}")
    return made


def _tool_table(tools: list[Tool]) -> Table:
    from toolscout.core.vendor_formats import first_sentence

    made = output.table("tool", "description", grow="description")
    for tool in tools:
        made.add_row(output.shown(tool.id), output.shown(first_sentence(tool.description[: output.MAX_SHOWN_CHARS])))
    return made


def _say_what_is_left(namespace: str | None, tools: int, total: int, offset: int, listed: int) -> None:
    if not tools:
        output.note("the catalogue is empty; add tools with: toolscout add SOURCE")
    elif not total:
        output.note(f"there is no namespace {namespace}; run: toolscout list")
    elif listed < total:
        noun = "namespace" if namespace is None else "tool"
        shown = f"{offset + 1:,} to {offset + listed:,}" if listed else "none"
        output.note(f"shown: {shown} of {plural(total, noun)}; --limit and --offset show others")


def _sheet(tool: Tool, expanded: bool) -> Group:
    from toolscout.core.vendor_formats import wire_name

    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    origin = f"{tool.origin.kind} {tool.origin.target}" if tool.origin else ""
    rows = {
        "tool": tool.id,
        "title": tool.title,
        "service": tool.service,
        "wire name": wire_name(tool.id),
        "aliases": ", ".join(tool.aliases),
        "tags": ", ".join(tool.tags),
        "hints": ", ".join(f"{key} {value}" for key, value in tool.annotations.items()),
        "called by": origin,
        "expansion": "is searched besides" if expanded else "",
    }
    for label, value in rows.items():
        if value:
            facts.add_row(label, output.shown(value))
    lines = tool.description[: output.MAX_SHOWN_CHARS].splitlines()
    description = Text("\n").join(output.shown(line) for line in lines)
    more = "" if len(tool.description) <= output.MAX_SHOWN_CHARS else f"… ({len(tool.description):,} characters)"
    return Group(facts, "", description, *([more] if more else []), "", _parameters(tool))


def _parameters(tool: Tool) -> Table | str:
    from toolscout.core.json_schema import object_schema, type_word

    schema = object_schema(tool.input_schema)
    if not schema["properties"]:
        return "It takes no parameters."
    made = output.table("parameter", "type", "needed", "description", grow="description")
    for name, parameter in schema["properties"].items():
        about = parameter.get("description") if isinstance(parameter, dict) else None
        needed = "yes" if name in schema.get("required", ()) else ""
        kind = output.shown(type_word(parameter, schema))
        made.add_row(output.shown(name), kind, needed, output.shown(about if isinstance(about, str) else ""))
    return made
