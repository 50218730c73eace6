"""The command `scan`: look for poison in tools before they are added."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolscout import __version__
from toolscout.cli import output
from toolscout.cli.add import KindOption, NamespaceOption, SourcesArgument, given_sources
from toolscout.cli.common import NONE, plural

if TYPE_CHECKING:
    from toolscout.catalogue.poisoning import Finding


def scan(
    ctx: typer.Context,
    sources: SourcesArgument = None,
    namespace: NamespaceOption = None,
    kind: KindOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    sarif: Annotated[
        Path | None, typer.Option("--sarif", metavar="FILE", help="Write the findings to this file as SARIF 2.1.0.")
    ] = None,
    fail_on: Annotated[
        str, typer.Option("--fail-on", metavar="low|medium|high", help="Exit code 1 where a finding has this level.")
    ] = "high",
    timeout: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="How long a server may take to answer.")
    ] = 30,
) -> None:
    """Look for poison in the tools of any source: hidden text, instructions to the model, names that deceive.

    Nothing is stored. A finding is a reason to look, not a proof; no finding is no proof either.
    """
    from toolscout import catalogue
    from toolscout.catalogue import poisoning
    from toolscout.catalogue.base import ReadOptions
    from toolscout.catalogue.sarif import document

    level = poisoning.checked_finding_level(fail_on)
    found: list[tuple[str, Finding]] = []
    scanned = list[str]()
    for source in given_sources(ctx, sources):
        label = catalogue.describe(source)
        options = ReadOptions(namespace, kind, True, timeout)
        tools = list(catalogue.read(source, options))
        found += [(label, finding) for finding in poisoning.scan(tools, scanned)]
        scanned += [tool.id for tool in tools]
        for problem in options.problems:
            output.note(problem, label="skipped")
    found.sort(key=lambda pair: -poisoning.LEVELS.index(pair[1].level))
    if sarif is not None:
        sarif.write_text(json.dumps(document(found, __version__), indent=2) + "\n", encoding="utf-8")
    if as_json:
        output.print_json({"tools": len(scanned), "findings": [{"source": at} | one.to_dict() for at, one in found]})
    else:
        _print(found, len(scanned))
    if poisoning.level_reached([finding for _, finding in found], level):
        raise typer.Exit(NONE)


def _print(found: list[tuple[str, Finding]], tools: int) -> None:
    from toolscout.catalogue.poisoning import EXPLANATIONS

    if found:
        table = output.table("level", "tool", "where", "rule", "found", grow="found")
        for _, one in found:
            why = f"{EXPLANATIONS[one.rule]}: {one.excerpt}"
            table.add_row(one.level, output.shown(one.tool_id), output.shown(one.where), one.rule, output.shown(why))
        output.stdout().print(table)
    output.note(f"{plural(len(found), 'finding')} in {plural(tools, 'tool')}", label="scanned")
