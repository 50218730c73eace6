"""Catalogues that grow: what toolgen's atomic ids and toolweaver's codes find and cost: results/growth.jsonl.

python -m studies.catalogue_growth [--sizes 1000,10000,46587,130000] [--methods toolgen,toolweaver] [--seeds 0]
[--requests N]
                      [--epochs N] [--vectors FILE …] [--models DIR] [--out FILE] [--stop-after SECONDS] [--only WORD]
                      [--option [METHOD.]KEY=VALUE]
python -m studies.catalogue_growth vectors --out FILE.npz [--sizes …] [--parts N]

The first tools of every catalogue are gold ones of ToolBench: requests of test and of train take turns, in an order by
hash, then those of dev. Other tools of ToolBench follow, by hash, and beyond them operations of openapi_ops and tools
of mcp_tools, mixed by hash, as distractors; so a catalogue holds all that is in a smaller one. Trained is on the
requests of train whose tools are all there (at most --requests of them, by hash), measured on those of test likewise;
where these are fewer in a small catalogue, they are also measured alone in the larger ones. All are trained to the end;
on dev toolgen chooses what similarity counts. Needs $TOOLSCOUT_DATA. Vectors of documents come out of --vectors, which
the second form makes (in parts that can be sent one by one), and are encoded where they are not there. Rows that are in
the file are not made again.
"""

from __future__ import annotations

import argparse
import gc
import resource
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, zip_longest
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from studies.running import RESULTS, by_hash, numbers, progress, run, say
from toolscout import catalogue
from toolscout.catalogue.base import ReadOptions
from toolscout.core.tool import Tool
from toolscout.data import metrics
from toolscout.data.dataset import Dataset
from toolscout.data.locate import find_dataset
from toolscout.errors import BadModel
from toolscout.evaluation import leakage
from toolscout.evaluation import row as rows
from toolscout.evaluation.fit_record import FitRecord
from toolscout.evaluation.request_result import RequestResult
from toolscout.evaluation.row import STUDY
from toolscout.evaluation.vector_cache import tool_vectors
from toolscout.models.encoders.onnx_encoder import Encoder
from toolscout.papers.experiment import ExperimentContext, ExperimentResult, experiment_result, rank_split
from toolscout.papers.jobs import Job
from toolscout.papers.precomputed_encoder import PrecomputedEncoder
from toolscout.retrievers.base import FitReport
from toolscout.retrievers.option_values import with_settings
from toolscout.retrievers.provenance import TrainingSet
from toolscout.retrievers.toolgen import Toolgen, ToolgenOptions
from toolscout.retrievers.toolweaver import Toolweaver, ToolweaverOptions

NAME = "growth"
OUT = RESULTS / "growth.jsonl"
SIZES, METHODS = "1000,10000,46587,130000", "toolgen,toolweaver"
DISTRACTORS = ("openapi_ops/operations.jsonl.gz", "mcp_tools/tools.jsonl.gz")
ADDED = 20
_AT_ONCE = 4096
Model = Toolgen | Toolweaver


@dataclass(frozen=True)
class GrowthPlan:
    """What all jobs share."""

    models: Path
    sizes: tuple[int, ...]
    data: str = "toolbench"
    distractors: tuple[str, ...] = DISTRACTORS
    requests: int = 0
    epochs: int = 3
    vectors: tuple[Path, ...] = ()
    settings: tuple[str, ...] = ()


@lru_cache(maxsize=1)
def read(plan: GrowthPlan) -> Dataset:
    """The dataset with the three splits that are used."""
    return Dataset.load(find_dataset(plan.data), ["train", "dev", "test"])


@lru_cache(maxsize=1)
def ordered(plan: GrowthPlan) -> list[Tool]:
    """All tools up to the largest size; a catalogue is the first of them."""
    whole, largest = read(plan), max(plan.sizes)
    known = {tool.id: tool for tool in whole.tools}
    test, train, dev = (
        [whole.qrels[split][request] for request in by_hash(whole.qrels[split])] for split in ("test", "train", "dev")
    )
    turns = (gold for pair in zip_longest(test, train, fillvalue=()) for gold in pair)
    needed = dict.fromkeys(tool_id for gold in chain(turns, dev) for tool_id in sorted(gold))
    found = [known[tool_id] for tool_id in chain(needed, by_hash(known.keys() - needed.keys()))]
    if largest > len(found):
        folder = find_dataset(plan.data).parent
        others = (catalogue.read(str(folder / name), ReadOptions(keep_going=True)) for name in plan.distractors)
        more = {tool.id: tool for tool in chain.from_iterable(others) if tool.id not in known}
        found += [more[tool_id] for tool_id in by_hash(more)]
    return found[:largest]


def at(plan: GrowthPlan, size: int) -> Dataset:
    """The first tools, and the requests that need no other."""
    whole, tools = read(plan), ordered(plan)[:size]
    there = {tool.id for tool in tools}
    qrels = {
        split: {request: gold for request, gold in found.items() if there.issuperset(gold)}
        for split, found in whole.qrels.items()
    }
    if plan.requests:
        few = by_hash(qrels["train"])[: plan.requests]
        qrels["train"] = {request: qrels["train"][request] for request in few}
    return replace(whole, tools=tools, qrels={split: found for split, found in qrels.items() if found}, scenes={})


