"""The commands `index pack` and `index fetch`: one machine builds the index, the others copy it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from toolscout.cli import output
from toolscout.cli.common import (
    EncoderOption,
    RayCommand,
    RayOption,
    RetrieverOption,
    StoreOption,
    building_on,
    open_scout,
    open_store,
)

app = typer.Typer(no_args_is_help=True, help="The search index, packed for other machines that have the catalogue.")


@app.command(cls=RayCommand)
def pack(
    ctx: typer.Context,
    archive: Annotated[Path, typer.Argument(metavar="FILE", help="The archive to write, as tools.index.tar.")],
    store: StoreOption = None,
    retriever: RetrieverOption = None,
    encoder: EncoderOption = None,
    ray: RayOption = None,
) -> None:
    """Write the search index into one archive, and its sha256 into FILE.sha256.

    The index is built first if need be; with --ray, shards of it are built side by side and joined. Put both files
    where other machines find them, such as a shared folder.
    """
    with building_on(ray), open_scout(ctx, store, retriever, encoder=encoder) as scout:
        version = scout.pack_index(archive)
    output.note(f"{archive}, {archive.stat().st_size / 1e6:,.1f} MB, catalogue version {version}", label="written")


@app.command()
def fetch(
    ctx: typer.Context,
    archive: Annotated[Path, typer.Argument(metavar="FILE", help="An archive that index pack wrote.")],
    store: StoreOption = None,
) -> None:
    """Take the search index from an archive, instead of building it when the catalogue is opened.

    The archive has to be of this catalogue, or of the one that this is a copy of; it is checked against FILE.sha256.
    Changes since it was packed are applied when the catalogue is opened.
    """
    from toolscout.search import index_snapshot

    with open_store(ctx, store) as opened:
        state = index_snapshot.unpack(archive, opened)
        behind = opened.version() - state.version
    note = f"; {behind:,} later changes are applied as it is opened" if behind else ""
    output.note(f"the index of catalogue version {state.version}{note}", label="fetched")
