"""The command `results`: make the page of a folder of measured rows."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from toolscout.cli import output
from toolscout.cli.common import NONE


def results(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where evaluate and bench wrote .jsonl rows.")
    ] = Path("results"),
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit code 1 where the page or a plot is stale.")
    ] = False,
    plots: Annotated[
        bool, typer.Option("--plots/--no-plots", help="Draw plots (needs matplotlib), or leave them out.")
    ] = True,
) -> None:
    """Make FOLDER/README.md out of the rows in FOLDER: tables beside the papers' numbers, and plots.

    Rows that differ in the seed only become one line of means.
    """
    from toolscout.evaluation.report import page

    if check:
        old = page.stale(folder, plots)
        for path in old:
            output.note(f"{path}", label="stale")
        if old:
            words = ["toolscout", "results", str(folder), *([] if plots else ["--no-plots"])]
            output.note(shlex.join(words), label="run")
            raise typer.Exit(NONE)
        return
    for path in page.write(folder, plots):
        output.note(f"{path}", label="written")
    output.stdout().print(output.shown(f"{folder / page.PAGE}"), soft_wrap=True)
