"""The command `compare-with-baseline`: fifty lines of MiniLM and cosine beside toolscout, on tools of one's own."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolscout.cli import output
from toolscout.cli.common import check_model, plural

if TYPE_CHECKING:
    from toolscout.core.tool import Tool
    from toolscout.evaluation.baseline import BaselineComparison, LabelledRequest

_SHOWN = 10


def compare_with_baseline(
    source: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE…", help="Your tools: OpenAPI documents, MCP servers, files, as toolscout add takes them."
        ),
    ],
    requests: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='Requests with the tools that they need, a line {"request": "…", "tools": ["namespace/name"]} each.',
            show_default="a language model writes some",
        ),
    ] = None,
    llm: Annotated[
        str, typer.Option(metavar="SPEC", help="Who writes requests where none are given, as for toolscout synth.")
    ] = "smollm2",
    model: Annotated[str, typer.Option(metavar="NAME", help="The model to ask an endpoint for.")] = "",
    per_tool: Annotated[int, typer.Option(metavar="N", min=1, help="Requests that are written for each tool.")] = 1,
    k: Annotated[int, typer.Option("-k", metavar="N", min=1, help="How many tools either may find.")] = 5,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the comparison as a page too, with all that differs.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare toolscout, as it comes, with MiniLM and the cosine of a request with each tool, on your own tools.

    Both are asked for the same requests: how many of the tools needed they find, how long that takes, what the tools
    found save of a prompt, and which requests they answer differently. Nothing is kept.
    """
    from toolscout.evaluation import baseline, row
    from toolscout.evaluation.report import baseline_page

    if html is not None:
        row.check_writable(html)
    tools = _tools(source)
    with output.progress() as report, tempfile.TemporaryDirectory(prefix="toolscout-baseline-") as folder:
        if requests is None:
            check_model(llm, model)
            asked = _written(tools, llm, model, per_tool, report)
        else:
            asked = baseline.read_requests(requests)
        found = baseline.compare(tools, asked, Path(folder), k, report)
    if html is not None:
        html.write_text(baseline_page.page(found, f"{baseline.OURS} beside {baseline.BASELINE}"), encoding="utf-8")
    if json:
        output.print_json(_as_json(found))
    else:
        _print(found)
    if html is not None:
        output.note(str(html), label="written")


def _tools(sources: Sequence[str]) -> list[Tool]:
    """Read the tools of all sources. Raises BadRequest where two have one id."""
    from toolscout import catalogue
    from toolscout.errors import BadRequest

    found: dict[str, Tool] = {}
    for source in sources:
        for tool in catalogue.read(source):
            if tool.id in found:
                raise BadRequest(f"two tools are called {tool.id}; leave one of the sources out")
            found[tool.id] = tool
    if not found:
        raise BadRequest("there are no tools in these sources")
    return list(found.values())


def _written(
    tools: Sequence[Tool], llm: str, model: str, per_tool: int, report: output.Report | None
) -> list[LabelledRequest]:
    """Write requests. No retriever filters them: what one of the two would find by itself must not decide."""
    from toolscout.errors import BadDataset
    from toolscout.evaluation.baseline import LabelledRequest
    from toolscout.synth import RequestWriter, SynthOptions, SynthSource, synthesise

    options = SynthOptions(per_tool=per_tool, combinations=0.0, round_trip=0)
    writer = RequestWriter.open(llm, model, 0)
    made = synthesise(SynthSource("tools", tools), writer, options, progress=report)
    if not made.requests:
        raise BadDataset(
            f"no request could be written ({made.problem or 'none passed the filters'}); name another model with "
            "--llm, or give requests of your own with --requests"
        )
    count = plural(len(made.requests), "request")
    output.note(f"{count} written by {made.llm}; requests of your own tell more (--requests)", label="requests")
    return [LabelledRequest(one.text, tuple(one.tools)) for one in made.requests]


def _print(found: BaselineComparison) -> None:
    from toolscout.evaluation.report import baseline_page

    console = output.stdout()
    table = output.table("", found.baseline.name, found.ours.name)
    for row in baseline_page.figures(found):
        table.add_row(*row)
    console.print(table)
    output.write(baseline_page.saved(found))
    differing = list(found.differing())
    if not differing:
        output.write("Both find as much for every request.")
        return
    table = output.table("request", "needs", f"{found.baseline.name} finds", f"{found.ours.name} finds")
    for one, base, own in differing[:_SHOWN]:
        table.add_row(one.text, *("\n".join(ids) for ids in (one.tools, base, own)))
    console.print(table)
    if len(differing) > _SHOWN:
        output.note(f"{len(differing) - _SHOWN:,} more requests differ; --html FILE writes all of them")


def _as_json(found: BaselineComparison) -> dict[str, object]:
    sides = {
        side.name: {
            "recall": found.recall(side),
            "whole": found.whole(side),
            "p50_ms": side.milliseconds,
            "index_s": side.index_s,
        }
        for side in (found.baseline, found.ours)
    }
    differing = [
        {"request": one.text, "tools": one.tools, found.baseline.name: base, found.ours.name: own}
        for one, base, own in found.differing()
    ]
    about = {"tools": found.tools, "requests": len(found.requests), "k": found.k, "turned_away": found.turned_away}
    tokens = {"tokens": found.tokens, "tokens_found": found.tokens_found}
    return {**about, **tokens, "measured": sides, "differing": differing}
