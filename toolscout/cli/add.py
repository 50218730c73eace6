"""The commands `add` (import tools into the catalogue) and `embed` (compute missing vectors)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolscout.cli import output
from toolscout.cli.common import (
    NONE,
    WRONG,
    EncoderOption,
    RayCommand,
    RayOption,
    RetrieverOption,
    StoreOption,
    embedding_on,
    on_ray,
    open_scout,
    plural,
    store_place,
)
from toolscout.errors import EncoderUnavailable, ToolscoutError

if TYPE_CHECKING:
    from toolscout.catalogue.base import ReadOptions
    from toolscout.catalogue.poisoning import Finding
    from toolscout.core.expansion import Expansion
    from toolscout.distributed.cluster import Cluster
    from toolscout.scout import Added, Progress, Scout

# From so many bytes on, the memory that vectors take is said before they are made.
MUCH_MEMORY = 256_000_000
SHOWN_PROBLEMS = 20
_COMMAND = "toolscout.command"


@dataclasses.dataclass(frozen=True, slots=True)
class _Embedding:
    """Whether new tools are embedded, with which encoder, and on which cluster."""

    wanted: bool
    encoder: str | None
    cluster: Cluster | None


SourcesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SOURCE",
        help="A .jsonl or .json file of tools, an OpenAPI document (file or URL), a BEIR or ToolBench folder, a "
        "Python module, file or module:function, an MCP server (URL, quoted command line, or JSON file with "
        "mcpServers). The words behind -- are the command line of one MCP server.",
    ),
]
NamespaceOption = Annotated[
    str | None,
    typer.Option(metavar="NS", help="The namespace of tools that name none themselves.", show_default="the source's"),
]
KindOption = Annotated[
    str | None,
    typer.Option(
        metavar="KIND",
        help="Read the source as this: beir, functions, jsonl, mcp, openapi, toolbench, or an installed importer.",
        show_default="by its look",
    ),
]


class AddCommand(RayCommand):
    """Takes the words after "--" as one command line of an MCP server; each word before it is a source."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words before "--" as usual, and put those after it into `ctx.meta`."""
        before, after = (args[: args.index("--")], args[args.index("--") + 1 :]) if "--" in args else (args, [])
        ctx.meta[_COMMAND] = after
        return super().parse_args(ctx, before)


def add(
    ctx: typer.Context,
    sources: SourcesArgument = None,
    store: StoreOption = None,
    namespace: NamespaceOption = None,
    kind: KindOption = None,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Skip broken entries, import the rest, and report what was skipped.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Take over tools that another source brought under the same id.")
    ] = False,
    sync: Annotated[bool, typer.Option("--sync", help="Remove the tools that the source no longer has.")] = False,
    embed: Annotated[
        bool, typer.Option("--embed/--no-embed", help="Embed the new tools now, or leave that to: toolscout embed.")
    ] = True,
    timeout: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="How long a server may take to answer.")
    ] = 30,
    header: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Sent to the server that is asked; stored nowhere.")
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Set for a server's command; stored nowhere.")
    ] = None,
    expansions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Put what synth --expand wrote beside the tools: searched, never shown. Without a SOURCE, beside "
            "those that are here.",
            show_default=False,
        ),
    ] = None,
    encoder: EncoderOption = None,
    ray: RayOption = None,
) -> None:
    """Add the tools of any source, or bring them up to date.

    The tools are stored in one step and found by their words at once; then those that are new are embedded.
    """
    from toolscout.catalogue.base import ReadOptions
    from toolscout.core.expansion import read_expansions

    if ray is not None and not embed:
        raise typer.BadParameter("it is for embedding, which --no-embed leaves out", param_hint="--ray")
    written = read_expansions(expansions) if expansions else None  # first: a bad file stores nothing
    beside = written is not None and not sources and not ctx.meta[_COMMAND]
    given = [] if beside else given_sources(ctx, sources)
    headers = {key: value.strip() for key, value in _pairs("--header", header or [], "=:").items()}
    read = ReadOptions(namespace, kind, keep_going, timeout, _pairs("--env", env or [], "="), headers)
    place = store_place(ctx, store)
    with on_ray(ray) as cluster:
        if not beside:
            # With expansions, tools are embedded once these are there too.
            _add_each(place, given, read, replace, sync, _Embedding(embed and written is None, encoder, cluster))
        if written is not None:
            _expand(place, written, _Embedding(embed, encoder, cluster))


