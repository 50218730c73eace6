"""Training tasks for a language model that writes texts: supervised fine-tuning, and preference pairs (DPO).

A prompt is read once for all of its texts: these are branches that do not attend to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from toolscout.core.arrays import Floats, Ints
from toolscout.models.language.torch_network import BranchedSequences, TransformerNetwork
from toolscout.training.sequences import SequenceTask

Tokens = Sequence[int]


@dataclass(frozen=True, slots=True)
class SupervisedExample:
    """A prompt, and the tokens to write after it, the end token included."""

    prompt: Tokens
    target: Tokens


@dataclass(frozen=True, slots=True)
class PreferencePair:
    """A prompt, a better and a worse text after it, and the difference of their rewards."""

    prompt: Tokens
    better: Tokens
    worse: Tokens
    gap: float


@dataclass(frozen=True, slots=True)
class TextTrainingSettings:
    """The settings of a training. `chunk`: tokens in memory at once; 0 picks it by device."""

    epochs: int
    rate: float
    batch: int
    patience: int = 0
    seed: int = 0
    chunk: int = 0


def token_losses(
    network: TransformerNetwork, prompts: Sequence[Tokens], targets: Sequence[Sequence[Tokens]]
) -> tuple[Tensor, Tensor]:
    """The negative log-probability of every token of all targets, and for each token the number of its target.

    Targets are numbered consecutively: those of the first prompt, then those of the second, and so on.
    """
    sequences: list[list[int]] = []
    columns: list[tuple[Ints, ...]] = []  # of each target: row, place, number and token of each of its tokens
    for row, (prompt, few) in enumerate(zip(prompts, targets, strict=True)):
        start = len(prompt)
        sequences.append([*prompt, *(token for target in few for token in target[:-1])])
        for target in few:
            places = np.arange(start - 1, start - 1 + len(target))
            places[0] = len(prompt) - 1  # every target follows the prompt
            columns.append((np.full(len(target), row), places, np.full(len(target), len(columns)), np.array(target)))
            start += len(target) - 1
    device, forked = network.device, None
    if any(len(few) > 1 for few in targets):
        branches = [[len(target) - 1 for target in few] for few in targets]
        forked = BranchedSequences([len(one) for one in sequences], branches, device)
    nothing = torch.zeros(0, network.architecture.hidden, device=device)
    states = network.states(sequences, nothing, network.merged(), forked)
    rows, at, owners, right = (torch.from_numpy(np.concatenate(few)).to(device) for few in zip(*columns, strict=True))
    logits = functional.linear(states[rows, at], network.head).float()
    return functional.cross_entropy(logits, right, reduction="none"), owners


class SupervisedTask(SequenceTask[SupervisedExample]):
    """Supervised fine-tuning: the mean cross-entropy of the target tokens."""

    def __init__(
        self,
        network: TransformerNetwork,
        of_epoch: Callable[[int], Sequence[SupervisedExample]],
        settings: TextTrainingSettings,
        judge: Callable[[], Mapping[str, float]] | None = None,
    ) -> None:
        """`judge` scores the network on dev after each epoch; None trains to the end."""
        super().__init__(network, of_epoch, batch=settings.batch, seed=settings.seed, chunk=settings.chunk)
        self._judge = judge

    def content(self) -> Iterable[Tokens]:
        """The prompts and targets of the first epoch, to identify the training by."""
        return (part for one in self._of_epoch(0) for part in (one.prompt, one.target))

    def _length(self, one: SupervisedExample) -> int:
        return len(one.prompt) + len(one.target) - 1

    def _weight(self, part: Sequence[SupervisedExample]) -> float:
        return sum(len(one.target) for one in part)

    def _loss(self, part: Sequence[SupervisedExample]) -> Tensor:
        return token_losses(self._network, [one.prompt for one in part], [[one.target] for one in part])[0].mean()

    def _scores(self) -> Mapping[str, float]:
        return self._judge() if self._judge else {}


@dataclass(frozen=True, slots=True)
class _ReferencedPair:
    """A pair, and the reference model's log-probability of the better text minus that of the worse."""

    pair: PreferencePair
    before: float


class PreferenceTask(SequenceTask[_ReferencedPair]):
    """Direct preference optimisation (DPO) on pairs, plus `sft` times the cross-entropy of the better texts."""

    def __init__(
        self,
        network: TransformerNetwork,
        pairs: Sequence[PreferencePair],
        settings: TextTrainingSettings,
        beta: float,
        sft: float,
        reference: Mapping[str, Floats] | None = None,
    ) -> None:
        """The reference model is the network as it is now, or with the trained parameters `reference`."""
        every = [_ReferencedPair(pair, 0.0) for pair in pairs]
        super().__init__(network, lambda epoch: every, batch=settings.batch, seed=settings.seed, chunk=settings.chunk)
        self._beta, self._sft = beta, sft
        now = network.trained_arrays() if reference is not None else None
        if reference is not None:
            network.begin(reference)
        every[:] = self._with_reference(every)
        if now is not None:
            network.begin(now)

    @torch.no_grad()
    def _with_reference(self, every: Sequence[_ReferencedPair]) -> list[_ReferencedPair]:
        """The pairs with the log-probabilities of the current network as the reference, in another order."""
        found = []
        for part in self._parts(every) if every else []:
            before = self._differences(part)[0].tolist()
            found += [_ReferencedPair(one.pair, value) for one, value in zip(part, before, strict=True)]
        return found

    def _differences(self, part: Sequence[_ReferencedPair]) -> tuple[Tensor, Tensor]:
        """For each pair, the log-probability of the better text minus that of the worse, and the better's mean loss."""
        pairs = [one.pair for one in part]
        each, owner = token_losses(
            self._network, [one.prompt for one in pairs], [[one.better, one.worse] for one in pairs]
        )
        sums = torch.zeros(2 * len(pairs), device=each.device).index_add(0, owner, each).view(-1, 2)
        lengths = torch.tensor([float(len(one.better)) for one in pairs], device=each.device)
        return sums[:, 1] - sums[:, 0], sums[:, 0] / lengths

    def content(self) -> Iterable[Tokens]:
        """The prompts and texts of all pairs, to identify the training by."""
        return (part for one in self._of_epoch(0) for part in (one.pair.prompt, one.pair.better, one.pair.worse))

    def _length(self, one: _ReferencedPair) -> int:
        return len(one.pair.prompt) + len(one.pair.better) + len(one.pair.worse) - 2

    def _loss(self, part: Sequence[_ReferencedPair]) -> Tensor:
        likelier, plain = self._differences(part)
        before = torch.tensor([one.before for one in part], device=likelier.device)
        return (functional.softplus(-self._beta * (likelier - before)) + self._sft * plain).mean()
