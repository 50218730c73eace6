"""A dataset that only training can solve, with a tiny BERT to train: requests share no word with what they need."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from tests.models import tiny_bert
from toolscout.core.tool import Tool
from toolscout.data import metrics
from toolscout.data.dataset import Dataset
from toolscout.retrievers.base import Retriever
from toolscout.retrievers.dense import DenseOptions

with suppress(ImportError):  # the data alone needs no torch
    import torch

    torch.set_num_threads(1)  # matrices so small are not worth waiting for a second thread
TOOLS = [Tool("n", f"t{number}", f"w{number} " * 4) for number in range(20)]


def learnable(name: str = "learnable", train: int = 160, used: int = 20, dev_used: int = 20) -> Dataset:
    """Requests for one or two tools in words of their own, beside two that mean nothing; dev and test have 40 each.

    Those to train on need the first `used` of the tools, the others the first `dev_used`.
    """
    random = np.random.default_rng(0)
    gold: dict[str, tuple[str, ...]] = {}
    while len(gold) < train + 80:
        chosen = random.choice(dev_used if len(gold) < 80 else used, random.integers(1, 3), replace=False)
        words = [f"w{20 + n}" for n in chosen] * 2 + [f"w{n}" for n in random.integers(40, 60, 2)]
        gold[" ".join(random.permutation(words))] = tuple(f"n/t{n}" for n in chosen)
    texts = {f"{name}-{number}": text for number, text in enumerate(gold)}
    rows = list(zip(texts, gold.values(), strict=True))
    qrels = {"train": dict(rows[80:]), "dev": dict(rows[:40]), "test": dict(rows[40:80])}
    return Dataset(name, TOOLS, texts, qrels)


def tiny_source(folder: Path, dropout: float = 0.0, **config: Any) -> Path:
    """The Hugging Face folder of the tiny BERT."""
    dropped: dict[str, Any] = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return tiny_bert.write_folder(folder, tiny_bert.random_weights(), **dropped, **config)


def options(start: Path, **changed: Any) -> DenseOptions:
    """What teaches the tiny BERT in two seconds."""
    chosen = {"loss": "softmax", "mix": 0.0, "epochs": 8, "batch": 16, "rate": 3e-3, "patience": 0, "device": "cpu"}
    return DenseOptions(start=str(start), **{**chosen, **changed})


def recall(retriever: Retriever, data: Dataset, split: str) -> float:
    """Recall@5 of a retriever that has the tools."""
    asked = data.split(split)
    found = retriever.search([text for _, text in asked.requests], 5)
    rankings = [[hit.tool_id for hit in hits] for hits in found]
    return metrics.evaluate(rankings, asked.gold, ["recall@5"])["recall@5"]
