"""evaluate and bench: how good the answers are, and what they cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolscout._cli import output

if TYPE_CHECKING:
    from toolscout.evaluation.run import Evaluation


def register(app: typer.Typer) -> None:
    """Add the two commands to an app."""
    app.command()(evaluate)
    app.command()(bench)


def evaluate(
    data: Annotated[
        str,
        typer.Argument(metavar="DATA", help='A BEIR folder, the name of one in $TOOLSCOUT_DATA, or "bundled".'),
    ],
    split: Annotated[str, typer.Option(help="The qrels file to use, by its stem.")] = "test",
    retriever: Annotated[
        str, typer.Option(metavar="NAME|FOLDER", help="A method by name, or a model folder.")
    ] = "hybrid",
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Set an option of the method; may be repeated.")
    ] = None,
    json: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT", help="Append one row to this .jsonl file, and put every request's scores beside it."
        ),
    ] = None,
) -> None:
    """Ask every labelled request of a dataset and print Recall, NDCG and COMP at 1, 3, 5 and 10."""
    from toolscout.evaluation import row, run

    settings = option or []
    if json is not None:
        row.check_writable(json)
    dataset = run.load_split(run.find_dataset(data), split)
    opened, variant = run.open_retriever(retriever, settings)
    command = run.command_line(data, split, retriever, settings)
    with output.progress() as report:
        done = run.evaluate(dataset, split, opened, variant=variant, command=command, progress=report)
    _print_evaluation(done)
    if json is not None:
        row.write_scores(row.scores_path(json, done.row), (one.to_dict() for one in done.asked))
        row.append(json, done.row.to_dict())
        output.note(f"one row added to {json}", label="written")


def bench(
    sizes: Annotated[
        str, typer.Option(metavar="N,N,…", help="Numbers of tools: 464 is ToolLens, 46587 ToolBench, more is made up.")
    ] = "464,46587,1000000",
    repeats: Annotated[int, typer.Option(min=1, help="How often each measurement is made; the median counts.")] = 3,
    work: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Keep made-up catalogues here, so that they are prepared once.",
            show_default="toolscout-bench in the folder for temporary files",
        ),
    ] = None,
    embed_timing: Annotated[
        bool,
        typer.Option(
            "--embed-timing/--no-embed-timing",
            help="Embed everything afresh and time it, or take the vectors that the cache has.",
        ),
    ] = True,
    json: Annotated[Path | None, typer.Option(metavar="OUT", help="Append the rows to this .jsonl file.")] = None,
) -> None:
    """Measure index time, query time, memory and file sizes at several catalogue sizes."""
    from toolscout.evaluation import row, speed

    if json is not None:
        row.check_writable(json)
    plan = speed.Plan(speed.parse_sizes(sizes), repeats, work or speed.default_work(), embed_timing)
    table = output.table("tools", "measurement", "value", "target", grow="measurement")
    with output.progress() as report:
        for measured in speed.bench(plan, output.note, report):
            if json is not None:
                row.append(json, measured)
            for line in speed.lines(measured):
                table.add_row(f"{measured['tools']:,}", line.name, line.value, line.target)
    output.stdout().print(table)


def _print_evaluation(done: Evaluation) -> None:
    from toolscout.evaluation.run import CUTOFFS

    found, timing = done.row.metrics, done.row.timing
    table = output.table("", *(f"@{k}" for k in CUTOFFS))
    for kind, label in (
        ("recall", "Recall"),
        ("ndcg", "NDCG"),
        ("comp", "COMP"),
        ("new_recall", "Recall, new tools"),
        ("known_recall", "Recall, other tools"),
    ):
        if f"{kind}@1" in found:
            table.add_row(label, *(f"{found[f'{kind}@{k}']:.4f}" for k in CUTOFFS))
    console = output.stdout()
    console.print(
        output.shown(
            f"{done.row.dataset} {done.row.split}: {done.row.requests:,} requests, "
            f"{done.row.retriever} ({done.row.variant})"
        )
    )
    console.print(table)
    for name, label in _FIT.items():
        if name in found:
            console.print(f"{label:<50} {found[name]:.4f}")
    cached = " (vectors from the cache)" if timing["index_cached"] else ""
    console.print(f"indexed in {timing['index_s']} s{cached}", end="; ")
    console.print(f"a request takes {timing['query_p50_ms']} ms (p50), {timing['query_p95_ms']} ms (p95)")
    if done.row.failed:
        first = next(one for one in done.asked if one.error)
        output.note(f"{done.row.failed:,} requests failed and score 0; the first, {first.request_id}: {first.error}")


_FIT = {
    "fit_use": "verdict: requests for tools answered with tools",
    "fit_nothing": "verdict: other requests answered with none",
    "fit_nothing.nothing_fits": "  those that nothing fits",
    "fit_nothing.no_tool": "  those that need no tool",
    "fit_auroc": "fit: AUROC, requests for tools against others",
    "fit_auroc.nothing_fits": "  against those that nothing fits",
    "fit_auroc.no_tool": "  against those that need no tool",
}
