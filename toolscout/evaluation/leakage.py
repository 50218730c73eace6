"""Keeps test data apart from training data: finds requests that a model has seen, and tools that are new to it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from toolscout.data.dataset import Dataset, request_digest
from toolscout.errors import Leak
from toolscout.models.encoders.base import TextEncoder
from toolscout.models.rerankers.base import Reranker
from toolscout.retrievers.provenance import TrainedOn

_ROLES = {"train": "trained on", "dev": "selected on"}
_UNSEEN_TOOLS = "unseen_tool."
JOINT = "+"
"""Separates split and prompts in the name of a mixed split, which must not be taken for the split alone."""


def seen_ids(dataset: Dataset, split: str, seen: TrainedOn) -> list[str]:
    """Return the ids of a split's requests that a model was trained or selected on, in whatever dataset."""
    known = frozenset[str]().union(*(one.requests for one in seen.splits))
    asked = dataset.split(split).requests + dataset.goldless(split)
    return [request_id for request_id, text in asked if request_digest(text) in known] if known else []


def refuse_seen(dataset: Dataset, split: str, seen: TrainedOn, droppable: bool = False) -> None:
    """Raise Leak, naming the training data, where a split shares requests with what a model has seen.

    `droppable`: the message also names the option that leaves such requests out.
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
    """Return the dataset without these requests in the split; raises Leak where no request is left."""
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
    """Return the split that a split with mixed-in prompts was made from; any other name unchanged."""
    return split.partition(JOINT)[0]


def sibling(split: str) -> str | None:
    """Return the training split that belongs to a split of unseen tools; None for other splits."""
    split = base(split)
    if split.startswith(_UNSEEN_TOOLS):
        train = _UNSEEN_TOOLS + "train"
        return None if split == train else train
    return "train" if split == "test_unseen" else None


def new_tools(dataset: Dataset, split: str, seen: TrainedOn) -> frozenset[str] | None:
    """Return the gold tools of a split that are new to a model; None where the two are not distinguished.

    On a split of unseen tools these are the tools missing from its training split, without those the model was trained
    on otherwise. On any other split they are the tools that a trained model was not trained on. A tool with only
    synthetic training requests counts as new.
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


def reranker_history(reranker: Reranker | None) -> TrainedOn:
    """Return what a retriever's reranker was trained on; nothing where its folder does not say.

    That of the package was trained on what the package's encoder was trained on.
    """
    folder = reranker.folder if reranker else None
    if folder is None:
        return TrainedOn()
    # Imported here: ONNX Runtime takes a while to load.
    from toolscout.models.encoders.onnx_encoder import package_folder
    from toolscout.models.rerankers import opening

    return TrainedOn.load(package_folder() if folder == opening.package_folder() else folder)


def encoder_history(encoder: TextEncoder | None) -> TrainedOn:
    """Return what a retriever's encoder was trained on; nothing where its folder does not say."""
    folder = encoder.folder if encoder else None
    return TrainedOn.load(folder) if isinstance(folder, Path) else TrainedOn()
