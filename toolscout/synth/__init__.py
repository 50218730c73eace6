"""Synthetic requests for tools, so that retrievers can be trained without a history of requests."""

from __future__ import annotations

from toolscout.synth.dataset_output import SyntheticDataset, fewer
from toolscout.synth.inputs import SynthSource
from toolscout.synth.options import SynthOptions
from toolscout.synth.writer_training import WriterTrainingOptions, train_synth
from toolscout.synth.writing import RequestWriter, synthesise

__all__ = [
    "RequestWriter",
    "SynthOptions",
    "SynthSource",
    "SyntheticDataset",
    "WriterTrainingOptions",
    "fewer",
    "synthesise",
    "train_synth",
]
