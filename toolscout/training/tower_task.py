"""Trains the towers with the training loop: on vectors of a frozen encoder, or together with the encoder."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter, functional

from toolscout.core.arrays import Floats, Ints
from toolscout.data.dataset import Dataset
from toolscout.models.encoders.trainable import TrainableEncoder
from toolscout.models.tower import Tower
from toolscout.training.batches import EncoderTrainingData, Requests, candidates
from toolscout.training.bi_encoder import AVERAGE, EncoderTask
from toolscout.training.checkpoint import Checkpoints
from toolscout.training.loop import FAST, Report, Schedule, TrainingRecord, TrainingTask, pick_device, run
from toolscout.training.tower import (
    Batch,
    Objective,
    RequestGraph,
    TowerNetwork,
    TowerOptions,
    TrainingRequests,
    nearest,
    neighbour_votes,
)

SELECTED_ON = "ndcg@5"
_MINED_FROM = 50
_POSITIVE = ("search", "joint", "graph", "votes")
_DEV_BATCH = 1024


@dataclass(frozen=True, slots=True)
class Vectors:
    """A frozen encoder's vectors of training requests, tools, prompts that need no tool, and dev requests."""

    requests: Floats
    tools: Floats
    prompts: Floats
    dev: Floats


@dataclass(frozen=True, slots=True)
class LearnedTower:
    """The result of a training. The caller removes `checkpoints` once it has written all files of the model."""

    tower: Tower
    trained: TrainingRecord
    checkpoints: Checkpoints
    parameters: int
    device: torch.device
    average: float = 1.0


def learn_frozen(
    known: TrainingRequests,
    dev: Sequence[Ints],
    vectors: Vectors,
    options: TowerOptions,
    folder: Path,
    identity: str,
    report: Report | None = None,
    fresh: bool = True,
) -> LearnedTower:
    """Train on the vectors of a frozen encoder, with gold tools of the dev requests in `dev`.

    `fresh`: the encoder was not trained on these requests itself. An interrupted training in `folder` with the same
    `identity` is resumed.
    """
    device = pick_device(options.learning.device)
    torch.manual_seed(options.learning.seed)
    net = TowerNetwork(vectors.tools.shape[1], options, device, maps=fresh, attends=fresh)
    task = _FrozenTask(net, known, dev, vectors, options)
    return _train(task, net, options, folder, identity, report)


def learn_with_encoder(
    dataset: Dataset,
    splits: tuple[str, str],
    known: TrainingRequests,
    prompts: Sequence[str],
    start: Path | None,
    options: TowerOptions,
    folder: Path,
    identity: str,
    report: Report | None = None,
) -> LearnedTower:
    """Train the towers and the encoder together; writes the encoder's weights to `folder`/weights.

    `splits` are the train and dev split, `start` the Hugging Face folder of the encoder to start from. An interrupted
    training with the same `identity` is resumed.
    """
    learning = options.learning
    device = pick_device(learning.device)
    torch.manual_seed(learning.seed)
    encoder = TrainableEncoder(start, device)
    data = EncoderTrainingData.of(encoder, dataset, *splits, unused=learning.unused, self_queries=False)
    net = TowerNetwork(encoder.dimension, options, device, maps=False)
    task = _JointTask(encoder, data, net, known, encoder.tokenise_requests(prompts), options)
    learned = _train(task, net, options, folder, identity, report)
    best = learned.checkpoints.read_best()
    encoder.save(folder / "weights", {name: tensor for name, tensor in best.items() if not name.startswith(FAST)})
    return learned


def _train(
    task: _FrozenTask | _JointTask,
    net: TowerNetwork,
    options: TowerOptions,
    folder: Path,
    identity: str,
    report: Report | None,
) -> LearnedTower:
    learning = options.learning
    checkpoints = Checkpoints(folder / "training", identity)
    schedule = Schedule(
        learning.epochs, learning.rate, patience=learning.patience, seed=learning.seed, pace=options.graph.pace
    )
    trained = run(task, schedule, checkpoints, report)
    best = checkpoints.read_best()
    average = round(float(best.get(AVERAGE, torch.tensor(1.0))), 4)
    size = sum(parameter.numel() for parameter in task.parameters().values() if parameter.requires_grad)
    numbers = {name.removeprefix(FAST): value for name, value in best.items() if name.startswith(FAST)}
    return LearnedTower(to_tower(net, numbers), trained, checkpoints, size, task.device, average)


@torch.no_grad()
def to_tower(net: TowerNetwork, numbers: Mapping[str, Tensor]) -> Tower:
    """The tower for inference, from the trained parameters of a net, with softplus applied where the net applies it."""
    found = {name: functional.softplus(value) if name in _POSITIVE else value for name, value in numbers.items()}
    return Tower({name: value.cpu().numpy().astype(np.float32) for name, value in found.items()}, net.transfer)


