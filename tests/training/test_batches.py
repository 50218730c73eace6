"""What a step of training is made of."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from tests.training.learnable import TOOLS, learnable, tiny_source
from toolscout.core.tool import Tool
from toolscout.data.dataset import Dataset
from toolscout.errors import BadDataset
from toolscout.models.encoders.trainable import TrainableEncoder
from toolscout.training.batches import EncoderTrainingData, candidates, join_requests, needed_digests, shuffle_steps

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> TrainableEncoder:
    return TrainableEncoder(tiny_source(tmp_path_factory.mktemp("tiny") / "source"), torch.device("cpu"))


def material(encoder: TrainableEncoder, unused: bool = False, self_queries: bool = False) -> EncoderTrainingData:
    return EncoderTrainingData.of(encoder, learnable(used=15), "train", "dev", unused=unused, self_queries=self_queries)


def test_only_tools_that_training_asks_for_compete(encoder: TrainableEncoder) -> None:
    made = material(encoder)
    assert made.competing.tolist() == list(range(15))
    assert made.new.tolist() == [False] * 15 + [True] * 5
    assert (len(made.train), made.dev and len(made.dev)) == (160, 40)
    assert material(encoder, unused=True).competing.tolist() == list(range(20))


def test_tools_with_equal_documents_are_one_row(encoder: TrainableEncoder) -> None:
    twins = [Tool("a b", "c", "w1"), Tool("a", "b c", "w1")]
    assert (twins[0].document(), twins[0].id) == (twins[1].document(), "a b/c")
    gold = {"one": (twins[0].id,), "both": (twins[0].id, twins[1].id), "other": (twins[1].id, TOOLS[0].id)}
    data = Dataset("twins", [TOOLS[0], *twins], {key: key for key in gold}, {"train": gold})
    made = EncoderTrainingData.of(encoder, data, "train", "", unused=False, self_queries=False)
    assert len(made.documents) == 2
    assert [rows.tolist() for rows in made.train.gold] == [[1], [1], [0, 1]]


def test_a_tool_competes_where_its_own_set_asks_for_it_and_is_new_where_no_set_does(encoder: TrainableEncoder) -> None:
    real, written = learnable(used=15), learnable("written", train=160, used=18)
    asked = needed_digests([(real, "train", "dev"), (written, "train", "")])
    made = EncoderTrainingData.of(encoder, real, "train", "dev", unused=False, self_queries=False, needed=asked)
    assert made.competing.tolist() == list(range(15))
    assert np.flatnonzero(made.new).tolist() == [18, 19]
    assert EncoderTrainingData.of(
        encoder, written, "train", "", unused=False, self_queries=False
    ).competing.tolist() == list(range(18))


def test_a_split_to_train_on_must_be_named(encoder: TrainableEncoder) -> None:
    with pytest.raises(BadDataset, match="name a split to train on"):
        EncoderTrainingData.of(encoder, learnable(), "", "dev", unused=False, self_queries=False)


def test_a_tools_own_lines_stand_for_it(encoder: TrainableEncoder) -> None:
    made = material(encoder, self_queries=True)
    lines = TOOLS[3].document().split("\n")[1:4]
    expected = encoder.tokens(lines, encoder.request_tokens)
    assert [tokens.tolist() for tokens in made.self_queries[3]] == [tokens.tolist() for tokens in expected]
    assert material(encoder).self_queries == []


def test_two_requests_join_between_one_pair_of_ends(encoder: TrainableEncoder) -> None:
    one, two, both = encoder.tokens(["w1 w2", "w3", "w1 w2 w3"], 40)
    assert join_requests(one, two, 40).tolist() == both.tolist()
    assert join_requests(one, two, 4).tolist() == [*both[:3].tolist(), both[-1]]


def test_few_documents_all_compete(encoder: TrainableEncoder) -> None:
    made = material(encoder)
    rows = candidates(made, made.train.gold[:3], np.arange(3), 15, np.random.default_rng(0))
    assert rows.tolist() == made.competing.tolist()


@pytest.mark.parametrize("mined", [False, True])
def test_of_many_documents_the_gold_the_mined_and_some_compete(encoder: TrainableEncoder, mined: bool) -> None:
    made = material(encoder)
    made.hard = [np.setdiff1d([0, 1, 2], gold) for gold in made.train.gold] if mined else []
    drawn: Counter[int] = Counter()
    for seed in range(50):
        picked = np.random.default_rng(seed).choice(160, 2, replace=False)
        gold = [made.train.gold[i] for i in picked]
        rows = candidates(made, gold, picked, 8, np.random.default_rng(seed))
        assert len(rows) <= 8
        assert rows.tolist() == sorted(set(rows.tolist()))
        wanted = np.unique(np.concatenate([*gold, *([made.hard[i] for i in picked] if mined else [])]))
        assert set(wanted) <= set(rows.tolist())
        drawn.update(rows.tolist())
    assert set(drawn) == set(range(15))


def test_no_more_compete_than_asked_for_unless_they_are_gold(encoder: TrainableEncoder) -> None:
    made = material(encoder)
    made.hard = [np.setdiff1d(made.competing, gold) for gold in made.train.gold]
    picked = np.arange(6)
    gold = [made.train.gold[i] for i in picked]
    needed = np.unique(np.concatenate(gold))
    assert len(candidates(made, gold, picked, len(needed) + 2, np.random.default_rng(0))) == len(needed) + 2
    assert candidates(made, gold, picked, 1, np.random.default_rng(0)).tolist() == needed.tolist()


def test_an_epoch_meets_every_request_in_an_order_of_its_own() -> None:
    first, second = (shuffle_steps([50], 8, seed=0, epoch=epoch) for epoch in (0, 1))
    assert len(first) == len(second) == 7
    for steps in (first, second):
        assert {int(i) for _, few in steps for i in few} == set(range(50))
    assert [few.tolist() for _, few in first] != [few.tolist() for _, few in second]
    again = shuffle_steps([50], 8, seed=0, epoch=0)
    assert [few.tolist() for _, few in again] == [few.tolist() for _, few in first]
    assert [few.tolist() for _, few in shuffle_steps([50], 8, seed=1, epoch=0)] != [few.tolist() for _, few in first]


def test_a_large_set_does_not_drown_a_small_one() -> None:
    steps = Counter(index for index, _ in shuffle_steps([9_900, 100], 10, seed=0, epoch=0))
    assert steps[0] / steps[1] == pytest.approx(np.sqrt(99), rel=0.05)
    assert all(len(few) == 10 for _, few in shuffle_steps([9_900, 100], 10, seed=0, epoch=0))
