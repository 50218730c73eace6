"""The command `need`: say whether a request needs a tool at all, from the request alone, without a catalogue."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolscout.cli import output
from toolscout.cli.common import MAX_INPUT_CHARS, NONE, Listed
from toolscout.core.tool import clean_text
from toolscout.errors import BadModel, BadRequest

if TYPE_CHECKING:
    from toolscout.retrievers.base import Retriever

# The need head reads vectors, so the retriever must have an encoder; bm25 has none.
_DEFAULT = "dense"
_VERDICTS = {True: "a tool is needed", False: "no tool needed", None: "cannot tell in this language"}


def need(
    requests: Annotated[
        list[str],
        typer.Argument(metavar="REQUEST...", help='Each request in quotes; "-" reads them from stdin, one a line.'),
    ],
    retriever: Annotated[
        str, typer.Option(metavar="NAME|FOLDER", help="Ask this model, or the encoder of this method.")
    ] = _DEFAULT,
    threshold: Annotated[
        float | None,
        typer.Option(metavar="X", min=0, max=1, help="Below this tool need no tool is needed.", show_default="0.2"),
    ] = None,
    format: Annotated[Listed, typer.Option(help="table for people, json for programs.")] = "table",
) -> None:
    """Say whether requests need a tool at all, whatever tools there are.

    Tool need goes from 0 to 1 and means something beside its threshold alone: it is no probability.

    In a language that the model was not trained on nobody can tell.

    Exit code 0: a tool is needed, or nobody can tell (for at least one of several requests); 1: none is; 2: wrong use
    or bad input.
    """
    texts = _texts(requests)
    from toolscout.search.tool_need import NeedEstimator, NeedOptions

    least = NeedOptions().threshold if threshold is None else threshold
    chances = NeedEstimator(_opened(retriever)).need(texts)
    if chances is None:
        raise BadModel(
            f"{retriever} cannot tell whether a tool is needed: it has no need head; name a model that was trained "
            "with one, or leave --retriever out"
        )
    found = [
        (text, chance, None if chance is None else chance >= least) for text, chance in zip(texts, chances, strict=True)
    ]
    if format == "json":
        output.print_json([{"request": text, "need": chance, "needed": needed} for text, chance, needed in found])
    else:
        table = output.table("tool need", "verdict", "request", grow="request")
        for text, chance, needed in found:
            table.add_row("" if chance is None else f"{chance:.3f}", _VERDICTS[needed], output.shown(text))
        output.stdout().print(table)
    if all(needed is False for _, _, needed in found):
        raise typer.Exit(NONE)


def _texts(requests: Sequence[str]) -> list[str]:
    if list(requests) == ["-"]:
        requests = sys.stdin.buffer.read(MAX_INPUT_CHARS).decode(errors="replace").splitlines()
        requests = [line for line in requests if clean_text(line)]
    if not requests or not all(map(clean_text, requests)):
        raise BadRequest("the request is empty; say in words what should be done")
    return [clean_text(text) for text in requests]


def _opened(name: str) -> Retriever:
    from toolscout.retrievers.registry import available, load_model, method

    return load_model(Path(name)) if name not in available() and Path(name).is_dir() else method(name)()
