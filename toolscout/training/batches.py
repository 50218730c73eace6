"""The training data of a bi-encoder: tokenised requests and documents, gold documents, and candidates of a step."""

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
    """The tokens of requests, and the rows of their gold documents."""

    tokens: list[Ints]
    gold: list[Ints]

    def __len__(self) -> int:
        """The number of requests."""
        return len(self.tokens)

    def in_pairs(self) -> Requests:
        """Return a copy in which each request is repeated for each of its gold documents, with that document alone."""
        tokens = [tokens for tokens, gold in zip(self.tokens, self.gold, strict=True) for _ in gold]
        return Requests(tokens, [gold[place : place + 1] for gold in self.gold for place in range(len(gold))])


@dataclass(slots=True)
class EncoderTrainingData:
    """One tokenised dataset. Tools with equal documents share a row, so that a duplicate of a gold tool is not wrong.

    competing: the rows of the documents that are candidates in the loss. By default only gold documents of training
        requests of this dataset: any other would be wrong for every request, and would hardly ever be found later. This
        holds even if another dataset over the same tools has requests for it.
    new: for each row, whether no training request of any dataset needs it.
    hard: for each training request, the rows of its mined hard negatives; empty before mining.
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
        needed: Collection[str] = (),
    ) -> EncoderTrainingData:
        """Tokenise the tools and splits of a dataset.

        `unused`: whether all documents compete. `needed`: digests of the tools that requests of any dataset need.
        Raises BadDataset without a training split.
        """
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
        new = np.array([digest not in needed for digest in rows], dtype=bool)
        new[used] = False
        lines = [_title_lines(text) for text in texts] if self_queries else []
        flat = encoder.tokenise_requests([line for few in lines for line in few])
        ends = np.cumsum([0, *map(len, lines)])
        return cls(
            name=dataset.name,
            documents=encoder.tokenise_documents(texts),
            self_queries=[flat[ends[i] : ends[i + 1]] for i in range(len(lines))],
            train=parts[0],
            dev=parts[1],
            competing=np.arange(len(texts)) if unused else used,
            new=new,
            hard=[],
        )


def needed_digests(sets: Sequence[tuple[Dataset, str, str]]) -> frozenset[str]:
    """Digests of the tools that training requests of any dataset need; all other tools are new to the model."""
    return frozenset(
        tool.digest()
        for data, train, _ in sets
        for needed in [{tool_id for gold in data.split(train).gold for tool_id in gold} if train else set()]
        for tool in data.tools
        if tool.id in needed
    )


def _requests(encoder: TrainableEncoder, dataset: Dataset, split: str, row_of: dict[str, int]) -> Requests:
    part = dataset.split(split)
    tokens = encoder.tokenise_requests([text for _, text in part.requests])
    gold = [np.array(sorted({row_of[tool_id] for tool_id in tools}), dtype=np.int64) for tools in part.gold]
    return Requests(tokens, gold)


def _title_lines(document: str) -> list[str]:
    """The lines of a document that could be requests for it: its name in words, its title, what it does."""
    return [line for line in document.split("\n")[1:4] if line.strip()]


def join_requests(tokens: Ints, others: Ints, limit: int, prompt: int = 0) -> Ints:
    """The tokens of two requests as one text of at most `limit` tokens, without the special tokens in between.

    `prompt`: how many tokens of a request are its prompt's, which the second one loses.
    """
    both = np.concatenate([tokens[:-1], others[1 + prompt :]])
    return both if len(both) <= limit else np.concatenate([both[: limit - 1], both[-1:]])


def candidates(
    data: EncoderTrainingData, gold: Sequence[Ints], picked: Ints, count: int, rng: np.random.Generator
) -> Ints:
    """The candidate documents of a step: all where they are few, else gold ones, hard negatives, and random ones."""
    competing = data.competing
    if len(competing) <= count:
        return competing
    chosen = np.unique(np.concatenate(gold))
    if data.hard:
        few = np.concatenate([rng.permutation(data.hard[i])[:_HARD_EACH] for i in picked])
        mined, room = np.setdiff1d(few, chosen), max(0, count - len(chosen))
        chosen = np.union1d(chosen, mined if len(mined) <= room else rng.choice(mined, room, replace=False))
    return np.union1d(chosen, rng.choice(competing, max(0, count - len(chosen)), replace=False))


_HARD_EACH = 4


def shuffle_steps(sizes: Sequence[int], batch: int, seed: int, epoch: int) -> list[tuple[int, Ints]]:
    """The steps of an epoch, as (number of the dataset, rows of its requests).

    A dataset's share of the steps grows with the root of its size, so that a large one does not dominate.
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