def ndcg(scores: Tensor, gold: Tensor, k: int = 5) -> float:
    """Mean NDCG@k of scores [requests, tools], where `gold` marks the gold tools; metrics.ndcg for many requests."""
    k = min(k, scores.shape[1])
    discount = 1 / torch.log2(torch.arange(2, k + 2, device=scores.device, dtype=torch.float32))
    hits = gold.gather(1, scores.topk(k, dim=1).indices).float()
    ideal = torch.arange(k, device=scores.device)[None] < gold.sum(1, keepdim=True)
    return float(((hits @ discount) / (ideal.float() @ discount)).mean())


def gold_mask(golds: Sequence[Ints], tools: int, device: torch.device) -> Tensor:
    """A boolean matrix [requests, tools] of the gold tools, given their rows for each request."""
    found = torch.zeros((len(golds), tools), dtype=torch.bool)
    for row, gold in enumerate(golds):
        found[row, torch.from_numpy(gold)] = True
    return found.to(device)


class _TowerScores:
    """Dev scores over all tools and the whole graph, computed as at inference."""

    def __init__(self, net: TowerNetwork, around: RequestGraph, dev: Sequence[Ints]) -> None:
        self._net, self._around = net, around
        self._gold = gold_mask(dev, around.known.tools, around.device) if len(dev) else None
        new = torch.ones(around.known.tools, dtype=torch.bool, device=around.device)
        new[torch.from_numpy(around.known.used).to(around.device)] = False
        self._new = new

    @torch.no_grad()
    def scores(self, encoded: Tensor, pool: Tensor) -> dict[str, float]:
        """The dev scores, given the encoder's vectors of dev requests (`encoded`) and training requests (`pool`).

        The graph must have been refreshed with the current vectors.
        """
        if self._gold is None:
            return {}
        around, net = self._around, self._net
        gathered = around.gather()
        tools = functional.normalize(around.tools + net.positive("graph") * gathered.tools, dim=1)
        everything = torch.arange(len(tools), device=around.device)
        column = torch.full((len(tools) + 1,), -1, dtype=torch.long, device=around.device)
        found = []
        for start in range(0, len(encoded), _DEV_BATCH):
            few = encoded[start : start + _DEV_BATCH]
            requests = net.apply_map(few, "request_map")
            rows, cosines = nearest(few, pool, around.options.around.neighbours)
            near = cosines >= around.options.around.epsilon
            queries, attention = net.attend(requests, net.states(few), around.keys(gathered, rows), near)
            scores = queries @ tools.T + net.numbers["new_bonus"] * self._new
            if near.shape[1]:
                votes = neighbour_votes(around.gold[rows], attention * near, everything, column)
                scores = scores + net.positive("votes") * votes
            found.append(ndcg(scores, self._gold[start : start + _DEV_BATCH]) * len(few))
        return {SELECTED_ON: sum(found) / len(encoded)}


class _FrozenTask(TrainingTask):
    """Trains the towers on vectors of a frozen encoder."""

    def __init__(
        self, net: TowerNetwork, known: TrainingRequests, dev: Sequence[Ints], vectors: Vectors, options: TowerOptions
    ) -> None:
        self._net, self._known, self._options = net, known, options
        self.device = net.numbers["graph"].device
        self._requests, self._tools, self._prompts, self._dev = (
            torch.from_numpy(rows.astype(np.float32)).to(self.device)
            for rows in (vectors.requests, vectors.tools, vectors.prompts, vectors.dev)
        )
        self._around = RequestGraph(known, options, self.device)
        self._objective = Objective(net, self._around)
        self._scores = _TowerScores(net, self._around, dev)
        competing = np.arange(known.tools) if options.learning.unused else known.used
        self._data = EncoderTrainingData(
            "", [], [], Requests([], known.gold), None, competing, np.zeros(0, dtype=bool), []
        )
        self._order: Ints = np.arange(len(known.gold))

    def parameters(self) -> Mapping[str, Parameter]:
        return {f"{FAST}{name}": parameter for name, parameter in self._net.numbers.items()}

    def steps(self) -> int:
        return math.ceil(len(self._known.gold) / self._options.learning.batch)

    def begin(self, epoch: int, saved: Mapping[str, Tensor] | None = None) -> None:
        self._order = np.random.default_rng([self._options.learning.seed, epoch]).permutation(len(self._known.gold))
        if saved:
            self._around.requests, self._around.tools = (
                saved["requests"].to(self.device),
                saved["tools"].to(self.device),
            )
            requests, tools = self._around.requests, self._around.tools
        else:
            requests, tools = self._mapped_vectors()
        torch.manual_seed(hash((self._options.learning.seed, epoch)) & 0x7FFFFFFF)
        self._around.refresh(self._requests, requests, tools, self._options.graph.edge_dropout)
        if len(self._data.competing) > self._options.learning.candidates:
            self._mine(requests, tools)

    def epoch_state(self) -> dict[str, Tensor]:
        """The vectors at the start of the epoch."""
        return {"requests": self._around.requests, "tools": self._around.tools}

    @torch.no_grad()
    def _mapped_vectors(self) -> tuple[Tensor, Tensor]:
        return self._net.apply_map(self._requests, "request_map"), self._net.apply_map(self._tools, "tool_map")

    @torch.no_grad()
    def _mine(self, requests: Tensor, tools: Tensor) -> None:
        competing = self._data.competing
        rows, _ = nearest(requests, tools[torch.from_numpy(competing).to(self.device)], _MINED_FROM)
        best = competing[rows.cpu().numpy()]
        self._data.hard = [np.setdiff1d(few, gold) for few, gold in zip(best, self._known.gold, strict=True)]

    def step(self, epoch: int, step: int) -> Tensor:
        learning = self._options.learning
        picked = self._order[step * learning.batch : (step + 1) * learning.batch]
        rng = np.random.default_rng([learning.seed, epoch, step])
        gold = [self._known.gold[i] for i in picked]
        rows = candidates(self._data, gold, picked, learning.candidates, rng)
        wanted = np.zeros((len(gold), len(rows)), dtype=np.float32)
        for place, few in enumerate(gold):
            wanted[place, np.searchsorted(rows, few)] = 1
        at, columns = torch.from_numpy(picked).to(self.device), torch.from_numpy(rows).to(self.device)
        few_prompts = rng.integers(len(self._prompts), size=len(picked)) if len(self._prompts) else np.zeros(0, int)
        encoded = self._requests[at]
        loss = self._objective(
            Batch(at, columns, torch.from_numpy(wanted).to(self.device)),
            encoded,
            self._net.apply_map(encoded, "request_map"),
            self._net.apply_map(self._tools[columns], "tool_map"),
            self._prompts[torch.from_numpy(few_prompts).to(self.device)],
        )
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def validate(self) -> tuple[Mapping[str, float], Mapping[str, Tensor]]:
        requests, tools = self._mapped_vectors()
        self._around.refresh(self._requests, requests, tools, 0.0)
        weights = {name: parameter.detach().clone() for name, parameter in self.parameters().items()}
        return self._scores.scores(self._dev, self._requests), weights


