"""Trains the reranker: a cross-encoder that reads a request and a document together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from recipes.default_encoder.bi_encoder import ScoredLists
from recipes.default_encoder.network import (
    DEVICE,
    TokenisedSet,
    Weights,
    bert,
    draw_order,
    optimiser,
    paired,
    pooled,
    set_rate,
)

PAIR_TOKENS = 128
"""How many tokens of a pair are read, special ones included."""


@dataclass(frozen=True)
class CrossEncoderTraining:
    """Settings of a training. documents: how many are scored for each request, one of them gold."""

    steps: int
    rate: float = 6e-5
    requests: int = 96
    documents: int = 10
    taught: float = 0.5
    seed: int = 0


class CrossEncoder(nn.Module):
    """A BERT with the head of Hugging Face's BertForSequenceClassification and one logit."""

    def __init__(self, weights: Weights, layers: Sequence[int] | None = None) -> None:
        """Take these of the layers of an encoder, or all; the head is new."""
        super().__init__()
        self.bert = bert(weights, layers)
        size = self.bert.config.hidden_size
        self.pooler = nn.Linear(size, size, device=DEVICE)
        self.classifier = nn.Linear(size, 1, device=DEVICE)
        nn.init.normal_(self.classifier.weight, std=0.02)
        nn.init.zeros_(self.classifier.bias)

    @classmethod
    def read(cls, weights: Weights) -> CrossEncoder:
        """The model of tensors that `weights` gave."""
        model = cls({name.removeprefix("bert."): one for name, one in weights.items()})
        model.load_state_dict({name.replace("bert.pooler.dense.", "pooler."): one for name, one in weights.items()})
        return model.to(DEVICE).eval()

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
        """The logit of each pair."""
        first = pooled(self.bert, ids, mask, types, lambda states, _: states[:, 0])
        logits: Tensor = self.classifier(torch.tanh(self.pooler(first)))[:, 0]
        return logits

    def weights(self) -> Weights:
        """The tensors by Hugging Face's names."""
        return {name.replace("pooler.", "bert.pooler.dense."): one for name, one in self.state_dict().items()}


def train_cross_encoder(
    model: CrossEncoder,
    sets: Sequence[TokenisedSet],
    misses: Mapping[str, Tensor],
    settings: CrossEncoderTraining,
    teacher: CrossEncoder | None = None,
) -> float:
    """Train a model in place on gold and near misses; a teacher's logits are imitated too. Returns the last loss."""
    torch.manual_seed(settings.seed)
    learning = optimiser(list(model.parameters()), settings.rate)
    model.train()
    count = settings.documents
    right = torch.zeros(settings.requests, dtype=torch.long, device=DEVICE)
    loss = torch.zeros((), device=DEVICE)
    for step, number in enumerate(draw_order([len(one.requests) for one in sets], settings.steps, settings.seed)):
        set_rate(learning, settings.rate, step, settings.steps)
        data = sets[number]
        rows = torch.randint(len(data.requests), (settings.requests,), device=DEVICE)
        documents = torch.cat([data.some_gold(rows), _wrong(data, misses[data.name][rows], count - 1)], 1)
        is_gold = (documents[:, :, None] == data.gold[rows][:, None, :]).any(2)
        pairs = paired(data.requests, rows.repeat_interleave(count), data.documents, documents.reshape(-1), PAIR_TOKENS)
        scores = model(*pairs).view(-1, count)
        # Other gold documents are right as well, so the first is not asked to be above them.
        first = scores.masked_fill(is_gold & (torch.arange(count, device=DEVICE) > 0), -1e4)
        loss = functional.binary_cross_entropy_with_logits(scores, is_gold.float())
        loss = loss + 0.5 * functional.cross_entropy(first, right)
        if teacher is not None:
            with torch.no_grad():
                told = teacher(*pairs).view(-1, count)
            loss = loss + settings.taught * functional.mse_loss(scores, told)
        learning.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        learning.step()
    return float(loss.detach())


def _wrong(data: TokenisedSet, misses: Tensor, count: int) -> Tensor:
    """Documents that are not gold: near misses, the nearest most often, and one that was drawn at random."""
    drawn = (torch.rand((len(misses), count), device=DEVICE) ** 1.5 * misses.shape[1]).long()
    picked, others = misses.gather(1, drawn), data.others((len(misses), count))
    picked = torch.where(picked < 0, others, picked)
    picked[:, -1] = others[:, -1]
    return picked


@torch.no_grad()
def score_pairs(
    model: CrossEncoder,
    data: TokenisedSet,
    rows: Tensor,
    documents: Tensor,
    limit: int = PAIR_TOKENS,
    batch: int = 4096,
) -> Tensor:
    """The logits of requests with their documents [n, list]."""
    training = model.training
    model.eval()
    asked, told = rows.repeat_interleave(documents.shape[1]), documents.reshape(-1)
    scores = torch.zeros(len(asked), device=DEVICE)
    order = torch.argsort(data.requests.lengths[asked] + data.documents.lengths[told])
    for few in order.split(batch):
        scores[few] = model(*paired(data.requests, asked[few], data.documents, told[few], limit))
    model.train(training)
    return scores.view(documents.shape)


def score_lists(model: CrossEncoder, data: TokenisedSet, misses: Tensor, requests: int, length: int) -> ScoredLists:
    """What the model says of some requests: a gold document of each, and its nearest misses."""
    rows = torch.randperm(len(data.requests), device=DEVICE)[:requests]
    near = misses[rows][:, : length - 1]
    near = torch.where(near < 0, data.others(tuple(near.shape)), near)
    documents = torch.cat([data.some_gold(rows), near], 1)
    return ScoredLists(rows, documents, score_pairs(model, data, rows, documents))
