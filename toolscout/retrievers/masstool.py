"""masstool: first whether a tool is needed, then which: graph, neighbouring requests and a gate between two towers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from toolscout.models.encoders.base import TextEncoder
from toolscout.retrievers.base import FitProgress, FitReport
from toolscout.retrievers.provenance import TrainingSet
from toolscout.retrievers.tower.fit import fit
from toolscout.retrievers.tower.options import ColtOptions, MasstoolOptions
from toolscout.retrievers.tower.retriever import TowerRetriever


class Masstool(TowerRetriever):
    """MassTool in a form that takes requests and tools it never saw: no free vector per request, nothing to retrain.

    Its detection tower forecasts whether a request needs a tool (`need`); its hidden state gates what the retrieval
    tower makes of neighbouring requests. Untrained, it is dense retrieval with a memory.
    """

    name: ClassVar[str] = "masstool"
    options_kind: ClassVar[type[MasstoolOptions | ColtOptions]] = MasstoolOptions

    def __init__(self, options: MasstoolOptions | None = None, encoder: TextEncoder | None = None) -> None:
        """Start empty; the encoder is opened when it is first needed."""
        super().__init__(options or MasstoolOptions(), encoder)

    def fit(self, data: Sequence[TrainingSet], folder: Path, progress: FitProgress | None = None) -> FitReport:
        """Train both towers on the train splits and on prompts that need no tool; choose and calibrate on dev."""
        return fit(self, self.options, self.options.no_tool, data, folder, progress)
