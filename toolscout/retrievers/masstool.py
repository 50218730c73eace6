"""masstool: dense retrieval, votes of neighbouring requests, and a prediction whether a tool is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from toolscout.models.encoders.base import TextEncoder
from toolscout.retrievers.base import FitProgress, FitReport
from toolscout.retrievers.provenance import TrainingSet
from toolscout.retrievers.tower.fit import fit
from toolscout.retrievers.tower.options import ColtOptions, MasstoolOptions
from toolscout.retrievers.tower.retriever import TowerRetriever


class Masstool(TowerRetriever):
    """Dense retrieval plus votes of neighbouring requests, and a prediction whether a request needs a tool (`need`).

    It is what dev leaves of MassTool for requests and tools that training has not seen. The graph, the attention to
    neighbours and the gate are trained too, but count only where dev is sure of them, which is rare. Untrained, it is
    dense retrieval plus votes. The preset "published" opens masstool_published, the authors' network with their
    settings for ToolLens.
    """

    name: ClassVar[str] = "masstool"
    # The published network ranks by other vectors than this one: no options turn one into the other.
    preset_methods: ClassVar[Mapping[str, tuple[str, tuple[str, ...]]]] = MappingProxyType(
        {"published": ("masstool_published", ())}
    )
    options_kind: ClassVar[type[MasstoolOptions | ColtOptions]] = MasstoolOptions

    def __init__(self, options: MasstoolOptions | None = None, encoder: TextEncoder | None = None) -> None:
        """Start empty; the encoder is opened when it is first needed."""
        super().__init__(options or MasstoolOptions(), encoder)

    def fit(self, data: Sequence[TrainingSet], folder: Path, progress: FitProgress | None = None) -> FitReport:
        """Train both towers on the train splits and on prompts that need no tool; choose and calibrate on dev."""
        return fit(self, self.options, self.options.no_tool, data, folder, progress)
