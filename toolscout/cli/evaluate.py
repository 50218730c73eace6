"""The commands `evaluate` (quality on labelled requests) and `bench` (time, memory and file sizes)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolscout.cli import compare, evaluate_output, output, serve
from toolscout.cli.common import (
    NONE,
    EncoderOption,
    LevelOption,
    LlmOption,
    ModelOption,
    PartsOption,
    RayCommand,
    RayOption,
    SettingsOption,
    executor_on,
    on_ray,
    plural,
    print_measurements,
    rewriting,
)

if TYPE_CHECKING:
    from toolscout.core.answer import Level
    from toolscout.data.dataset import Dataset
    from toolscout.evaluation.candidates import Candidates
    from toolscout.evaluation.evaluate import Evaluation
    from toolscout.evaluation.minimums import Minimum
    from toolscout.evaluation.no_tool_mix import Mixture

DEFAULT_SPLIT, DEFAULT_RETRIEVER = "test", "hybrid"


benches = typer.Typer(invoke_without_command=True)


def register(app: typer.Typer) -> None:
    """Add the commands to an app."""
    app.command(cls=RayCommand)(evaluate)
    app.command()(compare.compare)
    app.command()(compare.inspect)
    benches.callback()(bench)
    benches.command("serve")(serve.bench_serve)
    app.add_typer(benches, name="bench")


@dataclass(frozen=True, slots=True)
class _Run:
    """One split and retriever to evaluate; the dataset, which is large, goes beside it.

    `split` is the name after mixing where prompts that need no tool are mixed in. `no_tool` and `level` are what
    --no-tool and --level named, `among` what --among named.
    """

    name: str
    split: str
    retriever: str
    no_tool: str = ""
    level: Level | None = None
    among: Candidates | None = None


def evaluate(
    data: Annotated[
        list[str],
        typer.Argument(
            metavar="DATA[:SPLIT]",
            help='BEIR folders, names of such in $TOOLSCOUT_DATA, or "bundled".',
            show_default="",
        ),
    ],
    split: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SPLIT",
            help="The qrels file to use, by its stem; may be repeated. For DATA without a :SPLIT of its own.",
            show_default=DEFAULT_SPLIT,
        ),
    ] = None,
    retriever: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|FOLDER",
            help="A method by name, or a model folder; may be repeated.",
            show_default=DEFAULT_RETRIEVER,
        ),
    ] = None,
    part: PartsOption = None,
    option: SettingsOption = None,
    encoder: EncoderOption = None,
    llm: LlmOption = None,
    model: ModelOption = None,
    measure: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME@K", help="A measure beside the usual ones, as recall@7; may be repeated."),
    ] = None,
    minimum: Annotated[
        list[str] | None,
        typer.Option(
            "--min",
            metavar="NAME@K=VALUE",
            help="The least that every run must reach, as recall@5=0.8; may be repeated.",
        ),
    ] = None,
    no_tool: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER[:SPLIT[:SOURCE]]",
            help='Mix in prompts that need no tool: a folder with prompts.jsonl, or the name of one; split "test".',
        ),
    ] = None,
    level: LevelOption = None,
    among: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SPLIT|FILE",
            help="Rank only these tools: the gold tools of a split, or a file with a tool id on each line; may be "
            "repeated.",
            show_default="all tools",
        ),
    ] = None,
    drop_seen: Annotated[
        bool, typer.Option("--drop-seen", help="Leave out requests that a model has seen, instead of refusing.")
    ] = False,
    json: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT", help="Append one row a run to this .jsonl file, and put every request's scores beside it."
        ),
    ] = None,
    rankings: Annotated[
        bool, typer.Option("--rankings", help="With --json: write the returned tools too, for toolscout inspect.")
    ] = False,
    ray: RayOption = None,
) -> None:
    """Ask every labelled request of one or more datasets and print Recall, NDCG and COMP with 95 % intervals.

    Every retriever is run on every split of every dataset. A split that shares requests with what a model was trained
    or selected on is refused. With --no-tool it also shows who can tell requests that need no tool, and right@5: the
    share of all requests answered right. With --among only some tools are ranked, as those of one domain; all gold
    tools must be among them. Exit code 1 where a run stays below a --min.
    """
    from toolscout.evaluation import measures as measured
    from toolscout.evaluation import minimums as gate
    from toolscout.evaluation import no_tool_mix, row

    if rankings and json is None:
        raise typer.BadParameter("needs --json OUT, the file beside which they are written", param_hint="--rankings")
    retrievers, settings = _retrievers(retriever or [], option, part, llm, model)
    least = gate.read_minimums(minimum or [])
    asked_for = measured.check_names([*(measure or []), *(one.measure for one in least)])
    names = [name for name in asked_for if name not in measured.MEASURES]
    if json is not None:
        row.check_writable(json)
    mixture = no_tool_mix.read_mixture(no_tool) if no_tool else None
    runs = _planned(data, split or [], retrievers, mixture, level, among or [])
    _check(runs, settings, part or [], drop_seen, encoder)
    found: dict[int, Evaluation] = {}
    with on_ray(ray) as cluster, executor_on(cluster, len(runs)) as executor:
        try:
            for place, done in _each(runs, executor, (settings, part or [], names, drop_seen, encoder)):
                found[place] = done
                if len(runs) > 1:
                    output.note(evaluate_output.headline(done), label=f"{len(found)} of {len(runs)}")
                if json is not None:
                    row.write_scores(row.scores_path(json, done.row), done.lines(rankings))
                    row.append(json, done.row.to_dict())
        finally:  # show the finished runs also after an error or an interruption
            finished = [found[place] for place in sorted(found)]
            evaluate_output.show(finished, names, several=len(runs) > 1)
            if json is not None and finished:
                output.note(f"{plural(len(finished), 'row')} added to {json}", label="written")
    _judge(finished, least)


def _retrievers(
    names: Sequence[str], option: list[str] | None, part: list[str] | None, llm: str | None, model: str | None
) -> tuple[list[str], list[str]]:
    """Return the retrievers to evaluate and the settings for them; settings are allowed for a single retriever."""
    distinct = list(dict.fromkeys(names))
    if len(distinct) > 1 and (option or part or llm is not None or model is not None):
        raise typer.BadParameter("options are those of one method; name one --retriever", param_hint="--option")
    one, settings = rewriting(distinct[0] if distinct else None, option, llm, model)
    return (distinct if len(distinct) > 1 else [one or DEFAULT_RETRIEVER]), settings


def _planned(
    data: Sequence[str],
    splits: Sequence[str],
    retrievers: Sequence[str],
    mixture: Mixture | None,
    level: Level | None,
    among: Sequence[str],
) -> list[tuple[_Run, Dataset]]:
    """Return every combination of dataset, split and retriever. Each dataset is read once, before anything runs."""
    from toolscout.data.dataset import Dataset
    from toolscout.data.locate import find_split
    from toolscout.evaluation import evaluate as run
    from toolscout.evaluation.candidates import read_candidates

    found = [find_split(text) for text in data]
    if splits and all(own_split for _, _, own_split in found):
        raise typer.BadParameter("every DATA names its own :SPLIT; leave one of them out", param_hint="--split")
    wanted: dict[Path, tuple[str, dict[str, None]]] = {}
    for name, folder, own_split in found:
        chosen = [own_split] if own_split else splits or [DEFAULT_SPLIT]
        wanted.setdefault(folder.resolve(), (name, {}))[1].update(dict.fromkeys(chosen))
    words = mixture.words if mixture else ""
    return [
        (_Run(name, mixed_split, retriever, words, level, candidates), mixed)
        for folder, (name, chosen) in wanted.items()
        for also in [[one for one in among if one in Dataset.split_names(folder)]]
        for dataset in [run.load_splits(folder, [*chosen, *also])]
        for candidates in [read_candidates(dataset, among) if among else None]
        for split in chosen
        for mixed, mixed_split in [mixture.into(dataset, split) if mixture else (dataset, split)]
        for retriever in retrievers
    ]


def _check(
    runs: Sequence[tuple[_Run, Dataset]],
    settings: Sequence[str],
    parts: Sequence[str],
    drop_seen: bool,
    encoder: str | None,
) -> None:
    """Open every retriever once and raise Leak where its model has seen requests of a split: before hours of runs.

    Raise BadDataset where --among leaves out a gold tool of a split.
    """
    from toolscout.evaluation import evaluate as run
    from toolscout.evaluation import leakage
    from toolscout.retrievers import opening

    for one, dataset in runs:
        if one.among is not None:
            one.among.refuse_outside(dataset, one.split)
    for name in dict.fromkeys(one.retriever for one, _ in runs):
        seen = run.seen_by(name, opening.open_retriever(name, settings, parts, encoder)[0])
        for one, dataset in runs:
            if one.retriever == name and drop_seen:
                leakage.without(dataset, one.split, leakage.seen_ids(dataset, one.split, seen))
            elif one.retriever == name:
                leakage.refuse_seen(dataset, one.split, seen, droppable=True)


def _each(
    runs: Sequence[tuple[_Run, Dataset]], executor: Executor | None, arguments: tuple[Any, ...]
) -> Iterator[tuple[int, Evaluation]]:
    """Yield the place of each run and its evaluation: one after the other, or from an executor as they are done."""
    if executor is None:
        yield from ((place, _evaluated(one, dataset, *arguments)) for place, (one, dataset) in enumerate(runs))
        return
    places = {executor.submit(_evaluated, *run, *arguments): place for place, run in enumerate(runs)}
    for future in as_completed(places):
        yield places[future], future.result()


def _evaluated(
    one: _Run,
    dataset: Dataset,
    settings: Sequence[str],
    parts: Sequence[str],
    names: Sequence[str],
    drop_seen: bool,
    encoder: str | None,
) -> Evaluation:
    from toolscout.evaluation import evaluate as run
    from toolscout.evaluation import fit_record, leakage
    from toolscout.retrievers import opening

    opened, variant = opening.open_retriever(one.retriever, settings, parts, encoder)
    with output.progress() as report:
        return run.evaluate(
            dataset,
            one.split,
            opened,
            variant=variant,
            command=run.command_line(
                one.name,
                leakage.base(one.split),
                one.retriever,
                settings,
                names,
                drop_seen,
                one.no_tool,
                parts,
                encoder,
                one.level,
                one.among.names if one.among else (),
            ),
            level=one.level,
            among=one.among,
            measures=names,
            seen=run.seen_by(one.retriever, opened),
            drop_seen=drop_seen,
            fitted=fit_record.read_fit_record(one.retriever),
            progress=report,
        )


def _judge(done: Sequence[Evaluation], least: Sequence[Minimum]) -> None:
    """Print which minimums were missed; raise typer.Exit with code 1 where any was."""
    if not least:
        return
    failures = [(one, what) for one in done for gate in least if (what := gate.failure(one.row.metrics))]
    for one, what in failures:
        output.note(f"{evaluate_output.title(one)}: {what}", label="below the minimum")
    if failures:
        raise typer.Exit(NONE)
    output.note(f"{plural(len(least), 'minimum')} met by {plural(len(done), 'run')}", label="passed")


def bench(
    ctx: typer.Context,
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
    encoder: EncoderOption = None,
    server: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Keep the catalogues in this PostgreSQL database (postgresql://…), each in a schema of its own.",
            show_default="SQLite files",
        ),
    ] = "",
    json: Annotated[Path | None, typer.Option(metavar="OUT", help="Append the rows to this .jsonl file.")] = None,
) -> None:
    """Measure index time, query time, memory and file sizes at several catalogue sizes."""
    if ctx.invoked_subcommand:
        return
    from toolscout.evaluation import row
    from toolscout.evaluation.bench import speed

    if json is not None:
        row.check_writable(json)
    folder = work or speed.default_work()
    plan = speed.BenchPlan(
        speed.parse_sizes(sizes), repeats, folder, embed_timing, encoder=encoder or "", server=server
    )
    with output.progress() as report:
        print_measurements(speed.bench(plan, output.note, report), json)