def embed(
    ctx: typer.Context,
    store: StoreOption = None,
    retriever: RetrieverOption = None,
    encoder: EncoderOption = None,
    ray: RayOption = None,
) -> None:
    """Embed the tools that have no vector yet: what an interrupted add, or one with --no-embed, left.

    With another encoder than before, all tools are embedded anew; what was embedded is kept when that is interrupted.
    """
    with open_scout(ctx, store, retriever, encoder=encoder) as scout, on_ray(ray) as cluster:
        _say_memory(scout)
        with embedding_on(cluster, scout), output.progress() as report:
            embedded = scout.embed(report)
        waiting, total, late = scout.words_only(), scout.count(), scout.not_embedded()
        notes = scout.retriever.notes() if waiting > late else ()
    output.write(f"{plural(embedded, 'text')} embedded; {waiting:,} of {plural(total, 'tool')} found by words only")
    for note in notes:
        output.note(note)
    if late:
        output.note("no encoder is installed; run: toolscout doctor")
    if waiting:
        raise typer.Exit(NONE)


def _say_memory(scout: Scout) -> None:
    """Say how much memory the vectors will take, before they are made, where that is much."""
    if (needed := scout.vector_memory()) >= MUCH_MEMORY:
        output.note(f"the vectors of {plural(scout.count(), 'tool')} take about {needed / 1e6:,.0f} MB of memory")


def _telling_memory(scout: Scout, report: Progress | None) -> Progress:
    """Report progress, and say how much memory the vectors will take once all tools are there to be embedded."""
    said = False

    def tell(stage: str, done: int, total: int) -> None:
        nonlocal said
        if stage == "embedding" and not said:
            said = True
            _say_memory(scout)
        if report:
            report(stage, done, total)

    return tell


def _add_each(
    place: str, sources: Sequence[Any], read: ReadOptions, replace: bool, sync: bool, embedding: _Embedding
) -> None:
    """Add the tools of each source, and say what became of them.

    Raises typer.Exit where a source could not be read, or no tools were found.
    """
    failed = found = 0
    for source in sources:
        try:
            added = _add(place, source, dataclasses.replace(read, problems=[]), replace, sync, embedding)
        except ToolscoutError as error:
            if not read.keep_going or len(sources) == 1:
                raise
            output.print_error(error, debug=False)
            failed += 1
            continue
        _summarise(source, added, alone=len(sources) == 1)
        found += added.report.added + added.report.changed + added.report.unchanged
    if failed:
        output.note(f"{failed} of {len(sources)} sources could not be read")
        raise typer.Exit(WRONG)
    if not found:
        output.note("no tools were found there")
        raise typer.Exit(NONE)


def _add(place: str, source: Any, options: ReadOptions, replace: bool, sync: bool, embedding: _Embedding) -> Added:
    from toolscout import catalogue
    from toolscout.catalogue.poisoning import watched
    from toolscout.scout import Added, Scout
    from toolscout.search.index_snapshot import WORTH_KEEPING
    from toolscout.stores import open_store

    with output.progress() as report:
        if report:
            report("reading", 0, 0)
        if not embedding.wanted:
            with open_store(place) as store:
                findings: list[Finding] = []
                tools = watched(catalogue.read(source, options), findings)
                done = store.add(tools, catalogue.describe(source), replace=replace, sync=sync)
                large = store.count() >= WORTH_KEEPING
            if large:  # build the index now, so that no search has to wait for it
                if report:
                    report("indexing", 0, 0)
                Scout.open(place, encoder=embedding.encoder).close()
            return Added(done, 0, tuple(options.problems), findings=tuple(findings))
        with Scout.open(place, encoder=embedding.encoder) as scout, embedding_on(embedding.cluster, scout):
            told = _telling_memory(scout, report)
            added = scout.add(source, options=options, replace=replace, sync=sync, progress=told)
            waiting = scout.words_only()
    if added.embedding_problem:
        output.note(f"the tools are stored, and found by words until they are embedded: {added.embedding_problem}")
    elif waiting:
        output.note("no encoder is installed, so tools are found by their words only; run: toolscout doctor")
    return added


