"""Requests written for tools that have none, so that everything else can be trained without a history of requests."""

from __future__ import annotations

from toolscout.synth.dataset_output import Synthetic, fewer
from toolscout.synth.inputs import Source
from toolscout.synth.options import SynthOptions
from toolscout.synth.writer_training import SynthTraining, train_synth
from toolscout.synth.writing import Writer, synthesise

__all__ = ["Source", "SynthOptions", "SynthTraining", "Synthetic", "Writer", "fewer", "synthesise", "train_synth"]
