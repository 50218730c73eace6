"""The command `reproduce`: a paper's tables, with our numbers as published and as served beside the paper's."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from toolscout.cli import output
from toolscout.cli.common import RayOption, jobs_on, on_ray, plural
from toolscout.errors import BadRequest

if TYPE_CHECKING:
    from toolscout.papers.jobs import Job
    from toolscout.papers.paper import Experiment, Line, Paper, Table
    from toolscout.papers.reproduction import Setup, State
    from toolscout.retrievers.base import FitProgress

_FORMS = {"published": "ours, as published", "served": "ours, as served"}
_NONE = "–"


def reproduce(
    paper: Annotated[
        str,
        typer.Argument(
            metavar="PAPER", help="masstool, colt, query-generation, toolgen or toolweaver.", show_default=""
        ),
    ] = "",
    table: Annotated[
        str,
        typer.Option(
            "--table",
            metavar="T",
            help="Only this table, as --list names it, or a part of it.",
            show_default="all",
        ),
    ] = "",
    data: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="The folder that has the datasets.", show_default="$TOOLSCOUT_DATA"),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Train with the seeds 0 to N-1.")] = 3,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FOLDER",
            help="Weights that a paper uses and this package does not have, by the name that --list shows; may be "
            "repeated.",
        ),
    ] = None,
    judge: Annotated[
        str,
        typer.Option(
            metavar="SPEC",
            help="The language model that judges whether agents solved requests: https://HOST/v1?model=NAME (its "
            "judgements are kept beside the models; with &offline=true they alone are read), or a folder.",
            show_default="none",
        ),
    ] = "",
    llm: Annotated[
        str,
        typer.Option(
            metavar="SPEC",
            help="A larger language model to write queries: https://HOST/v1?model=NAME (its answers are kept beside "
            "the models; with &offline=true they alone are read), or a folder.",
            show_default="none",
        ),
    ] = "",
    task: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A task that language models are measured by, such as one of GLUE: a line of JSON for each text, "
            '{"text": ..., "label": ...}.',
            show_default="none",
        ),
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="Show the tables and what there is, can be run, or is missing; run nothing.")
    ] = False,
    run: Annotated[
        bool, typer.Option("--run/--no-run", help="Run what is missing and can be run, or print what there is.")
    ] = True,
    results: Annotated[
        Path,
        typer.Option(metavar="FOLDER", help="The folder of rows: those there count, new ones go to reproduce.jsonl."),
    ] = Path("results"),
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="Where models are trained; they stay there.")
    ] = Path("models"),
    jobs: Annotated[int, typer.Option(min=1, help="Runs that are made side by side.")] = 1,
    stop_after: Annotated[
        float, typer.Option(metavar="SECONDS", help="Begin no other run after this long.", show_default="never")
    ] = float("inf"),
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ray: RayOption = None,
) -> None:
    """Run a paper's experiments and print its tables: the paper's numbers, ours as published, and ours as served.

    What the data and models at hand do not allow is named first, with what to pass; nothing is trained before. Rows
    that are there already are not made again: an interrupted command goes on. Under each table stands how our form
    differs from the paper's.
    """
    from toolscout.papers import registry, reproduction

    if not paper and not list_:
        raise BadRequest(f"name a paper: {', '.join(registry.PAPERS)}; or see their tables with --list")
    papers = [registry.find_paper(paper)] if paper else list(registry.PAPERS.values())
    if table and not paper:
        raise BadRequest("--table is a table of one paper; name the paper too")
    chosen = {one.key: registry.find_tables(one, table) for one in papers}
    every = [one for tables in chosen.values() for one in tables]
    setup = reproduction.setup_of(data, results, out, model or [], judge, llm, task)
    known = reproduction.weights_names(every)
    unknown = [name for name in setup.weights if name not in known]
    if unknown:
        raise BadRequest(f"no table takes weights called {unknown[0]!r:.80}; there are: {', '.join(known) or 'none'}")
    reproduction.check_passed(every, setup)
    if list_:
        _list(papers, chosen, setup, json)
        return
    (one,) = papers
    if run:
        _run(one, every, seeds, setup, _Side(jobs, stop_after, ray))
        setup = setup.reread()
    _show(one, every, setup, json)


@dataclass(frozen=True, slots=True)
class _Side:
    """How many runs are made side by side, how long others are begun, and the address of --ray."""

    jobs: int
    stop_after: float
    ray: str | None


class _Run(NamedTuple):
    """An experiment of a table to run with one seed, on these splits."""

    table: Table
    experiment: Experiment
    seed: int | None
    splits: tuple[str, ...]


def _run(paper: Paper, tables: Sequence[Table], seeds: int, setup: Setup, side: _Side) -> None:
    """Say what experiments lack; run the others, the quickest first, until time is up. A failed one stops no other."""
    from toolscout.evaluation import row
    from toolscout.papers import reproduction

    found: dict[tuple[Any, ...], _Run] = {}
    lacks: dict[str, dict[str, None]] = {}
    for table in tables:
        for experiment in table.experiments():
            wanted = reproduction.seeds_to_run(experiment, seeds, table.splits(), setup)
            lacking = reproduction.missing(experiment, table.splits(), setup) if wanted else []
            for what in lacking:
                lacks.setdefault(what, {})[table.title] = None
            for seed in [] if lacking else wanted:
                for splits in _apart(experiment, reproduction.splits_to_run(experiment, seed, table.splits(), setup)):
                    # An experiment of several tables is run once; on another dataset it is another one.
                    about = experiment.name, experiment.dataset, experiment.among, seed, splits
                    found.setdefault(about, _Run(table, experiment, seed, splits))
    for what, where in lacks.items():
        output.note(f"{what} (table {'; '.join(where)})", label="missing")
    todo = sorted(found.values(), key=lambda one: reproduction.hours([one.experiment]))
    by_seed = [[one.experiment for one in todo if one.seed == number] for number in (None, *range(seeds))]
    length = f", {_about(sum(map(reproduction.hours, by_seed)))}" if todo else ""
    output.note(f"{plural(len(todo), 'run')} to make{length}", label=paper.key)
    if todo:
        row.check_writable(setup.rows / reproduction.FILE)
    made, failed = 0, False
    with on_ray(side.ray if todo else None) as cluster, output.progress() as report:
        planned = _jobs(paper, todo, setup.reread(), report if side.jobs == 1 else None)
        if cluster is not None:  # rows are written here, whole: other machines may not have the folder
            planned = [replace(job, work=reproduction.measured, arguments=job.arguments[:-1]) for job in planned]
        with jobs_on(cluster, planned, side.jobs, side.stop_after) as results:
            for done in results:
                for one in done.result if cluster is not None and not done.error else ():
                    reproduction.write(one, setup)
                made += 1
                failed |= bool(done.error)
                label = "failed" if done.error else f"{made} of {len(todo)}"
                output.note(f"{done.name}: {done.error}" if done.error else done.name, label=label)
    if made < len(todo):
        why = " (what needs a model whose training failed was not run)" if failed else ""
        output.note(f"{len(todo) - made} are left{why}; give the same command again", label="stopped")


def _apart(experiment: Experiment, splits: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the splits that one run measures: an agent, which is slow, has a run for each."""
    from toolscout.papers.paper import AgentExperiment

    return [(one,) for one in splits] if isinstance(experiment, AgentExperiment) else [tuple(splits)]


