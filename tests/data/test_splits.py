"""cut: seen, unseen-scene and unseen-tool splits. What each promises, on made-up and on published requests."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from toolscout.core.tool import Tool
from toolscout.data.dataset import Dataset, request_digest
from toolscout.data.splits import SplitDataset, cut
from toolscout.errors import BadDataset

FAMILIES = ("", "unseen_scene.", "unseen_tool.")
PARTS = ("train", "dev", "test")


def made(golds: list[set[int]], texts: list[str] | None = None, bare: int = 0, unknown: int = 0) -> Dataset:
    """A dataset of requests that use these tools, of some that need no tool, and of some without any label."""
    count = 1 + max(max(gold) for gold in golds)
    requests = {f"r{i}": texts[i] if texts else f"text {i}" for i in range(len(golds))}
    qrels = {f"r{i}": tuple(f"n/t{tool}" for tool in sorted(gold)) for i, gold in enumerate(golds)}
    metadata: dict[str, Mapping[str, Any]] = {f"b{i}": {"expects": "no_tool", "split": "all"} for i in range(bare)}
    metadata |= {f"u{i}": {"split": "all"} for i in range(unknown)}
    requests |= {key: f"chat {key}" for key in metadata}
    return Dataset("made", [Tool("n", f"t{i}") for i in range(count)], requests, {"all": qrels}, metadata)


def mixed(count: int = 400, tools: int = 60, seed: int = 0) -> Dataset:
    """Scenes of one to three tools, some with many requests and many with one."""
    draw = random.Random(seed)
    scenes = [set(draw.sample(range(tools), draw.randint(1, 3))) for _ in range(count // 3)]
    return made([draw.choice(scenes) for _ in range(count)] + [{tool} for tool in range(tools)], bare=50, unknown=3)


def shuffled(data: Dataset, draw: random.Random) -> Dataset:
    """The same in another order, down to the order of gold tools, with other request ids."""

    def mix(items: Any) -> list[Any]:
        items = list(items)
        draw.shuffle(items)
        return items

    names = {key: f"x{i}" for i, key in enumerate(mix(data.requests))}
    qrels = {
        split: {names[key]: tuple(mix(gold)) for key, gold in mix(rows.items())} for split, rows in data.qrels.items()
    }
    requests = {names[key]: text for key, text in mix(data.requests.items())}
    metadata = {names[key]: about for key, about in mix(data.metadata.items())}
    return Dataset(data.name, mix(data.tools), requests, qrels, metadata, dict(mix(data.scenes.items())))


def by_text(done: SplitDataset) -> dict[str, list[tuple[str, list[str]]]]:
    """The splits without ids and orders."""
    data = done.dataset
    splits = {
        name: sorted((data.requests[key], sorted(gold)) for key, gold in rows.items())
        for name, rows in data.qrels.items()
    }
    return splits | {f"goldless {part}": sorted((text, []) for _, text in data.goldless(part)) for part in PARTS}


def tools_of(done: SplitDataset, split: str) -> set[str]:
    return {tool for gold in done.dataset.qrels[split].values() for tool in gold}


def scenes_of(done: SplitDataset, split: str) -> set[frozenset[str]]:
    return {frozenset(gold) for gold in done.dataset.qrels[split].values()}


def check(data: Dataset, done: SplitDataset) -> None:
    """All that a cut promises of any data."""
    gold = {key: tools for rows in data.qrels.values() for key, tools in rows.items()}
    assert done.dataset.splits == tuple(family + part for family in FAMILIES for part in PARTS)
    assert done.dataset.tools == data.tools
    assert done.repeated[""] == ()
    for family in FAMILIES:
        parts = [done.dataset.qrels[family + part] for part in PARTS]
        everywhere = [key for part in parts for key in part] + list(done.repeated[family.rstrip(".")])
        assert sorted(everywhere) == sorted(gold)
        assert all(gold[key] == tools for part in parts for key, tools in part.items())
        texts = [{request_digest(data.requests[key]) for key in part} for part in parts]
        assert not texts[0] & texts[1] | texts[0] & texts[2] | texts[1] & texts[2]
        for key in done.repeated[family.rstrip(".")]:
            assert request_digest(data.requests[key]) in texts[1] | texts[2]
    check_unseen(done)
    bare = {key for key in data.requests if key not in gold and data.kind(key) != "use"}
    spread = [key for part in PARTS for key, _ in done.dataset.goldless(part)]
    assert (sorted(spread), set(done.unlabelled)) == (sorted(bare), data.requests.keys() - gold.keys() - bare)
    seen = [done.dataset.request_digests(part) for part in PARTS]
    assert not seen[0] & seen[1] | seen[0] & seen[2] | seen[1] & seen[2]


def check_unseen(done: SplitDataset) -> None:
    named = {scene: frozenset(tools) for scene, tools in done.dataset.scenes.items()}
    for part in ("dev", "test"):
        held = {named[scene] for scene, own in done.unseen_scenes.items() if own == part}
        assert scenes_of(done, f"unseen_scene.{part}") <= held
        others = {"train", "dev", "test"} - {part}
        assert not any(held & scenes_of(done, f"unseen_scene.{other}") for other in others)
    held_tools = {part: {tool for tool, own in done.unseen_tools.items() if own == part} for part in ("dev", "test")}
    assert not tools_of(done, "unseen_tool.train") & done.unseen_tools.keys()
    assert not tools_of(done, "unseen_tool.dev") & held_tools["test"]
    for part, tools in held_tools.items():
        assert tools
        assert all(tools & set(gold) for gold in done.dataset.qrels[f"unseen_tool.{part}"].values())
    used = {tool for tools in named.values() for tool in tools}
    assert set(done.orphans) == used - tools_of(done, "unseen_tool.train") - done.unseen_tools.keys()


golds = st.lists(st.sets(st.integers(0, 7), min_size=1, max_size=4), min_size=1, max_size=25)


@settings(max_examples=150, deadline=None)
@given(golds, st.lists(st.integers(0, 30), min_size=25, max_size=25), st.integers(0, 3), st.data())
def test_any_data_is_cut_as_promised_or_refused(
    golds: list[set[int]], texts: list[int], seed: int, data: st.DataObject
) -> None:
    test, dev = data.draw(st.sampled_from([(0.1, 0.1), (0.3, 0.2), (0.5, 0.45)]))
    labelled = made(golds, [f"Text {number}" for number in texts], bare=4, unknown=1)
    try:
        done = cut(labelled, seed=seed, test=test, dev=dev)
    except BadDataset as error:
        reasons = ("too little to cut", "no tool can be held out", "would be empty")
        if not any(reason in str(error) for reason in reasons):
            raise
        reject()
    check(labelled, done)
    again = cut(shuffled(labelled, data.draw(st.randoms())), seed=seed, test=test, dev=dev)
    assert by_text(again) == by_text(done)
    assert (again.unseen_scenes, again.unseen_tools, again.orphans) == (
        done.unseen_scenes,
        done.unseen_tools,
        done.orphans,
    )


def test_enough_data_keep_every_scene_and_every_tool_in_training() -> None:
    data = mixed()
    done = cut(data)
    check(data, done)
    total = len(data.qrels["all"])
    assert [len(done.dataset.qrels[part]) for part in PARTS] == [total - 2 * (total // 10), total // 10, total // 10]
    scenes = {frozenset(gold) for gold in data.qrels["all"].values()}
    assert scenes_of(done, "train") == scenes
    assert tools_of(done, "unseen_scene.train") == {tool.id for tool in data.tools}
    assert done.orphans == ()
    parts = list(done.unseen_scenes.values())
    assert (parts.count("test"), parts.count("dev")) == (round(len(scenes) / 10), round(len(scenes) / 20))
    parts = list(done.unseen_tools.values())
    assert (parts.count("test"), parts.count("dev")) == (round(60 * 0.08), round(60 * 0.04))
    assert [len(done.dataset.goldless(part)) for part in PARTS] == [40, 5, 5]
    assert done.unlabelled == ("u0", "u1", "u2")


def test_big_scenes_give_their_share_of_test_and_dev() -> None:
    data = made([{scene} for scene in range(5) for _ in range(100)])
    done = cut(data)
    for part in ("dev", "test"):
        golds = list(done.dataset.qrels[part].values())
        assert all(abs(golds.count((f"n/t{tool}",)) - 10) <= 1 for tool in range(5))


def test_no_tool_or_scene_that_half_of_the_requests_use_is_held_out() -> None:
    data = made([{0} for _ in range(200)] + [{1 + i % 20} for i in range(200)])
    for seed in range(10):
        done = cut(data, seed=seed)
        assert "n/t0" not in done.unseen_tools
        assert frozenset(["n/t0"]) in scenes_of(done, "unseen_scene.train")


def test_where_every_scene_has_one_request_the_tools_of_seen_tests_are_still_trained_on() -> None:
    draw = random.Random(1)
    scenes = {frozenset(draw.sample(range(20), 3)) for _ in range(150)}
    done = cut(made([set(scene) for scene in sorted(scenes, key=sorted)]))
    assert {line.split: line.new_tools for line in done.counts()}["test"] == 0
    assert scenes_of(done, "test").isdisjoint(scenes_of(done, "train"))


def test_another_seed_is_another_cut_and_the_same_seed_the_same() -> None:
    data = mixed()
    assert by_text(cut(data)) == by_text(cut(data, seed=0)) != by_text(cut(data, seed=1))


def test_the_cut_hangs_on_texts_and_tools_alone_and_not_on_ids_or_names() -> None:
    data = mixed()
    renamed = Dataset(
        "other",
        data.tools,
        {f"id-{key}": text for key, text in data.requests.items()},
        {"log": {f"id-{key}": gold for key, gold in data.qrels["all"].items()}},
        {f"id-{key}": {**about, "split": "log"} for key, about in data.metadata.items()},
    )
    assert by_text(cut(renamed)) == by_text(cut(data))


def test_equal_texts_go_together_and_leave_train_where_their_scenes_are_parted() -> None:
    golds = [{tool} for tool in range(30) for _ in range(4)]
    texts = [f"text {i % 60}".upper() if i % 2 else f" text  {i % 60} " for i in range(len(golds))]
    data = made(golds, texts)
    done = cut(data)
    check(data, done)
    assert done.repeated["unseen_scene"]
    assert done.repeated["unseen_tool"]


def test_one_split_or_all_are_cut(tmp_path: Path) -> None:
    whole = mixed()
    half = dict(list(whole.qrels["all"].items())[::2])
    data = Dataset("made", whole.tools, whole.requests, {"half": half, "whole": whole.qrels["all"]}, {})
    assert by_text(cut(data, "half")) != by_text(cut(data))
    assert cut(data, "half").dataset.requests.keys() == half.keys()
    assert sum(len(cut(data).dataset.qrels[part]) for part in PARTS) == len(whole.qrels["all"])
    with pytest.raises(BadDataset, match="no split 'other'; it has: half, whole"):
        cut(data, "other")
    clash = {**half, "r0": ("n/t1", "n/t2", "n/t3", "n/t4")}
    with pytest.raises(BadDataset, match="request r0 has other gold tools in another split; name one split"):
        cut(Dataset("made", whole.tools, whole.requests, {"half": clash, "whole": whole.qrels["all"]}, {}))


def test_metadata_and_published_scenes_stay_and_the_part_is_brought_up_to_date(tmp_path: Path) -> None:
    golds = [{i % 10, (i + 1) % 10} for i in range(60)]
    plain = made(golds)
    about = {f"r{i}": {"expects": "use", "split": "all", "note": i} for i in range(60)}
    data = Dataset("made", plain.tools, plain.requests, plain.qrels, about, {"first": ("n/t1", "n/t0")})
    done = cut(data)
    assert done.dataset.scenes["first"] == ("n/t0", "n/t1")
    assert {done.dataset.metadata[key]["note"] for key in data.requests} == set(range(60))
    assert done.dataset.scene("r0") == "first"
    for part in PARTS:
        assert {done.dataset.metadata[key]["split"] for key in done.dataset.qrels[part]} == {part}


def test_a_cut_survives_the_disk(tmp_path: Path) -> None:
    done = cut(mixed())
    done.save(tmp_path / "made")
    read = Dataset.load(tmp_path / "made")
    assert read.digest() == done.dataset.digest()
    assert read.scenes == done.dataset.scenes
    for file, header, held in (
        ("unseen_scenes.tsv", "scene-id\tpart", done.unseen_scenes),
        ("unseen_tools.tsv", "tool-id\tpart", done.unseen_tools),
    ):
        lines = (tmp_path / "made" / file).read_text().splitlines()
        assert lines[0] == header
        assert dict(line.split("\t") for line in lines[1:]) == held
    with pytest.raises(BadDataset, match="not an empty folder"):
        done.save(tmp_path / "made")


@pytest.mark.parametrize(
    ("golds", "texts", "message"),
    [
        ([{0}, {1}], None, "2 distinct requests with gold tools, 2 scenes .*, 2 tools in use; at least 3 of each"),
        ([{0}, {1}, {2}], ["a", "A ", "b"], "2 distinct requests with gold tools, 3 scenes"),
        ([{0}, {0}, {1}, {0, 1}], None, "4 distinct requests with gold tools, 3 scenes .*, 2 tools in use"),
        ([{0, 1, 2}] * 9, None, "9 distinct requests with gold tools, 1 scenes"),
        ([{0, 1}, {0, 2}, {1, 2}], None, "no tool can be held out for test, since every one is used by nearly all"),
        ([{0}, {1}, {2}] * 3, [*"abc", *"bca", *"cab"], "would be empty, since 6 requests have a text that another"),
    ],
)
def test_too_little_data_is_refused_with_what_is_needed(
    golds: list[set[int]], texts: list[str] | None, message: str
) -> None:
    with pytest.raises(BadDataset, match=message):
        cut(made(golds, texts))


def test_the_least_that_is_asked_for_can_be_cut() -> None:
    for seed in range(20):
        data = made([{0}, {1}, {2}])
        check(data, cut(data, seed=seed))


@pytest.mark.parametrize(("test", "dev"), [(0.0, 0.1), (0.1, 0.0), (0.5, 0.5), (-0.1, 0.1), (float("nan"), 0.1)])
def test_shares_that_leave_a_part_empty_are_refused(test: float, dev: float) -> None:
    with pytest.raises(BadDataset, match="above 0 and together below 1"):
        cut(mixed(), test=test, dev=dev)


# As the notes of the published cuts say: scenes and tools held out for test and dev, none of the others lost.
PUBLISHED = {"toollens": (463, 46, 23, 37, 19), "toolbench-g3": (3110, 311, 156, 92, 46)}


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sets_are_cut_like_their_own_splits(shared_data: Path, name: str) -> None:
    data = Dataset.load(shared_data / name)
    done = cut(data)
    check(data, done)
    scenes, tools = list(done.unseen_scenes.values()), list(done.unseen_tools.values())
    held = (scenes.count("test"), scenes.count("dev"), tools.count("test"), tools.count("dev"))
    assert (len(done.dataset.scenes), *held) == PUBLISHED[name]
    assert done.dataset.scenes.keys() == data.scenes.keys()
    assert not done.dataset.new_tools("unseen_scene.train", "unseen_scene.test")
    assert done.orphans == ()
    assert all(not requests for requests in done.repeated.values())
