"""Synthetic catalogues of any size, made of real tools and their vectors.

The tools of ToolBench come first, unchanged. Perturbed copies follow. Copy number c of a tool has word number c of a
fixed list appended to its namespace and its name, and three words of its description, at random places, are replaced
by words of random other descriptions. Its vector is that of the tool plus Gaussian noise of mean length SIGMA,
normalised: no copy is embedded.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

from toolscout import catalogue
from toolscout.catalogue.base import ReadOptions
from toolscout.core.arrays import Floats
from toolscout.core.tool import Tool

SOURCES = ("toolbench",)
# The mean distance between a tool and a copy that was embedded (measured by recipes/perturbation_noise.py).
SIGMA = 0.46
SWAPPED_WORDS = 3
RECIPE = 1
_SEED = 7
_WORDS = (
    "north south east west alpine coastal central harbor summit valley river desert island meadow forest canyon "
    "amber cobalt crimson emerald indigo ivory onyx scarlet silver violet atlas beacon comet delta ember falcon"
).split()


def base_tools(data: Path) -> list[Tool]:
    """Return every real tool in the folder of datasets, each id once; raises BadDataset where it cannot be read."""
    found: dict[str, Tool] = {}
    for source in SOURCES:
        for tool in catalogue.read(str(data / source), ReadOptions(keep_going=True)):
            found.setdefault(tool.id, tool)
    return list(found.values())


def tools(base: Sequence[Tool], count: int) -> Iterator[Tool]:
    """Yield the first `count` tools of the synthetic catalogue: `base`, then copies of it."""
    return islice(_endless_tools(base), count)


def _endless_tools(base: Sequence[Tool]) -> Iterator[Tool]:
    yield from base
    number = 0
    while True:
        number += 1
        rng = random.Random(_SEED * 1000 + number)
        word = _suffix(number)
        for tool in base:
            description = _swap_words(tool.description, base, rng)
            yield replace(
                tool, namespace=f"{tool.namespace}-{word}", name=f"{tool.name}_{word}", description=description
            )


def _suffix(number: int) -> str:
    turn, place = divmod(number - 1, len(_WORDS))
    return f"{_WORDS[place]}{turn + 1}" if turn else _WORDS[place]


def _swap_words(text: str, base: Sequence[Tool], rng: random.Random) -> str:
    words = text.split()
    for _ in range(min(SWAPPED_WORDS, len(words))):
        others = base[rng.randrange(len(base))].description.split()
        if others:
            words[rng.randrange(len(words))] = others[rng.randrange(len(others))]
    return " ".join(words)


def vectors(base: Floats, count: int, at_once: int = 20_000) -> Iterator[Floats]:
    """Yield the vectors of `tools` in batches; `base` has those of the real tools. No batch spans two copies."""
    number = 0
    while count > 0:
        rng = np.random.default_rng([_SEED, number])
        for start in range(0, min(len(base), count), at_once):
            batch = base[start : min(start + at_once, count)]
            yield add_noise(batch, SIGMA, rng) if number else batch
        count -= len(base)
        number += 1


def add_noise(rows: Floats, sigma: float, rng: np.random.Generator) -> Floats:
    """Return unit vectors with added Gaussian noise of mean length `sigma`, normalised."""
    scale = np.float32(sigma / np.sqrt(rows.shape[1]))
    moved: Floats = rows + rng.standard_normal(rows.shape, dtype=np.float32) * scale
    moved /= np.linalg.norm(moved, axis=1, keepdims=True)
    return moved