def _jobs(paper: Paper, todo: Sequence[_Run], setup: Setup, report: FitProgress | None) -> list[Job]:
    """Return a job for each run. Of several that use one trained model, the first trains it and the others wait."""
    from toolscout.papers import reproduction
    from toolscout.papers.jobs import Job

    found: list[Job] = []
    trains: dict[tuple[str, int | None], str] = {}
    for table, experiment, seed, splits in todo:
        name = f"{experiment.name}{'' if seed is None else f'-s{seed}'}"
        name = f"{name}, {', '.join(splits)}" if len(splits) < len(table.splits()) else name
        name = f"{name}, {table.title}" if any(job.name == name for job in found) else name
        words = ["toolscout", "reproduce", paper.key, "--table", table.id]
        command = shlex.join([*words, *([] if seed is None else ["--seeds", str(seed + 1)])])
        used = [(one.name, seed) for one in experiment.chain() if one.train]
        after = dict.fromkeys(trains.setdefault(one, name) for one in used)
        arguments = (experiment, seed, splits, setup, command, report)
        waits = tuple(other for other in after if other != name)
        found.append(Job(name, reproduction.run, arguments, waits))
    return found


def _about(hours: float) -> str:
    """Return a length of time in words; it is an estimate."""
    if hours < 1:
        return f"about {max(1, round(60 * hours))} min on two cores"
    return f"about {hours:,.0f} h on two cores"


def _list(papers: Sequence[Paper], chosen: dict[str, list[Table]], setup: Setup, json: bool) -> None:
    """Print every table with its state, and under them what is missing."""
    listed = [
        {"paper": paper.key, "table": one.id, "part": one.part, "caption": one.caption, **_standing(one, setup)}
        for paper in papers
        for one in chosen[paper.key]
    ]
    if json:
        output.print_json(listed)
        return
    console = output.stdout()
    shown = output.table("paper", "table", "what it is", "measured", "can be run, a seed", "cannot", grow="what it is")
    lacks: dict[str, list[str]] = {}
    for one in listed:
        title = one["table"] + (f", {one['part']}" if one["part"] else "")
        can = f"{one['can_be_run']}, {_about(one['hours'])}" if one["can_be_run"] else _NONE
        cells = [one["paper"], title, one["caption"], str(one["measured"]), can, str(one["missing"])]
        shown.add_row(*map(output.shown, cells))
        for what in one["lacks"]:
            lacks.setdefault(what, []).append(f"{one['paper']} {title}")
    console.print(shown)
    for what, where in lacks.items():
        console.print(output.shown(f"missing: {what} ({'; '.join(where)})"), soft_wrap=True)


