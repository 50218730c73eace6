"""What the commands that have texts written share: the retriever that has to find a tool again, and the counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from toolscout.cli import output

if TYPE_CHECKING:
    from toolscout.core.tool import Tool
    from toolscout.models.encoders.onnx_encoder import Encoder
    from toolscout.retrievers.base import Retriever
    from toolscout.retrievers.provenance import TrainedOn


def encoder_here() -> Encoder | None:
    """The default encoder; None, which is said, where there is none."""
    from toolscout.errors import MissingEncoder
    from toolscout.models.encoders.onnx_encoder import Encoder

    try:
        return Encoder.load()
    except MissingEncoder:
        output.note("there is no sentence encoder, so tools are not combined by their meaning")
        return None


def judge_of(name: str, tools: Sequence[Tool], report: output.Report | None) -> tuple[Retriever, TrainedOn]:
    """Open the retriever that checks written requests, index the tools in it, and return it with what it has seen."""
    from toolscout.evaluation.evaluate import seen_by
    from toolscout.evaluation.vector_cache import encoder_of, tool_vectors
    from toolscout.retrievers.opening import open_retriever

    opened, _ = open_retriever(name)
    opened.remove(opened.ids())
    encoder = encoder_of(opened)
    if encoder is None:
        opened.add(tools)
    else:
        rows = tool_vectors(tools, encoder, progress=report)
        opened.add(tools, {tool.digest(): row for tool, row in zip(tools, rows, strict=True)})
    return opened, seen_by(name, opened)


def print_counts(title: str, kept: Mapping[str, int], dropped: Mapping[str, int], problem: str) -> None:
    """Print how many texts were kept and dropped, and why the model gave no answer, if it gave none to some."""
    table = output.table(title, "")
    table.columns[1].justify = "right"
    for what, count in ({**kept} | {f"left out: {why}": count for why, count in dropped.items()}).items():
        table.add_row(what, f"{count:,}")
    output.stdout().print(table)
    if problem:
        output.note(f"the model gave no answer to some: {problem}")
