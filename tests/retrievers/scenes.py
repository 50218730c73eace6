"""A dataset whose requests have no word in common with their tools: only use can tell which tools are meant."""

from __future__ import annotations

import numpy as np

from tests.toys import WORDS, HashedWords, catalogue
from toolscout.data import metrics
from toolscout.data.dataset import Dataset
from toolscout.retrievers.base import Retriever


def scenes(name: str = "scenes", seed: int = 0) -> Dataset:
    """Twelve scenes of two tools, each asked for in its own words: 60 requests to train on, 24 in dev, 24 in test."""
    random = np.random.default_rng(seed)
    tools = catalogue(60)
    texts: dict[str, str] = {}
    qrels: dict[str, dict[str, tuple[str, ...]]] = {"train": {}, "dev": {}, "test": {}}
    for scene in range(12):
        chosen = random.choice(60, 2, replace=False)
        for number in range(9):
            split = "train" if number < 5 else "dev" if number < 7 else "test"
            request_id = f"{name}-{scene}-{number}"
            noise = " ".join(random.choice(WORDS, 2))
            texts[request_id] = f"{name}zorp{scene} {name}blik{scene} {name}quam{scene} {noise} again{number}"
            qrels[split][request_id] = tuple(tools[n].id for n in chosen)
    return Dataset(name, tools, texts, qrels)


def recall(retriever: Retriever, data: Dataset, split: str) -> float:
    asked = data.split(split)
    found = retriever.search([text for _, text in asked.requests], 5)
    rankings = [[hit.tool_id for hit in hits] for hits in found]
    return metrics.evaluate(rankings, asked.gold, ["recall@5"])["recall@5"]


class Killed(HashedWords):
    """An encoder that dies after some texts, as a killed process does."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def encode_request(self, text: str) -> np.ndarray:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return super().encode_request(text)
