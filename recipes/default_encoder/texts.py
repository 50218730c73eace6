"""Makes tokens of all that is trained on and chosen by: permissively licensed sets, and dev splits.

A file `texts-NAME.npz` holds, for each set, `SET/documents` and `SET/SPLIT/requests`: the tokens of all texts in one
array, with `…_ends`, the place where each text ends; and `SET/SPLIT/gold`, (request, document) pairs.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from toolscout.data.dataset import Dataset
from toolscout.data.locate import find_dataset
from toolscout.models.encoders.export import default_source

REQUEST_TOKENS, DOCUMENT_TOKENS = 126, 94  # without the two special tokens
_CHARS = 4000
# Sets that are trained on: their splits as (train, dev). The first three are what the writer of requests learns from.
TRAINED = {
    "ultratool": ("train", "dev"),
    "sealtools": ("dev", ""),
    "calls": ("train", "dev"),
    "mcp": ("train", "dev"),
    "openapi": ("train", "dev"),
    "tldr": ("train", "dev"),
    "nl2bash": ("train", "dev"),
    "apibench": ("train", "dev"),
    "nestools": ("train", "dev"),
    "clinc150": ("train", "dev"),
    "banking77": ("train", "dev"),
    "hwu64": ("train", "dev"),
}
MADE = ("calls", "mcp", "openapi")
"""Sets that recipes/default_model_data.py makes."""
# Catalogues of which no request is trained on; their dev splits choose.
CHOSEN_ON = {
    "bundled": ("dev",),
    "toollens": ("dev", "unseen_tool.dev"),
    "simpletoolquestions": ("dev",),
    "toolbench-g3": ("dev",),
    "toolbench": ("dev",),
}
# One program of so many is left out of the translated goals that are trained on, to choose by.
HELD_PROGRAMS = 20

Arrays = dict[str, NDArray[Any]]


class Tokens:
    """Texts as tokens of the published encoder, without special tokens."""

    def __init__(self) -> None:
        """Read the tokeniser."""
        self._tokenizer = Tokenizer.from_file(str(default_source() / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def of(self, texts: Iterable[str], most: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """All tokens in one array, and where each text ends."""
        readable = [text[:_CHARS].encode(errors="replace").decode() for text in texts]
        found = [np.asarray(one.ids[1:-1][:most], np.uint16) for one in self._tokenizer.encode_batch(readable)]
        flat = np.concatenate(found) if found else np.zeros(0, np.uint16)
        return flat, np.cumsum([len(one) for one in found])

    def add(self, arrays: Arrays, name: str, data: Dataset, splits: Mapping[str, str]) -> None:
        """Add a set's documents and requests; `splits` maps the names of splits to those in the file."""
        arrays[f"{name}/documents"], arrays[f"{name}/documents_ends"] = self.of(
            (tool.document() for tool in data.tools), DOCUMENT_TOKENS
        )
        row_of = {tool.id: row for row, tool in enumerate(data.tools)}
        for split, saved_as in splits.items():
            part = data.split(split)
            key = f"{name}/{saved_as}"
            arrays[f"{key}/requests"], arrays[f"{key}/requests_ends"] = self.of(
                (text for _, text in part.requests), REQUEST_TOKENS
            )
            pairs = [(row, row_of[tool]) for row, gold in enumerate(part.gold) for tool in gold if tool in row_of]
            arrays[f"{key}/gold"] = np.asarray(pairs, np.int32)


def make_texts(work: Path) -> None:
    """Write texts-train.npz, texts-dev.npz and translations.npz."""
    tokens = Tokens()
    trained: Arrays = {}
    for name, (train, dev) in TRAINED.items():
        folder = work / "pool" / name if name in MADE else find_dataset(name)
        splits = {train: "train"} | ({dev: "dev"} if dev else {})
        tokens.add(trained, name, Dataset.load(folder, list(splits)), splits)
    chosen: Arrays = {}
    for name, found in CHOSEN_ON.items():
        tokens.add(chosen, name, Dataset.load(find_dataset(name), list(found)), {one: one for one in found})
    np.savez_compressed(work / "texts-train.npz", **trained)
    np.savez_compressed(work / "texts-dev.npz", **chosen)
    np.savez_compressed(work / "translations.npz", **_translations(tokens))


def _translations(tokens: Tokens) -> Arrays:
    """Goals in other languages and in English, with the language, the program's row in tldr, and whether it is held."""
    path = Path(os.environ["TOOLSCOUT_DATA"]) / "tldr-parallel" / "pairs.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    row_of = {tool.id: row for row, tool in enumerate(Dataset.load(find_dataset("tldr"), ["dev"]).tools)}
    rows = [row for row in rows if row["tool"] in row_of]
    translated, ends = tokens.of((row["text"] for row in rows), REQUEST_TOKENS)
    english, english_ends = tokens.of((row["english"] for row in rows), REQUEST_TOKENS)
    return {
        "translated": translated,
        "translated_ends": ends,
        "english": english,
        "english_ends": english_ends,
        "language": np.array([row["language"] for row in rows]),
        "document": np.array([row_of[row["tool"]] for row in rows]),
        "held": np.array([zlib.crc32(row["tool"].encode()) % HELD_PROGRAMS == 0 for row in rows]),
    }


def names(arrays: Sequence[str]) -> list[str]:
    """The sets in a file."""
    return sorted({key.partition("/")[0] for key in arrays})
