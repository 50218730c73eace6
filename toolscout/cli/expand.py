"""`synth --expand`: write expansions for tools, by rules or with a language model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from toolscout.cli import output
from toolscout.cli.common import on_ray, plural, writing_on
from toolscout.cli.written_texts import encoder_here, judge_of, print_counts

if TYPE_CHECKING:
    from toolscout.llm.options import EndpointOptions
    from toolscout.synth.expanding import WrittenExpansions

RULES = "rules"
_SHOWN = 5
# Options of synth that say what requests are like.
_OF_REQUESTS = ("wanted", "per_tool", "combinations", "examples", "tries", "filtered")


def write(
    ctx: typer.Context,
    source: str,
    out: Path,
    llm: str,
    model: str,
    endpoint: EndpointOptions,
    temperature: float,
    seed: int,
    round_trip: int,
    retriever: str,
    partial: Path,
    ray: str | None,
) -> None:
    """Write expansions of all tools of a source into a file, and say how many, and why others got none.

    What a model wrote has to find its tool among the first `round_trip` of a retriever, the default one for "".
    `partial` is the file that an interrupted run goes on from; it is removed once OUT is written.
    """
    from toolscout.core.expansion import write_expansions
    from toolscout.errors import BadDataset, BadModel
    from toolscout.synth import RequestWriter, SynthSource
    from toolscout.synth.expanding import by_model, by_rules

    for name in _OF_REQUESTS:
        given = ctx.get_parameter_source(name)
        if given is not None and given.name == "COMMANDLINE":
            option = {"wanted": "--for", "filtered": "--filter"}.get(name, f"--{name.replace('_', '-')}")
            raise typer.BadParameter("--expand writes no requests; leave it out", param_hint=option)
    if out.exists():
        raise BadDataset(f"{out} is already there; name a new file, or remove it")
    tools = SynthSource.open(source).tools
    if llm == RULES:
        if ray is not None:
            raise typer.BadParameter("rules take seconds; leave it out", param_hint="--ray")
        made = by_rules(tools)
    else:
        writer = RequestWriter.open(llm, model, seed, options=endpoint)
        if writer.trained:
            raise BadModel(f"{llm} was trained to write requests, and writes nothing else; name another model")
        with on_ray(ray) as cluster, output.progress() as report:
            name = retriever or ("dense" if round_trip and encoder_here() else "bm25")
            judge = judge_of(name, tools, report)[0] if round_trip else None
            made = by_model(
                tools,
                writer.llm,
                writer.fingerprint,
                temperature=temperature,
                retriever=judge,
                round_trip=round_trip,
                partial=partial,
                completing=writing_on(cluster, llm, seed),
                progress=report,
            )
    write_expansions(out, made.expansions.items())
    partial.unlink(missing_ok=True)
    _print(made, out)


def _print(made: WrittenExpansions, out: Path) -> None:
    print_counts("expansions", {"written": len(made.expansions)}, made.dropped, made.problem)
    for tool_id in list(made.expansions)[:: max(1, len(made.expansions) // _SHOWN)][:_SHOWN]:
        one = made.expansions[tool_id]
        output.note(f"{tool_id}: {'; '.join(filter(None, (one.purpose, one.when)))}", label="sample")
    lines = plural(len(made.expansions), "line")
    output.note(f"{lines} in {out}; use it: toolscout add --expansions {out}", label="written")