def _expand(place: str, expansions: Mapping[str, Expansion], embedding: _Embedding) -> None:
    """Put expansions beside the tools of a catalogue, and say what became of them."""
    from toolscout.scout import Scout
    from toolscout.stores import open_store

    with open_store(place) as store:
        done = store.set_expansions(expansions)
    stored = f"{plural(done.changed, 'expansion')} stored, {done.unchanged:,} unchanged"
    output.write(f"{stored}; catalogue version {done.version}")
    if done.outdated:
        output.note(
            f"{plural(done.outdated, 'expansion')} left out: written for another text than the tool has now; write "
            "them anew: toolscout synth --expand"
        )
    if done.unknown:
        output.note(f"{plural(done.unknown, 'expansion')} left out: there is no such tool here")
    if embedding.wanted:
        with output.progress() as report, Scout.open(place, encoder=embedding.encoder) as scout:
            try:
                with embedding_on(embedding.cluster, scout):
                    scout.embed(report)
            except EncoderUnavailable as error:
                output.note(f"the tools are stored, and found by words until they are embedded: {error}")


def _summarise(source: object, added: Added, alone: bool) -> None:
    from toolscout import catalogue

    done = added.report
    counts = f"{done.added:,} added, {done.changed:,} changed, {done.unchanged:,} unchanged, {done.removed:,} removed"
    problems = f", {plural(len(added.problems), 'problem')}" if added.problems else ""
    label = "" if alone else f"{catalogue.describe(source)}: "
    line = f"{label}{counts}, {added.embedded:,} embedded{problems}; catalogue version {done.version}"
    output.stdout().print(output.shown(line), soft_wrap=True)
    if done.unexpanded:
        output.note(
            f"{plural(done.unexpanded, 'tool')} changed and lost the expansion that was written for the text before; "
            "write them anew: toolscout synth --expand"
        )
    alarming = [finding for finding in added.findings if finding.level == "high"]
    if alarming:
        tools = plural(len({finding.tool_id for finding in alarming}), "tool")
        output.note(
            f"{tools} with text that is hidden, or meant to mislead a model; look at it: toolscout scan SOURCE. "
            f"The first: {alarming[0].line()}",
            label="warning",
        )
    for problem in added.problems[:SHOWN_PROBLEMS]:
        output.note(problem, label="skipped")
    if len(added.problems) > SHOWN_PROBLEMS:
        output.note(f"{len(added.problems) - SHOWN_PROBLEMS:,} more", label="skipped")


def given_sources(ctx: typer.Context, words: list[str] | None) -> list[Any]:
    """Return the sources of an AddCommand: each word, and the command line after "--" as one more.

    Raises typer.BadParameter where there is none.
    """
    command: list[str] = ctx.meta[_COMMAND]
    sources: list[Any] = [*(words or ()), *([command] if len(command) > 1 else command)]
    if not sources:
        raise typer.BadParameter("name at least one source of tools", param_hint="SOURCE")
    return sources


def _pairs(option: str, given: Sequence[str], signs: str) -> dict[str, str]:
    pairs = {}
    for text in given:
        at = min((text.find(sign) for sign in signs if sign in text), default=0)
        if at < 1:
            raise typer.BadParameter("give it as KEY=VALUE", param_hint=option)
        pairs[text[:at].strip()] = text[at + 1 :]
    return pairs
