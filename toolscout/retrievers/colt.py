"""colt: mixes the vectors of tools with those of the requests that used them, over a graph."""

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
from toolscout.training.encoder_options import NeighbourOptions

_NO_NEIGHBOURS = NeighbourOptions(neighbours=0, transfer="none", detection=0.0)


class Colt(TowerRetriever):
    """COLT: as masstool without detection, neighbours and the gate, with the same learned temperature.

    The preset "published" opens masstool_published without what MassTool adds to COLT, whose code it grew out of.
    """

    name: ClassVar[str] = "colt"
    preset_methods: ClassVar[Mapping[str, tuple[str, tuple[str, ...]]]] = MappingProxyType(
        {"published": ("masstool_published", ("neighbours=0", "transfer=none", "weight_detection=0"))}
    )
    options_kind: ClassVar[type[MasstoolOptions | ColtOptions]] = ColtOptions

    def __init__(self, options: ColtOptions | None = None, encoder: TextEncoder | None = None) -> None:
        """Start empty; the encoder is opened when it is first needed."""
        super().__init__(options or ColtOptions(), encoder)

    def fit(self, data: Sequence[TrainingSet], folder: Path, progress: FitProgress | None = None) -> FitReport:
        """Train on the train splits, choose on dev."""
        return fit(self, _NO_NEIGHBOURS, "", data, folder, progress)
