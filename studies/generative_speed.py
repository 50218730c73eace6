"""How quick a trained toolgen or toolweaver is, and whether 8 bits say what 32 do: results/generative_speed.jsonl.

python -m studies.generative_speed MODEL … [--data toollens] [--split dev] [--requests 200] [--asked 50] [--out FILE]

On two cores, unless $TOOLSCOUT_DEVICE names a device: the median time of a search for requests of about 30 tokens,
what of it is reading, and how often the 8-bit model that is served agrees with the exact one, over --requests requests.
On a device: requests a second, all ranked together. Needs $TOOLSCOUT_DATA, or the folder of a dataset as --data. Rows
that are in the file are not made again.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from studies.generative_report import SPEED
from studies.running import RESULTS, by_hash, say
from toolscout.data.dataset import Dataset
from toolscout.data.locate import find_dataset
from toolscout.errors import BadModel
from toolscout.evaluation import row as rows
from toolscout.models.language.onnx_engine import OnnxEngine
from toolscout.models.language.open import device_name
from toolscout.retrievers.generative.base import GenerativeRetriever
from toolscout.retrievers.registry import load_model

OUT = RESULTS / "generative_speed.jsonl"
CORES, K = 2, 5
TOKENS = (25, 35)
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def opened(folder: Path) -> GenerativeRetriever:
    """The model, with its tools."""
    model = load_model(folder)
    if not isinstance(model, GenerativeRetriever):
        raise BadModel(f"{folder} is a {model.name}; name a toolgen or a toolweaver")
    return model


def requests(data: str, split: str, most: int) -> list[str]:
    """Some requests of a split, by hash."""
    found = Dataset.load(find_dataset(data), [split]).split(split).requests
    texts = dict(found)
    return [texts[request] for request in by_hash(texts)[:most]]


def latency(model: GenerativeRetriever, texts: Sequence[str]) -> dict[str, float]:
    """Milliseconds of a search, of the reading in it, and of the encoder beside it; every request is asked afresh."""
    encoder = model.encoder
    model.search(texts[:1], K)
    found = {
        "search": [_timed(lambda text=text: model.search([text], K)) for text in texts],  # type: ignore[misc]
        "reading": [_timed(lambda text=text: model.reading([text])) for text in texts],  # type: ignore[misc]
        "encoder": [_timed(lambda text=text: encoder.encode_request(text)) for text in texts],  # type: ignore[misc]
    }
    medians = {f"{name}_p50_ms": float(np.median(times)) for name, times in found.items()}
    return medians | {"search_p95_ms": float(np.percentile(found["search"], 95))}


def _timed(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - started)


def exact(model: GenerativeRetriever) -> None:
    """Serve the same weights, and the rows of tokens, in single precision from now on."""
    assert model._adapter is not None
    base, added = model.base(), model.words().added()
    table = base.table(half=False)
    table.grow(added)
    weights = model._adapter.merge_into(base.architecture, base.weights())
    model._words, model._engine = table, OnnxEngine(base.architecture, weights, table, bits=32)


def agreement(served: Sequence[Sequence[str]], wanted: Sequence[Sequence[str]]) -> dict[str, float]:
    """How often the first tools are the same, and what share of the first five is."""
    pairs = list(zip(served, wanted, strict=True))
    return {
        "top1": float(np.mean([one[:1] == other[:1] for one, other in pairs])),
        "top5": float(np.mean([len(set(one) & set(other)) / max(1, len(other)) for one, other in pairs])),
    }


def ranked(model: GenerativeRetriever, texts: Sequence[str]) -> list[list[str]]:
    """The first tools of each request, each asked alone."""
    return [model.rank([text], K)[0].ids() for text in texts]


def on_cores(folder: Path, texts: Sequence[str], asked: int) -> dict[str, float]:
    """Latency of some requests that have about 30 tokens, and agreement over all."""
    model = opened(folder)
    sizes = {text: len(model.base().encode(text)) for text in texts}
    middle = [text for text in texts if TOKENS[0] <= sizes[text] <= TOKENS[1]][:asked] or list(texts[:asked])
    found = latency(model, middle) | {"tokens": float(np.mean([sizes[text] for text in middle]))}
    served = ranked(model, texts)
    exact(model)
    return found | agreement(served, ranked(model, texts))


def on_device(folder: Path, texts: Sequence[str]) -> dict[str, float]:
    """Requests a second, all ranked together."""
    model = opened(folder)
    model.rank(texts[:8], K)
    started = time.perf_counter()
    model.rank(texts, K)
    return {"requests_per_s": len(texts) / (time.perf_counter() - started)}


def measure(folder: Path, data: str, split: str, most: int, asked: int) -> dict[str, Any]:
    """The row of one model, where it runs now."""
    texts, device = requests(data, split, most), device_name()
    values = on_device(folder, texts) if device else on_cores(folder, texts, asked)
    model = opened(folder)
    return {
        "bench": SPEED,
        "tools": len(model),
        "requests": named(folder, data, split, device),
        "model": folder.name,
        "retriever": model.name,
        "ids": getattr(model.options, "ids", "codes"),
        "asked": f"{Path(data).name} {split}",
        "values": {name: float(f"{value:.5g}") for name, value in values.items()},
        "device": device or f"{CORES} cores",
        "repeats": len(texts),
        "how": "a trained model",
        **rows.provenance("python -m studies.generative_speed"),
    }


def named(folder: Path, data: str, split: str, device: str) -> str:
    """What tells rows apart."""
    return " ".join(filter(None, [folder.name, Path(data).name, split, device]))


def todo(folders: Sequence[Path], data: str, split: str, path: Path) -> list[Path]:
    """The models whose rows are not in the file yet."""
    there = {row["requests"] for row in rows.known_rows(path)}
    return [folder for folder in folders if named(folder, data, split, device_name()) not in there]


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--data", default="toollens")
    parser.add_argument("--split", default="dev")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--asked", type=int, default=50)
    parser.add_argument("--out", type=Path, default=OUT)
    told = parser.parse_args()
    if not device_name() and any(os.environ.get(name) != str(CORES) for name in _THREADS):
        # Libraries read this when they are loaded, so it begins anew.
        few = os.environ | {name: str(CORES) for name in _THREADS}
        os.execve(sys.executable, [sys.executable, "-m", "studies.generative_speed", *sys.argv[1:]], few)
    if not device_name() and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    rows.check_writable(told.out)
    for folder in todo(told.models, told.data, told.split, told.out):
        row = measure(folder, told.data, told.split, told.requests, told.asked)
        rows.append(told.out, row)
        say(f"{folder.name}: {row['values']}")


if __name__ == "__main__":
    main()
