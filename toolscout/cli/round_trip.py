"""The round trip of synth: the retriever that has to find a tool again by what was written for it."""

from __future__ import annotations

from collections.abc import Sequence
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
