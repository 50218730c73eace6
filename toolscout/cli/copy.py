"""The command `copy`: everything of one catalogue into another."""

from __future__ import annotations

from typing import Annotated

import typer

from toolscout.cli import output
from toolscout.cli.common import existing_place, plural


def copy(
    ctx: typer.Context,
    source: Annotated[str, typer.Argument(metavar="FROM", help="The catalogue to copy: a file, or postgresql://…")],
    target: Annotated[
        str, typer.Argument(metavar="TO", help="Where to: a new file or schema, or a copy that stopped.")
    ],
) -> None:
    """Copy tools, aliases, expansions, vectors, permissions, keys and feedback to another catalogue; compare both.

    Nothing is embedded again. Given again after an interruption, the command goes on. FROM may be searched meanwhile,
    but not changed: what differs in the end is told.
    """
    from toolscout import stores
    from toolscout.stores import copying

    with (
        stores.open_store(existing_place(ctx, source)) as first,
        stores.open_store(target) as second,
        output.progress() as report,
    ):
        done = copying.copy(first, second, report)
    output.write(
        f"{plural(done.tools, 'tool')}, {plural(done.vectors, 'vector')}, {plural(done.principals, 'principal')}, "
        f"{plural(done.keys, 'key')} and {plural(done.feedback, 'example')} of feedback are the same in both"
    )