def _standing(table: Table, setup: Setup) -> dict[str, Any]:
    """Return how many of a table's numbers are measured, can be run, or lack something, and what they lack."""
    from toolscout.papers import reproduction

    found = [(getattr(line, form), one) for line in table.lines for form, one in _states(table, line, setup).items()]
    states = [state for _, state in found]
    return {
        "measured": sum(one.kind == "measured" for one in states),
        "can_be_run": sum(one.kind == "can be run" for one in states),
        "hours": reproduction.hours(ours for ours, state in found if state.kind == "can be run"),
        "missing": sum(one.kind == "missing" for one in states),
        "lacks": list(dict.fromkeys(what for one in states if one.kind == "missing" for what in one.missing)),
    }


def _states(table: Table, line: Line, setup: Setup) -> dict[str, State]:
    from toolscout.papers import reproduction

    found = {form: reproduction.summary(getattr(line, form), table.splits(), setup) for form in _FORMS}
    return {form: state for form, state in found.items() if state is not None}


def _show(paper: Paper, tables: Sequence[Table], setup: Setup, json: bool) -> None:
    """Print tables, each with how our form differs from the paper's under it."""
    found: dict[str, Any] = {
        "paper": paper.key,
        "title": paper.title,
        "venue": paper.venue,
        "link": paper.link,
        "published_form": paper.published,
        "settings": dict(paper.settings),
        "tables": [_record(paper, one, setup) for one in tables],
    }
    if json:
        output.print_json(found)
        return
    console = output.stdout()
    console.print(output.shown(f"{paper.title}, {paper.venue}, {paper.link}", "bold"), soft_wrap=True)
    console.print(output.shown(f"as published here: {paper.published}"), soft_wrap=True)
    for name, value in paper.settings:
        console.print(output.shown(f"  {name}: {value}"), soft_wrap=True)
    for record in found["tables"]:
        _print_table(record)


def _record(paper: Paper, table: Table, setup: Setup) -> dict[str, Any]:
    """Return a table as JSON values: numbers of the paper as it prints them, ours as fractions."""
    return {
        "id": table.id,
        "part": table.part,
        "caption": table.caption,
        "lines": [_line_record(table, line, setup) for line in table.lines],
        "sources": table.sources(),
        "caveats": list(table.caveats()),
        "differences": [*table.differences, *paper.differences],
    }


def _line_record(table: Table, line: Line, setup: Setup) -> dict[str, Any]:
    from toolscout.papers import reproduction

    cells = [
        {"measure": column.head, "theirs": table.theirs(line, column), "percent": column.percent}
        | {form: list(reproduction.cell(getattr(line, form), column, setup).values) for form in _FORMS}
        for column in table.columns
    ]
    states = {
        form: {"state": state.kind, "seeds": list(state.seeds), "missing": list(state.missing)}
        for form, state in _states(table, line, setup).items()
    }
    return {"name": line.name, "cells": cells, "states": states}


def _print_table(record: dict[str, Any]) -> None:
    from toolscout.evaluation.report.rows import percent

    console = output.stdout()
    title = f"Table {record['id']}" + (f", {record['part']}" if record["part"] else "")
    console.print()
    console.print(output.shown(f"{title}: {record['caption']}", "bold"), soft_wrap=True)
    made = output.table("method", "measure", "theirs", *_FORMS.values(), grow="method")
    for line in record["lines"]:
        for number, one in enumerate(line["cells"]):
            theirs = _NONE if one["theirs"] is None else f"{one['theirs']:.2f}"
            scale = 1.0 if one["percent"] else 0.01
            values = [[scale * value for value in one[form]] for form in _FORMS]
            ours = [percent(few) or _empty(line["states"].get(form)) for form, few in zip(_FORMS, values, strict=True)]
            made.add_row(output.shown("" if number else line["name"]), one["measure"], theirs, *ours)
    console.print(made)
    for source in record["sources"]:
        console.print(output.shown(f"theirs: {source}"), soft_wrap=True)
    for text in _lacking(record):
        console.print(output.shown(f"missing: {text}"), soft_wrap=True)
    for caveat in record["caveats"]:
        console.print(output.shown(f"of theirs: {caveat}"), soft_wrap=True)
    for difference in record["differences"]:
        console.print(output.shown(f"different: {difference}"), soft_wrap=True)


def _empty(state: dict[str, Any] | None) -> str:
    """Return what a cell without a number says."""
    if state is None or state["state"] == "measured":
        return _NONE
    return "not run" if state["state"] == "can be run" else "missing"


def _lacking(record: dict[str, Any]) -> list[str]:
    """Return what lines lack, each with the lines that lack it."""
    found: dict[str, list[str]] = {}
    for line in record["lines"]:
        for state in line["states"].values():
            if state["state"] == "missing":
                for what in state["missing"]:
                    found.setdefault(what, []).append(line["name"])
    return [f"{what} ({', '.join(dict.fromkeys(names))})" for what, names in found.items()]
