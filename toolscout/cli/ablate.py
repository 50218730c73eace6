"""The command `ablate`: train and measure variants of a method that lack or change one part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolscout.cli import output
from toolscout.cli.common import RayOption, jobs_on, on_ray, plural, seed_numbers
from toolscout.errors import BadModel

if TYPE_CHECKING:
    from toolscout.papers.masstool.ablations import AblationPlan

_SHOWN = ("recall@5", "ndcg@5", "comp@5", "new_recall@5")
_TESTED = "ndcg@5"


def ablate(
    method: Annotated[str, typer.Argument(metavar="masstool", help="The method; masstool is the only one with parts.")],
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA[:TRAIN[:DEV]]",
            help="A BEIR folder, or the name of one in $TOOLSCOUT_DATA, with the splits to train and select on: "
            '"train" and "dev" unless told. NAME:unseen_tool takes unseen_tool.train and unseen_tool.dev.',
        ),
    ],
    test: Annotated[str, typer.Option("--test", metavar="SPLIT", help="The split to measure on.")],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where vectors and models are kept meanwhile.")],
    encoder: Annotated[
        str, typer.Option(metavar="FOLDER", help="The frozen encoder.", show_default="the default one")
    ] = "",
    no_tool: Annotated[
        str,
        typer.Option(
            metavar="FOLDER",
            help="A folder of prompts that need no tool, or the name of one: the detection tower learns from it. "
            "Without it, what is about detection is left out.",
        ),
    ] = "",
    only: Annotated[
        str, typer.Option(metavar="WORD", help="Beside the full model only variants with this in their name.")
    ] = "",
    seeds: Annotated[str, typer.Option(metavar="N,N,…", help="Seeds to train with.")] = "0",
    json: Annotated[
        Path | None,
        typer.Option(metavar="OUT", help="The .jsonl file that rows go to.", show_default="FOLDER/rows.jsonl"),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Variants that are trained side by side.")] = 1,
    stop_after: Annotated[
        float, typer.Option(metavar="SECONDS", help="Begin no other variant after this long.", show_default="never")
    ] = float("inf"),
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Set an option of the method in every variant.")
    ] = None,
    ray: RayOption = None,
) -> None:
    """Train and measure variants of masstool that lack or change one part, on the vectors of one frozen encoder.

    Each variant is measured twice: with the weights of its parts chosen on dev, as served, and with the weights learned
    in training. Rows that are in the file already are not made again: an interrupted command goes on.
    """
    from toolscout.evaluation import row
    from toolscout.papers.masstool import ablations

    if method != "masstool":
        raise BadModel(f"{method!r:.80} has no parts to leave out; name masstool")
    plan = ablations.AblationPlan(data, test, out, encoder, no_tool, tuple(option or ()))
    chosen, numbers, path = ablations.variants(plan, only), seed_numbers(seeds), json or out / "rows.jsonl"
    row.check_writable(path)
    with output.progress() as report:
        identity = ablations.read_data(plan, report).identity
    todo = ablations.jobs(plan, chosen, numbers, path)
    output.note(f"{plural(len(chosen), 'variant')}, {plural(len(todo), 'run')} to make", label="ablation")
    if not no_tool:
        output.note("without --no-tool there is no detection to ablate: those variants are left out")
    writer, made = ablations.AblationWriter(path), 0
    try:
        with on_ray(ray) as cluster, jobs_on(cluster, todo, jobs, stop_after) as results:
            for done in results:
                made += 1
                if done.error:
                    output.note(f"{done.name}: {done.error}", label="failed")
                else:
                    writer.add(done.result)
                    output.note(done.name, label=f"{made} of {len(todo)}")
    finally:  # show the finished variants also after an error or an interruption
        _show(plan, [one for one in ablations.own_rows(path, identity) if one["seed"] in numbers])
    if made < len(todo):
        output.note(f"{len(todo) - made} are left; give the same command again", label="stopped")


def _show(plan: AblationPlan, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print one table for each way to choose weights: means over the seeds, and the difference to the full model."""
    from toolscout.papers.masstool import ablations

    console = output.stdout()
    titles = {"chosen": "what parts count is chosen on dev, as served", "learned": "parts count what they learned"}
    for weights, title in titles.items():
        lines: dict[str, list[Mapping[str, Any]]] = {}
        for row in ablations.sorted_rows([row for row in rows if row["study"]["weights"] == weights]):
            lines.setdefault(row["study"]["variant"], []).append(row)
        if not lines:
            continue
        names = [name for name in _SHOWN if any(name in row["metrics"] for found in lines.values() for row in found)]
        table = output.table("variant", *names, f"{_TESTED} - full", "95 %", "p")
        for variant, found in lines.items():
            table.add_row(variant, *(_mean(found, name) for name in names), *_differs(found))
        console.print(output.shown(f"{plan.data} {plan.test}: {title}"))
        console.print(table)


def _mean(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    found = [row["metrics"][name] for row in rows if name in row["metrics"]]
    return f"{fmean(found):.4f}" if found else ""


def _differs(rows: Sequence[Mapping[str, Any]]) -> tuple[str, str, str]:
    """Return the difference to the full model, its interval (both means over the seeds) and the largest p, as texts."""
    found = [row["study"]["against"][_TESTED] for row in rows if _TESTED in row["study"].get("against", {})]
    if not found:
        return "", "", ""
    difference, low, high, _ = (fmean(values) for values in zip(*found, strict=True))
    return f"{difference:+.4f}", f"{low:+.4f} to {high:+.4f}", f"{max(one[3] for one in found):.3f}"
