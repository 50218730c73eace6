"""Reads prompts that need no tool for training, and records them as seen."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from toolscout.data.dataset import request_digest
from toolscout.data.no_tool_prompts import Prompt, read_prompts
from toolscout.errors import BadDataset
from toolscout.retrievers.provenance import SeenSplit, TrainedOn, TrainingSet

TRAIN, DEV = "train", "dev"


def read_negatives(folder: str) -> list[Prompt]:
    """The prompts of the splits train and dev; none where `folder` is "". Raises BadDataset without train prompts."""
    if not folder:
        return []
    prompts = [prompt for prompt in read_prompts(folder) if prompt.split in (TRAIN, DEV)]
    if not any(prompt.split == TRAIN for prompt in prompts):
        raise BadDataset(f"{folder} has no prompts of a split {TRAIN!r} to learn from; name another folder")
    return prompts


def seen_with(data: Sequence[TrainingSet], prompts: Sequence[Prompt], no_tool: str) -> TrainedOn:
    """What a model has seen in training, prompts included: a split that holds one of them may not evaluate it."""
    seen = TrainedOn.of(data)
    for role in (TRAIN, DEV):
        digests = frozenset(request_digest(prompt.text) for prompt in prompts if prompt.split == role)
        if digests:
            name = hashlib.blake2b("".join(sorted(digests)).encode(), digest_size=16).hexdigest()
            part = SeenSplit(no_tool, name, role, "train" if role == TRAIN else "dev", digests)
            seen |= TrainedOn((part,))
    return seen
