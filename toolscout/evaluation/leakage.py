"""What a model has seen before: requests that may not judge it, and tools that are new to it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from toolscout.data.dataset import Dataset, request_digest
from toolscout.errors import Leak
from toolscout.models.encoders.base import TextEncoder
from toolscout.retrievers.provenance import TrainedOn

_ROLES = {"train": "trained on", "dev": "selected on"}
_UNSEEN_TOOLS = "unseen_tool."
JOINT = "+"
"""Stands in the name of a mixed split between the split and its prompts, so that it is never taken for the split."""


def seen_ids(dataset: Dataset, split: str, seen: TrainedOn) -> list[str]:
    """The ids of the requests of a split that a model was trained or selected on, whatever dataset they came in."""
    known = frozenset[str]().union(*(one.requests for one in seen.splits))
    asked = dataset.split(split).requests + dataset.goldless(split)
    return [request_id for request_id, text in asked if request_digest(text) in known] if known else []


def refuse_seen(dataset: Dataset, split: str, seen: TrainedOn, droppable: bool = False) -> None:
    """Refuse a split that shares requests with what a model has seen, and say with what.

    `droppable`: the caller can leave such requests out where it is asked to.
    """
    shared = seen_ids(dataset, split, seen)
    if not shared:
        return
    digests = {request_digest(dataset.requests[request_id]) for request_id in shared}
    where = [
        f"{len(digests & one.requests):,} of {one.dataset} {one.split} ({_ROLES[one.role]})"
        for one in seen.splits
        if digests & one.requests
    ]
    total = len(dataset.split(split)) + len(dataset.goldless(split))
    drop = ", or leave those requests out with --drop-seen (drop_seen=True)" if droppable else ""
    raise Leak(
        f"{dataset.name} {split} shares {len(shared):,} of its {total:,} requests with what the model has seen: "
        f"{', '.join(where)}; evaluate on another split{drop}"
    )


def without(dataset: Dataset, split: str, ids: Collection[str]) -> Dataset:
    """The dataset with some requests left out of a split."""
    left_out = frozenset(ids)
    if not left_out:
        return dataset
    kept = {request_id: gold for request_id, gold in dataset.qrels[split].items() if request_id not in left_out}
    if not kept:
        raise Leak(f"the model has seen every request of {dataset.name} {split}; evaluate on another split")
    about = {
        request_id: {key: value for key, value in known.items() if key != "split"} if request_id in left_out else known
        for request_id, known in dataset.metadata.items()
    }
    return replace(dataset, qrels={**dataset.qrels, split: kept}, metadata=about)


def base(split: str) -> str:
    """The split that a mixed one was made of; any other is its own."""
    return split.partition(JOINT)[0]


def sibling(split: str) -> str | None:
    """The split that tells which tools of this one could have been seen in training; None where there is none."""
    split = base(split)
    if split.startswith(_UNSEEN_TOOLS):
        train = _UNSEEN_TOOLS + "train"
        return None if split == train else train
    return "train" if split == "test_unseen" else None


def new_tools(dataset: Dataset, split: str, seen: TrainedOn) -> frozenset[str] | None:
    """The gold tools of a split that are new; None where new and known are not told apart.

    On a split of unseen tools they are those that its training split does not have, less what the model was trained on
    all the same. On any other split they are those that a trained model was not trained on. A tool for which there were
    only requests that a language model wrote is new: nobody had asked for it.
    """
    train = sibling(split)
    if train is not None and train in dataset.splits:
        new = dataset.new_tools(train, split)
    elif seen.tools:
        new = frozenset(tool_id for gold in dataset.split(split).gold for tool_id in gold)
    else:
        return None
    asked = seen.tools - seen.written
    known = {tool.id for tool in dataset.tools if tool.id in new and tool.digest() in asked} if asked else ()
    return new.difference(known) or None


def encoder_history(encoder: TextEncoder | None) -> TrainedOn:
    """What the encoder of a retriever was trained on, where its folder says so."""
    folder = encoder.folder if encoder else None
    return TrainedOn.load(folder) if isinstance(folder, Path) else TrainedOn()
