"""Fine-tunes a language model to write texts: on examples, on preference pairs, or on rewarded samples."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from toolscout.core.arrays import Floats
from toolscout.errors import BadDataset, BadModel, BadRequest
from toolscout.llm.base import Conversation
from toolscout.llm.finetuned import load_finetuned, save_finetuned
from toolscout.llm.local import Local
from toolscout.models.language.base import Base, open_base
from toolscout.models.language.lora import Adapter
from toolscout.models.language.torch_engine import TorchEngine
from toolscout.models.language.torch_network import TransformerNetwork
from toolscout.training.checkpoint import Checkpoints
from toolscout.training.loop import Report, Schedule, TrainingRecord, pick_device, run
from toolscout.training.preference_pairs import (
    PreferencePair,
    PreferenceTask,
    SupervisedExample,
    SupervisedTask,
    TextTrainingSettings,
    Tokens,
)
from toolscout.training.text_options import TextTrainingOptions

Pair = tuple[Conversation, str]
"""A conversation, and the assistant's next message."""

TRAINING = "training"  # the folder of checkpoints inside a model folder
_ROWS = {"cuda": 1024, "cpu": 64}  # texts that are generated in one batch


@dataclass(frozen=True, slots=True)
class ScoredTexts:
    """A prompt, texts that were generated after it, and the reward of each."""

    prompt: Tokens
    texts: Sequence[Tokens]
    rewards: Sequence[float]


class TrainableWriter:
    """A language model in training: its base, and the network that learns."""

    def __init__(self, base: Base, network: TransformerNetwork) -> None:
        """Use `open` instead."""
        self.base, self.network = base, network
        self._table = base.table()
        self._rows = _ROWS.get(network.device.type, _ROWS["cpu"])

    @classmethod
    def open(cls, options: TextTrainingOptions) -> Self:
        """Load the base model for training, with the adapters of the model `init_from` where there is one.

        Raises BadModel where that model has another base.
        """
        base = open_base(options.base)
        device = pick_device(options.device)
        network = TransformerNetwork(base.architecture, base.weights(), options.rank, device)
        if options.init_from:
            earlier, adapter = load_finetuned(options.init_from)
            if earlier.fingerprint != base.fingerprint:
                raise BadModel(f"{options.init_from} was trained from {earlier.name}; name that as base")
            network.begin(adapter.learned)
        return cls(base, network)

    def prompt(self, messages: Conversation) -> list[int]:
        """The tokens of a conversation, with an open turn of the assistant."""
        return self.base.chat([(one.role, one.content) for one in messages])

    def example(self, messages: Conversation, target: str) -> SupervisedExample:
        """A training example from a conversation and the assistant's next message."""
        turns = [*((one.role, one.content) for one in messages), ("assistant", target)]
        tokens, spans = self.base.chat_with_spans(turns)
        start, end = spans[-1]
        return SupervisedExample(tokens[:start], tokens[start:end])

    def text(self, tokens: Tokens) -> str:
        """The text of generated tokens, without the end token."""
        return self.base.decode([token for token in tokens if token not in self.base.ends])

    def local(self) -> Local:
        """A LanguageModel with the current weights; later training does not change it."""
        return Local(TorchEngine.of(self.network, self._table), self.base, batch=self._rows)

    def sample(
        self, prompts: Sequence[Tokens], n: int, temperature: float, max_tokens: int, seed: int = 0
    ) -> list[list[list[int]]]:
        """Sample n texts for each prompt, each with the end token where it ended by itself.

        Raises BadRequest where a prompt leaves no room for `max_tokens`.
        """
        window = self.base.architecture.context
        if any(len(prompt) + max_tokens > window for prompt in prompts):
            raise BadRequest(f"a prompt leaves no room for {max_tokens} tokens in {window}; shorten it")
        live = TorchEngine.of(self.network, self._table)
        found: list[list[list[int]]] = [[] for _ in prompts]
        rows = [row for row in sorted(range(len(prompts)), key=lambda i: len(prompts[i])) for _ in range(n)]
        for start in range(0, len(rows), self._rows):
            few = rows[start : start + self._rows]
            drawn = int(np.random.default_rng([seed, start]).integers(2**31))
            texts = live.write(
                [prompts[row] for row in few],
                most=max_tokens,
                temperature=temperature,
                end=self.base.ends,
                seed=drawn,
            )
            for row, text in zip(few, texts, strict=True):
                found[row].append(text if len(text) == max_tokens else [*text, self.base.end])
        return found

    def adapter(self) -> Adapter:
        """The trained parameters as they are now."""
        return Adapter(self.network.trained_arrays())

    def save(self, folder: Path, about: Mapping[str, Any]) -> None:
        """Write the folder of a fine-tuned model; `about` goes into its generator.json."""
        save_finetuned(folder, self.base, self.adapter(), about)


@dataclass(frozen=True, slots=True)
class TrainedWriter:
    """A fine-tuned model and the report of its training, which is also in its generator.json, under "fit"."""

    model: TrainableWriter
    report: dict[str, Any]


Judge = Callable[[TrainableWriter], Mapping[str, float]]
"""Gives the dev scores of the model as it stands; the first one selects the best epoch."""


