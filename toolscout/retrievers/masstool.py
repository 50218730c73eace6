"""masstool: predicts whether a tool is needed, and ranks tools with a graph, neighbouring requests and a gate."""

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
    """MassTool for requests and tools that training has not seen: it has no learned vector per request.

    The detection tower predicts whether a request needs a tool (`need`); its hidden state gates how much neighbouring
    requests count in the retrieval tower. Untrained, it is dense retrieval plus votes of past requests. The preset
    "published" opens masstool_published, the authors' network with their settings for ToolLens.
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
