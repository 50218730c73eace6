"""What a model has seen in training: the splits, their requests, and the tools that were gold."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from toolscout.data.dataset import Dataset, request_digest
from toolscout.data.no_tool_prompts import DEV, TRAIN, Prompt
from toolscout.errors import BadModel

TRAINED_ON_FILE = "trained_on.json"

Role = Literal["train", "dev"]


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """A dataset to train on: one of its splits, and one to select on ("" where there is none).

    `history`: if a model wrote the requests, what that model was trained on.
    """

    dataset: Dataset
    train: str = "train"
    dev: str = "dev"
    history: TrainedOn = field(default_factory=lambda: TrainedOn())


@dataclass(frozen=True, slots=True)
class SeenSplit:
    """A split that a model was trained on ("train") or selected on ("dev"), and the digests of its requests."""

    dataset: str
    digest: str
    split: str
    role: Role
    requests: frozenset[str]


@dataclass(frozen=True, slots=True)
class TrainedOn:
    """All that a model has seen: splits with their requests, and digests of the documents that were gold in training.

    A tool whose document is not among `tools` is new to the model. `written`: those that only requests written by a
    language model needed, no request of a person.
    """

    splits: tuple[SeenSplit, ...] = ()
    tools: frozenset[str] = frozenset()
    written: frozenset[str] = frozenset()

    @classmethod
    def of(cls, sets: Sequence[TrainingSet]) -> TrainedOn:
        """What a model has seen after training on these sets."""
        seen = cls()
        for one in sets:
            data = one.dataset
            roles: list[tuple[Role, str]] = [("train", one.train), ("dev", one.dev)]
            splits = [SeenSplit(data.name, data.digest(s), s, role, data.request_digests(s)) for role, s in roles if s]
            by_people, written = (data.gold_tools(one.train, written=by) for by in (False, True))
            needed = by_people | written
            digests = {tool.id: tool.digest() for tool in data.tools if tool.id in needed}
            tools = frozenset(digests.values())
            seen |= cls(tuple(splits), tools, tools - {digests[tool_id] for tool_id in by_people}) | one.history
        return seen

    @classmethod
    def load(cls, folder: Path) -> TrainedOn:
        """Read trained_on.json of a folder; empty where there is none. Raises BadModel where it cannot be read."""
        path = folder / TRAINED_ON_FILE
        if not path.is_file():
            return cls()
        try:
            record = json.loads(path.read_text())
            splits = [SeenSplit(**{**split, "requests": frozenset(split["requests"])}) for split in record["splits"]]
            return cls(tuple(splits), frozenset(record["tools"]), frozenset(record.get("written", ())))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadModel(f"{path} cannot be read ({error}); train the model again") from None

    def __or__(self, other: TrainedOn) -> TrainedOn:
        """What two models together have seen."""
        tools, by_people = self.tools | other.tools, (self.tools - self.written) | (other.tools - other.written)
        return TrainedOn(tuple(dict.fromkeys(self.splits + other.splits)), tools, tools - by_people)

    def save(self, folder: Path) -> None:
        """Write trained_on.json into a model folder."""
        splits = [asdict(split) | {"requests": sorted(split.requests)} for split in self.splits]
        record = {"splits": splits, "tools": sorted(self.tools), "written": sorted(self.written)}
        (folder / TRAINED_ON_FILE).write_text(json.dumps(record) + "\n")


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
