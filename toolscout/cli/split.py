"""The command `split`: cut labelled requests into train, dev and test splits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from toolscout.cli import output
from toolscout.cli.common import OutOption, plural

if TYPE_CHECKING:
    from toolscout.data.splits import SplitDataset


def split(
    data: Annotated[
        str,
        typer.Argument(metavar="DATA", help='A BEIR folder, the name of one in $TOOLSCOUT_DATA, or "bundled".'),
    ],
    out: OutOption,
    seed: Annotated[int, typer.Option(help="Another number, another cut.")] = 0,
    test: Annotated[float, typer.Option(metavar="SHARE", help="The share of requests to test on.")] = 0.1,
    dev: Annotated[float, typer.Option(metavar="SHARE", help="The share of requests to select on.")] = 0.1,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="SPLIT", help="Cut this split's requests.", show_default="those of all splits"),
    ] = None,
) -> None:
    """Cut labelled requests into train, dev and test, in three ways.

    train, dev, test share sets of tools; unseen_scene.* tests on sets of tools (scenes) that are not trained on;
    unseen_tool.* on tools that are not. Scenes are held out by the share of test and half that of dev, tools by
    eight and four tenths of them. The same data give the same cut in whatever order they come.
    """
    from toolscout.data.dataset import Dataset
    from toolscout.data.locate import find_dataset
    from toolscout.data.splits import cut

    dataset = Dataset.load(find_dataset(data), None if source is None else [source])
    made = cut(dataset, source, seed=seed, test=test, dev=dev)
    made.save(out)
    _print(made)
    output.note(f"nine splits in {out}", label="written")


def _print(made: SplitDataset) -> None:
    table = output.table("split", "requests", "scenes", "tools", "new tools")
    for column in table.columns[1:]:
        column.justify = "right"
    for line in made.counts():
        numbers = (line.requests, line.scenes, line.tools, line.new_tools)
        table.add_row(line.split, *(f"{number:,}" for number in numbers))
    output.stdout().print(table)
    goldless = len(made.dataset.requests.keys() - {key for qrels in made.dataset.qrels.values() for key in qrels})
    if goldless:
        output.note(f"besides, spread over train, dev and test: {plural(goldless, 'request')} without gold")
    if made.unlabelled:
        output.note(
            f"left out: {plural(len(made.unlabelled), 'request')} with neither gold tools nor a kind that needs none"
        )
    for family, requests in made.repeated.items():
        if requests:
            output.note(f"left out of {family}: {plural(len(requests), 'request')} whose text is also in a later part")
    if made.orphans:
        output.note(
            f"without any request in unseen_tool.train though not held out: {plural(len(made.orphans), 'tool')}"
        )
