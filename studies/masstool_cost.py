"""What masstool costs against the number of requests and tools, on made-up vectors: results/cost.jsonl.

python -m studies.masstool_cost [--requests 1000,10000,100000] [--tools 464,4640,46587] [--out FILE] [--work DIR]
[--jobs N]
                    [--stop-after SECONDS] [--option KEY=VALUE]

The numbers of requests are tried with the smallest catalogue, those of tools with the middle number of requests. Each
fit and each measurement of requests is a process of its own; requests are measured on two cores, with an encoder that
costs nothing, beside dense with the same one. Rows that are in the file are not made again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from studies.masstool_cost_report import COST
from studies.running import RESULTS, numbers, run
from toolscout.core.arrays import Floats
from toolscout.core.tool import Tool
from toolscout.data.dataset import Dataset
from toolscout.evaluation import row as rows
from toolscout.models.encoders.base import TextEncoder
from toolscout.papers.jobs import Job
from toolscout.retrievers.dense import Dense
from toolscout.retrievers.masstool import Masstool
from toolscout.retrievers.model_folder import MODEL_FILE
from toolscout.retrievers.option_values import with_settings
from toolscout.retrievers.provenance import TrainingSet
from toolscout.retrievers.tower.options import MasstoolOptions

OUT = RESULTS / "cost.jsonl"
DIMENSION, DEV, ASKED, CORES = 384, 200, 300, 2
# So that requests of one scene have a cosine of about 0.8: neighbours are near enough to be heard.
NOISE = 0.3
_NUMBER = re.compile(r"(\d+)")


class Numbered(TextEncoder):
    """An encoder that costs nothing: a tool's vector is drawn, a request's lies near those of the tools it needs."""

    fingerprint, dimension = "numbered", DIMENSION

    def __init__(self, tools: int, requests: int) -> None:
        """Draw all vectors, and which tools each request needs: those of one of many scenes."""
        rng = np.random.default_rng(0)
        self.documents = _unit(rng.standard_normal((tools, DIMENSION), dtype=np.float32))
        scenes = rng.integers(tools, size=(max(1, tools), 3))
        self.golds = scenes[rng.integers(len(scenes), size=requests)]
        noise = _unit(rng.standard_normal((requests, DIMENSION), dtype=np.float32))
        self.requests = _unit(self.documents[self.golds].mean(1) + np.float32(NOISE) * noise)

    def encode_request(self, text: str) -> Floats:
        """The vector of the request that has this number."""
        found: Floats = self.requests[_number(text)]
        return found

    def encode(self, texts: Sequence[str]) -> Floats:
        """Likewise of several."""
        found: Floats = self.requests[[_number(text) for text in texts]]
        return found

    def encode_documents(self, texts: Sequence[str]) -> Iterator[tuple[NDArray[np.int64], Floats]]:
        """The vectors of the tools that have these numbers."""
        yield np.arange(len(texts)), self.documents[[_number(text) for text in texts]]

    def dataset(self) -> Dataset:
        """All but the last requests to train on, 200 for dev, as many to ask."""
        tools = [Tool("made", f"t{number}", f"number {number}") for number in range(len(self.documents))]
        texts = {f"r{number}": f"request {number}" for number in range(len(self.requests))}
        golds = [tuple(dict.fromkeys(tools[at].id for at in few)) for few in self.golds.tolist()]
        pairs = list(zip(texts, golds, strict=True))
        first, second = len(pairs) - DEV - ASKED, len(pairs) - ASKED
        qrels = {"train": dict(pairs[:first]), "dev": dict(pairs[first:second]), "test": dict(pairs[second:])}
        return Dataset("made-up", tools, texts, qrels)


def fit(tools: int, requests: int, folder: Path, settings: Sequence[str]) -> dict[str, Any]:
    """Fit masstool, in a process that does nothing else."""
    import toolscout.training.tower_task  # noqa: F401  loading torch is no part of a fit

    encoder = Numbered(tools, requests + DEV + ASKED)
    before = _peak_mb()
    model = Masstool(with_settings(MasstoolOptions(), "masstool", settings), encoder)
    report = model.fit([TrainingSet(encoder.dataset(), "train", "dev")], folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
    values = {
        "fit_s": round(report.seconds, 2),
        "fit_peak_mb": round(_peak_mb() - before, 1),
        "model_mb": round(size, 1),
    }
    return {"values": values | _gpu_mb(), "device": report.device}


def ask(tools: int, requests: int, folder: Path) -> dict[str, Any]:
    """Time requests one by one, on two cores, beside dense with the same vectors."""
    encoder = Numbered(tools, requests + DEV + ASKED)
    data = encoder.dataset()
    dense = Dense(None, encoder)
    dense.add(data.tools)
    before = _now_mb()
    model = Masstool.load(folder, encoder)
    values = {"serve_mb": round(_now_mb() - before, 1)}
    for name, one in (("dense", dense), ("masstool", model)):
        times = []
        for _, text in data.split("test").requests:
            started = time.perf_counter()
            one.search([text], 5)
            times.append(1000 * (time.perf_counter() - started))
        p50, p95 = np.percentile(times, [50, 95])
        values |= {f"{name}_p50_ms": round(float(p50), 4), f"{name}_p95_ms": round(float(p95), 4)}
    return {"values": values | {"more_ms": round(values["masstool_p50_ms"] - values["dense_p50_ms"], 4)}}


def measure(tools: int, requests: int, work: Path, settings: tuple[str, ...]) -> dict[str, Any]:
    """The row of one size; both measurements in processes of their own."""
    folder = work / f"{tools}-{requests}"
    if not (folder / MODEL_FILE).is_file():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        found = _alone(["fit", str(tools), str(requests), str(folder), *settings])
        (folder / "cost.json").write_text(json.dumps(found))
    fitted = json.loads((folder / "cost.json").read_text())
    asked = _alone(["ask", str(tools), str(requests), str(folder)])
    values = fitted["values"] | asked["values"]
    record = {"bench": COST, "tools": tools, "requests": str(requests), "values": values, "device": fitted["device"]}
    how = {"how": "made-up tools and requests", "repeats": 1, "options": list(settings)}
    shutil.rmtree(folder)
    return record | how | rows.provenance("python -m studies.masstool_cost")


def _alone(words: Sequence[str]) -> dict[str, Any]:
    """Run one measurement of this script; requests are asked on two cores."""
    environment = dict(os.environ)
    command = [sys.executable, "-m", "studies.masstool_cost", "--alone", *words]
    if words[0] == "ask":
        environment |= {name: str(CORES) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def sizes(requests: Sequence[int], tools: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs of tools and requests, small ones first."""
    middle = sorted(requests)[len(requests) // 2]
    found = {(min(tools), count) for count in requests} | {(count, middle) for count in tools}
    return sorted(found, key=lambda pair: (pair[0] * pair[1], pair))


def _unit(vectors: Floats) -> Floats:
    found: Floats = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return found


def _number(text: str) -> int:
    return int(_NUMBER.findall(text)[-1])


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _now_mb() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _gpu_mb() -> dict[str, float]:
    import torch

    return {"fit_gpu_mb": round(torch.cuda.max_memory_allocated() / 1e6, 1)} if torch.cuda.is_available() else {}


def _child(words: Sequence[str]) -> None:
    kind, tools, requests, folder, *settings = words
    if kind == "ask" and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    size = (int(tools), int(requests), Path(folder))
    found = fit(*size, settings) if kind == "fit" else ask(*size)
    sys.stdout.write(json.dumps(found) + "\n")


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", default="1000,10000,100000")
    parser.add_argument("--tools", default="464,4640,46587")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--work", type=Path, default=Path("models/cost"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--stop-after", type=float, default=float("inf"))
    parser.add_argument("--option", action="append", default=[])
    parser.add_argument("--alone", nargs="+", default=[])
    told = parser.parse_args()
    if told.alone:
        _child(told.alone)
        return
    rows.check_writable(told.out)
    settings = tuple(told.option)
    known = rows.read_rows(told.out)
    there = {(row["tools"], int(row["requests"])) for row in known if row.get("options") == list(settings)}
    pairs = sizes(numbers(told.requests), numbers(told.tools))
    todo = [
        Job(f"{tools} tools, {requests} requests", measure, (tools, requests, told.work, settings))
        for tools, requests in pairs
        if (tools, requests) not in there
    ]
    run(todo, told.jobs, told.stop_after, partial(rows.append, told.out))


if __name__ == "__main__":
    main()
