"""What a language model can still do beside tools: how well it predicts a text, and a task of labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch.nn import functional

from toolscout.core.arrays import Floats
from toolscout.models.language.base import Base
from toolscout.models.language.torch_network import TransformerNetwork
from toolscout.papers.labelled_texts import Labelled

MOST_TOKENS = 192
_AT_ONCE = 4096  # tokens whose scores over the whole vocabulary are held at once


def perplexity(network: TransformerNetwork, rows: Floats, base: Base, texts: Sequence[str]) -> dict[str, float]:
    """Of plain texts, each token after those before it: among all tokens, and among those of the base alone."""
    sequences = [tokens for text in texts if len(tokens := base.encode(text)[:MOST_TOKENS]) > 1]
    whole, words, count = 0.0, 0.0, 0
    for losses, own in _losses(network, rows, sequences):
        whole, words, count = whole + float(losses.sum()), words + float(own.sum()), count + len(losses)
    return {"perplexity": float(np.exp(whole / count)), "perplexity_words": float(np.exp(words / count))}


def accuracy(network: TransformerNetwork, rows: Floats, base: Base, data: Sequence[Labelled]) -> float:
    """How often the right label is the likeliest behind its text, by the mean over the label's tokens."""
    labels = sorted({one.label for one in data})
    written = [base.encode(f" {label}") for label in labels]
    before = [base.encode(one.text)[-MOST_TOKENS:] for one in data]
    sequences = [[*text, *label] for text in before for label in written]
    losses = [
        -own[-len(written[at % len(labels)]) :].mean() for at, (_, own) in enumerate(_losses(network, rows, sequences))
    ]
    said = np.argmax(np.array(losses).reshape(len(data), len(labels)), axis=1)
    return float(np.mean([labels[at] == one.label for at, one in zip(said.tolist(), data, strict=True)]))


def _losses(
    network: TransformerNetwork, rows: Floats, sequences: Sequence[Sequence[int]]
) -> Iterator[tuple[Floats, Floats]]:
    """For each sequence the loss of all its tokens but the first: among all tokens, and among the base's."""
    added = torch.tensor(rows, device=network.device)
    with torch.no_grad():
        merged = network.merged()
        for few in _batches(sequences):
            states = network.states(few, added, merged)
            for row, tokens in enumerate(few):
                own = states[row, : len(tokens) - 1]
                right = torch.tensor(list(tokens[1:]), device=network.device)
                logits = functional.linear(own, network.head).float()
                said = logits.gather(1, right[:, None])[:, 0]
                alone = logits.logsumexp(1)
                more = torch.cat([alone[:, None], own.float() @ added.T], 1).logsumexp(1) if len(added) else alone
                yield (more - said).cpu().numpy(), (alone - said).cpu().numpy()


def _batches(sequences: Sequence[Sequence[int]]) -> Iterator[list[Sequence[int]]]:
    """In their order, as many as fit together."""
    few: list[Sequence[int]] = []
    for tokens in sequences:
        if few and (len(few) + 1) * max(len(tokens), *map(len, few)) > _AT_ONCE:
            yield few
            few = []
        few.append(tokens)
    if few:
        yield few
