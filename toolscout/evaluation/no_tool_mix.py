"""Mixes prompts that need no tool into a split, to measure which methods can tell the two apart."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toolscout.data.dataset import Dataset, request_digest
from toolscout.data.locate import find_dataset
from toolscout.data.no_tool_prompts import Prompt, read_prompts
from toolscout.errors import BadDataset
from toolscout.evaluation.leakage import JOINT

DEFAULT_SPLIT = "test"


@dataclass(frozen=True, slots=True)
class Mixture:
    """Prompts to mix in, their name in a row, and the text that names them on the command line."""

    label: str
    prompts: tuple[Prompt, ...]
    words: str

    def into(self, dataset: Dataset, split: str) -> tuple[Dataset, str]:
        """Return the dataset with a new split, made of the given split and these prompts, and the new split's name.

        A prompt that is also a request of the split is left out; raises BadDataset where no prompt is left.
        """
        name = f"{split}{JOINT}{self.label}"
        request_digests_of_split = dataset.request_digests(split)
        added = {
            f"{self.label}:{prompt.id}": prompt.text
            for prompt in self.prompts
            if request_digest(prompt.text) not in request_digests_of_split
        }
        if not added:
            raise BadDataset(f"every prompt of {self.words} is also a request of {dataset.name} {split}; name others")
        about: dict[str, Mapping[str, Any]] = {
            request_id: {**known, "split": name} if known.get("split") == split else known
            for request_id, known in dataset.metadata.items()
        }
        about |= {request_id: {"expects": "no_tool", "split": name} for request_id in added}
        qrels = {key: gold for key, gold in dataset.qrels.items() if key != split} | {name: dataset.qrels[split]}
        return replace(dataset, requests={**dataset.requests, **added}, qrels=qrels, metadata=about), name


def read_mixture(text: str) -> Mixture:
    """Read prompts from NAME[:SPLIT[:SOURCE]]; NAME is a folder, or one in $TOOLSCOUT_DATA; SPLIT is "test" by default.

    Raises BadDataset where there are no such prompts.
    """
    name, split, source = _parts(text)
    folder = find_dataset(name)
    found = [prompt for prompt in read_prompts(folder, split) if source in ("", prompt.source)]
    if not found:
        known = ", ".join(sorted({prompt.source for prompt in read_prompts(folder, split)}))
        raise BadDataset(f"{folder} has no source {source!r} in {split}; it has: {known}")
    called = [folder.resolve().name, split, *([source] if source else [])]
    label = ".".join(re.sub(r"[^A-Za-z0-9_.-]+", "-", part) for part in called)
    words = ":".join([Path(name).name, split, *([source] if source else [])])
    return Mixture(label, tuple(found), words)


def prompt_texts(split: str) -> dict[str, str]:
    """Return the texts of the prompts in a mixed split, by id; {} where the prompts are not found."""
    _, _, label = split.partition(JOINT)
    name, _, part = label.partition(".")
    try:
        found = read_prompts(find_dataset(name)) if label else []
    except BadDataset:
        return {}
    return {f"{label}:{one.id}": one.text for one in found if part.startswith(one.split)}


def _parts(text: str) -> tuple[str, str, str]:
    name, *rest = [text] if Path(text).is_dir() else text.split(":")
    if not name or len(rest) > 2 or not all(rest):
        raise BadDataset(f"{text!r} cannot be read; write FOLDER, FOLDER:SPLIT or FOLDER:SPLIT:SOURCE")
    split, source = (*rest, "", "")[:2]
    return name, split or DEFAULT_SPLIT, source
