"""The command `search`: find the tools for a request, and print them as a table, JSON or a vendor's format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from toolscout.cli import output
from toolscout.cli.common import (
    NONE,
    EncoderOption,
    LevelOption,
    LlmOption,
    ModelOption,
    PartsOption,
    RequestArgument,
    RerankOption,
    RetrieverOption,
    SettingsOption,
    StoreOption,
    open_scout,
    plural,
    request_text,
    rewriting,
    tenant_of,
)
from toolscout.cli.tools import Shape
from toolscout.core.answer import OTHER_LANGUAGE, Allowed, Answer, Hit
from toolscout.core.tool import Tool, namespace_of
from toolscout.errors import BadRequest
from toolscout.search.score_share import EXPLANATION, share_texts

if TYPE_CHECKING:
    from toolscout.scout import Count, Scout

CLOSEST = 3


def search(
    ctx: typer.Context,
    request: RequestArgument,
    k: Annotated[
        str,
        typer.Option(
            "-k",
            metavar="N|auto",
            help="At most so many tools; auto: as many as a model trained with sets=true says are needed.",
        ),
    ] = "5",
    store: StoreOption = None,
    retriever: RetrieverOption = None,
    encoder: EncoderOption = None,
    part: PartsOption = None,
    option: SettingsOption = None,
    rerank: RerankOption = None,
    llm: LlmOption = None,
    model: ModelOption = None,
    grouped: Annotated[
        bool,
        typer.Option(
            "--grouped",
            help="Show the tools by what rewrite asked for: one group a sub-request; in a table or as json.",
        ),
    ] = False,
    namespace: Annotated[
        list[str] | None, typer.Option(metavar="NS", help="Search this namespace only; may be given again.")
    ] = None,
    principal: Annotated[
        str | None, typer.Option("--as", metavar="PRINCIPAL", help="Search only what was granted to this principal.")
    ] = None,
    budget: Annotated[
        int | None,
        typer.Option(
            metavar="TOKENS", min=1, help="Make the schemas fit: full, slim, signatures or names. Vendor formats only."
        ),
    ] = None,
    level: LevelOption = None,
    # A test compares these defaults with NeedOptions and FitOptions: importing those here would slow every command.
    need_threshold: Annotated[
        float | None,
        typer.Option(metavar="X", min=0, max=1, help="Below this tool need no tool is needed.", show_default="0.2"),
    ] = None,
    fit_threshold: Annotated[
        float | None,
        typer.Option(metavar="X", min=0, max=1, help="Below this catalogue fit nothing fits.", show_default="0.19"),
    ] = None,
    format: Annotated[
        Shape, typer.Option(help="table for people, json for the whole answer, else the tools as a vendor takes them.")
    ] = "table",
) -> None:
    """Find the tools for a request.

    "use" is the probability that a tool should be used; the verdict compares it with the threshold of the level. Tool
    need (does the request need a tool?) and catalogue fit (does a tool here serve it?) go from 0 to 1 and are no
    probabilities. With --need-threshold or --fit-threshold these two decide, and no level does. "of best" is a tool's
    score as a share of the best one.

    Exit code 0: there are tools to use; 1: no tool is needed, or nothing fits; 2: wrong use or bad input.
    """
    vendor = format not in ("table", "json")
    if budget is not None and not vendor:
        raise typer.BadParameter("it needs a vendor's --format", param_hint="--budget")
    if grouped and vendor:
        raise typer.BadParameter(
            f"a list of tools for {format} holds no groups; use --format table or json", param_hint="--grouped"
        )
    if level is not None and (need_threshold is not None or fit_threshold is not None):
        raise typer.BadParameter(
            "thresholds decide in place of a level; give --level, or thresholds of your own", param_hint="--level"
        )
    count, text = _count(k), request_text(request)
    retriever, settings = rewriting(retriever, option, llm, model)
    with open_scout(ctx, store, retriever, settings, part or (), encoder, rerank, level) as scout:
        _check_grouped(scout, grouped)
        if need_threshold is not None:
            scout.need_options = replace(scout.need_options, threshold=need_threshold)
        if fit_threshold is not None:
            scout.fit_options = replace(scout.fit_options, threshold=fit_threshold)
        tenant = tenant_of(scout.store, principal or "")
        answer = scout.search(text, count, _allowed(scout, namespace, principal), tenant=tenant)
        _tell_need(answer, need_threshold)
        _print(scout, answer, format, budget, grouped)
    if not answer.hits:
        raise typer.Exit(NONE)


def _check_grouped(scout: Scout, grouped: bool) -> None:
    if grouped and not scout.retriever.rewrites:
        raise typer.BadParameter(
            "it is for --retriever rewrite, or a model of it; or name --llm", param_hint="--grouped"
        )


def _tell_need(answer: Answer, threshold: float | None) -> None:
    if threshold and answer.need is None and not any(note.startswith(OTHER_LANGUAGE) for note in answer.notes):
        output.note(
            "nothing can tell here whether a tool is needed, so --need-threshold had no effect: that takes an encoder "
            "(run: toolscout doctor) and a retriever with vectors"
        )


def _count(text: str) -> Count:
    if text.strip().lower() == "auto":
        return "auto"
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r:.80} is neither a number nor auto", param_hint="-k") from None


def print_answer(console: Console, scout: Scout, answer: Answer, grouped: bool = False) -> None:
    """Print an answer for people: the verdict, then a table of the tools to use; with `grouped` one for each query."""
    judged = answer.verdict_level is not None
    about = [
        *_compared("tool need", answer.need, None if judged else scout.need_options.threshold),
        *_compared("catalogue fit", answer.fit, None if judged else scout.fit_options.threshold),
        *_judged(scout, answer),
        f"{plural(answer.searched, 'tool')} searched",
        f"version {answer.version}",
    ]
    verdict = (answer.verdict.replace("_", " "), "bold green" if answer.hits else "bold yellow")
    console.print(Text(" · ").join([Text(*verdict), *map(Text, about)]))
    for line in answer.notes:
        console.print(output.shown(f"note: {line}", "yellow"))
    if answer.asked and not (grouped and answer.hits):
        console.print(output.shown("asked: " + " · ".join(f"“{query}”" for query in answer.asked), "dim"))
    if answer.hits:
        _print_hits(console, scout, answer, grouped)
    elif answer.considered:
        console.print(output.shown("closest: " + ", ".join(hit.tool_id for hit in answer.considered[:CLOSEST]), "dim"))


def _judged(scout: Scout, answer: Answer) -> list[str]:
    """Return [text] that compares the probability of "use" with the level's threshold; [] where no level decided.

    The level is named where it is not the default, so that the line fits on a screen of 100 columns.
    """
    from toolscout.search.verdict import DEFAULT_LEVEL

    if answer.use is None or answer.verdict_level is None:
        return []
    threshold = scout.use_threshold(answer.verdict_level, answer.need is not None)
    digits = 2 if f"{answer.use:.2f}" != f"{threshold:.2f}" else 4
    sign = "<" if answer.use < threshold else "≥"
    level = "" if answer.verdict_level == DEFAULT_LEVEL else f" ({answer.verdict_level})"
    return [f"use {answer.use:.{digits}f} {sign} {threshold:.{digits}f}{level}"]


def _compared(name: str, value: float | None, threshold: float | None) -> list[str]:
    """Return [text] that compares a value with its threshold, with enough digits to differ; [] where it is None."""
    if value is None:
        return []
    if threshold is None:
        return [f"{name} {value:.2f}"]
    digits = 2 if f"{value:.2f}" != f"{threshold:.2f}" else 4
    return [f"{name} {value:.{digits}f} {'<' if value < threshold else '≥'} {threshold:g}"]


def _print_hits(console: Console, scout: Scout, answer: Answer, grouped: bool) -> None:
    tools = {tool.id: tool for tool in scout.tools(answer)}
    rows = [
        (str(rank), _tool_cell(tools[hit.tool_id]), share, output.shown("; ".join(map(str, hit.reasons))))
        for rank, (hit, share) in enumerate(zip(answer.hits, share_texts(answer.hits), strict=True), 1)
    ]
    if not grouped:
        console.print(_table(rows))
        return
    for query, hits in _groups(answer).items():
        console.print(output.shown(query or answer.request, "bold"))
        if hits:
            console.print(_table([rows[answer.hits.index(hit)] for hit in hits]))
        else:
            console.print(output.shown(f"nothing among the first {len(answer.hits)}; a higher -k shows more", "dim"))


def _groups(answer: Answer) -> dict[str, tuple[Hit, ...]]:
    """Return answer.groups() with an empty group for each rewritten query that found none of the tools to use."""
    found = dict(answer.groups())
    return {
        query: found.get(query, ()) for query in dict.fromkeys(["", *answer.asked, *found]) if query or query in found
    }


def _tool_cell(tool: Tool) -> Text:
    from toolscout.core.vendor_formats import first_sentence

    description = first_sentence(tool.description[: output.MAX_SHOWN_CHARS])
    return Text.assemble((output.shown(tool.id).plain, "bold"), "\n", (output.shown(description).plain, "dim"))


def _table(rows: Sequence[tuple[str, Text, str, Text]]) -> Table:
    made = output.table("#", "tool", "of best", "why", grow="tool")
    made.columns[3].max_width = 30
    for row in rows:
        made.add_row(*row)
    return made


def _print(scout: Scout, answer: Answer, format: Shape, budget: int | None, grouped: bool) -> None:
    if format == "table":
        console = output.stdout()
        print_answer(console, scout, answer, grouped)
        if answer.hits:
            console.print(Text(EXPLANATION, "dim"))
    elif format == "json":
        tools = [{"id": tool.id, **tool.to_record()} for tool in scout.tools(answer)]
        groups = [{"asked": query, "hits": [hit.tool_id for hit in hits]} for query, hits in _groups(answer).items()]
        output.print_json({**answer.to_dict(), **({"groups": groups} if grouped else {}), "tools": tools})
    else:
        rendered = scout.render(answer, format, budget)
        for line in answer.notes:
            output.note(line)
        if budget is not None:
            output.note(f"rendered as {rendered.level}, about {rendered.tokens:,} of {budget:,} tokens")
        output.print_json(rendered.payload)


def _allowed(scout: Scout, namespaces: list[str] | None, principal: str | None) -> Allowed | None:
    """Return what may be searched: the principal's tools that lie in the namespaces; None for everything.

    Raises BadRequest for a namespace that does not exist.
    """
    from toolscout.serving.access import Access
    from toolscout.stores.listed_by_caller import marked_namespaces

    granted = None if principal is None else Access(scout).named(principal).allowed
    if not namespaces:
        hidden = marked_namespaces(scout.store) if principal is None else frozenset()
        if not hidden:
            return granted
        output.note(
            f"left out: {', '.join(sorted(hidden))}, whose servers list their tools for each caller; to search them "
            "here, name them with --namespace"
        )
        return Allowed.of(scout.store.namespaces().keys() - hidden)
    known = scout.store.namespaces()
    for namespace in namespaces:
        if namespace not in known:
            raise BadRequest(f"there is no namespace {namespace!r:.80}; run: toolscout list")
    if granted is None:
        return Allowed.of(namespaces)
    within = frozenset(namespaces)
    return Allowed.of(granted.namespaces & within, (i for i in granted.ids if namespace_of(i) in within))
