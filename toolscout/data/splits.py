"""Splits labelled requests into three families of train, dev and test: seen, unseen scenes and unseen tools.

A scene is a distinct set of gold tools. "train", "dev" and "test" share scenes; "unseen_scene.*" holds whole scenes
out of training, "unseen_tool.*" every request that uses a held-out tool. The splits do not depend on the order of the
requests: texts, scenes and tools are taken in the order of their hashes, which `seed` changes.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from toolscout.data.beir_files import TOOLLESS, Qrels, write_table
from toolscout.data.dataset import Dataset, request_digest
from toolscout.errors import BadDataset

Part = Literal["train", "dev", "test"]
PARTS: tuple[Part, ...] = ("train", "dev", "test")
HELD_OUT: tuple[Part, Part] = ("test", "dev")
# Held-out shares of scenes and tools, as fractions of the shares of requests that test and dev get.
SCENE_SHARES = {"test": 1.0, "dev": 0.5}
TOOL_SHARES = {"test": 0.8, "dev": 0.4}
MINIMUM = 3
# Order in which to hold out: (its tools stay in training elsewhere, it has few requests).
PREFERENCES = ((True, True), (True, False), (False, True), (False, False))


@dataclass(frozen=True, slots=True)
class SplitCounts:
    """The size of a split. `new_tools`: how many of its tools the train split of its family does not use."""

    split: str
    requests: int
    scenes: int
    tools: int
    new_tools: int


@dataclass(frozen=True, slots=True)
class SplitDataset:
    """A dataset with nine splits, the scenes and tools they hold out, and what was left out.

    `repeated`: by family, requests left out of train or dev because dev or test has the same text. `unlabelled`:
    requests left out of all splits, because they have no gold tools and do not say that they need none. `orphans`:
    tools that were not held out but have no training request left.
    """

    dataset: Dataset
    unseen_scenes: Mapping[str, Part]
    unseen_tools: Mapping[str, Part]
    repeated: Mapping[str, tuple[str, ...]]
    unlabelled: tuple[str, ...]
    orphans: tuple[str, ...]

    def save(self, folder: str | Path) -> None:
        """Write a BEIR folder, and unseen_scenes.tsv and unseen_tools.tsv in it. It must be new or empty."""
        self.dataset.save(folder)
        corpus_ids = self.dataset.corpus_ids()
        held = {corpus_ids[tool_id]: part for tool_id, part in self.unseen_tools.items()}
        write_table(Path(folder) / "unseen_scenes.tsv", ("scene-id", "part"), sorted(self.unseen_scenes.items()))
        write_table(Path(folder) / "unseen_tools.tsv", ("tool-id", "part"), sorted(held.items()))

    def counts(self) -> list[SplitCounts]:
        """Return the size of each split."""
        lines = []
        for name, qrels in self.dataset.qrels.items():
            train = name.removesuffix(name.rpartition(".")[2]) + "train"
            scenes = {frozenset(gold) for gold in qrels.values()}
            new = len(self.dataset.new_tools(train, name))
            lines.append(SplitCounts(name, len(qrels), len(scenes), len(frozenset().union(*scenes)), new))
        return lines


@dataclass(frozen=True, slots=True)
class _Labelled:
    """The requests to split, with gold, scene and digest of the text of each, and what hash orders depend on."""

    gold: Mapping[str, tuple[str, ...]]
    scene_of: Mapping[str, str]
    text_of: Mapping[str, str]
    scenes: Mapping[str, frozenset[str]]
    corpus_ids: Mapping[str, str]
    seed: int

    def hashed(self, what: str, keys: Iterable[str]) -> list[str]:
        """Return the keys in the order of their hashes; `what` is part of the hash."""
        return sorted(keys, key=lambda key: (self._hash(what, key), key))

    def hashed_scenes(self) -> list[str]:
        """Return the scene ids in the order of the hashes of their tools."""
        named = {
            json.dumps(sorted(self.corpus_ids[tool] for tool in tools)): scene for scene, tools in self.scenes.items()
        }
        return [named[key] for key in self.hashed("scene", named)]

    def hashed_tools(self) -> list[str]:
        """Return the gold tools in the order of the hashes of their corpus ids."""
        named = {self.corpus_ids[tool]: tool for tools in self.scenes.values() for tool in tools}
        return [named[key] for key in self.hashed("tool", named)]

    def _hash(self, what: str, key: str) -> bytes:
        return hashlib.blake2b(f"{self.seed}\n{what}\n{key}".encode(errors="replace"), digest_size=8).digest()


def cut(data: Dataset, split: str | None = None, *, seed: int = 0, test: float = 0.1, dev: float = 0.1) -> SplitDataset:
    """Split all labelled requests of a dataset, or those of one split; `test` and `dev` are shares of the requests.

    SCENE_SHARES and TOOL_SHARES give the shares of scenes and tools held out. Raises BadDataset where there are too few
    requests, scenes or tools.
    """
    if not (test > 0 and dev > 0 and test + dev < 1):
        raise BadDataset(f"test and dev must be above 0 and together below 1, got {test:g} and {dev:g}")
    gold = _pooled(data, split)
    labelled = _labelled(data, gold, seed)
    _refuse_too_little(data.name, labelled)
    goldless, unlabelled = _goldless(data, split)
    parts = _seen(labelled, goldless, test, dev)
    scenes = _held_scenes(labelled, test, dev)
    tools = _held_tools(data.name, labelled, test, dev)
    qrels: dict[str, Qrels] = {}
    repeated: dict[str, tuple[str, ...]] = {}
    rules: dict[str, Callable[[str], Part]] = {
        "": lambda request: parts[request],
        "unseen_scene.": lambda request: scenes.get(labelled.scene_of[request], "train"),
        "unseen_tool.": lambda request: _latest(tools.get(tool, "train") for tool in gold[request]),
    }
    for family, rule in rules.items():
        assigned = {request: rule(request) for request in gold}
        repeated[family.rstrip(".")] = again = _repeated(labelled, assigned)
        for part in PARTS:
            members = {key: gold[key] for key, its_part in assigned.items() if its_part == part and key not in again}
            if not members:
                raise BadDataset(
                    f"{data.name}: {family}{part} would be empty, since {len(again)} requests have a text that another "
                    "part has too; add labelled requests"
                )
            qrels[f"{family}{part}"] = members
    trained = {tool for gold_tools in qrels["unseen_tool.train"].values() for tool in gold_tools}
    orphans = {tool for tool_ids in gold.values() for tool in tool_ids} - trained - tools.keys()
    made = _dataset(data, labelled, parts, qrels)
    return SplitDataset(made, scenes, tools, repeated, tuple(unlabelled), tuple(sorted(orphans)))


def _pooled(data: Dataset, split: str | None) -> Qrels:
    """Return the gold of every request that has some; BadDataset where two splits disagree."""
    if split is not None:
        pairs = data.split(split)
        return {request_id: gold for (request_id, _), gold in zip(pairs.requests, pairs.gold, strict=True)}
    gold: Qrels = {}
    for qrels in data.qrels.values():
        for request_id, tools in qrels.items():
            if set(gold.setdefault(request_id, tools)) != set(tools):
                raise BadDataset(
                    f"{data.name}: request {request_id} has other gold tools in another split; name one split"
                )
    return {request_id: gold[request_id] for request_id in data.requests if request_id in gold}


def _goldless(data: Dataset, split: str | None) -> tuple[list[str], list[str]]:
    """Return the requests without gold: those that expect none, and those that do not say so."""
    if split is None:
        with_gold = {request_id for qrels in data.qrels.values() for request_id in qrels}
        bare = [request_id for request_id in data.requests if request_id not in with_gold]
    else:
        bare = [request_id for request_id, _ in data.goldless(split)]
    toolless = [request_id for request_id in bare if data.kind(request_id) in TOOLLESS]
    return toolless, [request_id for request_id in bare if data.kind(request_id) not in TOOLLESS]


def _labelled(data: Dataset, gold: Qrels, seed: int) -> _Labelled:
    """Collect the requests to split. A scene has its published id, else a digest of its tools."""
    corpus_ids = data.corpus_ids()
    published: dict[frozenset[str], str] = {}
    for scene, tools in sorted(data.scenes.items()):
        published.setdefault(frozenset(tools), scene)
    names: dict[frozenset[str], str] = {}
    for tool_set in {frozenset(tools) for tools in gold.values()}:
        key = json.dumps(sorted(corpus_ids[tool] for tool in tool_set))
        own = hashlib.blake2b(key.encode(), digest_size=8).hexdigest()
        names[tool_set] = published.get(tool_set, own)
    return _Labelled(
        gold=gold,
        scene_of={request: names[frozenset(tools)] for request, tools in gold.items()},
        text_of={request: request_digest(text) for request, text in data.requests.items()},
        scenes={name: tool_set for tool_set, name in names.items()},
        corpus_ids=corpus_ids,
        seed=seed,
    )


def _refuse_too_little(name: str, labelled: _Labelled) -> None:
    texts = len({labelled.text_of[request] for request in labelled.gold})
    tools = len(frozenset().union(*labelled.scenes.values()))
    if min(texts, len(labelled.scenes), tools) < MINIMUM:
        raise BadDataset(
            f"{name} has too little to cut: {texts} distinct requests with gold tools, {len(labelled.scenes)} scenes "
            f"(distinct sets of gold tools), {tools} tools in use; at least {MINIMUM} of each are needed, and more "
            "than ten times that for splits that tell anything"
        )


def _quotas(count: int, test: float, dev: float) -> tuple[int, int]:
    """Return how many of `count` go to test and to dev: at least one each, leaving at least one."""
    for_test = min(max(1, round(count * test)), count - 2)
    return for_test, min(max(1, round(count * dev)), count - for_test - 1)


def _spared(
    order: Sequence[str], count: int, tools_of: Mapping[str, frozenset[str]], covering: Counter[str], small: set[str]
) -> list[str]:
    """Return `count` keys, in the order of PREFERENCES: first those whose tools other keys cover, small ones first."""
    taken: dict[str, None] = {}
    for sparing, few in PREFERENCES:
        for key in order:
            fits = not sparing or all(covering[tool] > 1 for tool in tools_of[key])
            if len(taken) < count and key not in taken and fits and (not few or key in small):
                taken[key] = None
                covering.subtract(tools_of[key])
    return list(taken)


def _seen(labelled: _Labelled, goldless: Sequence[str], test: float, dev: float) -> dict[str, Part]:
    """Assign each text to a part, evenly over the scenes. The first text of each scene goes to train where possible.

    Requests that need no tool are spread in the same way.
    """
    scenes_of: dict[str, set[str]] = {}
    for request, scene in labelled.scene_of.items():
        scenes_of.setdefault(labelled.text_of[request], set()).add(scene)
    anchors: dict[str, frozenset[str]] = {}
    covered: set[str] = set()
    order = labelled.hashed("request", scenes_of)
    for text in order:
        if not scenes_of[text] <= covered:
            anchors[text] = frozenset().union(*(labelled.scenes[scene] for scene in scenes_of[text]))
            covered |= scenes_of[text]
    place = {scene: i for i, scene in enumerate(labelled.hashed_scenes())}
    others = sorted(
        (text for text in order if text not in anchors), key=lambda text: min(place[scene] for scene in scenes_of[text])
    )
    for_test, for_dev = _quotas(len(order), test, dev)
    if len(others) < for_test + for_dev:
        covering = Counter(tool for tools in anchors.values() for tool in tools)
        others += _spared(list(anchors), for_test + for_dev - len(others), anchors, covering, set(anchors))
    parts = _held(others, for_test, for_dev)
    bare = labelled.hashed("request", {labelled.text_of[request] for request in goldless} - scenes_of.keys())
    parts |= _held(bare, round(len(bare) * test), round(len(bare) * dev))
    return {request: parts.get(labelled.text_of[request], "train") for request in [*labelled.gold, *goldless]}


def _held(texts: Sequence[str], for_test: int, for_dev: int) -> dict[str, Part]:
    """Choose texts for test and dev at even distances."""
    held = _spread(texts, for_test + for_dev)
    tested = set(_spread(held, for_test))
    return {text: "test" if text in tested else "dev" for text in held}


def _spread(items: Sequence[str], count: int) -> list[str]:
    return [item for i, item in enumerate(items) if (i + 1) * count // len(items) > i * count // len(items)]


def _held_scenes(labelled: _Labelled, test: float, dev: float) -> dict[str, Part]:
    """Choose scenes for test, then for dev, in hash order: first those whose tools all have another scene in training.

    A scene with more requests than the whole part should have is chosen last.
    """
    sizes = Counter(labelled.scene_of.values())
    covering = Counter(tool for tools in labelled.scenes.values() for tool in tools)
    held: dict[str, Part] = {}
    order = labelled.hashed_scenes()
    shares = test * SCENE_SHARES["test"], dev * SCENE_SHARES["dev"]
    for part, share, quota in zip(HELD_OUT, shares, _quotas(len(order), *shares), strict=True):
        small = {scene for scene in order if sizes[scene] <= share * len(labelled.gold)}
        left = [scene for scene in order if scene not in held]
        held |= dict.fromkeys(_spared(left, quota, labelled.scenes, covering, small), part)
    return held


def _held_tools(name: str, labelled: _Labelled, test: float, dev: float) -> dict[str, Part]:
    """Choose tools for test, then for dev, in hash order: first those without which all others stay in training.

    A tool with more requests than the whole part should have is chosen last.
    """
    order = labelled.hashed_tools()
    sizes = Counter(tool for tools in labelled.gold.values() for tool in tools)
    scenes_of: dict[str, set[str]] = {tool: set() for tool in order}
    for scene, tools in labelled.scenes.items():
        for tool in tools:
            scenes_of[tool].add(scene)
    left = set(labelled.scenes)
    held: dict[str, Part] = {}
    shares = test * TOOL_SHARES["test"], dev * TOOL_SHARES["dev"]
    # At least two scenes must be left after test, so that one tool for dev is not in both.
    for part, share, quota, keep in zip(HELD_OUT, shares, _quotas(len(order), *shares), (2, 1), strict=True):
        goal = len(held) + quota
        for sparing, few in PREFERENCES:
            for tool in order if sparing else sorted(order, key=lambda tool: len(scenes_of[tool])):
                gone = set(scenes_of[tool])
                if len(held) == goal or tool in held or not gone or len(left) - len(gone) < keep:
                    continue
                touched = {other for scene in gone for other in labelled.scenes[scene]}
                if sparing and any(scenes_of[other] <= gone for other in touched - held.keys() - {tool}):
                    continue
                if few and sizes[tool] > share * len(labelled.gold):
                    continue
                held[tool] = part
                left -= gone
                for other in touched:
                    scenes_of[other] -= gone
        if part not in held.values():
            raise BadDataset(
                f"{name}: no tool can be held out for {part}, since every one is used by nearly all of the "
                f"{len(labelled.scenes)} scenes (distinct sets of gold tools); add requests that use other tools"
            )
    return held


def _latest(parts: Iterable[Part]) -> Part:
    return max(parts, key=PARTS.index)


def _repeated(labelled: _Labelled, assigned: Mapping[str, Part]) -> tuple[str, ...]:
    """Return the requests whose text is also in a later part."""
    latest: dict[str, Part] = {}
    for request, part in assigned.items():
        text = labelled.text_of[request]
        latest[text] = _latest((part, latest.get(text, part)))
    return tuple(request for request, part in assigned.items() if latest[labelled.text_of[request]] != part)


def _dataset(data: Dataset, labelled: _Labelled, parts: Mapping[str, Part], qrels: dict[str, Qrels]) -> Dataset:
    """Return the dataset of the splits; metadata gets the scene, and the part where it has to name one."""
    metadata: dict[str, Mapping[str, Any]] = {}
    for request in data.requests:
        if request in parts:
            about = dict(data.metadata.get(request, {}))
            if request in labelled.scene_of:
                about.setdefault("scene", labelled.scene_of[request])
            if "split" in about or request not in labelled.gold:
                about["split"] = parts[request]
            metadata[request] = about
    return Dataset(
        name=data.name,
        tools=data.tools,
        requests={request: text for request, text in data.requests.items() if request in parts},
        qrels=qrels,
        metadata=metadata,
        scenes={scene: tuple(sorted(labelled.scenes[scene])) for scene in sorted(labelled.scenes)},
    )
