"""Requests written for tools that have none, so that everything else can be trained without a history of requests."""

from __future__ import annotations

from toolscout.synth.learning import SynthTraining, train_synth
from toolscout.synth.options import SynthOptions
from toolscout.synth.source import Source
from toolscout.synth.writing import Writer, synthesise
from toolscout.synth.written import Synthetic, fewer

__all__ = ["Source", "SynthOptions", "SynthTraining", "Synthetic", "Writer", "fewer", "synthesise", "train_synth"]
