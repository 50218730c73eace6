"""The commands `synth` (write requests for tools with a language model) and `synth-train` (train that model)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from toolscout.cli import output
from toolscout.cli.common import RayOption, check_model, on_ray, plural, writing_on
from toolscout.cli.expand import write as write_expansions
from toolscout.cli.written_texts import encoder_here, judge_of, print_counts

if TYPE_CHECKING:
    from toolscout.retrievers.base import FitReport
    from toolscout.synth import SyntheticDataset

_SHOWN = 5
_ROUND_TRIP = 20
PARTIAL = ".partial.jsonl"


def synth(
    ctx: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A dataset (DATA: its tools alone; DATA:SPLIT: also that split's requests), a catalogue (.db), or any "
            "source of tools that add reads.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option("--out", metavar="PATH", help="Where to write it: a new or empty folder; a file with --expand."),
    ],
    expand: Annotated[
        bool,
        typer.Option("--expand", help="Write no requests, but what each tool is for, when to use it, what it cannot."),
    ] = False,
    wanted: Annotated[
        Literal["all", "new"],
        typer.Option("--for", help="Write for all tools, or for those without a request in DATA:SPLIT."),
    ] = "all",
    llm: Annotated[
        str,
        typer.Option(
            metavar="SPEC",
            help="Who writes: a folder of synth-train, smollm2, another folder, the URL of an endpoint; rules, with "
            "--expand, for no model.",
        ),
    ] = "smollm2",
    model: Annotated[str, typer.Option(metavar="NAME", help="The model to ask an endpoint for.")] = "",
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="How long an endpoint may take to answer.")] = 60.0,
    concurrency: Annotated[int, typer.Option(metavar="N", min=1, help="Ask an endpoint for so many at once.")] = 8,
    requests_per_minute: Annotated[
        float | None,
        typer.Option(metavar="N", help="Ask an endpoint at most so often.", show_default="any number"),
    ] = None,
    per_tool: Annotated[int, typer.Option(metavar="N", min=1, help="Requests for each tool.")] = 3,
    combinations: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            min=0,
            max=1,
            help="The share of requests that need other tools too.",
            show_default="as in known requests, else half",
        ),
    ] = None,
    examples: Annotated[
        int, typer.Option(metavar="N", min=0, help="Show it so many requests of DATA:SPLIT each time.")
    ] = 0,
    tries: Annotated[int, typer.Option(metavar="N", min=1, help="Write anew what was not kept, so often in all.")] = 2,
    temperature: Annotated[float, typer.Option(min=0, help="How freely words are drawn.")] = 0.8,
    filtered: Annotated[bool, typer.Option("--filter/--no-filter", help="Keep only what passes the filters.")] = True,
    round_trip: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="A retriever has to find the tool among its first N; 0 for none.",
            show_default=str(_ROUND_TRIP),
        ),
    ] = None,
    retriever: Annotated[
        str,
        typer.Option(
            metavar="NAME|FOLDER", help="What the round trip asks.", show_default="dense; without an encoder bm25"
        ),
    ] = "",
    seed: Annotated[int, typer.Option(help="Another number, other requests.")] = 0,
    ray: RayOption = None,
) -> None:
    """Write requests for tools with a language model: a dataset to train on where nobody has asked anything yet.

    Requests differ in style and in how many tools they need, and never name one. What comes out badly is left out and
    counted; README.md in the folder says how much. An interrupted run goes on when the same command is given again.
    With --expand a file is written instead, for: toolscout add --expansions.
    """
    from toolscout.errors import BadDataset, BadRequest
    from toolscout.evaluation.vector_cache import tool_vectors
    from toolscout.llm.options import EndpointOptions
    from toolscout.synth import RequestWriter, SynthOptions, SynthSource, synthesise

    check_model(llm, model)
    asking = EndpointOptions(timeout=timeout, concurrency=concurrency, requests_per_minute=requests_per_minute)
    beside = out.resolve()  # Path(".") has no name
    partial = beside.with_name(beside.name + PARTIAL)
    if expand:
        first = _ROUND_TRIP if round_trip is None else round_trip
        write_expansions(ctx, source, out, llm, model, asking, temperature, seed, first, retriever, partial, ray)
        return
    if round_trip and not filtered:
        raise typer.BadParameter("it is a filter; leave it out, or --no-filter", param_hint="--round-trip")
    round_trip = _ROUND_TRIP if round_trip is None else round_trip
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadDataset(f"{out} is not an empty folder; write into a new one")
    options = SynthOptions(
        per_tool=per_tool,
        combinations=combinations,
        examples=examples,
        tries=tries,
        temperature=temperature,
        filtered=filtered,
        round_trip=round_trip,
        seed=seed,
    )
    opened = SynthSource.open(source)
    if examples and opened.known is None:
        raise BadDataset("--examples shows known requests; name the split that has them, as in DATA:train")
    if retriever and not (round_trip and filtered):
        raise BadRequest("--retriever is what the round trip asks, and there is none; leave it out")
    writer = RequestWriter.open(llm, model, seed, options=asking)
    encoder = encoder_here()
    with on_ray(ray) as cluster, output.progress() as report:
        vectors = tool_vectors(opened.tools, encoder, progress=report) if encoder else None
        judge_name = retriever or ("dense" if encoder else "bm25")
        judge, seen = judge_of(judge_name, opened.tools, report) if round_trip and filtered else (None, None)
        made = synthesise(
            opened,
            writer,
            options,
            wanted,
            retriever=judge,
            retriever_seen=seen,
            vectors=vectors,
            partial=partial,
            completing=writing_on(cluster, llm, seed),
            progress=report,
        )
    made.write(out)
    partial.unlink(missing_ok=True)
    _print(made, f"{source} " if opened.known else "", out)


def synth_train(
    data: Annotated[
        list[str],
        typer.Argument(metavar="DATA[:TRAIN]…", help="Datasets with the splits to learn from, as for train."),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where the fine-tuned model goes.")],
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Set an option of the training: epochs, rate, rank …")
    ] = None,
) -> None:
    """Teach SmolLM2 to write requests like those of some datasets, for synth --llm FOLDER.

    Only the train splits are read. What is trained on its requests counts as having seen those it learned from.
    """
    from toolscout.errors import BadModel
    from toolscout.llm.finetuned import is_finetuned
    from toolscout.retrievers import training_setup
    from toolscout.retrievers.option_values import with_settings
    from toolscout.synth import WriterTrainingOptions, train_synth

    if is_finetuned(out):
        raise BadModel(f"{out} already holds a fine-tuned model; name a new folder, or remove this one")
    options = with_settings(WriterTrainingOptions(), "synth-train", option or [])
    sets = training_setup.training_sets(data)
    for one in sets:
        count = plural(len(one.dataset.split(one.train)), "request")
        output.note(f"{one.dataset.name}: {count} of {one.train} to learn from", label="data")
    with output.progress() as report:
        fitted = train_synth(sets, out, options, encoder=encoder_here(), progress=report)
    _report(fitted, out)


def _print(made: SyntheticDataset, real: str, out: Path) -> None:
    print_counts("written requests", {"kept": len(made.requests)}, made.dropped, made.problem)
    served = {one.tools[0] for one in made.requests}
    if len(served) < made.wanted:
        output.note(f"{plural(made.wanted - len(served), 'tool')} of {made.wanted:,} got no request; see --no-filter")
    for one in made.requests[:: max(1, len(made.requests) // _SHOWN)][:_SHOWN]:
        output.note(f"{one.text} ({', '.join(one.tools)})", label="sample")
    output.note(f"{out}; train on it: toolscout train {real}{out} --retriever dense --out MODEL", label="written")


def _report(fitted: FitReport, out: Path) -> None:
    output.write(f"{fitted.parameters:,} numbers learned in {fitted.seconds:.1f} s on {fitted.device}")
    for note in fitted.notes:
        output.note(note)
    output.note(f"{out}; write with it: toolscout synth SOURCE --llm {out} --out FOLDER", label="written")
