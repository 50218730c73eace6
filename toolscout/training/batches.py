"""Requests and tools as training wants them: token ids, gold documents, and which documents compete in a step."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from toolscout.core.arrays import Bools, Ints
from toolscout.data.dataset import Dataset
from toolscout.errors import BadDataset
from toolscout.models.encoders.trainable import TrainableEncoder


@dataclass(slots=True)
class Requests:
    """Tokens of requests, and the rows of the documents each of them needs."""

    tokens: list[Ints]
    gold: list[Ints]

    def __len__(self) -> int:
        """How many there are."""
        return len(self.tokens)


@dataclass(slots=True)
class EncoderTrainingData:
    """One dataset to learn from. Tools with equal documents are one row: a twin of a gold tool is no wrong answer.

    `competing`: the rows that stand against each other in the loss. By default only documents that some training
    request of this very set needs: a tool that nobody asked for yet would be wrong for every request, and so be
    unlearned. So would one that only a smaller set over the same tools asks for, as written requests do, if it competed
    in the larger one too. `new`: what no set asks for.
    """

    name: str
    documents: list[Ints]
    self_queries: list[list[Ints]]
    train: Requests
    dev: Requests | None
    competing: Ints
    new: Bools
    hard: list[Ints]

    @classmethod
    def of(
        cls,
        encoder: TrainableEncoder,
        dataset: Dataset,
        train: str,
        dev: str,
        *,
        unused: bool,
        self_queries: bool,
        asked: Collection[str] = (),
    ) -> EncoderTrainingData:
        """Tokenise what a training needs of a dataset. `asked`: digests of tools that other sets ask for too."""
        rows: dict[str, int] = {}
        texts: list[str] = []
        row_of: dict[str, int] = {}
        for tool in dataset.tools:
            digest = tool.digest()
            if digest not in rows:
                rows[digest] = len(texts)
                texts.append(tool.document())
            row_of[tool.id] = rows[digest]
        parts = [_requests(encoder, dataset, name, row_of) if name else None for name in (train, dev)]
        if parts[0] is None:
            raise BadDataset(f"{dataset.name}: name a split to train on")
        used = np.unique(np.concatenate(parts[0].gold))
        new = np.array([digest not in asked for digest in rows], dtype=bool)
        new[used] = False
        lines = [_own(text) for text in texts] if self_queries else []
        flat = encoder.tokens([line for few in lines for line in few], encoder.request_tokens)
        ends = np.cumsum([0, *map(len, lines)])
        return cls(
            name=dataset.name,
            documents=encoder.tokens(texts, encoder.document_tokens),
            self_queries=[flat[ends[i] : ends[i + 1]] for i in range(len(lines))],
            train=parts[0],
            dev=parts[1],
            competing=np.arange(len(texts)) if unused else used,
            new=new,
            hard=[],
        )


def asked_for(sets: Sequence[tuple[Dataset, str, str]]) -> frozenset[str]:
    """Digests of the tools that some training request of some set needs: to the model all others are new."""
    return frozenset(
        tool.digest()
        for data, train, _ in sets
        for needed in [{tool_id for gold in data.split(train).gold for tool_id in gold} if train else set()]
        for tool in data.tools
        if tool.id in needed
    )


def _requests(encoder: TrainableEncoder, dataset: Dataset, split: str, row_of: dict[str, int]) -> Requests:
    part = dataset.split(split)
    tokens = encoder.tokens([text for _, text in part.requests], encoder.request_tokens)
    gold = [np.array(sorted({row_of[tool_id] for tool_id in tools}), dtype=np.int64) for tools in part.gold]
    return Requests(tokens, gold)


def _own(document: str) -> list[str]:
    """The lines of a document that could be a request for it: its name in words, its title, what it does."""
    return [line for line in document.split("\n")[1:4] if line.strip()]


def joined(tokens: Ints, others: Ints, limit: int) -> Ints:
    """Two requests as one: the first without its closing token, the second without its opening one."""
    both = np.concatenate([tokens[:-1], others[1:]])
    return both if len(both) <= limit else np.concatenate([both[: limit - 1], both[-1:]])


def candidates(
    material: EncoderTrainingData, gold: Sequence[Ints], picked: Ints, count: int, rng: np.random.Generator
) -> Ints:
    """The documents that compete in a step: all where they are few, else the gold, mined ones, and some at random."""
    competing = material.competing
    if len(competing) <= count:
        return competing
    chosen = np.unique(np.concatenate(gold))
    if material.hard:
        few = np.concatenate([rng.permutation(material.hard[i])[:_HARD_EACH] for i in picked])
        mined, room = np.setdiff1d(few, chosen), max(0, count - len(chosen))
        chosen = np.union1d(chosen, mined if len(mined) <= room else rng.choice(mined, room, replace=False))
    return np.union1d(chosen, rng.choice(competing, max(0, count - len(chosen)), replace=False))


_HARD_EACH = 4


def shuffled(sizes: Sequence[int], batch: int, seed: int, epoch: int) -> list[tuple[int, Ints]]:
    """The steps of an epoch: which material, and which of its requests. A set's share grows with the root of its size.

    So a large set does not drown the small ones; those are gone through more often.
    """
    rng = np.random.default_rng([seed, epoch])
    roots = np.sqrt(np.array(sizes, dtype=np.float64))
    total = math.ceil(sum(sizes) / batch)
    shares = np.maximum(1, np.round(total * roots / roots.sum())).astype(int)
    steps: list[tuple[int, Ints]] = []
    for index, (size, share) in enumerate(zip(sizes, shares.tolist(), strict=True)):
        if len(sizes) == 1:
            share = total
        rounds = math.ceil(share * batch / size)
        order = np.concatenate([rng.permutation(size) for _ in range(rounds)])
        steps += [(index, order[start * batch : (start + 1) * batch]) for start in range(share)]
    return [steps[i] for i in rng.permutation(len(steps)) if len(steps[i][1])]