class _JointTask(EncoderTask):
    """Trains the towers together with the encoder. The graph's vectors are those at the start of the epoch."""

    def __init__(
        self,
        encoder: TrainableEncoder,
        data: EncoderTrainingData,
        net: TowerNetwork,
        known: TrainingRequests,
        prompts: Sequence[Ints],
        options: TowerOptions,
    ) -> None:
        super().__init__(encoder, [data], options.learning)
        self.device = encoder.device
        self._net, self._prompts, self._tower = net, prompts, options
        self._around = RequestGraph(known, options, self.device)
        self._objective = Objective(net, self._around)
        self._tower_scores = _TowerScores(net, self._around, data.dev.gold if data.dev else [])
        self._batch: Batch | None = None
        self._extra = 0

    def parameters(self) -> Mapping[str, Parameter]:
        towers = {f"{FAST}{name}": parameter for name, parameter in self._net.numbers.items()}
        return {**super().parameters(), **towers}

    def begin(self, epoch: int, saved: Mapping[str, Tensor] | None = None) -> None:
        super().begin(epoch, saved)
        if saved and "around.requests" in saved:
            requests, tools = saved["around.requests"].to(self.device), saved["around.tools"].to(self.device)
        else:
            requests, tools = self._encode_all()
        torch.manual_seed(hash((self._options.seed, epoch)) & 0x7FFFFFFF)
        self._around.refresh(requests, requests, tools, self._tower.graph.edge_dropout)
        self._encoder.model.train()

    def epoch_state(self) -> dict[str, Tensor]:
        """The mined documents, and the graph's vectors at the start of the epoch."""
        return {**super().epoch_state(), "around.requests": self._around.requests, "around.tools": self._around.tools}

    def _encode_all(self) -> tuple[Tensor, Tensor]:
        data = self._training_data[0]
        return self._encoder.encode(data.train.tokens, self._at_once), self._encoder.encode(
            data.documents, self._at_once
        )

    def _batch_loss(
        self,
        picked: Ints,
        rows: Ints,
        requests: Sequence[Ints],
        documents: Sequence[Ints],
        gold: Tensor,
    ) -> Tensor:
        alone = torch.zeros(len(picked), dtype=torch.bool, device=self.device)
        alone[: round(len(picked) * self._options.mix)] = True
        at, columns = torch.from_numpy(picked).to(self.device), torch.from_numpy(rows).to(self.device)
        self._batch = Batch(at, columns, gold, alone)
        some = torch.randint(len(self._prompts), (len(picked),)).tolist() if self._prompts else []
        self._extra = len(some)
        return self._backward(requests, [*documents, *(self._prompts[i] for i in some)], gold)

    def _loss(self, vectors: Tensor, requests: int, gold: Tensor) -> Tensor:
        assert self._batch is not None
        request_vectors, rest = vectors[:requests], vectors[requests:]
        tools, prompts = rest[: len(rest) - self._extra], rest[len(rest) - self._extra :]
        return self._objective(self._batch, request_vectors, request_vectors, tools, prompts)

    def _scores(self) -> dict[str, float]:
        data = self._training_data[0]
        if data.dev is None:
            return {}
        requests, tools = self._encode_all()
        self._around.refresh(requests, requests, tools, 0.0)
        return self._tower_scores.scores(self._encoder.encode(data.dev.tokens, self._at_once), requests)
