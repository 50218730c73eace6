"""What teaches an encoder: which texts meet in a step, their gradients, and what is chosen on dev."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.training.learnable import learnable, options, tiny_source
from toolscout.core.arrays import Ints
from toolscout.data.dataset import Dataset
from toolscout.errors import BadModel
from toolscout.models.encoders.trainable import TrainableEncoder
from toolscout.training import losses
from toolscout.training.batches import EncoderTrainingData
from toolscout.training.bi_encoder import BONUS_MAY_COST, EncoderTask, learn
from toolscout.training.encoder_options import EncoderTrainingOptions

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[float, Path]:
    """The tiny BERT by its dropout."""
    folder = tmp_path_factory.mktemp("tiny")
    return {dropout: tiny_source(folder / str(dropout), dropout) for dropout in (0.0, 0.1)}


def task(source: Path, data: Dataset | None = None, dev: str = "dev", **changed: Any) -> EncoderTask:
    encoder, chosen = TrainableEncoder(source, CPU), options(source, **changed)
    made = EncoderTrainingData.of(
        encoder, data or learnable(), "train", dev, unused=chosen.unused, self_queries=chosen.self_queries > 0
    )
    return EncoderTask(encoder, [made], chosen)


def gradients(one: EncoderTask) -> dict[str, Tensor]:
    found = {name: p.grad.clone() for name, p in one.parameters().items() if p.grad is not None}
    assert found.keys() == one.parameters().keys()
    return found


@pytest.mark.parametrize("loss", ["sigmoid", "softmax", "mnrl"])
def test_gradients_in_chunks_are_those_of_the_whole(sources: dict[float, Path], loss: str) -> None:
    steps = []
    for chunk in (0, 7, 1):
        made = task(sources[0.0], loss=loss, chunk=chunk, mix=0.5, self_queries=0.5)
        made.begin(0)
        steps.append((float(made.step(0, 0)), gradients(made)))
    for value, found in steps[1:]:
        assert value == pytest.approx(steps[0][0], rel=1e-5)
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, steps[0][1][name], atol=2e-5, rtol=1e-3)


def test_gradients_in_chunks_have_the_dropout_of_their_vectors(sources: dict[float, Path]) -> None:
    made = task(sources[0.1], chunk=5)
    made.begin(0)
    texts = made._training_data[0].documents[:12]
    gold = torch.eye(4, 8)
    torch.manual_seed(3)
    value = made._backward(texts[:4], texts[4:], gold)
    found = gradients(made)
    # The same in one graph: chunks of five by length, each with the seed that it is given.
    torch.manual_seed(3)
    order = sorted(range(12), key=lambda i: len(texts[i]))
    chunks = [order[start : start + 5] for start in (0, 5, 10)]
    rows: list[Tensor] = []
    for chunk, seed in zip(chunks, torch.randint(2**31 - 1, (3,)).tolist(), strict=True):
        torch.manual_seed(seed)
        rows.append(made._encoder.embed([texts[i] for i in chunk]))
    vectors = torch.cat(rows)[torch.tensor(order).argsort()]
    for parameter in made.parameters().values():
        parameter.grad = None
    loss = losses.multi_gold_softmax(20 * vectors[:4] @ vectors[4:].T, gold)
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(value) == pytest.approx(loss.item(), rel=1e-5)
    for name, gradient in gradients(made).items():
        torch.testing.assert_close(found[name], gradient, atol=2e-5, rtol=1e-3)


class Seen:
    """The texts of a step, in place of its gradients."""

    def __init__(self, made: EncoderTask, monkeypatch: pytest.MonkeyPatch) -> None:
        self._task = made
        self.requests: list[list[int]] = []
        self.documents: set[int] = set()
        self.gold: list[set[int]] = []
        monkeypatch.setattr(made, "_backward", self.backward)

    def backward(self, requests: Sequence[Ints], documents: Sequence[Ints], gold: Tensor) -> Tensor:
        known = [tokens.tolist() for tokens in self._task._training_data[0].documents]
        rows = [known.index(tokens.tolist()) for tokens in documents]
        self.documents |= set(rows)
        self.requests += [tokens.tolist() for tokens in requests]
        self.gold += [{rows[place] for place in np.flatnonzero(wanted)} for wanted in gold.numpy()]
        return torch.tensor(0.0)


def epoch(made: EncoderTask, monkeypatch: pytest.MonkeyPatch) -> Seen:
    seen = Seen(made, monkeypatch)
    made.begin(0)
    for step in range(made.steps()):
        made.step(0, step)
    return seen


def test_a_tool_that_nobody_asked_for_is_no_wrong_answer(
    sources: dict[float, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = learnable(used=12)
    assert epoch(task(sources[0.0], data), monkeypatch).documents == set(range(12))
    assert epoch(task(sources[0.0], data, self_queries=0.5), monkeypatch).documents == set(range(12))
    assert epoch(task(sources[0.0], data, unused=True), monkeypatch).documents == set(range(20))


def test_every_request_comes_with_its_gold(sources: dict[float, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    made = task(sources[0.0])
    seen = epoch(made, monkeypatch)
    train = made._training_data[0].train
    expected = {
        tuple(tokens.tolist()): set(gold.tolist()) for tokens, gold in zip(train.tokens, train.gold, strict=True)
    }
    assert {tuple(tokens) for tokens in seen.requests} == expected.keys()
    assert all(expected[tuple(tokens)] == gold for tokens, gold in zip(seen.requests, seen.gold, strict=True))


def test_pairs_compete_with_those_of_their_batch_alone(
    sources: dict[float, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    # With one candidate the other losses would mine hard negatives, and mix and self_queries would add requests.
    made = task(sources[0.0], loss="mnrl", mix=0.5, self_queries=0.5, candidates=1)
    train, batches = made._training_data[0].train, list[tuple[list[Ints], list[Ints]]]()

    def backward(requests: list[Ints], documents: list[Ints], gold: Tensor) -> Tensor:
        assert torch.equal(gold, torch.eye(len(requests)))
        batches.append((requests, documents))
        return torch.tensor(0.0)

    monkeypatch.setattr(made, "_backward", backward)
    made.begin(0)
    for step in range(made.steps()):
        made.step(0, step)
    documents = made._training_data[0].documents
    expected = {
        (tuple(tokens), tuple(documents[row]))
        for tokens, gold in zip(train.tokens, train.gold, strict=True)
        for row in gold
    }
    assert len(expected) == sum(map(len, train.gold)) > 160
    assert len(batches) == -(-len(expected) // 16)
    assert all(len(requests) == len(found) == 16 for requests, found in batches)
    assert {(tuple(r), tuple(d)) for pair in batches for r, d in zip(*pair, strict=True)} == expected
    assert not made._training_data[0].hard


def test_the_loss_of_pairs_is_that_of_sentence_transformers(sources: dict[float, Path]) -> None:
    made = task(sources[0.0], loss="mnrl", scale=20.0)
    made.begin(0)
    value, found = float(made.step(0, 0)), gradients(made)
    picked, data = made._steps[0][1], made._training_data[0]
    pairs = [(request, row) for request, gold in enumerate(data.train.gold) for row in gold]
    for parameter in made.parameters().values():
        parameter.grad = None
    anchors = made._encoder.embed([data.train.tokens[pairs[i][0]] for i in picked])
    positives = made._encoder.embed([data.documents[pairs[i][1]] for i in picked])
    cosines = functional.cosine_similarity(anchors[:, None], positives[None], dim=2)
    loss = functional.cross_entropy(20.0 * cosines, torch.arange(len(picked)))
    loss.backward()  # type: ignore[no-untyped-call]
    assert value == pytest.approx(loss.item(), rel=1e-5)
    for name, gradient in gradients(made).items():
        torch.testing.assert_close(found[name], gradient, atol=2e-5, rtol=1e-3)


def test_joined_requests_need_what_both_need(sources: dict[float, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    seen = epoch(task(sources[0.0], mix=0.5), monkeypatch)
    words = {tokens[0] for tokens in seen.requests} | {tokens[-1] for tokens in seen.requests}
    assert words == {2, 3}  # one opening and one closing token each
    assert max(map(len, seen.gold)) > 2
    for tokens, gold in zip(seen.requests, seen.gold, strict=True):
        assert gold == {token - 4 - 20 for token in tokens if 24 <= token < 44}  # word n is token n + 4


def test_own_lines_are_requests_for_their_tool(sources: dict[float, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    made = task(sources[0.0], self_queries=0.5)
    seen = epoch(made, monkeypatch)
    assert len(seen.requests) == 1.5 * 160
    lines = {(tuple(line.tolist()), row) for row, few in enumerate(made._training_data[0].self_queries) for line in few}
    own = [(tuple(tokens), *gold) for tokens, gold in zip(seen.requests, seen.gold, strict=True) if len(gold) == 1]
    assert len(set(own) & lines) > 20


def test_beyond_the_candidates_hard_ones_are_mined(sources: dict[float, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolscout.training.bi_encoder._MINED_FROM", 5)
    made = task(sources[0.0], candidates=10, batch=4)
    seen = epoch(made, monkeypatch)
    assert seen.documents == set(range(20))
    material, encoder = made._training_data[0], made._encoder
    cosines = encoder.encode(material.train.tokens, 64) @ encoder.encode(material.documents, 64).T
    for row, gold, hard in zip(cosines.numpy(), material.train.gold, material.hard, strict=True):
        nearest = set(np.argsort(-row)[:5].tolist())
        assert set(hard.tolist()) == nearest - set(gold.tolist())


def test_what_was_mined_goes_through_a_checkpoint(sources: dict[float, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolscout.training.bi_encoder._MINED_FROM", 5)
    made = task(sources[0.0], candidates=10)
    made.begin(0)
    mined = [few.tolist() for few in made._training_data[0].hard]
    saved = made.epoch_state()
    with torch.no_grad():
        for parameter in made.parameters().values():
            parameter.add_(torch.randn_like(parameter))
    made.begin(0, saved)
    assert [few.tolist() for few in made._training_data[0].hard] == mined
    made.begin(1)
    assert [few.tolist() for few in made._training_data[0].hard] != mined
    assert task(sources[0.0]).epoch_state() == {}


def test_the_average_that_is_best_on_dev_is_taken(sources: dict[float, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    made = task(sources[0.0])
    before = {name: parameter.detach().clone() for name, parameter in made.parameters().items()}
    with torch.no_grad():
        for parameter in made.parameters().values():
            parameter.add_(1.0)
    scores = iter([{"ndcg@5": 0.2}, {"ndcg@5": 0.9}, {"ndcg@5": 0.5}])
    monkeypatch.setattr(made, "_scores", lambda: next(scores))
    found, weights = made.validate()
    assert found == {"ndcg@5": 0.9}
    for name, parameter in made.parameters().items():
        torch.testing.assert_close(weights[name], before[name] + 0.75)
        torch.testing.assert_close(parameter.detach(), before[name] + 1.0)  # training goes on from where it was


def test_without_dev_or_with_a_share_given_nothing_is_tried(sources: dict[float, Path], tmp_path: Path) -> None:
    for dev, average in (("", 0.0), ("dev", 0.7)):
        chosen = options(sources[0.0], epochs=1, average=average)
        done = learn([(learnable(), "train", dev)], sources[0.0], chosen, tmp_path / dev, "")
        assert done.average == (average or 1.0)
        assert bool(done.trained.best) == bool(dev)
        assert done.new_bonus == 0.0


def with_dev(source: Path, cosines: Sequence[Sequence[float]], gold: Sequence[set[int]], known: int) -> EncoderTask:
    """A task whose dev requests have these cosines to 8 of 20 tools, the first `known` of which were trained on."""
    made = task(source)
    material = made._training_data[0]
    assert material.dev is not None
    material.dev.gold = [np.array(sorted(few), dtype=np.int64) for few in gold]
    material.new = np.arange(20) >= known
    whole = torch.tensor([[*row, *[-1.0] * 12] for row in cosines])
    made._dev_cosines = lambda material, rows: whole[:, rows]  # type: ignore[method-assign]
    return made


def test_the_bonus_of_new_tools_lifts_them_into_sight(sources: dict[float, Path]) -> None:
    known = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4]
    lifted = with_dev(sources[0.0], [[*known, 0.295, 0.1]], [{0, 6}], known=6)
    assert lifted.new_bonus() == pytest.approx(0.21)  # just above the fifth; the known gold tool stays
    assert with_dev(sources[0.0], [[*known, 0.295, 0.1]], [{0, 5}], known=6).new_bonus() == 0.0  # no new gold
    alone = with_dev(sources[0.0], [[*known, 0.295, 0.1]], [{6, 7}], known=6)
    assert alone.new_bonus() == 0.0  # no known gold to weigh them against


def test_the_bonus_may_cost_known_tools_little(sources: dict[float, Path]) -> None:
    """Three new tools stand behind a known gold one: lifting them finds more, at the cost of that one."""
    torn, calm = [0.55, *[0.605] * 4, *[0.45] * 3], [0.55, 0.95, 0.95, 0.605, 0.605, *[0.45] * 3]
    assert with_dev(sources[0.0], [torn], [{0, 5, 6, 7}], known=5).new_bonus() == 0.0
    rare = with_dev(sources[0.0], [torn] * 2 + [calm] * 98, [{0, 5, 6, 7}] * 2 + [{1, 2}] * 98, known=5)
    assert rare.new_bonus() == pytest.approx(0.16)
    often = with_dev(sources[0.0], [torn] * 4 + [calm] * 96, [{0, 5, 6, 7}] * 4 + [{1, 2}] * 96, known=5)
    assert 0.02 < BONUS_MAY_COST < 0.04
    assert often.new_bonus() == 0.0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"loss": "hinge"}, "loss must be sigmoid, softmax or mnrl"),
        ({"epochs": 0}, "at least 1"),
        ({"batch": 0}, "at least 1"),
        ({"candidates": 0}, "at least 1"),
        ({"rate": 0.0}, "rate and scale must be above 0"),
        ({"rate": float("nan")}, "rate and scale must be above 0"),
        ({"scale": -1.0}, "rate and scale must be above 0"),
        ({"mix": 1.1}, "mix and average from 0 to 1"),
        ({"average": -0.1}, "mix and average from 0 to 1"),
        ({"self_queries": -1.0}, "must be 0 or more"),
        ({"chunk": -1}, "must be 0 or more"),
        ({"patience": -1}, "must be 0 or more"),
        ({"seed": -1}, "must be 0 or more"),
    ],
)
def test_options_that_cannot_train_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(BadModel, match=message):
        EncoderTrainingOptions(**changed)
