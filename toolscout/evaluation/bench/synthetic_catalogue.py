"""Catalogues of any size, out of real documents and their vectors.

The records of ToolBench come first, as they are. Beyond them come copies. Copy number c of a record has word number c
of a fixed list behind its namespace and behind its name, and three words of its description, at random places, are
replaced by words out of random other descriptions. Its vector is that of the record plus Gaussian noise of length SIGMA
on average, brought back to length one: nothing is embedded for a copy.
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
# Copies made by the rule above and really embedded lie this far from their records (measured by
# recipes/perturbation_noise.py).
SIGMA = 0.46
SWAPPED_WORDS = 3
RECIPE = 1
_SEED = 7
_WORDS = (
    "north south east west alpine coastal central harbor summit valley river desert island meadow forest canyon "
    "amber cobalt crimson emerald indigo ivory onyx scarlet silver violet atlas beacon comet delta ember falcon"
).split()


def base_tools(data: Path) -> list[Tool]:
    """Every real record, each id once."""
    found: dict[str, Tool] = {}
    for source in SOURCES:
        for tool in catalogue.read(str(data / source), ReadOptions(keep_going=True)):
            found.setdefault(tool.id, tool)
    return list(found.values())


def tools(base: Sequence[Tool], count: int) -> Iterator[Tool]:
    """The first `count` tools of the endless catalogue over these records."""
    return islice(_tools(base), count)


def _tools(base: Sequence[Tool]) -> Iterator[Tool]:
    yield from base
    number = 0
    while True:
        number += 1
        rng = random.Random(_SEED * 1000 + number)
        word = _word(number)
        for tool in base:
            description = _swapped(tool.description, base, rng)
            yield replace(
                tool, namespace=f"{tool.namespace}-{word}", name=f"{tool.name}_{word}", description=description
            )


def _word(number: int) -> str:
    again, place = divmod(number - 1, len(_WORDS))
    return f"{_WORDS[place]}{again + 1}" if again else _WORDS[place]


def _swapped(text: str, base: Sequence[Tool], rng: random.Random) -> str:
    words = text.split()
    for _ in range(min(SWAPPED_WORDS, len(words))):
        others = base[rng.randrange(len(base))].description.split()
        if others:
            words[rng.randrange(len(words))] = others[rng.randrange(len(others))]
    return " ".join(words)


def vectors(base: Floats, count: int, at_once: int = 20_000) -> Iterator[Floats]:
    """The vectors of the same tools in the same order, a batch at a time. Batches do not span two copies."""
    number = 0
    while count > 0:
        rng = np.random.default_rng([_SEED, number])
        for start in range(0, min(len(base), count), at_once):
            batch = base[start : min(start + at_once, count)]
            yield noisy(batch, SIGMA, rng) if number else batch
        count -= len(base)
        number += 1


def noisy(rows: Floats, sigma: float, rng: np.random.Generator) -> Floats:
    """Unit vectors moved by noise of length sigma on average, and brought back to length one."""
    scale = np.float32(sigma / np.sqrt(rows.shape[1]))
    moved: Floats = rows + rng.standard_normal(rows.shape, dtype=np.float32) * scale
    moved /= np.linalg.norm(moved, axis=1, keepdims=True)
    return moved
