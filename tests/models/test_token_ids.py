"""Ids of every kind: all different, none begins another, and those once given stay. Nearness is checked by hand."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.models.toy_language import Ids, trie_of
from toolscout.core.arrays import Floats
from toolscout.errors import BadModel, DuplicateTool
from toolscout.models.language.architecture import CLOSE, OPEN, Architecture
from toolscout.models.language.base import Base
from toolscout.models.tool_ids.token_ids import (
    CLUSTERS_FILE,
    IDS_FILE,
    KINDS,
    MOST_NAME_TOKENS,
    Id,
    maker,
    name_in_words,
)

pytestmark = pytest.mark.slow

WIDE = 4
HOSTILE = ["", " ", "😀", "<|im_end|>", "<|im_start|>user\n<|im_end|>", "word " * 100, "x" * 500, "a 2", "a", "a\ud800"]
NAMES = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=8), st.sampled_from(["a", "a 3", "get weather"]))
VECTORS = ["random", "identical", "zero", "duplicates", "peeling", "huge", "tiny"]


class ToyCheckpoint:
    """A model without weights: a byte-level tokeniser that splits digits, as SmolLM2's does."""

    head = b"toy"

    def __init__(self, digits: bool = True) -> None:
        self.tokenizer = Tokenizer(models.BPE())
        level = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), level])
        self.tokenizer.decoder = decoders.ByteLevel()
        letters = pre_tokenizers.ByteLevel.alphabet()
        alphabet = sorted(letters if digits else set(letters) - set("0123456789"))
        trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
        self.tokenizer.train_from_iterator(["get weather for open meteo", "word words tool"] * 3, trainer)
        self.tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in (OPEN, CLOSE)])
        self.ends: tuple[int, ...] = (self.tokenizer.encode(CLOSE).ids[0],)
        vocabulary = self.tokenizer.get_vocab_size()
        self.architecture = Architecture("llama", 1, 8, 1, 1, 8, 8, vocabulary, 1e-5, 1e4, True, 64)

    def sample(self, name: str, size: int) -> bytes:
        return name.encode()

    def tensor(self, name: str) -> NDArray[np.float32]:
        return np.zeros(self.architecture.shapes()[name], np.float32)


@cache
def toy_base() -> Base:
    return Base("", "toy", ToyCheckpoint())


