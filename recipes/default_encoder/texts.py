"""Makes tokens of all that is trained on and chosen by: permissively licensed sets, and dev splits.

A file `texts-NAME.npz` holds, for each set, `SET/documents` and `SET/SPLIT/requests`: the tokens of all texts in one
array, with `…_ends`, the place where each text ends; and `SET/SPLIT/gold`, (request, document) pairs.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import shutil
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from toolscout.core.tool import Tool
from toolscout.data.dataset import Dataset
from toolscout.data.locate import find_dataset
from toolscout.models.encoders.export import default_source
from toolscout.models.encoders.short_documents import without_repeats
from toolscout.models.encoders.source_folder import WEIGHTS_FILE
from toolscout.synth.inputs import SynthSource

PUBLISHED = "minilm.safetensors"
REQUEST_TOKENS, DOCUMENT_TOKENS = 126, 94  # without the two special tokens
_CHARS = 4000
_SEEN_LETTER = 3
_SAYS_NOTHING = 4
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
# Catalogues that a language model wrote requests for: a file of tools, and one tool of how many is taken.
WRITTEN = {
    "toolbench": ("toolbench/corpus.jsonl", 1),
    "mcp": ("mcp_tools/tools.jsonl.gz", 1),
    "openapi": ("openapi_ops/operations.jsonl.gz", 4),
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
    """Texts as tokens of the encoder, without special tokens."""

    def __init__(self, path: Path) -> None:
        """Read a tokeniser."""
        self._tokenizer = Tokenizer.from_file(str(path))
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
            (without_repeats(tool.document()) for tool in data.tools), DOCUMENT_TOKENS
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
    """Write the published weights, the tokeniser, and the tokens: texts-*.npz and translations.npz."""
    shutil.copyfile(default_source() / WEIGHTS_FILE, work / PUBLISHED)
    pairs = translated_goals()
    extend_vocabulary(default_source() / "tokenizer.json", [pair["text"] for pair in pairs], work / "tokenizer.json")
    tokens = Tokens(work / "tokenizer.json")
    np.savez_compressed(work / "translations.npz", **_translations(tokens, pairs))
    chosen: Arrays = {}
    for name, found in CHOSEN_ON.items():
        tokens.add(chosen, name, Dataset.load(find_dataset(name), list(found)), {one: one for one in found})
    np.savez_compressed(work / "texts-dev.npz", **chosen)
    trained: Arrays = {}
    for name, (train, dev) in TRAINED.items():
        folder = work / "pool" / name if name in MADE else find_dataset(name)
        splits = {train: "train"} | ({dev: "dev"} if dev else {})
        tokens.add(trained, name, Dataset.load(folder, list(splits)), splits)
    np.savez_compressed(work / "texts-train.npz", **trained)
    tokenise_written(work)


def tokenise_written(work: Path) -> None:
    """Write the tokens of the requests that a language model wrote, and of their catalogues: texts-written.npz."""
    tokens = Tokens(work / "tokenizer.json")
    written: Arrays = {}
    for name in WRITTEN:
        _add_written(tokens, written, work, name)
    np.savez_compressed(work / "texts-written.npz", **written)


def extend_vocabulary(source: Path, texts: Iterable[str], out: Path) -> int:
    """Write a tokeniser with new tokens in the places that BERT left unused; returns how many.

    A word with a letter that the vocabulary lacks becomes [UNK] as a whole. The letters that are missing most often
    in `texts` get the places: alone for Chinese characters, which are words, elsewhere as they stand in a word.
    """
    saved = json.loads(source.read_text(encoding="utf-8"))
    vocabulary: dict[str, int] = saved["model"]["vocab"]
    tokenizer = Tokenizer.from_file(str(source))
    missing: Counter[str] = Counter()
    for text in texts:
        words = tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text))
        for word, _ in words:
            letters = [letter if place == 0 else f"##{letter}" for place, letter in enumerate(word)]
            missing.update(letter for letter in letters if letter not in vocabulary)
    unused = sorted((token for token in vocabulary if token.startswith("[unused")), key=vocabulary.__getitem__)
    found = [token for token, count in missing.most_common(len(unused)) if count >= _SEEN_LETTER]
    for old, new in zip(unused, found, strict=False):
        vocabulary[new] = vocabulary.pop(old)
    saved["model"]["vocab"] = dict(sorted(vocabulary.items(), key=lambda entry: entry[1]))
    out.write_text(json.dumps(saved, ensure_ascii=False), encoding="utf-8")
    return len(found)


def _data() -> Path:
    folder = os.environ.get("TOOLSCOUT_DATA")
    if not folder:
        raise SystemExit("name the folder of datasets: TOOLSCOUT_DATA")
    return Path(folder)


def catalogue(name: str) -> list[Tool]:
    """The tools that requests are written for, without those whose description says nothing."""
    file, every = WRITTEN[name]
    path = _data() / file
    if not file.endswith(".gz"):
        return list(SynthSource.open(name).tools)
    found: dict[str, Tool] = {}
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in itertools.islice(lines, 0, None, every):
            tool = Tool.from_record(json.loads(line), name)
            if len(tool.description.split()) >= _SAYS_NOTHING:
                found.setdefault(tool.id, tool)
    return list(found.values())


def _add_written(tokens: Tokens, arrays: Arrays, work: Path, name: str) -> None:
    """Add the requests that a language model wrote for a catalogue, and the catalogue."""
    tools = catalogue(name)
    row_of = {tool.id: row for row, tool in enumerate(tools)}
    with gzip.open(work / "written" / f"kept-{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    rows = [(text, [row_of[tool] for tool in gold if tool in row_of]) for text, gold in rows]
    rows = [(text, gold) for text, gold in rows if gold]
    key = f"written-{name}"
    arrays[f"{key}/documents"], arrays[f"{key}/documents_ends"] = tokens.of(
        (without_repeats(tool.document()) for tool in tools), DOCUMENT_TOKENS
    )
    arrays[f"{key}/train/requests"], arrays[f"{key}/train/requests_ends"] = tokens.of(
        (text for text, _ in rows), REQUEST_TOKENS
    )
    pairs = [(row, tool) for row, (_, gold) in enumerate(rows) for tool in gold]
    arrays[f"{key}/train/gold"] = np.asarray(pairs, np.int32)


def translated_goals() -> list[dict[str, str]]:
    """The pairs of tldr-parallel whose program stands in tldr."""
    path = _data() / "tldr-parallel" / "pairs.jsonl.gz"
    known = {tool.id for tool in Dataset.load(find_dataset("tldr"), ["dev"]).tools}
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return [row for row in rows if row["tool"] in known]


def _translations(tokens: Tokens, pairs: Sequence[dict[str, str]]) -> Arrays:
    """Goals in other languages and in English, with the language, the program's row in tldr, and whether it is held."""
    row_of = {tool.id: row for row, tool in enumerate(Dataset.load(find_dataset("tldr"), ["dev"]).tools)}
    translated, ends = tokens.of((pair["text"] for pair in pairs), REQUEST_TOKENS)
    english, english_ends = tokens.of((pair["english"] for pair in pairs), REQUEST_TOKENS)
    return {
        "translated": translated,
        "translated_ends": ends,
        "english": english,
        "english_ends": english_ends,
        "language": np.array([pair["language"] for pair in pairs]),
        "document": np.array([row_of[pair["tool"]] for pair in pairs], np.int32),
        "held": np.array([zlib.crc32(pair["tool"].encode()) % HELD_PROGRAMS == 0 for pair in pairs]),
    }
