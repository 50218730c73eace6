"""Turns the feedback in a store into a dataset: the store's tools, and the requests with the tools that they used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from toolscout.core.answer import Example
from toolscout.core.tool import Tool
from toolscout.data.dataset import Dataset, request_digest, without_corpus_id
from toolscout.errors import BadDataset

SPLIT = "log"


@dataclass(frozen=True, slots=True)
class Exported:
    """The dataset, whose only split is "log", and counts.

    `examples`: number of feedback entries read; `blank`: those without text; `gone`: the tools that they name and the
    catalogue no longer has, with their counts.
    """

    dataset: Dataset
    examples: int
    blank: int
    gone: Counter[str]


def export(name: str, tools: Iterable[Tool], examples: Iterable[Example]) -> Exported:
    """Make a dataset of a store's tools and feedback.

    Entries with equal texts become one request. Its gold tools are those used by at least half of the entries that used
    any tool, or else those used most often. A request without gold is kept outside of the split, since it may have
    needed no tool or a missing one. Its metadata says which tools were rejected, when it was asked, and by which
    tenants. Raises BadDataset where no request has gold.
    """
    kept = [without_corpus_id(tool) for tool in tools]
    known = {tool.id for tool in kept}
    groups: dict[str, list[Example]] = {}
    gone: Counter[str] = Counter()
    read = blank = 0
    for example in examples:
        read += 1
        if not example.request.strip():
            blank += 1
            continue
        groups.setdefault(request_digest(example.request), []).append(example)
        gone.update(tool for tool in dict.fromkeys(example.used + example.rejected) if tool not in known)
    if not read:
        raise BadDataset("nothing is recorded yet; use Scout.feedback or: toolscout feedback REQUEST --used ID")
    gold = {f"{SPLIT}-{digest}": _gold(group, known) for digest, group in groups.items()}
    qrels = {request_id: used for request_id, used in gold.items() if used}
    if not qrels:
        raise BadDataset(
            f"none of the {read} recorded requests used a tool that is still in the catalogue; add the tools again, or "
            "record more with Scout.feedback or: toolscout feedback REQUEST --used ID"
        )
    about = {f"{SPLIT}-{digest}": _about(group, known) for digest, group in groups.items()}
    requests = {f"{SPLIT}-{digest}": group[0].request for digest, group in groups.items()}
    for request_id, used in qrels.items():
        about[request_id]["rejected"] = [tool for tool in about[request_id]["rejected"] if tool not in used]
    return Exported(Dataset(name, kept, requests, {SPLIT: qrels}, dict(about)), read, blank, gone)


def _gold(group: Sequence[Example], known: AbstractSet[str]) -> tuple[str, ...]:
    used = [set(example.used) for example in group if example.used]
    counts = Counter(tool for tools in used for tool in tools & known)
    needed = min(len(used) / 2, max(counts.values(), default=0))
    return tuple(sorted(tool for tool, count in counts.items() if count >= needed))


def _about(group: Sequence[Example], known: AbstractSet[str]) -> dict[str, Any]:
    return {
        "split": SPLIT,
        "times": len(group),
        "first": group[0].time.isoformat(),
        "last": group[-1].time.isoformat(),
        "tenants": sorted({example.tenant for example in group if example.tenant}),
        "sources": sorted({example.source for example in group if example.source}),
        "rejected": sorted({tool for example in group for tool in example.rejected if tool in known}),
    }
