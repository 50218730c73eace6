"""Trains and calibrates the detection tower: a classifier, over vectors, of whether a request needs a tool."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from toolscout.core.arrays import Bools, Doubles, Floats
from toolscout.data import metrics
from toolscout.errors import BadModel
from toolscout.models.need_head import NeedHead
from toolscout.models.phrases import phrases
from toolscout.training.checkpoint import Checkpoints
from toolscout.training.loop import Schedule, TrainingTask, run

SELECTED_ON = "likelihood"
_NEWTON_STEPS = 100
_TINY = 1e-9


@dataclass(frozen=True, slots=True)
class DetectionOptions:
    """How the classifier is trained.

    hidden: the size of its hidden layer.
    smoothing: label smoothing.
    phrases: how many words and pairs of words get a weight, where texts are given.
    phrase_dropout: the share of them that a step leaves out.
    """

    hidden: int = 64
    dropout: float = 0.1
    smoothing: float = 0.0
    epochs: int = 30
    rate: float = 0.003
    decay: float = 0.01
    batch: int = 256
    patience: int = 5
    phrases: int = 8000
    phrase_dropout: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise BadModel for values out of range."""
        if min(self.hidden, self.epochs, self.batch) < 1 or not self.rate > 0:
            raise BadModel(f"hidden, epochs and batch must be at least 1 and rate above 0, got {self}")
        shares = (self.dropout, self.smoothing, self.phrase_dropout)
        if not all(0 <= share < 1 for share in shares) or self.phrases < 0:
            raise BadModel(
                f"dropout, smoothing and phrase_dropout must be from 0 to below 1, phrases 0 or more, got {self}"
            )


@dataclass(frozen=True, slots=True)
class Examples:
    """Vectors, one a row, by source: of requests that need a tool, and of prompts that need none.

    needed_texts, unneeded_texts: the same as texts, where words shall count; a head learns from all texts or from none.
    """

    needed: Mapping[str, Floats]
    unneeded: Mapping[str, Floats]
    needed_texts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    unneeded_texts: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def texts(self) -> list[str]:
        """The text of each row; empty ones where none are given."""
        sides = ((self.needed, self.needed_texts), (self.unneeded, self.unneeded_texts))
        return [
            text for rows, texts in sides for name, few in rows.items() for text in texts.get(name, [""] * len(few))
        ]

    def sources(self) -> list[Sequence[str]]:
        """The texts of each source."""
        return [*self.needed_texts.values(), *self.unneeded_texts.values()]

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
    task = _NeedHeadTask(train, dev, options)
    trained = run(task, schedule, checkpoints)
    raw = _head(checkpoints.read_best(), encoder, task.phrases)
    head, scores = calibrate(raw, dev)
    checkpoints.remove()
    return head, DetectionReport(trained.seconds, len(trained.history), scores)


def frequent_phrases(sources: Sequence[Sequence[str]], most: int, least_sources: int = 2) -> list[str]:
    """The phrases that occur most often, of those in several sources; a source counts by the root of its size."""
    counts: Counter[str] = Counter()
    spread: Counter[str] = Counter()
    for texts in sources:
        found = Counter(phrase for text in texts for phrase in phrases(text))
        spread.update(found.keys())
        for phrase, count in found.items():
            counts[phrase] += count / np.sqrt(len(texts))
    kept = [phrase for phrase in counts if spread[phrase] >= least_sources]
    return sorted(kept, key=lambda phrase: (-counts[phrase], phrase))[:most]


