"""Alignment: rewards and pairs by hand, and a tiny model that learns to ask for what a made-up retriever finds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from toolscout.errors import BadDataset, BadModel
from toolscout.llm.base import Message
from toolscout.llm.finetuned import read_finetuned
from toolscout.retrievers.rewrite import alignment
from toolscout.retrievers.rewrite.alignment import LabelledRequests, RankingSteps, align, contrasts, drawn, reward_of
from toolscout.training.text_options import AlignmentOptions, TextTrainingOptions

torch = pytest.importorskip("torch", reason="training needs the extra 'train'")

from tests.models.tiny_llama import tiny_llama  # noqa: E402
from toolscout.training.text_generation import TrainableWriter, finetune  # noqa: E402

pytestmark = pytest.mark.slow

REQUESTS = ["Find me a hotel", "What will the weather be", "a tool", "user system"]
DOCUMENTS = ["hotel in Paris", "nights", "weather in 1984", "tool", "user"]


def test_rewards_are_the_metrics_of_the_first_five() -> None:
    ranking = ["x", "a", "y", "z", "b", "c"]
    gain = (1 / math.log2(3) + 1 / math.log2(6)) / (1 + 1 / math.log2(3))
    assert reward_of("ndcg", ranking, {"a", "b"}) == pytest.approx(gain)
    assert reward_of("both", ranking, {"a", "b"}) == pytest.approx(gain + 1)
    assert reward_of("recall", ranking, {"a", "c"}) == 0.5
    assert reward_of("rank", ranking, {"a", "c"}) == pytest.approx(-(math.log(2) + math.log(6)) / 2)
    assert reward_of("rank", ranking, {"missing"}) == pytest.approx(-math.log(101))
    assert reward_of("rank", [], {"a"}) == pytest.approx(-math.log(101))


def test_the_best_stand_against_the_worst() -> None:
    texts, rewards = [[1], [2], [3], [4], [2]], [0.5, 0.9, 0.0, 0.45, 0.9]
    assert contrasts(texts, rewards, 0.2, 4) == [(1, 2)]
    assert contrasts(texts, rewards, 0.04, 4) == [(1, 2), (0, 3)]
    assert contrasts(texts, rewards, 0.04, 1) == [(1, 2)]
    assert contrasts(texts, [0.3] * 5, 0.0, 4) == []
    assert contrasts([[1], [1]], [0.3, 0.3], 0.0, 4) == []


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> tuple[TextTrainingOptions, dict[str, Any]]:
    """A tiny model that half knows that it is to write words."""
    home = tmp_path_factory.mktemp("aligning")
    tiny_llama(home / "base", max_position_embeddings=128, initializer_range=0.4)
    options = TextTrainingOptions(
        base=str(home / "base"), rank=8, epochs=24, rate=2e-2, batch=4, max_tokens=8, device="cpu"
    )
    words = ["hotel", "weather", "user", "Paris"]
    pairs = [([Message("user", request)], word) for request in REQUESTS for word in words]
    return options, finetune(options, lambda epoch: pairs, home / "made").model.network.trained_arrays()


def model_of(taught: tuple[TextTrainingOptions, dict[str, Any]]) -> TrainableWriter:
    model = TrainableWriter.open(taught[0])
    model.network.begin(taught[1])
    return model


def parse(request: str, text: str) -> list[str]:
    return text.split()


def ask(requests: Sequence[str], queries: Sequence[Sequence[str]], homes: Sequence[int]) -> list[list[str]]:
    """Finds the tools whose names are queries; without any, nothing."""
    return [[query for query in dict.fromkeys(own) if query in ("hotel", "weather", "user")] for own in queries]


def means(**changed: Any) -> RankingSteps:
    usual = {
        "prompts": lambda requests: [[Message("user", request)] for request in requests],
        "parse": parse,
        "ask": ask,
        "documents": DOCUMENTS,
    }
    return RankingSteps(**{**usual, **changed})


TRAIN = LabelledRequests(REQUESTS * 6, [{"user"}] * 24, [0] * 24)
DEV = LabelledRequests(REQUESTS, [{"user"}] * 4, [0] * 4)


@pytest.mark.parametrize("loss", ["dpo", "ranked"])
def test_what_finds_more_is_written_more(taught: Any, tmp_path: Path, loss: Any) -> None:
    model, calls = model_of(taught), list[int]()

    def counted(requests: Sequence[str], queries: Sequence[Sequence[str]], homes: Sequence[int]) -> list[list[str]]:
        calls.append(len(requests))
        if any(queries):
            assert len({(request, *own) for request, own in zip(requests, queries, strict=True)}) == len(requests)
        return ask(requests, queries, homes)

    aligned = AlignmentOptions(align=3, samples=8, spread=0.7, align_rate=5e-3, sft=0.5, loss=loss)
    model.save(tmp_path, {"fit": {"seconds": 1}})
    history = align(model, TRAIN, DEV, means(ask=counted), aligned, taught[0], tmp_path, about={"task": "describe"})
    assert [record["round"] for record in history] == [0, 1, 2, 3]
    rewards = [record["reward"] for record in history[1:]]
    assert max(rewards[1:]) > rewards[0] + 0.1
    for record in history[1:]:
        assert record["best_reward"] >= record["reward"]
        assert record["correlation"] > 0.5
        assert {"distinct", "specificity", "copying", "pairs", "plateau", "seconds", "dev_comp@5"} <= record.keys()
    kept = [record for record in history if record["kept"]]
    assert len(kept) == 1
    assert kept[0]["dev_recall@5"] == max(record["dev_recall@5"] for record in history)
    saved = read_finetuned(tmp_path)
    assert saved["align"] == history
    assert (saved["task"], saved["fit"]) == ("describe", {"seconds": 1})
    assert not (tmp_path / "training").exists()
    assert len(calls) == 1 + 3 + 4  # what tells the retriever from others, what was sampled, dev


def test_rounds_compare_with_their_own_beginning_or_the_first(
    taught: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from toolscout.training import text_generation

    real, references = text_generation.prefer, list[Any]()

    def seen(*args: Any, **named: Any) -> Any:
        references.append(named["reference"])
        return real(*args, **named)

    monkeypatch.setattr(text_generation, "prefer", seen)
    for reset in (True, False):
        options = AlignmentOptions(align=2, samples=4, spread=0.7, align_rate=1e-2, reset=reset, margin=0.0)
        align(model_of(taught), TRAIN, None, means(), options, taught[0], tmp_path / str(reset))
    assert references[:2] == [None, None]
    for reference in references[2:]:
        for name, array in taught[1].items():
            np.testing.assert_array_equal(reference[name], array)


def test_an_alignment_that_was_killed_goes_on(taught: Any, tmp_path: Path) -> None:
    wanted = model_of(taught)
    options = AlignmentOptions(align=2, samples=4, spread=0.7, align_rate=1e-2)
    history = align(wanted, TRAIN, None, means(), options, taught[0], tmp_path / "whole")
    left = iter(range(2))

    def dying(requests: Sequence[str], queries: Sequence[Sequence[str]], homes: Sequence[int]) -> list[list[str]]:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return ask(requests, queries, homes)

    def another(requests: Sequence[str], queries: Sequence[Sequence[str]], homes: Sequence[int]) -> list[list[str]]:
        return [["hotel", *found] for found in ask(requests, queries, homes)]

    with pytest.raises(KeyboardInterrupt):
        align(model_of(taught), TRAIN, None, means(ask=dying), options, taught[0], tmp_path / "killed")
    other = AlignmentOptions(align=2, samples=5, spread=0.7, align_rate=1e-2)
    with pytest.raises(
        BadModel,
        match="interrupted alignment on other data, of another fine-tuned model or retriever, or with other options",
    ):
        align(model_of(taught), TRAIN, None, means(), other, taught[0], tmp_path / "killed")
    with pytest.raises(BadModel, match="of another fine-tuned model or retriever"):
        align(model_of(taught), TRAIN, None, means(ask=another), options, taught[0], tmp_path / "killed")
    changed = model_of(taught)
    changed.network.begin({name: array + 0.1 for name, array in changed.network.trained_arrays().items()})
    with pytest.raises(BadModel, match="of another fine-tuned model or retriever"):
        align(changed, TRAIN, None, means(), options, taught[0], tmp_path / "killed")
    found = model_of(taught)
    again = align(found, TRAIN, None, means(), options, taught[0], tmp_path / "killed")
    for name, array in wanted.network.trained_arrays().items():
        np.testing.assert_array_equal(found.network.trained_arrays()[name], array)
    for one, other_one in zip(history, again, strict=True):
        assert {k: v for k, v in one.items() if "seconds" not in k} == {
            k: v for k, v in other_one.items() if "seconds" not in k
        }


def test_requests_without_use_are_left_out(taught: Any, tmp_path: Path) -> None:
    asked = LabelledRequests([*REQUESTS, " ", "hotel " * 300, "hotel"], [{"user"}] * 6 + [set()], [0] * 7)
    options = AlignmentOptions(align=1, samples=2, align_requests=0, margin=5.0)
    history = align(model_of(taught), asked, None, means(), options, taught[0], tmp_path)
    assert history[1]["requests"] == 4
    assert history[1]["pairs"] == 0
    with pytest.raises(BadDataset, match="no requests"):
        align(model_of(taught), LabelledRequests([" "], [{"a"}], [0]), None, means(), options, taught[0], tmp_path)


def test_queries_are_described() -> None:
    made = alignment._Alignment.__new__(alignment._Alignment)
    made._idf = alignment._idf(DOCUMENTS)
    told = made._described(["Find a hotel", "Find a hotel"], [["find a Hotel", "a hotel in Paris"], []])
    assert told["queries"] == 1.0
    assert told["copying"] == 0.5  # the second has half of its words
    assert told["diversity"] == 4 / 5
    rare, common = math.log(6 / 2), math.log(6 / 3)
    assert told["specificity"] == pytest.approx((rare * 3 + common) / 4, abs=1e-4)
    assert json.dumps(told)


def test_requests_are_drawn_by_chance_or_evenly_of_the_datasets() -> None:
    homes = [0] * 90 + [1] * 10
    assert sorted(drawn(homes, [0, 1], 0, evenly=False)) == list(range(100))
    assert drawn(homes, [0, 1], 12, evenly=False) == drawn(homes, [0, 1], 0, evenly=False)[:12]
    assert drawn(homes, [0, 1], 12, evenly=True) != drawn(homes, [0, 2], 12, evenly=True)
    of = [homes[place] for place in drawn(homes, [0, 1], 12, evenly=True)]
    assert (of.count(0), of.count(1)) == (6, 6)
    # Once the small one is used up the large one goes on alone.
    of = [homes[place] for place in drawn(homes, [0, 1], 40, evenly=True)]
    assert (of.count(0), of.count(1)) == (30, 10)
    assert len(set(drawn(homes, [0, 1], 0, evenly=True))) == 100
