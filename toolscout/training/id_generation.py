"""Trains a language model to generate tool ids: from documents, from requests, and in whole conversations.

All stages use examples of one form: tokens, and the right next tokens at some positions. Where several next tokens are
right, each competes with the wrong ones alone, not with the other right ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from toolscout.core.arrays import Floats
from toolscout.models.language.torch_network import BranchedSequences, TransformerNetwork
from toolscout.training.checkpoint import Checkpoints
from toolscout.training.loop import FAST, Report, Schedule, TrainingRecord, run
from toolscout.training.sequences import SequenceTask

_GENERAL_TOKENS = 96


@dataclass(frozen=True, slots=True)
class IdExample:
    """One training sequence.

    tokens: the input.
    right: (position, the right next tokens after it).
    branches: the lengths of parts at the end that do not attend to each other, so that a prompt is read once for all
        of its ids.
    weights: the weight of each entry of `right`; without weights, all count the same.
    """

    tokens: Sequence[int]
    right: Sequence[tuple[int, tuple[int, ...]]]
    branches: Sequence[int] = ()
    weights: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Stage:
    """A training stage: its examples by epoch, its number of epochs, and its learning rate.

    A stage that is not `judged` runs all epochs, without dev scores: it trains something that dev does not measure.
    """

    name: str
    lessons: Callable[[int], Sequence[IdExample]]
    epochs: int
    rate: float
    judged: bool = True


@dataclass(frozen=True, slots=True)
class AddedRows:
    """The initial embeddings (rows) of the added tokens, and the document vectors of those that stand for a tool.

    A row is its initial value, plus a linear map of its vector (where that is not zero), plus a free part. In each
    step, a share `absent` of the mapped rows goes without the free part, so that the map learns to serve new tools.
    """

    start: Floats
    vectors: Floats
    absent: float
    map: Floats | None = None
    bias: Floats | None = None


@dataclass(frozen=True, slots=True)
class IdTrainingSettings:
    """The settings of a training. `general`: texts on which the model must stay near its base, `mix` per example.

    `warmup` and `falls`: how the learning rate rises and falls, as in `Schedule`.
    """

    batch: int
    pace: float
    patience: int
    seed: int
    chunk: int = 0
    general: Sequence[Sequence[int]] = ()
    mix: float = 0.0
    warmup: float = 0.05
    falls: Literal["linear", "cosine"] = "linear"


@dataclass(frozen=True, slots=True)
class LearnedState:
    """The trained parameters: the adapter, the free parts of the rows, the map and its bias."""

    adapter: dict[str, Floats]
    free: Floats
    map: Floats
    bias: Floats


@dataclass(frozen=True, slots=True)
class TrainedIdWriter:
    """The result of a training: the learned state, the history of each stage, and its tokens per second."""

    state: LearnedState
    stages: dict[str, TrainingRecord]
    paces: dict[str, float]
    device: str
    parameters: int
    checkpoints: tuple[Checkpoints, ...]


Judge = Callable[[TransformerNetwork, LearnedState], Mapping[str, float]]
"""Gives the dev scores of the model as it stands."""
AfterStage = Callable[[str, TransformerNetwork, LearnedState], None]
"""Called after each training stage with its name and the model as it stands."""


class TrainableRows(torch.nn.Module):
    """The trainable embeddings of the added tokens."""

    def __init__(self, added: AddedRows, device: torch.device) -> None:
        """Start from the values in `added`; the free parts start at zero, and so does a map that is not given."""
        super().__init__()
        self._start, self._vectors = (
            torch.tensor(added.start, device=device),
            torch.tensor(added.vectors, device=device),
        )
        self._mapped = (self._vectors != 0).any(1, keepdim=True).float()
        self._absent = added.absent
        self.free = torch.nn.Parameter(torch.zeros_like(self._start))
        self.map = torch.nn.Parameter(torch.zeros(self._vectors.shape[1], self._start.shape[1], device=device))
        self.bias = torch.nn.Parameter(torch.zeros(self._start.shape[1], device=device))
        with torch.no_grad():
            for parameter, initial in ((self.map, added.map), (self.bias, added.bias)):
                if initial is not None:
                    parameter.copy_(torch.from_numpy(initial))

    def forward(self) -> Tensor:
        """All rows; while training, some have only the part that is computed from their documents."""
        has_free = torch.ones_like(self._mapped)
        if self.training and self._absent:
            has_free = 1 - self._mapped * (torch.rand_like(has_free) < self._absent)
        return self._start + self._mapped * (self._vectors @ self.map + self.bias) + has_free * self.free


class IdGenerationTask(SequenceTask[IdExample]):
    """One stage of the training, as a task for the training loop."""

    def __init__(
        self,
        network: TransformerNetwork,
        rows: TrainableRows,
        stage: Stage,
        settings: IdTrainingSettings,
        judge: Judge | None,
    ) -> None:
        """`judge` scores the model on dev after each epoch; None trains to the end."""
        super().__init__(network, stage.lessons, batch=settings.batch, seed=settings.seed, chunk=settings.chunk)
        self._rows, self._settings, self._judge = rows, settings, judge

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """The adapters (or matrices) and the rows."""
        return {
            **super().parameters(),
            **{f"{FAST}{name}": parameter for name, parameter in self._rows.named_parameters()},
        }

    def step(self, epoch: int, step: int) -> Tensor:
        """Train on one batch, and on general texts to stay close to the base model; gives back the loss."""
        self._rows.train()
        total = super().step(epoch, step)
        if self._settings.mix and self._settings.general:
            loss = self._base_divergence(epoch, step)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return total

    def _length(self, one: IdExample) -> int:
        return len(one.tokens)

    def _parts(self, every: Sequence[IdExample]) -> list[list[IdExample]]:
        """Examples with and without branches in separate parts: the mask of branches needs quadratic memory."""
        forked = [len(one.branches) > 1 for one in every]
        kinds = [[one for one, there in zip(every, forked, strict=True) if there is kind] for kind in (True, False)]
        found: list[list[IdExample]] = []
        for few in filter(None, kinds):
            found += super()._parts(few)
        return found

    def _loss(self, examples: Sequence[IdExample]) -> Tensor:
        rows = self._rows()
        sequences = [example.tokens for example in examples]
        forked = None
        if any(len(example.branches) > 1 for example in examples):
            branches = [example.branches for example in examples]
            forked = BranchedSequences([len(tokens) for tokens in sequences], branches, self._network.device)
        states = self._network.states(sequences, rows, self._network.merged(), forked)
        places = [(row, at) for row, example in enumerate(examples) for at, _ in example.right]
        right = [few for example in examples for _, few in example.right]
        weights = [
            weight
            for example in examples
            for weight in (example.weights or [1 / len(example.right)] * len(example.right))
        ]
        device = self._network.device
        picked = torch.tensor(places, device=device)
        logits = self._logits(states[picked[:, 0], picked[:, 1]], rows)
        shares = torch.tensor(weights, device=device)
        return (_multi_gold_loss(logits, right) * shares).sum() / len(examples)

    def _logits(self, states: Tensor, rows: Tensor) -> Tensor:
        """Over the whole vocabulary, the added rows last."""
        base = functional.linear(states, self._network.head).float()
        return torch.cat([base, states.float() @ rows.T], 1)

    def _base_divergence(self, epoch: int, step: int) -> Tensor:
        """The KL divergence of the model from its base on general texts."""
        settings = self._settings
        rng = np.random.default_rng([settings.seed, epoch, step])
        count = max(1, round(settings.mix * settings.batch))
        few = [settings.general[i][:_GENERAL_TOKENS] for i in rng.integers(len(settings.general), size=count)]
        rows = self._rows()
        states = self._network.states(few, rows, self._network.merged())
        with torch.no_grad():
            before = self._network.states(few, rows, self._network.base_matrices())
        spans = torch.tensor([[row, at] for row, text in enumerate(few) for at in range(len(text))])
        chosen = spans[torch.from_numpy(rng.permutation(len(spans))[: 8 * count])].to(states.device)
        now = functional.log_softmax(self._logits(states[chosen[:, 0], chosen[:, 1]], rows), 1)
        then = functional.log_softmax(
            functional.linear(before[chosen[:, 0], chosen[:, 1]], self._network.head).float(), 1
        )
        return functional.kl_div(now[:, : then.shape[1]], then, reduction="batchmean", log_target=True)

    def _scores(self) -> Mapping[str, float]:
        return self._judge(self._network, state(self._network, self._rows)) if self._judge else {}


def _multi_gold_loss(logits: Tensor, right: Sequence[tuple[int, ...]]) -> Tensor:
    """The loss of each row of logits: the mean, over its right tokens, of the cross-entropy against the wrong ones."""
    if all(len(few) == 1 for few in right):
        return functional.cross_entropy(
            logits, torch.tensor([few[0] for few in right], device=logits.device), reduction="none"
        )
    rows = torch.tensor([row for row, few in enumerate(right) for _ in few], device=logits.device)
    tokens = torch.tensor([token for few in right for token in few], device=logits.device)
    good = torch.zeros_like(logits, dtype=torch.bool)
    good[rows, tokens] = True
    against = logits.masked_fill(good, -torch.inf).logsumexp(1)
    each = functional.softplus(against[rows] - logits[rows, tokens])
    counts = torch.tensor([float(len(few)) for few in right], device=logits.device)
    return torch.zeros(len(right), device=logits.device).index_add(0, rows, each) / counts


def state(network: TransformerNetwork, rows: TrainableRows) -> LearnedState:
    """The trained parameters as they are now."""
    free, mapped, bias = (one.detach().float().cpu().numpy() for one in (rows.free, rows.map, rows.bias))
    return LearnedState(network.trained_arrays(), free, mapped, bias)


def learn(
    network: TransformerNetwork,
    added: AddedRows,
    stages: Sequence[Stage],
    settings: IdTrainingSettings,
    judge: Judge | None,
    folder: Path,
    identity: str,
    progress: Report | None = None,
    after_stage: AfterStage | None = None,
) -> TrainedIdWriter:
    """Train stage by stage, each from the best weights of the one before. An interrupted stage is resumed.

    Gives back the trained state; the caller removes its checkpoints. Raises TrainingStopped where the loss is not
    finite, OutOfMemory, and BadModel for checkpoints of another training.
    """
    rows = TrainableRows(added, network.device)
    records, paces, all_checkpoints = {}, {}, []
    for number, stage in enumerate(stages):
        checkpoints = Checkpoints(folder / f"training-{number}-{stage.name}", identity)
        task = IdGenerationTask(network, rows, stage, settings, judge if stage.judged else None)
        schedule = Schedule(
            epochs=stage.epochs,
            rate=stage.rate,
            warmup=settings.warmup,
            falls=settings.falls,
            patience=settings.patience,
            seed=settings.seed,
            pace=settings.pace,
        )
        started = time.perf_counter()
        records[stage.name] = run(task, schedule, checkpoints, _prefix_stage(stage.name, progress))
        paces[stage.name] = task.tokens / (time.perf_counter() - started - task.dev_seconds)
        task.load({name: tensor.to(network.device) for name, tensor in checkpoints.read_best().items()})
        all_checkpoints.append(checkpoints)
        if after_stage:
            after_stage(stage.name, network, state(network, rows))
    numbers = sum(parameter.numel() for parameter in [*network.parameters(), *rows.parameters()])
    return TrainedIdWriter(state(network, rows), records, paces, network.device.type, numbers, tuple(all_checkpoints))


def _prefix_stage(name: str, progress: Report | None) -> Report | None:
    if progress is None:
        return None
    return lambda text, done, total: progress(f"{name}: {text}", done, total)
