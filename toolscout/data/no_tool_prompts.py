"""Prompts that need no tool, read from prompts.jsonl, to train and measure the detection of tool need."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from toolscout.data import beir_files as files
from toolscout.errors import BadDataset

TRAIN, DEV = "train", "dev"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt that needs no tool; `source` names the collection it comes from."""

    id: str
    text: str
    split: str
    source: str


def read_prompts(folder: str | Path, split: str | None = None) -> list[Prompt]:
    """Read a folder's prompts.jsonl (or .gz): `_id`, `text`, `split`, `source`; all of them, or one split's."""
    path = files.find(Path(folder), files.PROMPTS)
    if path is None:
        raise BadDataset(f"{folder} holds no {files.PROMPTS} (or .gz); name a folder of prompts that need no tool")
    prompts = []
    for number, prompt_id, row in files.rows(path):
        text, name, source = row.get("text"), row.get("split"), row.get("source", "")
        if not isinstance(text, str) or not text.strip():
            raise BadDataset(f"{path} line {number}: prompt {prompt_id} needs a text that is not empty")
        if not isinstance(name, str) or not name or not isinstance(source, str):
            raise BadDataset(f"{path} line {number}: prompt {prompt_id} needs a split and a source, both text")
        prompts.append(Prompt(prompt_id, text, name, source))
    splits = {prompt.split for prompt in prompts}
    if not prompts:
        raise BadDataset(f"{path} holds no prompts")
    if split is not None and split not in splits:
        raise BadDataset(f"{path} has no split {split!r}; it has: {', '.join(sorted(splits))}")
    return [prompt for prompt in prompts if split in (None, prompt.split)]


def read_negatives(folder: str) -> list[Prompt]:
    """The prompts of the splits train and dev; none where `folder` is "". Raises BadDataset without train prompts."""
    if not folder:
        return []
    prompts = [prompt for prompt in read_prompts(folder) if prompt.split in (TRAIN, DEV)]
    if not any(prompt.split == TRAIN for prompt in prompts):
        raise BadDataset(f"{folder} has no prompts of a split {TRAIN!r} to learn from; name another folder")
    return prompts
