"""The command `encoder export`: make the int8 sentence encoder from published weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from toolscout.cli import output


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
) -> None:
    """Make the int8 encoder that serves, out of published weights."""
    from toolscout.models.encoders.export import export as write
    from toolscout.models.encoders.onnx_encoder import Encoder

    with output.stderr().status("exporting …"):
        encoder = Encoder.load(write(source, out))
    output.stdout().print(output.shown(f"{encoder.folder}"), soft_wrap=True)
    output.note(f"{encoder.name}, fingerprint {encoder.fingerprint}")
