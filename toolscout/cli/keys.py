"""The commands `keys …`: make, change, list and revoke the keys of a server's callers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolscout.cli import output
from toolscout.cli.common import NONE, Listed, StoreOption, open_store, plural
from toolscout.core.permissions import Key, Principal, new_key
from toolscout.errors import BadRequest, UnknownPrincipal

if TYPE_CHECKING:
    from toolscout.stores.base import Store

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Whose key: a user, team or agent, by any name.")]
AllowOption = Annotated[
    list[str] | None,
    typer.Option("--allow", metavar="PATTERN", help="Tools it may see: NS/*, NS/NAME*, or *; may be given again."),
]
DenyOption = Annotated[
    list[str] | None,
    typer.Option("--deny", metavar="PATTERN", help="Tools it may not see, whatever allows them; may be given again."),
]
TenantOption = Annotated[
    str | None,
    typer.Option(metavar="T", help="Whose feedback it gives and hears.", show_default="NAME, so its own alone"),
]

app = typer.Typer(no_args_is_help=True, help="Who may ask a server, and what each of them sees.")


@app.command()
def add(
    ctx: typer.Context,
    name: NameArgument,
    allow: AllowOption = None,
    deny: DenyOption = None,
    admin: Annotated[
        bool, typer.Option("--admin", help="It may change the catalogue; without --allow it sees everything.")
    ] = False,
    tenant: TenantOption = None,
    store: StoreOption = None,
) -> None:
    """Make a key and print it, this once: the catalogue keeps its digest alone.

    Without options, one who is known already gets a further key, so that keys can be replaced one after the other.
    """
    given = bool(allow or deny or admin or tenant is not None)
    with open_store(ctx, store) as opened:
        known = opened.principal(name)
        if known and given:
            raise BadRequest(
                f"{name} is known already; run: toolscout keys change {name}, "
                "or keys add without options for another key"
            )
        if known is None:
            patterns = tuple(allow or (("*",) if admin else ())), tuple(deny or ())
            opened.put_principal(Principal(name, *patterns, admin, name if tenant is None else tenant))
        key, resting = new_key(name)
        opened.add_key(resting)
        _say_what_is_seen(opened, name)
    output.note("this key is shown once; keep it where secrets are kept")
    output.write(key)


@app.command()
def change(
    ctx: typer.Context,
    name: NameArgument,
    allow: AllowOption = None,
    deny: DenyOption = None,
    admin: Annotated[bool | None, typer.Option("--admin/--no-admin", help="Whether it may change things.")] = None,
    tenant: TenantOption = None,
    store: StoreOption = None,
) -> None:
    """Change what somebody may see and do; keys stay valid. What is not named stays; an empty pattern removes all."""
    with open_store(ctx, store) as opened:
        known = _known(opened, name)
        new: dict[str, Any] = {"allow": _patterns(allow), "deny": _patterns(deny), "admin": admin, "tenant": tenant}
        opened.put_principal(replace(known, **{field: value for field, value in new.items() if value is not None}))
        _say_what_is_seen(opened, name)


@app.command("list")
def list_keys(
    ctx: typer.Context,
    store: StoreOption = None,
    format: Annotated[Listed, typer.Option(help="How to print it.")] = "table",
) -> None:
    """List who has keys, what each may see, and when its keys were made."""
    with open_store(ctx, store) as opened:
        keys = opened.api_keys()
        people = [found for name in opened.principals() if (found := opened.principal(name))]
    rows = [(principal, [key for key in keys if key.principal == principal.name]) for principal in people]
    if format == "json":
        output.print_json([_record(*row) for row in rows])
    elif rows:
        made = output.table("who", "may see", "but not", "admin", "tenant", "keys", grow="may see")
        for who, keys_of_principal in rows:
            listed = [f"{key.id} of {key.created:%Y-%m-%d}" for key in keys_of_principal]
            cells = [who.name, " ".join(who.allow), " ".join(who.deny), "yes" if who.admin else "", who.tenant]
            made.add_row(*(output.shown(cell) for cell in [*cells, ", ".join(listed)]))
        output.stdout().print(made)
    if not rows:
        output.note("there are no keys: a server answers this machine alone; make one with: toolscout keys add NAME")
        raise typer.Exit(NONE)


@app.command()
def revoke(
    ctx: typer.Context,
    name: NameArgument,
    id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Take back this key alone, as keys list names it.")
    ] = None,
    store: StoreOption = None,
) -> None:
    """Take back all keys of somebody, and forget what it may see; or one key. Servers notice at once."""
    with open_store(ctx, store) as opened:
        _known(opened, name)
        revoked = [key for key in opened.api_keys() if key.principal == name]
        if id is None:
            opened.remove_principal(name)
        else:
            revoked = [key for key in revoked if id and key.digest.startswith(id)]
            if len(revoked) != 1:
                raise BadRequest(f"{name} has {plural(len(revoked), 'key')} of id {id!r:.80}; run: toolscout keys list")
            opened.remove_key(revoked[0].digest)
        left = len(opened.api_keys())
    output.write(f"revoked: {plural(len(revoked), 'key')} of {output.shown(name).plain}")
    if not left:
        output.note("there are no keys any more: a server that starts now answers this machine alone, and all of it")


def _known(store: Store, name: str) -> Principal:
    found = store.principal(name)
    if found is None:
        raise UnknownPrincipal(f"nobody is called {name!r:.80}; run: toolscout keys list")
    return found


def _patterns(given: list[str] | None) -> tuple[str, ...] | None:
    return None if given is None else tuple(filter(None, given))


def _say_what_is_seen(store: Store, name: str) -> None:
    ids, allowed = store.ids(), store.permissions(name)
    output.note(f"{name} may see {sum(map(allowed.permits, ids)):,} of {plural(len(ids), 'tool')}")


def _record(principal: Principal, keys: list[Key]) -> dict[str, Any]:
    return {
        "name": principal.name,
        "allow": list(principal.allow),
        "deny": list(principal.deny),
        "admin": principal.admin,
        "tenant": principal.tenant,
        "keys": [{"id": key.id, "created": key.created.isoformat(timespec="seconds")} for key in keys],
    }
