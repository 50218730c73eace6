"""How well "is a tool needed?" is answered: what to train and to test on, and the numbers of a forecast.

A collection is a dataset of requests or a source of prompts. Each of them is left out of training once and is then what
is tested on: a forecast that only knows how a collection sounds fails there, and nowhere else.
"""

from __future__ import annotations

import json
from collections.abc import Collection as Anything
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from toolscout.core.arrays import Doubles
from toolscout.data import metrics
from toolscout.data.dataset import Dataset, request_digest
from toolscout.data.locate import find_dataset
from toolscout.data.no_tool_prompts import read_prompts
from toolscout.errors import BadDataset
from toolscout.evaluation import significance

PAIRS = Path(__file__).resolve().parent.parent / "toolscout" / "bundled" / "need_pairs.jsonl"
"""Pairs of a request that needs a tool and one in nearly the same words that needs none. To test on, nothing else."""
# Train, dev and test splits. What has no train split is cut: one in five of its dev requests stay dev.
TOOL_SETS: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "toollens": ("train", "dev", ("test",)),
    "toolbench-g3": ("train", "dev", ("test",)),
    "ultratool": ("train", "dev", ("test",)),
    "sealtools": ("", "dev", ("test_in", "test_out")),
    "simpletoolquestions": ("train", "dev", ("test", "test_unseen")),
}
PROMPTS, TOOLDET, TOOLDET_SPLIT = "no_tool", "ToolDet_neg_test", "tooldet_test"
ENOUGH = 100
"""A source with fewer test prompts is trained on but never left out."""
MOST_TRAIN, MOST_DEV = 3_000, 500
RESAMPLES = 1_000
BUNDLED = "bundled"


@dataclass(frozen=True, slots=True)
class Collection:
    """Texts of one origin, all of which need a tool or all of which need none; each part in the order of its hashes."""

    name: str
    need: bool
    train: tuple[str, ...]
    dev: tuple[str, ...]
    test: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Item:
    """One text to forecast. `catalogue`: the dataset whose tools are at hand; items of one `scene` go together."""

    text: str
    need: bool
    catalogue: str
    scene: str


@dataclass(frozen=True, slots=True)
class NeedTrial:
    """What is tested, and what must not have been trained on for it.

    `part`: "left out", "tooldet", "bundled", "pairs" or "pooled". `dataset` and `split` name it in a row.
    """

    part: str
    dataset: str
    split: str
    items: tuple[Item, ...]
    left_out: str = ""

    def digest(self) -> str:
        """Identifies the texts and their labels."""
        told = sorted([item.text, item.need, item.catalogue] for item in self.items)
        return request_digest(json.dumps(told))

    def without(self, seen: Anything[str]) -> NeedTrial:
        """Without the texts that a model has seen; of a pair both go."""
        gone = {item.scene for item in self.items if request_digest(item.text) in seen}
        return replace(self, items=tuple(item for item in self.items if item.scene not in gone)) if gone else self

    def among(self, known: Anything[str]) -> NeedTrial:
        """Only texts with these digests, as many that need a tool as that do not where all are not known."""
        found = [item for item in self.items if request_digest(item.text) in known]
        if len(found) == len(self.items):
            return self
        least = min(sum(item.need for item in found), sum(not item.need for item in found))
        taken = [item for need in (True, False) for item in [one for one in found if one.need == need][:least]]
        return replace(self, items=tuple(taken))


def tool_collections(names: Iterable[str] = tuple(TOOL_SETS)) -> list[Collection]:
    """The requests of the datasets, which all need tools."""
    found = []
    for name in names:
        train, dev, tests = TOOL_SETS[name]
        dataset = Dataset.load(find_dataset(name), [split for split in (train, dev, *tests) if split])

        def texts(split: str, dataset: Dataset = dataset) -> list[str]:
            return [text for _, text in dataset.split(split).requests] if split else []

        tested = [text for split in tests for text in texts(split)]
        parts = (texts(train), texts(dev)) if train else _cut(texts(dev))
        found.append(_collection(name, True, *parts, tested))
    return _apart(found)


