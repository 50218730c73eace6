"""A small labelled dataset that runs anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.toys import WORDS, HashedWords, catalogue
from toolscout.data.dataset import Dataset
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.dense import Dense
from toolscout.retrievers.hybrid.retriever import Hybrid


def dataset(requests: int = 40, tools: int = 60) -> Dataset:
    """Requests in the words of their gold tools; four that need no tool and three that nothing fits."""
    random = np.random.default_rng(1)
    made = catalogue(tools)
    texts: dict[str, str] = {}
    gold: dict[str, tuple[str, ...]] = {}
    metadata: dict[str, Mapping[str, Any]] = {}
    for number in range(requests):
        chosen = random.choice(tools, 1 + number % 4, replace=False)
        words = [word for one in chosen for word in random.choice(made[one].document().split(), 3)]
        texts[f"r{number}"] = " ".join([*words, str(random.choice(WORDS))])
        gold[f"r{number}"] = tuple(made[one].id for one in chosen)
    for number in range(7):
        kind = "no_tool" if number < 4 else "nothing_fits"
        texts[f"n{number}"] = f"quixotic zephyr {number} {WORDS[number]}"
        metadata[f"n{number}"] = {"expects": kind, "split": "test"}
    return Dataset("made-up", made, texts, {"test": gold}, metadata)


def hybrid(encoder: HashedWords | None = None) -> Hybrid:
    """Words and vectors without weights."""
    return Hybrid(parts=[Bm25(), Dense(encoder=encoder or HashedWords())])
