"""The input of writing requests: tools, and the known requests for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from toolscout import stores
from toolscout.core.tool import Tool
from toolscout.data.dataset import Dataset
from toolscout.data.locate import find_split
from toolscout.errors import BadDataset, BadSource
from toolscout.retrievers.provenance import TrainedOn, TrainingSet

Wanted = Literal["all", "new"]
MOST_TOOLS = 3
"""The most tools in a request: of more, a small model forgets some."""


@dataclass(frozen=True, slots=True)
class SynthSource:
    """Tools, and the one split of known requests that may be used, if any."""

    name: str
    tools: Sequence[Tool]
    known: TrainingSet | None = None

    @classmethod
    def open(cls, text: str) -> SynthSource:
        """Read a dataset (DATA: its tools alone; DATA:SPLIT: also that split), a store, or any source of tools."""
        path, url = Path(text), stores.is_url(text)
        if url or (path.is_file() and path.suffix == ".db"):
            with stores.open_store(text) as store:
                return _checked(cls("catalogue" if url else path.stem, list(store.tools())))
        try:
            _, folder, split = find_split(text)
        except BadDataset:
            folder = None
        if folder is None or not (folder / "qrels").is_dir():
            return _checked(cls(path.stem or "catalogue", _read(text, folder)))
        if not split:
            return _checked(cls(folder.resolve().name, Dataset.load(folder, []).tools))
        there = Dataset.split_names(folder)
        split = f"{split}.train" if f"{split}.train" in there else split
        data = Dataset.load(folder, [split])
        return cls(data.name, data.tools, TrainingSet(data, split, "", TrainedOn.load(folder)))

    def requests(self) -> list[tuple[str, tuple[str, ...]]]:
        """The known requests and their tools."""
        if self.known is None:
            return []
        part = self.known.dataset.split(self.known.train)
        return [(text, gold) for (_, text), gold in zip(part.requests, part.gold, strict=True)]

    def anchors(self, wanted: Wanted) -> list[str]:
        """The tools to write for: all, or those without a known request; of equal documents one."""
        if wanted == "new" and self.known is None:
            raise BadDataset("name the split that tells which tools have requests, as in DATA:train")
        asked = {tool_id for _, gold in self.requests() for tool_id in gold} if wanted == "new" else set[str]()
        known = {tool.digest() for tool in self.tools if tool.id in asked}
        first: dict[str, str] = {}
        for tool in self.tools:
            first.setdefault(tool.digest(), tool.id)
        found = sorted(tool_id for digest, tool_id in first.items() if digest not in known)
        if not found:
            raise BadDataset(f"every tool of {self.name} has a request already; write for all of them: --for all")
        return found

    def seen(self) -> TrainedOn:
        """What is seen by whoever is shown known requests."""
        return TrainedOn.of([self.known]) if self.known else TrainedOn()


def size_shares(golds: Sequence[Sequence[str]]) -> dict[str, float]:
    """How many tools requests need; more than are combined count as that many."""
    counts = Counter(str(min(len(set(gold)), MOST_TOOLS)) for gold in golds)
    return {size: round(count / counts.total(), 4) for size, count in sorted(counts.items())}


def _read(text: str, folder: Path | None) -> list[Tool]:
    from toolscout import catalogue

    try:
        return list(catalogue.read(text if folder is None else folder))
    except BadSource as error:
        if folder is not None:
            raise
        raise BadSource(f"{error}; and there is no dataset of that name, neither here nor in $TOOLSCOUT_DATA") from None


def _checked(source: SynthSource) -> SynthSource:
    if not source.tools:
        raise BadSource(f"{source.name} holds no tools; add some first")
    return source
