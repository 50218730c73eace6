"""Teaching a language model to write: losses against ones by hand, what is learned, sampling, a kill in the middle."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.models.tiny_llama import tiny_llama
from toolscout.errors import BadDataset, BadModel, BadRequest
from toolscout.llm.base import Message
from toolscout.models.language.base import Base, open_base
from toolscout.models.language.torch_network import TransformerNetwork
from toolscout.training import loop, text_generation
from toolscout.training.preference_pairs import PreferenceTask, SupervisedTask, token_losses
from toolscout.training.text_generation import (
    Pair,
    PreferencePair,
    ScoredTexts,
    SupervisedExample,
    TextTrainingSettings,
    TrainableWriter,
    finetune,
    prefer,
    rank_reward,
    supervise,
)
from toolscout.training.text_options import AlignmentOptions, TextTrainingOptions

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
EXAMPLES = [
    SupervisedExample([5, 9, 11], [30, 31, 2]),
    SupervisedExample([7], [32, 2]),
    SupervisedExample([5, 9], [33, 34, 35, 36, 2]),
]
PAIRS = [
    PreferencePair([5, 9, 11], [30, 31, 2], [40, 2], 0.5),
    PreferencePair([7, 8], [32], [33, 34, 35, 36, 2], 1.0),
    PreferencePair([5], [50, 51], [52, 2], 0.2),
]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    folder = tmp_path_factory.mktemp("tiny")
    tiny_llama(folder, max_position_embeddings=128, initializer_range=0.15)
    return open_base(str(folder))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def network(base: Base, rank: int = 4, moved: bool = True) -> TransformerNetwork:
    """One that has learned something already."""
    made = TransformerNetwork(base.architecture, base.weights(), rank, CPU)
    with torch.no_grad():
        for parameter in made.parameters() if moved else ():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return made


def settings(**changed: Any) -> TextTrainingSettings:
    return TextTrainingSettings(**{"epochs": 1, "rate": 1e-2, "batch": 8, **changed})


def chance(made: TransformerNetwork, prompt: Sequence[int], target: Sequence[int]) -> torch.Tensor:
    """The log-probability of a text, read as one sequence."""
    states = made.states([[*prompt, *target]], torch.zeros(0, 32), made.merged())[0]
    logs = torch.log_softmax(states @ made.head.T, -1)
    return torch.stack([logs[len(prompt) - 1 + place, token] for place, token in enumerate(target)]).sum()


def gradients(made: TransformerNetwork, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    named = dict(made.named_parameters())
    return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))


def stepped(task: SupervisedTask | PreferenceTask, made: TransformerNetwork) -> tuple[float, dict[str, torch.Tensor]]:
    made.zero_grad()
    task.begin(0)
    loss = float(task.step(0, 0))
    return loss, {name: one.grad for name, one in made.named_parameters() if one.grad is not None}


def assert_alike(found: tuple[float, dict[str, torch.Tensor]], made: TransformerNetwork, wanted: torch.Tensor) -> None:
    assert found[0] == pytest.approx(float(wanted.detach()), rel=1e-4)
    for name, gradient in gradients(made, wanted).items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("chunk", [0, 5])
def test_the_loss_of_examples_is_the_mean_of_their_targets_tokens(base: Base, chunk: int) -> None:
    made = network(base)
    found = stepped(SupervisedTask(made, lambda epoch: EXAMPLES, settings(chunk=chunk)), made)
    every = torch.stack([chance(made, one.prompt, one.target) for one in EXAMPLES])
    assert_alike(found, made, -every.sum() / sum(len(one.target) for one in EXAMPLES))


def test_nothing_is_learned_of_the_prompt(base: Base) -> None:
    made = network(base, moved=False)
    loss, _ = token_losses(made, [[5, 9, 11]], [[[30]]])
    # The one token that is asked for is all that the loss sees.
    assert loss.shape == (1,)
    assert float(loss.detach()[0]) == pytest.approx(-float(chance(made, [5, 9, 11], [30]).detach()), rel=1e-4)


@pytest.mark.parametrize("chunk", [0, 9])
@pytest.mark.parametrize("sft", [0.0, 0.3])
def test_the_loss_of_pairs_is_dpo(base: Base, chunk: int, sft: float) -> None:
    made, beta = network(base), 0.7
    task = PreferenceTask(made, PAIRS, settings(chunk=chunk), beta, sft)
    with torch.no_grad():
        before = [chance(made, one.prompt, one.better) - chance(made, one.prompt, one.worse) for one in PAIRS]
        for parameter in made.parameters():
            parameter.mul_(1.2)
    found = stepped(task, made)
    losses = []
    for one, then in zip(PAIRS, before, strict=True):
        better, worse = chance(made, one.prompt, one.better), chance(made, one.prompt, one.worse)
        likelier = torch.sigmoid(beta * (better - worse - then))
        losses.append(-likelier.log() - sft * better / len(one.better))
    assert_alike(found, made, torch.stack(losses).mean())


def test_against_itself_a_network_is_undecided(base: Base) -> None:
    made = network(base)
    loss, _ = stepped(PreferenceTask(made, PAIRS, settings(), 0.5, 0.0), made)
    assert loss == pytest.approx(math.log(2), abs=1e-5)


def test_an_earlier_network_can_be_the_reference(base: Base) -> None:
    made, earlier = network(base), network(base, moved=False).trained_arrays()
    now = made.trained_arrays()
    loss, _ = stepped(PreferenceTask(made, PAIRS, settings(), 0.5, 0.0, earlier), made)
    assert loss != pytest.approx(math.log(2), abs=1e-3)
    for name, array in made.trained_arrays().items():
        np.testing.assert_array_equal(array, now[name])
    then = network(base, moved=False)
    wanted = [math.log1p(math.exp(-0.5 * (likelier(made, one) - likelier(then, one)))) for one in PAIRS]
    assert loss == pytest.approx(np.mean(wanted), rel=1e-4)


def likelier(made: TransformerNetwork, pair: PreferencePair) -> float:
    with torch.no_grad():
        return float(chance(made, pair.prompt, pair.better) - chance(made, pair.prompt, pair.worse))


def test_pairs_are_learned(base: Base, tmp_path: Path) -> None:
    made = network(base, moved=False)
    before = [likelier(made, one) for one in PAIRS]
    trained = prefer(made, PAIRS, settings(epochs=8), tmp_path, sft=0.0)
    assert trained.history[-1]["loss"] < math.log(2)
    assert all(likelier(made, one) > then for one, then in zip(PAIRS, before, strict=True))


def test_the_best_text_of_each_prompt_is_learned(base: Base, tmp_path: Path) -> None:
    made = network(base, moved=False)
    scored = [
        ScoredTexts([5, 9], [[30, 2], [31, 2], [32, 2]], [0.1, 0.9, 0.9]),
        ScoredTexts([7], [[33, 2], [34, 2]], [1, 0]),
    ]
    before = [chance(made, one.prompt, one.texts[place]).detach() for one, place in zip(scored, (1, 0), strict=True)]
    rank_reward(made, scored, settings(epochs=10, rate=2e-2), tmp_path)
    after = [chance(made, one.prompt, one.texts[place]).detach() for one, place in zip(scored, (1, 0), strict=True)]
    assert all(now > then + 1 for now, then in zip(after, before, strict=True))
    other = chance(made, [5, 9], [32, 2]).detach()
    assert after[0] > other


def test_nothing_to_learn_from_is_refused(base: Base, tmp_path: Path) -> None:
    with pytest.raises(BadDataset, match="nothing to learn from"):
        supervise(network(base), lambda epoch: [], settings(), tmp_path)


# Whole generators.

WORDS = {"Find me a hotel": "Paris", "What will the weather be": "1984", "a tool": "for 2 nights"}


def pairs(epoch: int) -> list[Pair]:
    return [([Message("user", asked)], told) for asked, told in WORDS.items()]


def options(base: Base, **changed: Any) -> TextTrainingOptions:
    quick = {"base": base.reference, "rank": 8, "epochs": 60, "rate": 2e-2, "device": "cpu", "max_tokens": 12}
    return TextTrainingOptions(**{**quick, **changed})


def told(model: Any) -> list[str]:
    answers = model.complete([[Message("user", asked)] for asked in WORDS], max_tokens=12)
    return [few[0].text for few in answers]


def test_a_generator_writes_what_it_was_taught(base: Base, tmp_path: Path) -> None:
    said: list[str] = []
    about = {"task": "describe", "settings": {"form": "x"}}
    taught = finetune(options(base), pairs, tmp_path, about=about, progress=lambda text, *_: said.append(text))
    assert told(taught.model.local()) == list(WORDS.values())
    prompts = [taught.model.prompt([Message("user", asked)]) for asked in WORDS]
    drawn = taught.model.sample(prompts, 1, 0.0, 12)
    assert [taught.model.text(few[0]) for few in drawn] == list(WORDS.values())
    assert all(few[0][-1] == base.end for few in drawn)
    record = json.loads((tmp_path / "generator.json").read_text())
    assert record["task"] == "describe"
    assert record["fit"] == taught.report
    assert taught.report["examples"] == 3
    assert len(taught.report["history"]) == 60
    assert said
    assert not (tmp_path / "training").exists()


def test_what_is_too_long_is_left_out_or_cut(base: Base, tmp_path: Path) -> None:
    long = ([Message("user", "hotel " * 60)], "Paris")
    taught = finetune(options(base, epochs=1, request_tokens=40), lambda epoch: [*pairs(epoch), long], tmp_path)
    assert (taught.report["examples"], taught.report["left_out"]) == (3, 1)
    cut = text_generation._TokenisedPairs(taught.model, pairs, options(base, max_tokens=3))(0)
    assert [len(one.target) for one in cut] == [3, 3, 3]
    whole = taught.model.example(*pairs(0)[2])
    assert cut[2] == SupervisedExample(whole.prompt, whole.target[:3])


def test_no_epochs_leave_the_base_as_it_is(base: Base, tmp_path: Path) -> None:
    taught = finetune(options(base, epochs=0), pairs, tmp_path)
    plain = TrainableWriter(base, network(base, moved=False))
    assert told(taught.model.local()) == told(plain.local())


def test_dev_chooses_the_epoch(base: Base, tmp_path: Path) -> None:
    scores = iter([0.1, 0.9, 0.3])
    kept: list[dict[str, Any]] = []

    def judge(model: TrainableWriter) -> dict[str, float]:
        kept.append(model.network.trained_arrays())
        return {"recall@5": next(scores)}

    taught = finetune(options(base, epochs=3), pairs, tmp_path, judge=judge)
    assert taught.report["dev"] == {"recall@5": 0.9}
    for name, array in taught.model.network.trained_arrays().items():
        np.testing.assert_array_equal(array, kept[1][name])


def test_a_training_that_was_killed_goes_on_to_the_same_result(
    base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_generation, "Schedule", partial(loop.Schedule, save_every=2))
    quick = options(base, epochs=3, batch=1)
    wanted = finetune(quick, pairs, tmp_path / "whole").model.network.trained_arrays()
    real, calls = loop._step, iter(range(5))

    def dying(*args: Any) -> Any:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(loop, "_step", dying)
    with pytest.raises(KeyboardInterrupt):
        finetune(quick, pairs, tmp_path / "killed")
    monkeypatch.setattr(loop, "_step", real)
    with pytest.raises(BadModel, match="other data or with other options"):
        finetune(quick, lambda epoch: pairs(epoch)[:2], tmp_path / "killed")
    found = finetune(quick, pairs, tmp_path / "killed", keep=True).model.network.trained_arrays()
    again = finetune(quick, pairs, tmp_path / "killed").model.network.trained_arrays()
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array)
        np.testing.assert_array_equal(again[name], array)


def test_samples_are_drawn_anew_and_the_same_by_seed(base: Base) -> None:
    model = TrainableWriter(base, network(base))
    model._rows = 5  # in several batches
    prompts = [[5, 9, 11], [7], [5, 9, 11, 30]]
    drawn = [model.sample(prompts, 4, 1.0, 6, seed) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    for few in drawn[0]:
        assert len(few) == 4
        assert len({tuple(text) for text in few}) > 1
        assert all(len(text) == 6 or text[-1] == base.end for text in few)
    with pytest.raises(BadRequest, match="no room"):
        model.sample([[5] * 125], 1, 1.0, 6)


@pytest.mark.parametrize("changed", [{"epochs": -1}, {"batch": 0}, {"rate": 0.0}, {"max_tokens": 0}])
def test_options_that_cannot_be_trained_with_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(BadModel):
        TextTrainingOptions(**changed)


@pytest.mark.parametrize(
    "changed",
    [{"reward": "luck"}, {"loss": "x"}, {"preset": "x"}, {"samples": 1}, {"align": -1}, {"spread": 0}, {"margin": -1}],
)
def test_options_that_cannot_be_aligned_with_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(BadModel):
        AlignmentOptions(**changed)


def test_the_preset_is_put_in_place() -> None:
    with_preset = AlignmentOptions(preset="qta", align=3, samples=4).with_preset()
    assert (with_preset.align, with_preset.reward, with_preset.loss, with_preset.samples) == (1, "rank", "dpo", 4)
    assert AlignmentOptions(align=3).with_preset() == AlignmentOptions(align=3)


def test_a_generator_can_be_begun_with(base: Base, tmp_path: Path) -> None:
    taught = finetune(options(base, epochs=1), pairs, tmp_path / "first").model
    again = TrainableWriter.open(options(base, init_from=str(tmp_path / "first")))
    for name, array in taught.network.trained_arrays().items():
        np.testing.assert_allclose(again.network.trained_arrays()[name], array, atol=2e-3)
    with pytest.raises(BadModel, match="another rank"):
        TrainableWriter.open(options(base, init_from=str(tmp_path / "first"), rank=7))
    tiny_llama(tmp_path / "other", max_position_embeddings=128, initializer_range=0.2)
    with pytest.raises(BadModel, match="name that as base"):
        TrainableWriter.open(options(open_base(str(tmp_path / "other")), init_from=str(tmp_path / "first")))
