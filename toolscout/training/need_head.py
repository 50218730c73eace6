"""Trains and calibrates the detection tower: a classifier, over vectors, of whether a request needs a tool."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from toolscout.core.arrays import Bools, Doubles, Floats
from toolscout.data import metrics
from toolscout.errors import BadModel
from toolscout.models.need_head import NeedHead
from toolscout.training.checkpoint import Checkpoints
from toolscout.training.loop import Schedule, TrainingTask, run

SELECTED_ON = "likelihood"
_NEWTON_STEPS = 100
_TINY = 1e-9


@dataclass(frozen=True, slots=True)
class DetectionOptions:
    """How the classifier is trained. `hidden`: the size of its hidden layer. `smoothing`: label smoothing."""

    hidden: int = 64
    dropout: float = 0.1
    smoothing: float = 0.0
    epochs: int = 30
    rate: float = 0.003
    decay: float = 0.01
    batch: int = 256
    patience: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise BadModel for values out of range."""
        if min(self.hidden, self.epochs, self.batch) < 1 or not self.rate > 0:
            raise BadModel(f"hidden, epochs and batch must be at least 1 and rate above 0, got {self}")
        if not 0 <= self.dropout < 1 or not 0 <= self.smoothing < 1:
            raise BadModel(f"dropout and smoothing must be from 0 to below 1, got {self}")


@dataclass(frozen=True, slots=True)
class Examples:
    """Vectors, one a row, by source: of requests that need a tool, and of prompts that need none."""

    needed: Mapping[str, Floats]
    unneeded: Mapping[str, Floats]

    def vectors(self) -> Floats:
        """All rows, those that need a tool first."""
        rows = [*self.needed.values(), *self.unneeded.values()]
        return np.concatenate(rows).astype(np.float32)

    def labels(self) -> Bools:
        """For each row, whether it needs a tool."""
        counts = [sum(map(len, sources.values())) for sources in (self.needed, self.unneeded)]
        return np.repeat(np.array([True, False]), counts)

    def weights(self) -> Doubles:
        """The weight of each row, 1 on average: a source counts by the root of its size, both classes equally."""
        classes = [[len(rows) for rows in sources.values()] for sources in (self.needed, self.unneeded)]
        shares = [np.repeat(np.sqrt(sizes) / np.maximum(sizes, 1), sizes) for sizes in classes]
        return np.concatenate([sum(map(sum, classes)) / 2 * share / share.sum() for share in shares])


@dataclass(frozen=True, slots=True)
class DetectionReport:
    """The time and epochs of a training, and the weighted dev scores of the calibrated head."""

    seconds: float
    epochs: int
    dev: Mapping[str, float]


def learn(
    train: Examples,
    dev: Examples,
    encoder: str,
    folder: Path,
    options: DetectionOptions | None = None,
) -> tuple[NeedHead, DetectionReport]:
    """Train a head on `train`; select the epoch and calibrate on `dev`. Gives back the head and a report.

    `encoder` is the fingerprint of the encoder that the vectors come from. `folder` holds checkpoints, by which an
    interrupted training is resumed; it is removed at the end. Raises BadModel without examples of both classes.
    """
    options = options or DetectionOptions()
    for examples, name in ((train, "train on"), (dev, "select on")):
        if not any(map(len, examples.needed.values())) or not any(map(len, examples.unneeded.values())):
            raise BadModel(f"there is nothing to {name}: give requests that need a tool and prompts that need none")
    checkpoints = Checkpoints(folder, _identity(train, dev, options))
    schedule = Schedule(options.epochs, options.rate, options.decay, patience=options.patience, seed=options.seed)
    trained = run(_NeedHeadTask(train, dev, options), schedule, checkpoints)
    raw = _head(checkpoints.read_best(), encoder)
    head, scores = calibrate(raw, dev)
    checkpoints.remove()
    return head, DetectionReport(trained.seconds, len(trained.history), scores)


def calibrate(head: NeedHead, dev: Examples) -> tuple[NeedHead, dict[str, float]]:
    """The head with a scale and shift fitted on dev, and its dev scores. Raises BadModel as platt does."""
    vectors, labels, weights = dev.vectors(), dev.labels(), dev.weights()
    logits = head.states(vectors).astype(np.float64) @ head.output + head.output_bias
    scale, shift = platt(logits, labels, weights)
    head = replace(head, scale=scale, shift=shift)
    chances = head.probabilities(vectors).astype(np.float64)
    sure = np.where(labels, chances, 1 - chances)
    scores = {
        SELECTED_ON: float(np.exp(np.average(np.log(np.maximum(sure, _TINY)), weights=weights))),
        "auroc": metrics.auroc(labels, chances),
        "accuracy": float(np.average(sure >= 0.5, weights=weights)),
        "brier": float(np.average((chances - labels) ** 2, weights=weights)),
    }
    return head, scores