def prompt_collections(folder: Path) -> list[Collection]:
    """The sources of a folder of prompts, none of which needs a tool."""
    sources: dict[str, dict[str, list[str]]] = {}
    for prompt in read_prompts(folder):
        part = "test" if prompt.split == TOOLDET_SPLIT else prompt.split
        sources.setdefault(prompt.source, {}).setdefault(part, []).append(prompt.text)
    made = [
        _collection(name, False, parts.get("train", []), parts.get("dev", []), parts.get("test", []))
        for name, parts in sources.items()
    ]
    return _apart(made)


def _cut(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    ordered = _hashed(texts)
    return ordered[len(ordered) // 5 :], ordered[: len(ordered) // 5]


def _collection(name: str, need: bool, train: Sequence[str], dev: Sequence[str], test: Sequence[str]) -> Collection:
    cut = (_hashed(train)[:MOST_TRAIN], _hashed(dev)[:MOST_DEV], _hashed(test))
    return Collection(name, need, *map(tuple, cut))


def _hashed(texts: Iterable[str]) -> list[str]:
    """Each text once, in the order of their hashes: any beginning of it is a random sample."""
    unique = {request_digest(text): text for text in texts}
    return [unique[digest] for digest in sorted(unique)]


def _apart(found: Sequence[Collection]) -> list[Collection]:
    """Nothing is trained or selected on that is tested somewhere."""
    tested = {request_digest(text) for one in found for text in one.test}
    return [
        replace(one, train=_less(one.train, tested), dev=_less(one.dev, tested | set(map(request_digest, one.train))))
        for one in found
    ]


def _less(texts: Iterable[str], digests: Anything[str]) -> tuple[str, ...]:
    return tuple(text for text in texts if request_digest(text) not in digests)


def trials(tools: Sequence[Collection], prompts: Sequence[Collection]) -> Iterator[NeedTrial]:
    """All that is tested, the headline first: as many texts that need a tool as that do not, evenly out of each origin.

    The bundled benchmark and the pairs are as they are.
    """
    chat = [one for one in prompts if one.name != TOOLDET and one.test]
    for source in (one for one in chat if len(one.test) >= ENOUGH):
        split = f"test+{PROMPTS}.test.{source.name}"
        yield NeedTrial("left out", "all", split, balanced(tools, [source]), left_out=source.name)
    for dataset in tools:
        yield NeedTrial(
            "left out", dataset.name, f"test+{PROMPTS}.test", balanced([dataset], chat), left_out=dataset.name
        )
    for hard in (one for one in prompts if one.name == TOOLDET):
        for dataset in tools:
            yield NeedTrial("tooldet", dataset.name, f"test+{PROMPTS}.{TOOLDET_SPLIT}", balanced([dataset], [hard]))
    yield bundled_trial()
    yield pairs_trial()
    yield NeedTrial("pooled", "all", f"test+{PROMPTS}.test", balanced(tools, chat))


def balanced(tools: Sequence[Collection], prompts: Sequence[Collection]) -> tuple[Item, ...]:
    """As many test texts of both kinds, evenly out of each collection; prompts meet the catalogues in turn."""
    needed, unneeded = _evenly(tools), _evenly(prompts)
    size = min(len(needed), len(unneeded))
    found = [Item(text, True, name, text) for name, text in needed[:size]]
    catalogues = [name for name, _ in needed[:size]]
    # In another order than the requests: else a source would always meet the same catalogue.
    turn = np.random.default_rng(0).permutation(size)
    return (*found, *(Item(text, False, catalogues[turn[i]], text) for i, (_, text) in enumerate(unneeded[:size])))


def _evenly(found: Sequence[Collection]) -> list[tuple[str, str]]:
    """Name and text in turn out of each; what has fewer than the others is used up first."""
    longest = max((len(one.test) for one in found), default=0)
    return [(one.name, one.test[at]) for at in range(longest) for one in found if at < len(one.test)]


def bundled_trial(split: str = "test") -> NeedTrial:
    """The bundled benchmark: what nothing fits needs a tool all the same."""
    dataset = Dataset.load(find_dataset(BUNDLED), [split])
    asked = dataset.split(split).requests + dataset.goldless(split)
    items = [Item(text, dataset.kind(key) != "no_tool", BUNDLED, dataset.scene(key)) for key, text in asked]
    return NeedTrial("bundled", BUNDLED, split, tuple(items))


def pairs_trial(path: Path = PAIRS) -> NeedTrial:
    """The minimal pairs; the scene of both texts is their pair."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return NeedTrial(
        "pairs", BUNDLED, "need_pairs", tuple(Item(row["text"], row["need"], BUNDLED, row["pair"]) for row in rows)
    )


@dataclass(frozen=True, slots=True)
class Judged:
    """The numbers of one forecast on one trial, and 95 % intervals of some of them."""

    metrics: dict[str, float]
    intervals: dict[str, list[float]]


def judged(trial: NeedTrial, chances: Sequence[float] | Doubles, served: float | None = None) -> Judged:
    """AUROC, F1, accuracy, Brier and ECE of probabilities; of pairs also both right, and the right one above.

    `served`: the threshold that is served, where the share of requests let through and of prompts turned away is
    wanted too.
    """
    truth, value = np.array([item.need for item in trial.items]), np.asarray(chances, dtype=np.float64)
    if len(truth) == 0 or truth.all() or not truth.any():
        raise BadDataset(f"{trial.dataset} {trial.split} lacks texts of one kind; it cannot be judged")
    found = {
        "need_auroc": metrics.auroc(truth, value),
        "need_f1": metrics.f1(truth, value),
        "need_accuracy": metrics.accuracy(truth, value),
        "need_brier": metrics.brier(truth, value),
        "need_ece": metrics.ece(truth, value),
    }
    right = (value >= 0.5) == truth
    columns = {"need_accuracy": right.astype(float), "need_brier": (value - truth) ** 2}
    if served is not None:
        columns["need_let_through"] = np.where(truth, value >= served, np.nan)
        columns["need_turned_away"] = np.where(truth, np.nan, value < served)
    if trial.part == "pairs":
        columns |= _paired(trial, truth, value, right)
    scenes = [item.scene for item in trial.items]
    ends = significance.intervals(np.column_stack(list(columns.values())), scenes)
    found |= {name: float(np.nanmean(column)) for name, column in columns.items()}
    intervals = dict(zip(columns, np.round(ends, 6).tolist(), strict=True))
    intervals["need_auroc"] = _auroc_interval(truth, value, scenes)
    return Judged({name: round(number, 6) for name, number in found.items()}, intervals)


def _paired(
    trial: NeedTrial, truth: NDArray[np.bool_], value: Doubles, right: NDArray[np.bool_]
) -> dict[str, NDArray[np.float64]]:
    """For the text that needs a tool: whether its pair is judged right, and whether it stands above the other."""
    both, above = np.full(len(truth), np.nan), np.full(len(truth), np.nan)
    other = {item.scene: at for at, item in enumerate(trial.items) if not item.need}
    for at, item in enumerate(trial.items):
        if item.need:
            twin = other[item.scene]
            both[at] = float(right[at] and right[twin])
            above[at] = float(value[at] > value[twin]) + 0.5 * float(value[at] == value[twin])
    return {"need_pair_accuracy": both, "need_pair_auroc": above}


def _auroc_interval(truth: NDArray[np.bool_], value: Doubles, scenes: Sequence[str]) -> list[float]:
    """Resamples scenes; a sample that lacks one kind is drawn again."""
    rng = np.random.default_rng(0)
    _, scene = np.unique(np.array(scenes, dtype=object).astype(str), return_inverse=True)
    members = [np.flatnonzero(scene == number) for number in range(scene.max() + 1)]
    found: list[float] = []
    while len(found) < RESAMPLES:
        drawn = np.concatenate([members[at] for at in rng.integers(len(members), size=len(members))])
        if truth[drawn].any() and not truth[drawn].all():
            found.append(metrics.auroc(truth[drawn], value[drawn]))
    return [round(float(end), 6) for end in np.quantile(found, [0.025, 0.975])]
