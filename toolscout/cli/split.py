"""split and log export: a dataset of one's own, to train and to measure on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolscout.cli import output
from toolscout.cli.common import StoreOption, open_store, plural

if TYPE_CHECKING:
    from toolscout.data.splits import SplitDataset

SHOWN_GONE = 5
OutOption = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where to write it: a new or empty folder.")]


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


def export(ctx: typer.Context, out: OutOption, store: StoreOption = None) -> None:
    """Write the recorded requests and the tools they used as a BEIR folder with one split, "log".

    Equal requests become one, with the tools that at least half of them used. Then: toolscout split FOLDER.
    """
    from toolscout.data import feedback_export

    with open_store(ctx, store) as opened:
        made = feedback_export.export(out.resolve().name, opened.tools(), (example for _, example in opened.feedback()))
    made.dataset.save(out)
    labelled, requests = len(made.dataset.split(feedback_export.SPLIT)), len(made.dataset.requests)
    output.write(
        f"{plural(made.examples, 'example')} of {plural(requests, 'request')}: {labelled:,} with tools, "
        f"{requests - labelled:,} without; {plural(len(made.dataset.tools), 'tool')}"
    )
    if made.gone:
        shown = ", ".join(sorted(made.gone)[:SHOWN_GONE]) + (" …" if len(made.gone) > SHOWN_GONE else "")
        output.note(
            f"left out, no longer in the catalogue: {plural(len(made.gone), 'tool')} that requests named: {shown}"
        )
    if made.blank:
        output.note(f"left out: {plural(made.blank, 'example')} without any text")
    output.note(f"one split, {feedback_export.SPLIT}, in {out}", label="written")


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