def average_heads(heads: Sequence[NeedHead]) -> NeedHead:
    """One head whose logit is the mean of the calibrated logits of several heads; raises BadModel for none."""
    if not heads or len({head.encoder for head in heads}) > 1:
        raise BadModel("only heads over vectors of the same encoder can be averaged")
    share = 1 / len(heads)
    return NeedHead(
        hidden=np.concatenate([head.hidden for head in heads]),
        hidden_bias=np.concatenate([head.hidden_bias for head in heads]),
        output=np.concatenate([share * head.scale * head.output for head in heads]).astype(np.float32),
        output_bias=sum(share * (head.scale * head.output_bias + head.shift) for head in heads),
        scale=1.0,
        shift=0.0,
        encoder=heads[0].encoder,
    )


def platt(logits: Doubles, labels: Bools, weights: Doubles) -> tuple[float, float]:
    """Platt scaling: the scale and shift for which sigmoid(scale * logit + shift) has the highest weighted likelihood.

    Uses Newton's method, and Platt's smoothed labels, so that perfectly separable classes do not get probabilities of
    0 and 1. Raises BadModel where the scale would be negative.
    """
    up, down = int(labels.sum()), int((~labels).sum())
    targets = np.where(labels, (up + 1) / (up + 2), 1 / (down + 2))
    design = np.column_stack([logits, np.ones_like(logits)])
    found = np.zeros(2)
    loss = _cross_entropy(design @ found, targets, weights)
    for _ in range(_NEWTON_STEPS):
        chances = _logistic(design @ found)
        gradient = design.T @ (weights * (chances - targets))
        hessian = design.T @ (design * (weights * chances * (1 - chances))[:, None]) + _TINY * np.eye(2)
        step = np.linalg.solve(hessian, gradient)
        while (stepped := _cross_entropy(design @ (found - step), targets, weights)) > loss and np.abs(
            step
        ).max() > _TINY:
            step = step / 2
        found, loss = found - step, stepped
        if np.abs(step).max() < _TINY:
            break
    if not found[0] > 0:
        raise BadModel("the head is worse than chance on dev; give it more, or other, examples")
    return float(found[0]), float(found[1])


def _logistic(values: Doubles) -> Doubles:
    chances: Doubles = np.exp(-np.logaddexp(0.0, -values))
    return chances


def _cross_entropy(values: Doubles, targets: Doubles, weights: Doubles) -> float:
    return float(weights @ (np.logaddexp(0.0, values) - targets * values))


class _NeedHeadTask(TrainingTask):
    """Weighted binary cross-entropy."""

    def __init__(self, train: Examples, dev: Examples, options: DetectionOptions) -> None:
        self._options = options
        self._vectors, self._labels, self._weights = _tensors(train)
        self._dev = _tensors(dev)
        torch.manual_seed(options.seed)
        self._hidden = torch.nn.Linear(self._vectors.shape[1], options.hidden)
        self._output = torch.nn.Linear(options.hidden, 1)
        self._order = np.arange(len(self._labels))

    def parameters(self) -> Mapping[str, torch.nn.Parameter]:
        both = {"hidden": self._hidden, "output": self._output}
        return {f"{name}.{key}": value for name, layer in both.items() for key, value in layer.named_parameters()}

    def steps(self) -> int:
        return -(-len(self._order) // self._options.batch)

    def begin(self, epoch: int, saved: Mapping[str, Tensor] | None = None) -> None:
        self._order = np.random.default_rng([self._options.seed, epoch]).permutation(len(self._labels))

    def epoch_state(self) -> Mapping[str, Tensor]:
        return {}

    def step(self, epoch: int, step: int) -> Tensor:
        rows = torch.from_numpy(self._order[step * self._options.batch : (step + 1) * self._options.batch])
        labels = self._labels[rows] * (1 - self._options.smoothing) + self._options.smoothing / 2
        loss = self._loss(self._vectors[rows], labels, self._weights[rows], self._options.dropout)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def validate(self) -> tuple[Mapping[str, float], Mapping[str, Tensor]]:
        vectors, labels, weights = self._dev
        with torch.no_grad():
            loss = self._loss(vectors, labels, weights, 0.0)
        return {SELECTED_ON: float(torch.exp(-loss))}, self.parameters()

    def _loss(self, vectors: Tensor, labels: Tensor, weights: Tensor, dropout: float) -> Tensor:
        states = functional.dropout(torch.relu(self._hidden(vectors)), dropout)
        logits = self._output(states)[:, 0]
        return functional.binary_cross_entropy_with_logits(logits, labels, weights)


def _tensors(examples: Examples) -> tuple[Tensor, Tensor, Tensor]:
    labels, weights = examples.labels().astype(np.float32), examples.weights().astype(np.float32)
    return torch.from_numpy(examples.vectors()), torch.from_numpy(labels), torch.from_numpy(weights)


def _head(weights: Mapping[str, Tensor], encoder: str) -> NeedHead:
    found = {name: tensor.numpy() for name, tensor in weights.items()}
    output, offset = found["output.weight"][0], float(found["output.bias"][0])
    return NeedHead(found["hidden.weight"], found["hidden.bias"], output, offset, 1.0, 0.0, encoder)


def _identity(train: Examples, dev: Examples, options: DetectionOptions) -> str:
    digest = hashlib.blake2b(json.dumps(asdict(options), sort_keys=True).encode(), digest_size=16)
    for examples in (train, dev):
        for array in (examples.vectors(), examples.labels(), examples.weights()):
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
