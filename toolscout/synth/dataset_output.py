"""Written requests as a dataset, with a card that says what they are and what became of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from toolscout.core.tool import Tool
from toolscout.data.beir_files import Qrels
from toolscout.data.dataset import WRITTEN, Dataset
from toolscout.errors import BadDataset
from toolscout.retrievers.provenance import TrainedOn
from toolscout.synth.hash_draw import chance
from toolscout.synth.options import SynthOptions

NO_ANSWER = "no answer"
"""Why a request is missing that the model did not write."""
_SAMPLES = 24
_NAMED = 8


@dataclass(frozen=True, slots=True)
class SyntheticRequest:
    """A written request: the `place`-th for the first of its tools; why its tools go together, and its style."""

    text: str
    tools: tuple[str, ...]
    place: int
    kind: str
    style: str


@dataclass(frozen=True, slots=True)
class SyntheticDataset:
    """What was written for a catalogue: the requests that were kept, and how many were not, by reason.

    `seen` is what the model has seen that wrote them, and whoever helped: no split of those requests may judge what
    is trained on these. `usage` is what the language model took, `problem` the last reason why it gave no answer.
    """

    name: str
    tools: Sequence[Tool]
    requests: Sequence[SyntheticRequest]
    dropped: Mapping[str, int]
    options: SynthOptions
    llm: str
    wanted: int
    seen: TrainedOn = field(default_factory=TrainedOn)
    usage: Mapping[str, Any] = field(default_factory=dict)
    retriever: str = ""
    problem: str = ""

    def dataset(self, name: str) -> Dataset:
        """Train and dev by the hash of the texts; metadata say that, for which tool and how each was written."""
        if not self.requests:
            raise BadDataset(f"no request was kept ({_list(self.dropped) or 'none was written'}); {self._advice()}")
        texts, metadata = dict[str, str](), dict[str, Mapping[str, Any]]()
        qrels: dict[str, Qrels] = {"train": {}, "dev": {}}
        for number, one in enumerate(self.requests):
            key = f"s{number}"
            split = "dev" if number and chance(one.text, self.options.seed) < self.options.dev else "train"
            texts[key], qrels[split][key] = one.text, one.tools
            about = {WRITTEN: True, "for": one.tools[0], "place": one.place, "style": one.style}
            metadata[key] = {**about, "combination": one.kind} if one.kind else about
        return Dataset(name, list(self.tools), texts, {split: gold for split, gold in qrels.items() if gold}, metadata)

    def _advice(self) -> str:
        unanswered = f"the model gave no answer: {self.problem or 'it did not say why'}"
        if self.dropped.keys() == {NO_ANSWER}:
            return unanswered
        return f"loosen the filters ({unanswered})" if NO_ANSWER in self.dropped else "loosen the filters"

    def write(self, folder: str | Path) -> Dataset:
        """Write a BEIR folder with all tools of the catalogue, its README.md and what its writer has seen."""
        folder = Path(folder)
        made = self.dataset(folder.resolve().name)
        made.save(folder)
        (folder / "README.md").write_text(self.card(made), encoding="utf-8", errors="replace")
        if self.seen.splits:
            self.seen.save(folder)
        return made

    def card(self, made: Dataset) -> str:
        """The data card."""
        anchors = Counter(one.tools[0] for one in self.requests)
        covered = {tool_id for one in self.requests for tool_id in one.tools}
        words = sorted(len(one.text.split()) for one in self.requests)
        kept, gone = len(self.requests), sum(self.dropped.values())
        seen = [f"{split.dataset} {split.split}" for split in self.seen.splits if split.role == "train"]
        more = f" and {len(seen) - _NAMED} more" if len(seen) > _NAMED else ""
        samples = sorted(self.requests, key=lambda one: chance(one.text, "sample"))[:_SAMPLES]
        lines = [
            f"# {made.name}: requests written by a language model",
            "",
            "Nobody asked these: they are for training, never for measuring. Every request has `synthetic` in its "
            "metadata, the tool it was written `for`, its `style`, and why its tools go together (`combination`).",
            "",
            f"- tools: {len(self.tools):,} of {self.name}; requests for {len(anchors):,} of them, {self.wanted:,} were "
            f"to get some; {len(covered):,} are needed by a request",
            f"- requests: {kept:,} kept of {kept + gone:,} written; "
            + ", ".join(f"{split} {len(gold):,}" for split, gold in made.qrels.items()),
            f"- words in a request: {words[0]} to {words[-1]}, median {words[len(words) // 2]}",
            f"- written by: {self.llm}; round trip: {self.retriever or 'none'}",
            f"- these have seen: {', '.join(seen[:_NAMED])}{more}; all of it is in trained_on.json"
            if self.seen.splits
            else "- these have seen: no requests",
            f"- language model: {_list(self.usage) or 'not counted'}",
            f"- options: {_list(asdict(self.options))}",
            "",
            *_table("not kept", self.dropped),
            *_table("tools in a request", Counter(str(len(one.tools)) for one in self.requests)),
            *_table("combination", Counter(one.kind or "one tool" for one in self.requests)),
            *_table("style", Counter(one.style for one in self.requests)),
            "## Samples",
            "",
            *(f"- {_escaped(one.text)} ({_escaped(', '.join(one.tools))}; {one.style})" for one in samples),
        ]
        return "\n".join(lines) + "\n"


def fewer(data: Dataset, per_tool: int) -> Dataset:
    """A written dataset with the first so many requests for each tool: to see what their number is worth."""
    kept = {
        request_id
        for request_id, about in data.metadata.items()
        if isinstance(about.get("place"), int) and about["place"] < per_tool
    }
    qrels = {split: {key: gold for key, gold in rows.items() if key in kept} for split, rows in data.qrels.items()}
    return replace(
        data,
        requests={key: text for key, text in data.requests.items() if key in kept},
        qrels={split: rows for split, rows in qrels.items() if rows},
        metadata={key: about for key, about in data.metadata.items() if key in kept},
    )


def _table(title: str, counts: Mapping[str, int]) -> list[str]:
    if not counts:
        return []
    rows = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return [f"| {title} | requests |", "|---|---:|", *(f"| {name} | {count:,} |" for name, count in rows), ""]


def _list(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items() if value not in (None, "", {}))


def _escaped(text: str) -> str:
    """Nothing of a catalogue or a model is markup in the card."""
    return "".join(f"\\{sign}" if sign in "\\`*_[]<>|#" else sign for sign in text)