def write_vectors(plan: GrowthPlan, path: Path, parts: int) -> list[Path]:
    """Vectors of all documents in half precision, by their digests: in one file, or in some of like size."""
    encoder, tools = Encoder.load(None), ordered(plan)
    size, files = -(-len(tools) // parts), []
    for part in range(parts):
        own = list({tool.digest(): tool for tool in tools[part * size : (part + 1) * size]}.values())
        found = []
        for start in range(0, len(own), _AT_ONCE):
            found.append(tool_vectors(own[start : start + _AT_ONCE], encoder).astype(np.float16))
            say(f"{part * size + start + len(found[-1]):,} of {len(tools):,} documents")
        name = path if parts == 1 else path.with_name(f"{path.stem}-{part}{path.suffix}")
        digests = np.array([tool.digest() for tool in own], dtype=np.str_)
        np.savez(name, encoder=np.array(encoder.fingerprint), digests=digests, vectors=np.concatenate(found))
        files.append(name)
    return files


def read_vectors(paths: Sequence[Path], fingerprint: str) -> dict[str, Any]:
    """What write_vectors wrote, of the same encoder."""
    found: dict[str, Any] = {}
    for path in paths:
        with np.load(path, allow_pickle=False) as file:
            if str(file["encoder"]) != fingerprint:
                raise BadModel(
                    f"{path} was made with another encoder; make it again with: "
                    "python -m studies.catalogue_growth vectors"
                )
            found.update(zip(file["digests"].tolist(), file["vectors"].astype(np.float32), strict=True))
    return found


@lru_cache(maxsize=1)
def stored(plan: GrowthPlan) -> PrecomputedEncoder:
    """The encoder with the vectors of all tools, and of the requests that are asked."""
    whole, encoder = read(plan), Encoder.load(None)
    texts = [text for split in ("dev", "test") for _, text in whole.split(split).requests]
    cache = plan.models / "vectors.db"
    made = PrecomputedEncoder.of(encoder, texts, [], cache)
    missing = made.take_documents(ordered(plan), read_vectors(plan.vectors, encoder.fingerprint))
    say(f"{len(missing):,} of {len(ordered(plan)):,} documents have no vector yet")
    made.add_documents(missing, cache)
    return made


def untrained(plan: GrowthPlan, method: str, seed: int) -> Model:
    """A model with the options of the study; one written METHOD.KEY=VALUE is that method's alone."""
    named = [(name.rpartition("."), value) for name, _, value in (one.partition("=") for one in plan.settings)]
    own = [f"{key}={value}" for (whose, _, key), value in named if whose in ("", method)]
    if method == "toolgen":
        options = with_settings(ToolgenOptions(epochs=plan.epochs, seed=seed), method, own)
        return Toolgen(options, stored(plan))
    woven = with_settings(ToolweaverOptions(epochs=plan.epochs, seed=seed), method, own)
    return Toolweaver(woven, stored(plan))


def measure(plan: GrowthPlan, method: str, size: int, seed: int) -> ExperimentResult:
    """Train at one size, ask, add tools; the row of it."""
    data, folder = at(plan, size), plan.models / job_name(method, size, seed)
    model = untrained(plan, method, seed)
    given = {name: getattr(model.options, name) for name in ("similarity", "new_bonus")}
    leakage.refuse_seen(data, "test", leakage.encoder_history(stored(plan)))
    _forget_peaks()
    report = model.fit([TrainingSet(data, "train", "")], folder, progress())
    if "dev" in data.qrels:  # no epoch is chosen, which would cost more than the training; what similarity counts is
        model.options = replace(model.options, **given)
        model.choose([TrainingSet(data, "train", "dev")])
        model.save(folder)
    costs = {"fit_s": round(report.seconds, 2), **tokens_per_s(model)}
    model.rank([text for _, text in data.split("test").requests[:8]], 1)  # the first are slower than others
    started = time.perf_counter()
    answers = rank_split(data, "test", model)
    costs["requests_per_s"] = round(len(answers) / (time.perf_counter() - started), 2)
    costs |= _peaks() | vocabulary(model)
    costs["model_mb"] = round(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6, 2)
    shown = _about(plan, model, size, seed, report, costs, data)
    row = experiment_result(data, "test", model, answers, shown, data.new_tools("train", "test"), same(plan, answers))
    del model
    gc.collect()
    row.row[STUDY]["costs"] |= adding(method, folder, data.tools, stored(plan))
    shutil.rmtree(folder)
    return row


def _about(
    plan: GrowthPlan, model: Model, size: int, seed: int, report: FitReport, costs: Mapping[str, float], data: Dataset
) -> ExperimentContext:
    told = {
        "name": NAME,
        "tools": len(data.tools),
        "job": job_name(model.name, size, seed),
        "train": len(data.qrels["train"]),
        "epochs": plan.epochs,
        "settings": list(plan.settings),
        "capped": plan.requests,
        "device": report.device,
        "costs": dict(costs),
    }
    fit = FitRecord(round(report.seconds, 3), report.device, report.parameters, seed)
    return ExperimentContext(told, f"{NAME}-{size}-s{seed}", seed, "python -m studies.catalogue_growth", fit)


def tokens_per_s(model: Model) -> dict[str, float]:
    """Tokens of lessons a second, in the stage that goes through requests; nothing where it was only taken up."""
    stages: Mapping[str, Any] = (model.fit_record or {}).get("stages", {})
    pace = float(stages.get("retrieve", {}).get("tokens_per_s", 0))
    return {"tokens_per_s": pace} if pace else {}


def vocabulary(model: Model) -> dict[str, float]:
    """What was added to the vocabulary, what of it is trained, and the memory that takes."""
    added = model.words().added()
    trained = len(model._learned_rows.own) if isinstance(model, Toolgen) else len(added)
    return {"vocabulary": len(added), "trained_rows": trained, "rows_mb": round(added.nbytes / 1e6, 3)}


def same(plan: GrowthPlan, answers: Sequence[RequestResult]) -> dict[str, float]:
    """Measures over the requests that every catalogue of the study can answer."""
    common = set(at(plan, min(plan.sizes)).qrels["test"])
    few = [one for one in answers if one.request_id in common]
    names = ["ndcg@1", "ndcg@3", "ndcg@5", "recall@5"]
    found = metrics.evaluate([one.ranking for one in few], [one.gold for one in few], names)
    return {f"same_{name}": round(value, 6) for name, value in found.items()}


def adding(method: str, folder: Path, tools: Sequence[Tool], encoder: PrecomputedEncoder) -> dict[str, float]:
    """Seconds to open a model, and to add a tool to it: with its document encoded, and what of it is the id alone."""
    started = time.perf_counter()
    model: Model = (Toolgen if method == "toolgen" else Toolweaver).load(folder, encoder)
    found = {"load_s": round(time.perf_counter() - started, 3)}
    whole, alone = [], []
    for tool in tools[:: max(1, len(tools) // ADDED)][:ADDED]:
        new = replace(tool, name=f"{tool.name}_anew", description=f"{tool.description} In a newer form.")
        started = time.perf_counter()
        vectors = {new.digest(): vector for _, batch in encoder.encode_documents([new.document()]) for vector in batch}
        encoded = time.perf_counter()
        model.add([new], vectors)
        whole.append(time.perf_counter() - started)
        alone.append(time.perf_counter() - encoded)
    return found | {"add_s": round(median(whole), 5), "add_id_s": round(median(alone), 5)}


def _forget_peaks() -> None:
    """Peaks of memory are counted from here on, where the machine can do that."""
    gc.collect()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    import torch

    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def _peaks() -> dict[str, float]:
    import torch

    found = {"host_peak_mb": round(_host_peak_mb(), 1)}
    if torch.cuda.is_available():
        found["gpu_peak_mb"] = round(torch.cuda.max_memory_allocated() / 1e6, 1)
    return found


def _host_peak_mb() -> float:
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def job_name(method: str, size: int, seed: int) -> str:
    """What tells jobs apart."""
    return f"{method}-{size}-s{seed}"


def jobs(plan: GrowthPlan, methods: Sequence[str], seeds: Sequence[int], path: Path, only: str = "") -> list[Job]:
    """All jobs whose rows are not in the file yet, small ones first."""
    known = [row[STUDY] for row in rows.known_rows(path)]
    same_plan = {"epochs": plan.epochs, "settings": list(plan.settings), "capped": plan.requests}
    there = {told["job"] for told in known if all(told.get(key) == value for key, value in same_plan.items())}
    made = [
        Job(job_name(method, size, seed), measure, (plan, method, size, seed))
        for seed in seeds
        for size in sorted(plan.sizes)
        for method in methods
    ]
    return [job for job in made if job.name not in there and only in job.name]


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="?", choices=("rows", "vectors"), default="rows")
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--requests", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--vectors", type=Path, nargs="*", default=[])
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--models", type=Path, default=Path("models/growth"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--stop-after", type=float, default=float("inf"))
    parser.add_argument("--only", default="")
    parser.add_argument("--option", action="append", default=[])
    told = parser.parse_args()
    plan = GrowthPlan(
        told.models,
        tuple(numbers(told.sizes)),
        requests=told.requests,
        epochs=told.epochs,
        vectors=tuple(told.vectors),
        settings=tuple(told.option),
    )
    if told.what == "vectors":
        for path in write_vectors(plan, told.out or Path("vectors.npz"), told.parts):
            say(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
        return
    out = told.out or OUT
    rows.check_writable(out)
    told.models.mkdir(parents=True, exist_ok=True)
    todo = jobs(plan, told.methods.split(","), numbers(told.seeds), out, told.only)
    run(todo, 1, told.stop_after, lambda one: rows.append_with_scores(out, one.row, one.lines))


if __name__ == "__main__":
    main()
