"""The commands `encoder …`: export, list, check, compare and fit sentence encoders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolscout.cli import output
from toolscout.cli.common import Listed
from toolscout.errors import ToolscoutError

if TYPE_CHECKING:
    from toolscout.models.encoders.base import TextEncoder

# The sizes of catalogues for which `check` tells the memory of vectors; the second is ToolBench.
_TOOLS = (10_000, 46_587)
_ABOUT = (
    "A folder, the URL of an embeddings endpoint, default, fast or raw; PLACE?KEY=VALUE&KEY=VALUE changes settings."
)

FormatOption = Annotated[Listed, typer.Option(help="How to print it.")]


def export(
    source: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="A Hugging Face folder of a BERT, RoBERTa, XLM-R, DistilBERT or MPNet encoder, with safetensors.",
            show_default="the installed weights",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to write it.", show_default="the user's cache")
    ] = None,
    request_encoder: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="A Hugging Face folder of a smaller encoder that was trained to give the vectors of the first: it "
            "encodes requests.",
        ),
    ] = None,
) -> None:
    """Make the int8 encoder that serves, out of published weights."""
    from toolscout.models.encoders.export import export as write
    from toolscout.models.encoders.onnx_encoder import Encoder

    with output.stderr().status("exporting …"):
        encoder = Encoder.load(write(source, out, request_encoder=request_encoder))
    output.stdout().print(output.shown(f"{encoder.folder}"), soft_wrap=True)
    output.note(f"{encoder.name}, fingerprint {encoder.fingerprint}")


def list_encoders(format: FormatOption = "table") -> None:
    """List the encoders of this machine: that of the package, those in the user's cache, and the default one.

    No model is opened. Any other folder or URL can be named too; `toolscout encoder check` says whether it works.
    """
    found = list(_known())
    if format == "json":
        output.print_json(found)
        return
    table = output.table("", "encoder", "name", "kind", "dimension", "parameters", "size", grow="encoder")
    for row in found:
        numbers = ("" if row[key] is None else f"{row[key]:,}" for key in ("dimension", "parameters"))
        size = "" if row["bytes"] is None else _megabytes(row["bytes"])
        texts = (output.shown(row[key] or "") for key in ("encoder", "name", "kind"))
        table.add_row("*" if row["default"] else "", *texts, *numbers, size)
    output.stdout().print(table)
    output.stdout().print("* is the default: that of the package, or the one that TOOLSCOUT_ENCODER names")


def check(
    encoder: Annotated[str, typer.Argument(metavar="ENCODER", help=_ABOUT)],
    format: FormatOption = "table",
) -> None:
    """Open an encoder, encode texts with it, and say what it is and what it costs on this machine.

    Exit code 2 where it cannot be used.
    """
    from toolscout.evaluation import encoder_measures as measures

    opened = _open(encoder)
    with output.stderr().status("encoding …"):
        cost = measures.cost(opened)
    facts = {
        "encoder": encoder,
        **opened.details(),
        "folder": str(opened.folder) if opened.folder else None,
        "dimension": opened.dimension,
        "parameters": opened.parameters or None,
        "fingerprint": opened.fingerprint,
        "request_ms": round(cost.request_ms, 3),
        "documents_s": round(cost.documents_s, 2),
        "vector_bytes": {str(tools): measures.vector_bytes(opened.dimension, tools) for tools in _TOOLS},
    }
    if format == "json":
        output.print_json(facts)
        return
    table = output.table("what", "value")
    for key, value in facts.items():
        if isinstance(value, str) and key.endswith("prompt"):
            value = f"“{value}”" if value else "none"
        if value is not None and not isinstance(value, dict):
            table.add_row(_LABELS.get(key, key.replace("_", " ")), output.shown(_number(value)))
    for tools in _TOOLS:
        size = _megabytes(measures.vector_bytes(opened.dimension, tools))
        table.add_row(f"vectors of {tools:,} tools", size)
    output.stdout().print(table)


def compare(
    encoders: Annotated[list[str], typer.Argument(metavar="ENCODER…", help=_ABOUT)],
    format: FormatOption = "table",
) -> None:
    """Compare encoders on the bundled benchmark: what they cost here, and what each finds by vectors alone.

    So `encoder compare "default?document_tokens=64" "default?document_tokens=256"` compares two lengths of documents.
    R@1 and R@5 are the mean recall of the test split: 455 tools, so a few hundredths are chance. Your own requests say
    more: toolscout evaluate DATA --retriever dense.
    """
    from toolscout.evaluation import encoder_measures as measures

    rows = []
    for name, opened in [(name, _open(name)) for name in encoders]:
        with output.progress() as report:
            found = measures.score(opened, report)
        rows.append(
            {
                "encoder": name,
                "dimension": opened.dimension,
                "parameters": opened.parameters or None,
                "request_ms": round(found.cost.request_ms, 3),
                "documents_s": round(found.cost.documents_s, 2),
                "recall@1": round(found.recall_1, 4),
                "recall@5": round(found.recall_5, 4),
                "fingerprint": opened.fingerprint,
            }
        )
    if format == "json":
        output.print_json(rows)
        return
    table = output.table("encoder", "dimension", "ms a request", "s per 1,000 documents", "R@1", "R@5", grow="encoder")
    for row in rows:
        costs = f"{row['request_ms']:.2f}", f"{row['documents_s']:.2f}"
        scores = f"{row['recall@1']:.3f}", f"{row['recall@5']:.3f}"
        table.add_row(output.shown(str(row["encoder"])), f"{row['dimension']:,}", *costs, *scores)
    output.stdout().print(table)


_LABELS = {
    "request_ms": "ms a request",
    "documents_s": "s per 1,000 documents",
    "dimensions": "dimensions asked for",
    "batch": "texts sent at once",
    "price": "price of a million tokens",
    "ceiling": "most that one add may cost",
}


def fit(
    encoder: Annotated[
        str, typer.Argument(metavar="[ENCODER]", help=_ABOUT, show_default="$TOOLSCOUT_ENCODER, else the package's")
    ] = "",
    format: FormatOption = "table",
) -> None:
    """Fit the need head and catalogue fit to an encoder, from texts that come with the package.

    Both belong to an encoder: without them need is not predicted, and fit is computed with another encoder's curve.
    Embedding does this by itself where it takes less than a minute. The result lies in the user's cache.
    """
    from toolscout.search import encoder_fit

    opened = _open(encoder)
    with output.progress() as report:
        done = encoder_fit.fit(opened, report)
    if format == "json":
        output.print_json({**done._asdict(), "folder": str(done.folder)})
        return
    table = output.table("on the bundled dev requests", "share")
    table.add_row("requests for tools that pass as needing one", f"{done.need_passed:.2f}")
    table.add_row("talk that is turned away", f"{done.talk_turned_away:.2f}")
    table.add_row("requests that a tool serves and that are answered", f"{done.fit_answered:.2f}")
    table.add_row("requests that nothing serves and that are turned away", f"{done.hopeless_turned_away:.2f}")
    output.stdout().print(table)
    output.note(f"fitted in {done.seconds:.0f} s; it lies in {done.folder}", label="fitted")


def _open(name: str) -> TextEncoder:
    from toolscout.models.encoders.opening import open_encoder

    with output.stderr().status("opening …"):
        return open_encoder(name)


def _known() -> Iterator[dict[str, Any]]:
    """What `list` shows: one row an encoder, the default one first."""
    from toolscout.models.encoders.onnx_encoder import RAW, REQUEST_FILE, package_folder, raw_encoder_folder
    from toolscout.models.encoders.settings import DEFAULT, FAST, VARIABLE, encoders_folder, split_name

    named = os.environ.get(VARIABLE) or ""
    place = split_name(named)[0]
    if named:
        yield {**_about(place), "encoder": named, "default": True}
    yield {**_about(str(package_folder())), "encoder": DEFAULT, "default": not named}
    if (package_folder() / REQUEST_FILE).is_file() and place != FAST:
        yield {**_about(FAST), "encoder": FAST, "default": False}
    folder = encoders_folder()
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_dir() and not path.name.startswith(".") and path != Path(place):
            shown = RAW if path == raw_encoder_folder() else str(path)
            yield {**_about(str(path)), "encoder": shown, "default": False}


def _about(place: str) -> dict[str, Any]:
    """What is known of an encoder without opening it."""
    from toolscout.models.encoders.onnx_encoder import CARD_FILE, package_folder
    from toolscout.models.encoders.opening import kind_of
    from toolscout.models.encoders.sentence_config import folder_name, read_json_object
    from toolscout.models.encoders.settings import DEFAULT, FAST

    about: dict[str, Any] = dict.fromkeys(("encoder", "name", "kind", "dimension", "parameters", "bytes"))
    folder = package_folder() if place in (DEFAULT, FAST) else Path(place)
    if place.lower().startswith(("http://", "https://")):
        return {**about, "kind": "endpoint"}
    if not folder.is_dir():
        return {**about, "kind": "missing"}
    try:
        about["kind"], card = kind_of(folder), read_json_object(folder / CARD_FILE)
    except ToolscoutError:
        return {**about, "name": folder_name(folder), "kind": "damaged"}
    if place == FAST:
        card["parameters"] = card.get("request_parameters")
    for key in ("dimension", "parameters"):
        about[key] = card[key] if isinstance(card.get(key), int) else None
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return {**about, "name": str(card.get("name", folder_name(folder))), "bytes": size}


def _megabytes(count: int) -> str:
    return f"{count / 1_000_000:,.1f} MB" if count < 10_000_000 else f"{count / 1_000_000:,.0f} MB"


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(value)
