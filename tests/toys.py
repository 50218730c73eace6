"""Small stand-ins that run anywhere: an encoder without weights, and made-up catalogues."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from toolscout.core.answer import Example
from toolscout.core.tool import Tool
from toolscout.models.encoders.base import TextEncoder
from toolscout.models.need_head import NeedHead

WORDS = "create list search get delete issue event mail file user order weather map price note report".split()


class HashedWords(TextEncoder):
    """An encoder that runs anywhere: the sum of one fixed random vector for each word."""

    fingerprint = "hashed-words"
    dimension = 256

    def __init__(self) -> None:
        self.encoded = 0

    @classmethod
    def load(cls, folder: Path | None = None) -> HashedWords:
        return cls()

    def encode_request(self, text: str) -> NDArray[np.float32]:
        total = np.full(self.dimension, 1e-3)
        for word in text.lower().replace("_", " ").split():
            seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "big")
            total += np.random.default_rng(seed).standard_normal(self.dimension)
        return (total / np.linalg.norm(total)).astype(np.float32)

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.stack([self.encode_request(text) for text in texts])

    def encode_documents(self, texts: Sequence[str]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        for start in range(len(texts), 0, -64):
            positions = np.arange(max(0, start - 64), start)
            self.encoded += len(positions)
            yield positions, self.encode([texts[i] for i in positions])


class Poems(HashedWords):
    """The toy encoder with a head beside it: whatever has the word "poem" in it needs no tool."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        poem, nothing = self.encode_request("poem"), np.zeros(1, dtype=np.float32)
        NeedHead(poem[None], nothing, np.array([-20], dtype=np.float32), 3.0, 1.0, 0.0, self.fingerprint).save(folder)


def catalogue(count: int, seed: int = 0) -> list[Tool]:
    """Tools over seven namespaces whose descriptions are drawn from the same few words."""
    random = np.random.default_rng(seed)
    tools = []
    for number in range(count):
        verb, noun = WORDS[number % 5], WORDS[5 + number % 11]
        description = " ".join(random.choice(WORDS, 6))
        tools.append(Tool(f"space{number % 7}", f"{verb}_{noun}_{number}", description))
    return tools


def examples(count: int, seed: int = 0) -> list[Example]:
    """Feedback of four sources and two tenants over a year on the tools of catalogue(60)."""
    random = np.random.default_rng(seed)
    ids = [tool.id for tool in catalogue(60)]
    found = []
    for _ in range(count):
        used, rejected = random.choice(ids, random.integers(0, 3)), random.choice(ids, random.integers(0, 2))
        tenant = str(random.choice(["", "", "ann", "bob"]))
        source = f"source{random.integers(4)}"
        time = datetime(2025, 1, 1, tzinfo=UTC) + timedelta(days=float(random.uniform(0, 365)))
        request = " ".join(random.choice(WORDS, 4))
        found.append(Example(request, tuple(map(str, used)), tuple(map(str, rejected)), tenant, source, time))
    return found
