"""The candidates of an evaluation: the tools that are ranked, where those are not all tools of the dataset."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolscout.core.answer import Allowed
from toolscout.data.dataset import Dataset
from toolscout.errors import BadDataset

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Candidates:
    """The ids of the tools that are ranked, and the names of the splits and files that they come from."""

    names: tuple[str, ...]
    ids: frozenset[str]

    @property
    def allowed(self) -> Allowed:
        """Return the candidates as the tools that a search may return."""
        return Allowed.of(ids=self.ids)

    def to_dict(self) -> dict[str, Any]:
        """Return what a row says of the candidates: where they come from, and how many they are."""
        return {"names": list(self.names), "tools": len(self.ids)}

    def digest(self, of_split: str) -> str:
        """Return the digest of a split joined with that of the candidates, so that rows with and without differ."""
        text = "\n".join([of_split, *sorted(self.ids)])
        return hashlib.blake2b(text.encode(errors="replace"), digest_size=16).hexdigest()

    def refuse_outside(self, dataset: Dataset, split: str) -> None:
        """Raise BadDataset where a gold tool of the split is no candidate: it could not be found by any retriever."""
        gold = {tool_id for one in dataset.split(split).gold for tool_id in one}
        outside = sorted(gold - self.ids)
        if outside:
            raise BadDataset(
                f"{len(outside):,} of {len(gold):,} gold tools of {dataset.name} {split} are not among the "
                f"{len(self.ids):,} tools of {', '.join(self.names)}: {_some(outside)}; name the split too (--among "
                f"{split}), or add those tools"
            )


def read_candidates(dataset: Dataset, among: Sequence[str]) -> Candidates:
    """Return the candidates that names stand for: the gold tools of a split, or the tools that a file lists.

    A file has an id on each line, as in the dataset's corpus. Raises BadDataset for a name that is neither a split that
    the dataset was loaded with nor a file, and for a file that lists no tool or an unknown one.
    """
    ids: set[str] = set()
    for name in among:
        ids |= _of_split(dataset, name) if name in dataset.splits else _of_file(dataset, Path(name))
    return Candidates(candidate_names(among), frozenset(ids))


def candidate_names(among: Sequence[str]) -> tuple[str, ...]:
    """Return the names as rows have them: sorted, and files without their folder."""
    return tuple(sorted({Path(name).name for name in among}))


def restricted_variant(variant: str, among: Sequence[str]) -> str:
    """Return the variant of a row whose candidates come from `among`; the variant itself where that is empty."""
    if not among:
        return variant
    label = "+".join(re.sub(r"[^A-Za-z0-9_.-]+", "-", name) for name in candidate_names(among))
    return f"among-{label}" + ("" if variant == "default" else f"_{variant}")


def names_in(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return where a row's candidates come from; () where all tools of the dataset were ranked."""
    return tuple((row.get("among") or {}).get("names") or ())


def _of_split(dataset: Dataset, split: str) -> set[str]:
    return {tool_id for gold in dataset.split(split).gold for tool_id in gold}


def _of_file(dataset: Dataset, path: Path) -> set[str]:
    if not path.is_file():
        raise BadDataset(
            f"{str(path)!r:.80} is neither a split of {dataset.name} nor a file; name a split, or a file with the id "
            "of a tool on each line"
        )
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadDataset(f"{path} cannot be read ({error}); write the id of a tool on each line") from None
    listed = {line.strip() for line in lines} - {""}
    if not listed:
        raise BadDataset(f"{path} lists no tools; write the id of a tool on each line")
    corpus_ids = dataset.corpus_ids()
    known = {**{tool_id: tool_id for tool_id in corpus_ids}, **{one: tool_id for tool_id, one in corpus_ids.items()}}
    unknown = sorted(listed - known.keys())
    if unknown:
        raise BadDataset(
            f"{path} lists {len(unknown):,} ids that {dataset.name} has no tool of: {_some(unknown)}; write the ids of "
            "its corpus"
        )
    return {known[one] for one in listed}


def _some(ids: Sequence[str]) -> str:
    return ", ".join(f"{one!r:.60}" for one in ids[:_SHOWN]) + (", …" if len(ids) > _SHOWN else "")