def finetune(
    options: TextTrainingOptions,
    pairs_of_epoch: Callable[[int], Sequence[Pair]],
    folder: Path,
    *,
    about: Mapping[str, Any] | None = None,
    judge: Judge | None = None,
    progress: Report | None = None,
    keep: bool = False,
) -> TrainedWriter:
    """Fine-tune a language model on pairs of a conversation and the next message, and write it to `folder`.

    pairs_of_epoch: gives the pairs of an epoch.
    about: what else to write into generator.json.
    judge: gives dev scores after each epoch; None runs all epochs.
    keep: whether to keep the checkpoints, where more training follows.

    An interrupted training is resumed. With 0 epochs, the result is the model that training would start from.
    """
    model = TrainableWriter.open(options)
    started, tokenised = time.perf_counter(), _TokenisedPairs(model, pairs_of_epoch, options)
    trained, pace = TrainingRecord(), 0.0
    if options.epochs:
        settings = _settings(options)
        judged = partial(judge, model) if judge else None
        identity = f"{model.base.fingerprint}{options.rank}{options.init_from}"
        task = SupervisedTask(model.network, tokenised, settings, judged)
        trained, pace = _train(task, settings, folder / TRAINING, progress, identity)
    report = {
        "seconds": round(max(trained.seconds, time.perf_counter() - started), 3),
        "device": model.network.device.type,
        "parameters": sum(parameter.numel() for parameter in model.network.parameters()),
        "examples": tokenised.examples,
        "left_out": tokenised.left_out,
        "tokens_per_s": round(pace, 1),
        "dev": trained.best,
        "history": trained.history,
    }
    model.save(folder, {**(about or {}), "fit": report})
    if not keep:
        forget(folder / TRAINING)
    return TrainedWriter(model, report)


def _settings(options: TextTrainingOptions) -> TextTrainingSettings:
    return TextTrainingSettings(
        options.epochs, options.rate, options.batch, options.patience, options.seed, options.chunk
    )


def forget(folder: Path) -> None:
    """Remove the checkpoints of a training that is complete."""
    Checkpoints(folder, "").remove()


class _TokenisedPairs:
    """Pairs as tokenised examples; each is tokenised once, and those that are too long are left out."""

    def __init__(
        self, model: TrainableWriter, of_epoch: Callable[[int], Sequence[Pair]], options: TextTrainingOptions
    ) -> None:
        self._model, self._of_epoch, self._options = model, of_epoch, options
        self._known: dict[Any, SupervisedExample | None] = {}
        self._last: tuple[int, list[SupervisedExample]] = (-1, [])
        self.examples, self.left_out = 0, 0

    def __call__(self, epoch: int) -> list[SupervisedExample]:
        if self._last[0] != epoch:
            pairs = self._of_epoch(epoch)
            found = [example for pair in pairs if (example := self._example(*pair)) is not None]
            if not epoch:
                self.examples, self.left_out = len(found), len(pairs) - len(found)
            self._last = (epoch, found)
        return self._last[1]

    def _example(self, messages: Conversation, target: str) -> SupervisedExample | None:
        key = (*((one.role, one.content) for one in messages), target)
        if key not in self._known:
            made = self._model.example(messages, target)
            made = SupervisedExample(made.prompt, made.target[: self._options.max_tokens])
            window = self._model.base.architecture.context - len(made.target)
            fits = len(made.prompt) <= min(self._options.request_tokens, window)
            self._known[key] = made if fits else None
        return self._known[key]


def supervise(
    network: TransformerNetwork,
    examples_of_epoch: Callable[[int], Sequence[SupervisedExample]],
    settings: TextTrainingSettings,
    folder: Path,
    report: Report | None = None,
) -> TrainingRecord:
    """Train the network on examples; it ends with the best weights.

    `folder` is for checkpoints. Raises BadDataset without examples.
    """
    return _train(SupervisedTask(network, examples_of_epoch, settings), settings, folder, report, "")[0]


def prefer(
    network: TransformerNetwork,
    pairs: Sequence[PreferencePair],
    settings: TextTrainingSettings,
    folder: Path,
    report: Report | None = None,
    *,
    beta: float = 0.1,
    sft: float = 0.1,
    reference: Mapping[str, Floats] | None = None,
) -> TrainingRecord:
    """Train the network on preference pairs (DPO), plus `sft` times the cross-entropy of the better texts.

    The reference model is the network as it is now, or with the trained parameters `reference`. Raises BadDataset
    without pairs.
    """
    task = PreferenceTask(network, pairs, settings, beta, sft, reference)
    return _train(task, settings, folder, report, f"{beta}{sft}")[0]


def rank_reward(
    network: TransformerNetwork,
    scored: Sequence[ScoredTexts],
    settings: TextTrainingSettings,
    folder: Path,
    report: Report | None = None,
) -> TrainingRecord:
    """Train the network on the text with the highest reward of each prompt, the first one among equals.

    Raises BadDataset without texts.
    """
    best = [SupervisedExample(one.prompt, one.texts[int(np.argmax(one.rewards))]) for one in scored]
    return supervise(network, lambda epoch: best, settings, folder, report)


def _train(
    task: SupervisedTask | PreferenceTask,
    settings: TextTrainingSettings,
    folder: Path,
    report: Report | None,
    identity: str,
) -> tuple[TrainingRecord, float]:
    """Run a task; gives back the course of the training, and its tokens per second."""
    if not task.steps():
        raise BadDataset("there is nothing to learn from; give examples, and none longer than request_tokens")
    checkpoints = Checkpoints(folder, _digest(f"{identity}{settings}", task.content()))
    schedule = Schedule(
        epochs=settings.epochs, rate=settings.rate, warmup=0.05, patience=settings.patience, seed=settings.seed
    )
    started = time.perf_counter()
    trained = run(task, schedule, checkpoints, report)
    pace = task.tokens / max(1e-9, time.perf_counter() - started - task.dev_seconds)
    task.load(checkpoints.read_best())
    return trained, pace


def _digest(settings: str, content: Iterable[Tokens]) -> str:
    found = hashlib.blake2b(settings.encode(), digest_size=16)
    for tokens in content:
        found.update(np.asarray([len(tokens), *tokens], np.int32).tobytes())
    return found.hexdigest()
