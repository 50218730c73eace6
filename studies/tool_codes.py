"""What makes the codes of toolweaver: how evenly they are used, and whether co-used tools share them.

python -m studies.tool_codes [--only DATASET,…] [--seeds 0,1,2] [--out FILE]

Codes are learned as `toolscout train --retriever toolweaver` learns them, from the documents and the train requests of
a dataset, by several variants: without co-use, with the collaborative loss as published, without Sinkhorn-Knopp, with
random codes, and with other weights, numbers of codes, levels and epsilons. No language model is trained, so nothing
is said of what is found. Needs $TOOLSCOUT_DATA; on two cores seconds a row, minutes for ToolBench. Rows that are in the
file are not made again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from studies.running import RESULTS, numbers, say
from studies.tool_codes_report import NAME
from toolscout.core.arrays import Floats
from toolscout.data.dataset import Dataset
from toolscout.data.locate import find_dataset
from toolscout.evaluation import row as rows
from toolscout.models.encoders.opening import open_encoder
from toolscout.models.tool_ids.quantizer import CodeOptions
from toolscout.training.code_learning import learn

OUT = RESULTS / f"{NAME}.jsonl"
SETS = ("toollens", "toolbench-g3", "toolbench")
MAIN: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "as served": {},
        "without co-use": {"collaborative": 0.0},
        "published loss": {"collaborative_on": "vectors", "collaborative": 1.0},
        "without Sinkhorn": {"sinkhorn": 0.0},
        "random codes": {"code_source": "random"},
    }
)
SWEEPS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {f"collaborative {weight:g}": {"collaborative": weight} for weight in (0.01, 0.1, 1.0, 10.0)}
    | {
        f"published loss, {weight:g}": {"collaborative_on": "vectors", "collaborative": weight}
        for weight in (0.01, 0.1, 10.0)
    }
    | {f"{codes} codes": {"codes": codes} for codes in (64, 256, 1024)}
    | {f"{levels} levels": {"levels": levels} for levels in (3, 4)}
    | {f"epsilon {epsilon:g}": {"sinkhorn": epsilon} for epsilon in (0.005, 0.02)}
)


def document_vectors(data: Dataset) -> Floats:
    """The vectors of all documents, by the package's encoder."""
    encoder = open_encoder("default")
    found = np.zeros((len(data.tools), encoder.dimension), np.float32)
    for places, vectors in encoder.encode_documents([tool.document() for tool in data.tools]):
        found[places] = vectors
    return found


def used_together(data: Dataset, split: str) -> list[list[int]]:
    """The rows of the tools that each request needs."""
    place = {tool.id: row for row, tool in enumerate(data.tools)}
    return [[place[tool_id] for tool_id in gold] for gold in data.split(split).gold]


def measure(name: str, vectors: Floats, uses: Sequence[Sequence[int]], variant: str, seed: int) -> dict[str, Any]:
    """The row of one variant."""
    changed = {**MAIN, **SWEEPS}[variant]
    started = time.perf_counter()
    found = learn(vectors, uses, CodeOptions(**changed, seed=seed), "cpu").health
    values = {
        "levels": found.levels,
        "codes": found.codes,
        "perplexity": float(np.mean(found.perplexity)),
        "used": float(np.mean(found.used)),
        "together": found.together,
        "by_chance": found.random,
        "lost": found.lost,
        "nearest_collisions": found.nearest_collisions,
        "published_collisions": found.published_collisions,
        "collisions": found.collisions,
        "seconds": time.perf_counter() - started,
    }
    return {
        "bench": NAME,
        "tools": len(vectors),
        "requests": named(name, variant, seed),
        "dataset": name,
        "variant": variant,
        "seed": seed,
        "changed": dict(changed),
        "values": {key: float(f"{value:.5g}") for key, value in values.items()},
        **rows.provenance("python -m studies.tool_codes"),
    }


def named(dataset: str, variant: str, seed: int) -> str:
    """What tells rows apart."""
    return f"{dataset}: {variant}, seed {seed}"


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="toollens,toolbench-g3", help="names of datasets, with commas between them")
    parser.add_argument("--seeds", default="0,1,2", help="of the main variants; the others get the first of them")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    rows.check_writable(given.out)
    there = {row["requests"] for row in rows.known_rows(given.out)}
    seeds = numbers(given.seeds)
    for name in given.only.split(","):
        wanted = [(variant, seed) for seed in seeds for variant in MAIN] + [(variant, seeds[0]) for variant in SWEEPS]
        todo = [(variant, seed) for variant, seed in wanted if named(name, variant, seed) not in there]
        if not todo:
            continue
        data = Dataset.load(find_dataset(name), ["train"])
        vectors, uses = document_vectors(data), used_together(data, "train")
        for variant, seed in todo:
            row = measure(name, vectors, uses, variant, seed)
            rows.append(given.out, row)
            say(f"{row['requests']}: {row['values']}")


if __name__ == "__main__":
    main()
