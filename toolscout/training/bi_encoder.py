"""Trains a bi-encoder for retrieval: requests and the documents of their gold tools get similar vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from toolscout.core.arrays import Ints
from toolscout.data import metrics
from toolscout.data.dataset import Dataset
from toolscout.models.encoders.trainable import TrainableEncoder
from toolscout.training import losses
from toolscout.training.batches import EncoderTrainingData, candidates, join_requests, needed_digests, shuffle_steps
from toolscout.training.checkpoint import Checkpoints
from toolscout.training.data_parallel import ProcessGroup
from toolscout.training.encoder_options import EncoderTrainingOptions
from toolscout.training.loop import Report, Schedule, TrainingRecord, TrainingTask, hardware_name, pick_device, run

SELECTED_ON = "ndcg@5"
_MEASURES = (SELECTED_ON, "recall@3", "recall@5", "comp@3", "comp@5")
# Where a catalogue is larger, dev requests are ranked over their gold tools and a sample of this many others.
_DEV_DOCUMENTS = 5_000
_MINED_FROM = 50
_BONUSES = [round(0.01 * step, 2) for step in range(31)]
BONUS_MAY_COST = 0.03


@dataclass(frozen=True, slots=True)
class TrainedEncoder:
    """The result of a training; `average` and `new_bonus` were chosen on dev.

    The caller removes `checkpoints` once it has written all files of the model.
    """

    trained: TrainingRecord
    checkpoints: Checkpoints
    parameters: int
    device: str
    average: float
    new_bonus: float


def learn(
    sets: Sequence[tuple[Dataset, str, str]],
    source: Path | None,
    options: EncoderTrainingOptions,
    folder: Path,
    identity: str,
    report: Report | None = None,
    tokens: int = 0,
) -> TrainedEncoder:
    """Train on (dataset, train split, dev split) and write the weights to `folder`/weights.

    `source` is the Hugging Face folder of the encoder to start from; `tokens` of a text are read, 0 for the usual
    number. Checkpoints are in `folder`/training; an
    interrupted training with the same `identity` is resumed.
    """
    device = pick_device(options.device)
    torch.manual_seed(options.seed)
    encoder = TrainableEncoder(source, device, tokens)
    needed = needed_digests(sets)
    training_data = [
        EncoderTrainingData.of(
            encoder, *one, unused=options.unused, self_queries=options.self_queries > 0, needed=needed
        )
        for one in sets
    ]
    task = EncoderTask(encoder, training_data, options)
    checkpoints = Checkpoints(folder / "training", identity)
    schedule = Schedule(options.epochs, options.rate, patience=options.patience, seed=options.seed)
    trained = run(task, schedule, checkpoints, report)
    best = checkpoints.read_best()
    average = round(float(best.pop(AVERAGE)), 4)
    task.load(best)
    encoder.save(folder / "weights", best)
    bonus = task.new_bonus()
    size = sum(parameter.numel() for parameter in task.parameters().values())
    return TrainedEncoder(trained, checkpoints, size, hardware_name(device), average, bonus)


AVERAGE = "average of trained and original"


class EncoderTask(TrainingTask):
    """Trains an encoder on requests and documents of one or more datasets.

    Each of several processes encodes a share of a batch's texts; the loss is that of the whole batch.
    """

    divides = True

    def __init__(
        self, encoder: TrainableEncoder, training_data: Sequence[EncoderTrainingData], options: EncoderTrainingOptions
    ) -> None:
        """Take the encoder and the tokenised datasets."""
        self._encoder = encoder
        self._training_data = training_data
        self._options = options
        self._original = {name: tensor.detach().clone() for name, tensor in encoder.parameters().items()}
        gpu = encoder.device.type == "cuda"
        self._chunk = options.chunk or (4096 if gpu else 128)
        self._at_once = 1024 if gpu else 64
        # A GPU is faster with large batches, a CPU with little padding.
        self._alike, self._most_parts = (64, 2) if gpu else (16, 1 << 30)
        self._group = ProcessGroup()
        self._steps: list[tuple[int, Ints]] = []
        self._in_batch = options.loss == "mnrl"
        self._train = [data.train.in_pairs() if self._in_batch else data.train for data in training_data]
        self._sizes = [len(requests) for requests in self._train]
        self._dev = [self._dev_rows(data) for data in training_data]

    def parameters(self) -> Mapping[str, torch.nn.Parameter]:
        """The parameters of the encoder."""
        return self._encoder.parameters()

    def steps(self) -> int:
        """The number of steps in an epoch."""
        return len(shuffle_steps(self._sizes, self._options.batch, self._options.seed, 0))

    def begin(self, epoch: int, saved: Mapping[str, Tensor] | None = None) -> None:
        """Shuffle, and mine hard negatives where there are too many documents for all to be candidates."""
        self._encoder.model.train()
        self._steps = shuffle_steps(self._sizes, self._options.batch, self._options.seed, epoch)
        for index, data in enumerate(self._training_data):
            if saved and f"rows.{index}" in saved:
                ends = np.cumsum(saved[f"counts.{index}"].numpy())[:-1]
                data.hard = np.split(saved[f"rows.{index}"].numpy(), ends)
            elif len(data.competing) > self._options.candidates and not self._in_batch:
                self._mine(data)

    def epoch_state(self) -> dict[str, Tensor]:
        """The mined hard negatives."""
        found = {}
        for index, data in enumerate(self._training_data):
            if data.hard:
                found[f"rows.{index}"] = torch.from_numpy(np.concatenate(data.hard))
                found[f"counts.{index}"] = torch.tensor([len(few) for few in data.hard])
        return found

    def step(self, epoch: int, step: int) -> Tensor:
        """Train on one batch; gives back its loss."""
        index, picked = self._steps[step]
        data, options = self._training_data[index], self._options
        rng = np.random.default_rng([options.seed, epoch, step])
        tokens = [self._train[index].tokens[i] for i in picked]
        gold = [self._train[index].gold[i] for i in picked]
        if self._in_batch:  # a document that two pairs share is there twice, as in sentence-transformers
            documents = [data.documents[row] for row in np.concatenate(gold)]
            return self._backward(tokens, documents, torch.eye(len(gold), device=self._encoder.device))
        for place in range(round(len(picked) * options.mix)):
            other = int(rng.integers(len(picked)))
            source = int(picked[other])
            tokens[place] = join_requests(
                tokens[place], data.train.tokens[source], self._encoder.request_tokens, self._encoder.prompt_length
            )
            gold[place] = np.union1d(gold[place], data.train.gold[source])
        for row in rng.choice(data.competing, round(len(picked) * options.self_queries)).tolist():
            if data.self_queries[row]:
                tokens.append(data.self_queries[row][int(rng.integers(len(data.self_queries[row])))])
                gold.append(np.array([row], dtype=np.int64))
        rows = candidates(data, gold, picked, options.candidates, rng)
        wanted = np.zeros((len(gold), len(rows)), dtype=np.float32)
        for place, few in enumerate(gold):
            wanted[place, np.searchsorted(rows, few)] = 1
        documents = [data.documents[row] for row in rows]
        return self._batch_loss(picked, rows, tokens, documents, torch.from_numpy(wanted).to(self._encoder.device))

    def _batch_loss(
        self,
        picked: Ints,
        rows: Ints,
        requests: Sequence[Ints],
        documents: Sequence[Ints],
        gold: Tensor,
    ) -> Tensor:
        """Compute the loss and gradients of a batch, whose first round(len(picked) * mix) requests are joined ones."""
        return self._backward(requests, documents, gold)

    def _backward(self, requests: Sequence[Ints], documents: Sequence[Ints], gold: Tensor) -> Tensor:
        """The loss; its gradients are computed in chunks where one process does not encode all texts at once.

        Vectors are computed first, without gradients, then the loss and its gradients by vector, and then each chunk
        again with gradients (gradient caching).
        """
        texts, group = [*requests, *documents], self._group
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        own = group.share(order)
        chunks = [own[start : start + self._chunk] for start in range(0, len(own), self._chunk)]
        seeds = group.share(torch.randint(2**31 - 1, (len(chunks) * group.size,)).tolist())
        if len(order) <= self._chunk and group.size == 1:
            vectors = self._vectors(texts, order)
            loss = self._loss(vectors, len(requests), gold)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss.detach()
        vectors = torch.zeros((len(texts), self._encoder.dimension), device=self._encoder.device)
        for chunk, seed in zip(chunks, seeds, strict=True):
            torch.manual_seed(seed)
            with torch.no_grad():
                vectors[chunk] = self._encoder.embed([texts[i] for i in chunk])
        group.add(vectors)
        vectors.requires_grad_()
        loss = self._loss(vectors, len(requests), gold)
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = vectors.grad
        assert gradients is not None
        for chunk, seed in zip(chunks, seeds, strict=True):
            torch.manual_seed(seed)  # the same dropout as the first time
            again = self._encoder.embed([texts[i] for i in chunk])
            (again * gradients[chunk]).sum().backward()  # type: ignore[no-untyped-call]
        group.add_gradients(self.parameters().values())
        return loss.detach()

    def _vectors(self, texts: Sequence[Ints], order: Sequence[int]) -> Tensor:
        """All vectors with gradients, in batches of similar length, to reduce padding."""
        parts = np.array_split(np.array(order), min(self._most_parts, max(1, len(order) // self._alike)))
        rows = torch.cat([self._encoder.embed([texts[i] for i in part]) for part in parts])
        back = torch.empty(len(order), dtype=torch.long)
        back[torch.tensor(order)] = torch.arange(len(order))
        return rows[back.to(rows.device)]

    def _loss(self, vectors: Tensor, requests: int, gold: Tensor) -> Tensor:
        cosines = vectors[:requests] @ vectors[requests:].T
        if self._options.loss != "sigmoid":
            return losses.multi_gold_softmax(self._options.scale * cosines, gold)
        return losses.sigmoid(self._options.scale * (cosines - self._options.bias), gold)

    def _mine(self, data: EncoderTrainingData) -> None:
        """Set the hard negatives of each training request: wrong documents that the current encoder ranks highest."""
        documents = self._encoder.encode([data.documents[row] for row in data.competing], self._at_once)
        requests = self._encoder.encode(data.train.tokens, self._at_once)
        data.hard = []
        for start in range(0, len(requests), 1024):
            best = (requests[start : start + 1024] @ documents.T).topk(min(_MINED_FROM, len(documents)), 1).indices
            for offset, row in enumerate(best.cpu().numpy()):
                data.hard.append(np.setdiff1d(data.competing[row], data.train.gold[start + offset]))

    def validate(self) -> tuple[dict[str, float], dict[str, Tensor]]:
        """Dev scores of the current weights and of their averages with the original weights; gives back the best."""
        current = {name: tensor.detach().clone() for name, tensor in self.parameters().items()}
        shares = [self._options.average] if self._options.average else [1.0, 0.75, 0.5]
        if not any(data.dev for data in self._training_data):
            shares = shares[:1]
        best: tuple[dict[str, float], dict[str, Tensor]] = {}, {}
        for share in shares:
            mixed = {
                name: torch.lerp(self._original[name], tensor, share) if name in self._original else tensor
                for name, tensor in current.items()
            }
            self.load(mixed)
            scores = self._scores()
            if not best[1] or scores[SELECTED_ON] > best[0][SELECTED_ON]:
                best = scores, {**mixed, AVERAGE: torch.tensor(share)}
        self.load(current)
        return best

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Set the parameters to these weights."""
        with torch.no_grad():
            for name, parameter in self.parameters().items():
                if name in weights:
                    parameter.copy_(weights[name])

    def _dev_rows(self, data: EncoderTrainingData) -> Ints:
        """The rows of the documents that dev requests rank: all, or the gold ones and a sample."""
        count = len(data.documents)
        if data.dev is None or count <= _DEV_DOCUMENTS:
            return np.arange(count)
        gold = np.unique(np.concatenate(data.dev.gold))
        others = np.setdiff1d(np.arange(count), gold)
        return np.union1d(gold, np.random.default_rng(0).permutation(others)[:_DEV_DOCUMENTS])

    def _dev_cosines(self, data: EncoderTrainingData, rows: Ints) -> Tensor:
        assert data.dev is not None
        documents = self._encoder.encode([data.documents[row] for row in rows], self._at_once)
        return self._encoder.encode(data.dev.tokens, self._at_once) @ documents.T

    def _scores(self) -> dict[str, float]:
        """Mean dev scores over the datasets that have a dev split, each with the same weight."""
        found = []
        for data, rows in zip(self._training_data, self._dev, strict=True):
            if data.dev is not None:
                found.append(_dev_measures(self._dev_cosines(data, rows), rows, data, _MEASURES))
        return {name: float(np.mean([one[name] for one in found])) for name in _MEASURES} if found else {}

    def new_bonus(self) -> float:
        """Choose, on dev, what to add to the cosines of new tools: those that no training request needs.

        Gives the bonus with the highest recall, among those that lower the recall of known tools by at most
        BONUS_MAY_COST, compared to a ranking without new tools. (In a dev split of unseen tools, every request needs a
        new tool: without that bound, the bonus would be too high.) A dataset counts only if its dev requests need both
        new and known tools.
        """
        names = ("recall@5", "known_recall@5")
        recall = np.zeros(len(_BONUSES))
        allowed = np.ones(len(_BONUSES), dtype=bool)
        for data in self._training_data:
            is_new = data.new[np.concatenate(data.dev.gold)] if data.dev else np.zeros(0, dtype=bool)
            if not is_new.any() or is_new.all():
                continue
            rows = np.arange(len(data.documents))  # not a sample: known tools compete with all documents
            cosines = self._dev_cosines(data, rows)
            new = torch.from_numpy(data.new[rows]).to(cosines.device)
            alone = _dev_measures(cosines - 9.0 * new, rows, data, names)["known_recall@5"]
            for place, step in enumerate(_BONUSES):
                found = _dev_measures(cosines + step * new, rows, data, names)
                recall[place] += found["recall@5"]
                allowed[place] &= found["known_recall@5"] >= alone - BONUS_MAY_COST
        return _BONUSES[int(np.argmax(np.where(allowed, recall, 0.0)))]


def _dev_measures(cosines: Tensor, rows: Ints, data: EncoderTrainingData, names: Sequence[str]) -> dict[str, float]:
    assert data.dev is not None
    best = rows[cosines.topk(min(5, len(rows)), 1).indices.cpu().numpy()]
    rankings = [list(map(str, row.tolist())) for row in best]
    golds = [list(map(str, gold.tolist())) for gold in data.dev.gold]
    new = {str(row) for row in np.flatnonzero(data.new).tolist()}
    return metrics.evaluate(rankings, golds, names, new)