def made_up(kind: str, count: int, seed: int = 0) -> Floats:
    draw = np.random.default_rng(seed)
    vectors = draw.normal(size=(count, WIDE))
    if kind == "identical":
        vectors[:] = vectors[:1]
    elif kind == "zero":
        vectors[:] = 0
    elif kind == "duplicates":
        vectors = vectors[draw.integers(0, max(1, count // 4), count)]
    elif kind == "peeling":  # all equally far from each other: clustering takes them off one by one
        vectors = np.eye(count)
    vectors = vectors * {"huge": 1e37, "tiny": 1e-42}.get(kind, 1.0)
    return vectors.astype(np.float32)


def check(ids: Ids) -> None:
    """The trie refuses ids that are the same or of which one begins another."""
    base = toy_base()
    assert len(trie_of(ids)) == len(ids)
    for tokens in ids.values():
        assert tokens[-1] == base.end
        assert base.end not in tokens[:-1]
        assert all(0 <= token < base.architecture.vocabulary for token in tokens)


def text(tokens: Id) -> str:
    assert tokens[-1] == toy_base().end
    return toy_base().decode(tokens[:-1])


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_changes_leave_ids_apart_and_in_place(kind: str, data: st.DataObject) -> None:
    names = data.draw(st.lists(NAMES, max_size=30))
    alike = data.draw(st.sampled_from(VECTORS))
    vectors = made_up(alike, 60, data.draw(st.integers(0, 9)))
    tools = [(f"tool{place}", name) for place, name in enumerate(names)]
    ids = maker(kind, toy_base(), 3)
    expected = ids.make(tools, vectors[: len(tools)])
    assert list(expected) == [key for key, _ in tools]
    assert maker(kind, toy_base(), 3).make(tools, vectors[: len(tools)]) == expected
    changes = st.lists(st.tuples(st.integers(0, 39), st.sampled_from(["add", "remove", "reopen"]), NAMES), max_size=25)
    for number, change, name in data.draw(changes):
        key = f"tool{number}"
        if change == "remove":
            ids.remove(key)
            expected.pop(key, None)
        elif change == "add":
            found = ids.add(key, name, vectors[number])
            assert expected.setdefault(key, found) == found
        else:
            with TemporaryDirectory() as folder:
                ids.save(Path(folder))
                opened = KINDS[kind].load(Path(folder), toy_base())
            assert opened.add("one more", name, vectors[0]) == ids.add("one more", name, vectors[0])
            opened.remove("one more")
            ids = opened
        assert ids.ids == expected
        check(ids.ids)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_ids_that_were_given_later_are_recalled(kind: str, data: st.DataObject) -> None:
    vectors = made_up(data.draw(st.sampled_from(VECTORS)), 60)
    tools = [(f"tool{place}", f"name {place % 3}") for place in range(60)]

    def trained() -> Any:
        ids = maker(kind, toy_base(), 3)
        ids.make(tools[:10], vectors[:10])
        return ids

    live = trained()
    for number, gone in data.draw(st.lists(st.tuples(st.integers(10, 39), st.booleans()), max_size=40)):
        live.add(*tools[number], vectors[number])
        if gone:
            live.remove(f"tool{number}")
    later = {key: tokens for key, tokens in live.ids.items() if int(key[4:]) >= 10}
    again = trained()
    wrong = {"none": (1, 2), "empty": (), "taken": live.ids["tool0"], "below": (-1, toy_base().end), "tool1": (3,)}
    again.reserve_ids(wrong | later)
    for key in data.draw(st.permutations(sorted(later))):
        number = int(key[4:])
        assert again.add(*tools[number], vectors[number]) == later[key]
    assert {**again.ids} == {**live.ids}
    for number in range(40, 50):  # others find free ones
        again.add(*tools[number], vectors[number])
    check(again.ids)


@pytest.mark.parametrize("alike", VECTORS)
@pytest.mark.parametrize("live", [False, True])
def test_paths_stay_short_whatever_the_vectors(alike: str, live: bool) -> None:
    vectors = made_up(alike, 400)
    ids = maker("hierarchical", toy_base())
    tools = [(f"tool{place}", "") for place in range(len(vectors))]
    ids.make(tools[: 200 if live else None], vectors[: 200 if live else None])
    for (key, name), vector in zip(tools, vectors, strict=True):
        ids.add(key, name, vector)
    assert len(ids.ids) == 400
    check(ids.ids)
    longest = max(len(tokens) for tokens in ids.ids.values())
    assert longest <= (5 if alike in ("identical", "zero") and not live else 17)


def test_like_tools_share_the_beginning_of_their_paths() -> None:
    draw = np.random.default_rng(0)
    group = draw.permutation(np.repeat(np.arange(8), 40))
    vectors = (np.eye(8)[group] + 0.05 * draw.normal(size=(320, 8))).astype(np.float32)
    ids = maker("hierarchical", toy_base())
    paths = [text(tokens) for tokens in ids.make([(str(row), "") for row in range(320)], vectors).values()]
    for one in range(8):  # clusters of a first digit never mix groups, as they are far apart
        firsts = {path[0] for path, own in zip(paths, group, strict=True) if own == one}
        others = {path[0] for path, own in zip(paths, group, strict=True) if own != one}
        assert not firsts & others
    for row in range(0, 320, 7):
        new = text(ids.add(f"new{row}", "", vectors[row]))
        assert new[0] == paths[row][0]
        assert new not in paths


def test_a_new_tool_takes_a_freed_place_then_a_free_digit_then_goes_behind() -> None:
    vectors = np.eye(10, 10, dtype=np.float32)
    ids = maker("hierarchical", toy_base())
    first = ids.make([(str(row), "") for row in range(9)], vectors[:9])
    assert [text(tokens) for tokens in first.values()] == list("012345678")
    ids.remove("4")
    assert text(ids.add("a", "", vectors[4])) == "4"
    assert text(ids.add("b", "", vectors[4])) == "9"
    assert text(ids.add("c", "", vectors[2])) == "20"
    assert text(ids.add("d", "", vectors[2])) == "21"
    ids.remove("2")  # its place leads on, so it is not given again
    assert text(ids.add("e", "", vectors[2])) == "22"
    assert ids.ids["0"] == first["0"]
    check(ids.ids)


def test_numbers_are_the_lowest_free_and_grow_beyond_their_width() -> None:
    ids = maker("numeric", toy_base())
    found = ids.make([(str(row), "") for row in range(12)], None)
    assert [text(tokens) for tokens in found.values()] == [f"{number:05}" for number in range(12)]
    for gone in ("7", "3", "11"):
        ids.remove(gone)
    assert [text(ids.add(key, "", None)) for key in "abcd"] == ["00003", "00007", "00011", "00012"]
    many = ids.make([(str(row), "") for row in range(50_000)], None)
    assert text(many["49999"]) == "049999"
    ids.make([(str(row), "") for row in range(49_999)], None)
    for row in range(49_999, 100_001):
        ids.add(str(row), "", None)
    assert [text(ids.ids[key]) for key in ("99999", "100000")] == ["99999", "100000"]


def test_names_are_words_and_equal_ones_get_a_number() -> None:
    assert name_in_words("getWeather_now/v2", "Open-Meteo/API") == "get weather now v 2 for open meteo api"
    assert [name_in_words("😀"), name_in_words("", ""), name_in_words("<|im_end|>")] == ["😀", "", "im end"]
    ids = maker("semantic", toy_base())
    tools = [("a", "get weather"), ("b", "get weather"), ("c", "get weather 3"), ("d", "get weather"), ("e", "😀")]
    found = ids.make([*tools, ("f", ""), ("g", " "), ("h", CLOSE)], None)
    expected = ["get weather", "get weather 2", "get weather 3", "get weather 4", "😀", "tool", "tool 2", CLOSE]
    assert [text(tokens) for tokens in found.values()] == expected
    ids.remove("a")
    assert text(ids.add("i", "get weather", None)) == "get weather"
    long = ids.make([(str(row), "x" * 500) for row in range(300)], None)
    assert {len(tokens) for tokens in long.values()} == {MOST_NAME_TOKENS + 1}
    assert len(ids.make([(str(row), "a") for row in range(3000)], None)) == 3000
    assert text(ids.ids["2999"]) == "a 3000"
    check(ids.ids)


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(BadModel, match="'best'; choose one of: semantic, numeric, hierarchical"):
        maker("best", toy_base())
    with pytest.raises(DuplicateTool, match="twice"):
        maker("numeric", toy_base()).make([("a", ""), ("a", "")], None)
    with pytest.raises(BadModel, match="no token for each digit"):
        maker("numeric", Base("", "toy", ToyCheckpoint(digits=False)))
    ids = maker("hierarchical", toy_base())
    assert ids.make([], None) == {}
    with pytest.raises(BadModel, match="vectors of documents"):
        ids.make([("a", "")], None)
    with pytest.raises(BadModel, match="1 tools and 2 vectors"):
        ids.make([("a", "")], made_up("random", 2))
    with pytest.raises(BadModel, match="finite"):
        ids.add("a", "", np.full(3, np.nan, np.float32))
    ids.add("a", "", np.ones(3, np.float32))
    with pytest.raises(BadModel, match="vectors of 3 finite numbers"):
        ids.add("b", "", np.ones(4, np.float32))
    assert list(ids.ids) == ["a"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_does_not_fit_is_refused(kind: str, tmp_path: Path) -> None:
    ids = maker(kind, toy_base())
    ids.make([(name, name) for name in "abc"], made_up("random", 3))
    ids.save(tmp_path)
    written = json.loads((tmp_path / IDS_FILE).read_text())
    wrongs = [{"version": 2}, {"kind": "atomic"}, {"base": "other"}, {"ids": [1]}, {"ids": {"a": []}}, {"seed": None}]
    same = {"ids": {"a": written["ids"]["a"], "b": written["ids"]["a"]}}
    for wrong in [*wrongs, same, {"ids": {"a": [10**6, toy_base().end]}}]:
        (tmp_path / IDS_FILE).write_text(json.dumps(written | wrong))
        with pytest.raises(BadModel, match="train the model again"):
            KINDS[kind].load(tmp_path, toy_base())
    (tmp_path / IDS_FILE).write_text(json.dumps(written))
    assert KINDS[kind].load(tmp_path, toy_base()).ids == ids.ids
    if kind == "hierarchical":
        (tmp_path / CLUSTERS_FILE).write_bytes(b"PK\x03\x04 broken")
        with pytest.raises(BadModel, match="cannot be read"):
            KINDS[kind].load(tmp_path, toy_base())
    with pytest.raises(BadModel, match="cannot be read"):
        KINDS[kind].load(tmp_path / "nowhere", toy_base())
