"""The command `train`: train a retriever on labelled requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolscout.cli import output
from toolscout.cli.common import WRONG, RayOption, jobs_on, on_ray, plural, seed_numbers

if TYPE_CHECKING:
    from toolscout.retrievers.base import FitReport
    from toolscout.retrievers.provenance import TrainingSet


def train(
    data: Annotated[
        list[str],
        typer.Argument(
            metavar="DATA[:TRAIN[:DEV]]…",
            help="BEIR folders, or names of some in $TOOLSCOUT_DATA, with the splits to train and to select on: "
            '"train" and "dev" unless told. NAME:unseen_tool takes unseen_tool.train and unseen_tool.dev.',
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where the model goes.")],
    retriever: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="hybrid, dense, memory, centroid, masstool, colt, masstool_published, toolgen, toolweaver, rewrite, "
            "rerank.",
        ),
    ] = "hybrid",
    part: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|FOLDER",
            help="What hybrid fuses: methods, which are trained too, or models that are taken as they are. What "
            "rewrite or rerank searches with: one, as it is.",
            show_default="hybrid: bm25, memory, dense; rewrite, rerank: hybrid",
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Set an option of the method (for hybrid, rewrite and rerank PART.KEY=VALUE sets one of a part).",
        ),
    ] = None,
    no_tool: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER|NAME|none",
            help="Prompts that need no tool, from which masstool, toolgen and toolweaver learn whether one is needed: "
            'a folder with prompts.jsonl, or the name of one in $TOOLSCOUT_DATA; "none" trains without.',
            show_default="no_tool, where $TOOLSCOUT_DATA has it",
        ),
    ] = None,
    instruct_mix: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="toolgen, toolweaver: how many general texts are gone through for each lesson, on which the language "
            "model has to go on as before; they are the prompts of --no-tool. As --option instruct_mix=SHARE.",
        ),
    ] = None,
    seeds: Annotated[
        str,
        typer.Option(
            metavar="N,N,…",
            help="Train once with each of these seeds, into the folders OUT-s0, OUT-s1, …: with --ray all at a time.",
            show_default="one model, in OUT",
        ),
    ] = "",
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE,…",
            help="Train once with each of these values of an option, into the folders OUT-KEY=VALUE, and compare them "
            "on dev; of several sweeps, and of seeds, every combination. With --ray all at a time.",
        ),
    ] = None,
    processes: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="dense, with --ray: train the one model in so many processes of the cluster, each with a GPU of its "
            "own where TOOLSCOUT_DEVICE is cuda. Batches, and what is learned, stay the same.",
        ),
    ] = 1,
    ray: RayOption = None,
) -> None:
    """Train a retriever on labelled requests; search, evaluate and Scout open the folder.

    An interrupted training goes on when the same command is given again. No other split of the data is read.
    """
    from toolscout.retrievers import training_setup

    many = bool(seeds or sweep)
    if ray is not None and not many and processes == 1:
        raise typer.BadParameter(
            "it trains several models at a time, or one in several processes: name --seeds 0,1,2, --sweep "
            "KEY=VALUE,VALUE or --processes N",
            param_hint="--ray",
        )
    if processes > 1 and (many or ray is None or retriever != "dense"):
        raise typer.BadParameter(
            "several processes train one model of the method dense on a cluster: give --retriever dense and --ray, "
            "without --seeds and --sweep",
            param_hint="--processes",
        )
    runs = training_setup.runs(retriever, part or [], out, sweep or [], seed_numbers(seeds) if seeds else [])
    if not many:
        training_setup.check_out(out)
    sets = training_setup.training_sets(data)
    mixed = [] if instruct_mix is None else [f"instruct_mix={instruct_mix}"]
    settings, note = training_setup.with_prompts(retriever, part or [], [*(option or []), *mixed], no_tool)
    for chosen in runs.values():  # so that a mistake is told before anything is trained
        made = training_setup.made(retriever, part or [], [*settings, *chosen])
    for one in sets:
        _say(one)
    if made.name != retriever:
        output.note(
            f"this preset of {retriever} is the method {made.name}: the network that the paper's authors released"
        )
    if note:
        output.note(note)
    if many:
        _train_many(runs, sets, retriever, part or [], settings, ray)
    elif processes > 1:
        _train_together(processes, ray, sets, retriever, part or [], settings, out)
    else:
        with output.progress() as report:
            fitted = made.fit(sets, out, report)
        _print(fitted, out)


def _train_many(
    runs: Mapping[Path, Sequence[str]],
    sets: Sequence[TrainingSet],
    retriever: str,
    parts: Sequence[str],
    settings: Sequence[str],
    ray: str | None,
) -> None:
    """Train the model of each run, unless it is there, say what became of it, and compare all; or raise typer.Exit."""
    from toolscout.papers.jobs import Job
    from toolscout.retrievers import training_setup

    missing = {place: chosen for place, chosen in runs.items() if not training_setup.is_trained(place)}
    for place in missing:
        training_setup.check_out(place)
    jobs = [
        Job(str(place), training_setup.trained, (sets, retriever, parts, [*settings, *chosen], place))
        for place, chosen in missing.items()
    ]
    failed = 0
    with on_ray(ray) as cluster, jobs_on(cluster, jobs, 1, float("inf")) as results:
        for done in results:
            if done.error:
                output.note(f"{done.name}: {done.error}", label="failed")
                failed += 1
            else:
                _print(done.result, Path(done.name))
    _compare({place.name: report.dev for place in runs if (report := training_setup.fit_report(place))})
    if failed:
        output.note("give the same command again: what is trained is not trained anew")
        raise typer.Exit(WRONG)


def _train_together(
    processes: int,
    ray: str | None,
    sets: Sequence[TrainingSet],
    retriever: str,
    parts: Sequence[str],
    settings: Sequence[str],
    out: Path,
) -> None:
    """Train one model in several processes of a cluster."""
    from toolscout.distributed.training import train_together
    from toolscout.retrievers import training_setup

    train = partial(training_setup.trained, sets, retriever, parts, settings)
    with on_ray(ray) as cluster:
        assert cluster is not None
        train_together(cluster, processes, train, out)
    fitted = training_setup.fit_report(out)
    assert fitted is not None
    _print(fitted, out)


def _compare(scores: Mapping[str, Mapping[str, float]]) -> None:
    """Print what runs scored on dev, the best first."""
    scored = {name: values for name, values in scores.items() if values}
    if len(scored) < 2:
        return
    measures = list(next(iter(scored.values())))
    table = output.table("run", *(f"dev {name}" for name in measures))
    for name, values in sorted(scored.items(), key=lambda one: -one[1].get(measures[0], 0.0)):
        table.add_row(name, *(f"{values[one]:.4f}" if one in values else "" for one in measures))
    output.stdout().print(table)


def _say(one: TrainingSet) -> None:
    dataset = one.dataset
    text = f"{dataset.name}: {plural(len(dataset.split(one.train)), 'request')} of {one.train} to train on"
    dev = f", {len(dataset.split(one.dev)):,} of {one.dev} to select on" if one.dev else ", none to select on"
    output.note(f"{text}{dev}; {plural(len(dataset.tools), 'tool')}", label="data")


def _print(fitted: FitReport, out: Path) -> None:
    table = output.table("on dev", "")
    for name, value in fitted.dev.items():
        table.add_row(name, f"{value:.4f}")
    console = output.stdout()
    if fitted.dev:
        console.print(table)
    console.print(f"{fitted.parameters:,} numbers learned in {fitted.seconds:.1f} s on {fitted.device}")
    for note in fitted.notes:
        output.note(note)
    output.note(f"{out}; try it: toolscout evaluate DATA --retriever {out}", label="written")