def calibrate(head: NeedHead, dev: Examples) -> tuple[NeedHead, dict[str, float]]:
    """The head with a scale and shift fitted on dev, and its dev scores. Raises BadModel as platt does."""
    vectors, labels, weights = dev.vectors(), dev.labels(), dev.weights()
    scale, shift = platt(head.logits(vectors, dev.texts()), labels, weights)
    head = replace(head, scale=scale, shift=shift)
    chances = head.probabilities(vectors, dev.texts()).astype(np.float64)
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
        self.phrases = frequent_phrases(train.sources(), options.phrases)
        self._vectors, self._labels, self._weights = _tensors(train)
        self._dev = _tensors(dev)
        self._used, self._dev_used = (_used(one.texts(), self.phrases) for one in (train, dev))
        torch.manual_seed(options.seed)
        self._hidden = torch.nn.Linear(self._vectors.shape[1], options.hidden)
        self._output = torch.nn.Linear(options.hidden, 1)
        # The last row stands for every other phrase and stays 0.
        self._phrases = torch.nn.Embedding(len(self.phrases) + 1, 1, padding_idx=len(self.phrases))
        torch.nn.init.zeros_(self._phrases.weight)
        self._order = np.arange(len(self._labels))

    def parameters(self) -> Mapping[str, torch.nn.Parameter]:
        layers: dict[str, torch.nn.Module] = {"hidden": self._hidden, "output": self._output}
        if self.phrases:
            layers["phrases"] = self._phrases
        return {f"{name}.{key}": value for name, layer in layers.items() for key, value in layer.named_parameters()}

    def steps(self) -> int:
        return -(-len(self._order) // self._options.batch)

    def begin(self, epoch: int, saved: Mapping[str, Tensor] | None = None) -> None:
        self._order = np.random.default_rng([self._options.seed, epoch]).permutation(len(self._labels))

    def epoch_state(self) -> Mapping[str, Tensor]:
        return {}

    def step(self, epoch: int, step: int) -> Tensor:
        rows = torch.from_numpy(self._order[step * self._options.batch : (step + 1) * self._options.batch])
        labels = self._labels[rows] * (1 - self._options.smoothing) + self._options.smoothing / 2
        used = self._used[rows]
        left_out = torch.rand(used.shape) < self._options.phrase_dropout
        used = torch.where(left_out, len(self.phrases), used)
        loss = self._loss(self._vectors[rows], used, labels, self._weights[rows], self._options.dropout)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def validate(self) -> tuple[Mapping[str, float], Mapping[str, Tensor]]:
        vectors, labels, weights = self._dev
        with torch.no_grad():
            loss = self._loss(vectors, self._dev_used, labels, weights, 0.0)
        return {SELECTED_ON: float(torch.exp(-loss))}, self.parameters()

    def _loss(self, vectors: Tensor, used: Tensor, labels: Tensor, weights: Tensor, dropout: float) -> Tensor:
        states = functional.dropout(torch.relu(self._hidden(vectors)), dropout)
        logits = self._output(states)[:, 0] + self._phrases(used)[:, :, 0].sum(1)
        return functional.binary_cross_entropy_with_logits(logits, labels, weights)


def _tensors(examples: Examples) -> tuple[Tensor, Tensor, Tensor]:
    labels, weights = examples.labels().astype(np.float32), examples.weights().astype(np.float32)
    return torch.from_numpy(examples.vectors()), torch.from_numpy(labels), torch.from_numpy(weights)


def _used(texts: Sequence[str], known: Sequence[str]) -> Tensor:
    """The rows of the known phrases of each text, filled up with a row for none."""
    row_of = {phrase: row for row, phrase in enumerate(known)}
    found = [[row_of[phrase] for phrase in phrases(text) if phrase in row_of] if known else [] for text in texts]
    width = max(map(len, found), default=0)
    filled = [sorted(rows) + [len(known)] * (width - len(rows)) for rows in found]
    return torch.tensor(filled, dtype=torch.long).view(len(texts), width)


def _head(weights: Mapping[str, Tensor], encoder: str, known: Sequence[str]) -> NeedHead:
    found = {name: tensor.numpy() for name, tensor in weights.items()}
    output, offset = found["output.weight"][0], float(found["output.bias"][0])
    weighed = dict(zip(known, found["phrases.weight"][:-1, 0].tolist(), strict=True)) if known else {}
    return NeedHead(found["hidden.weight"], found["hidden.bias"], output, offset, 1.0, 0.0, encoder, phrases=weighed)


def _identity(train: Examples, dev: Examples, options: DetectionOptions) -> str:
    digest = hashlib.blake2b(json.dumps(asdict(options), sort_keys=True).encode(), digest_size=16)
    for examples in (train, dev):
        for array in (examples.vectors(), examples.labels(), examples.weights()):
            digest.update(np.ascontiguousarray(array).data)
        digest.update("\0".join(examples.texts()).encode(errors="replace"))
    return digest.hexdigest()
